//! Metrics that documents name are exported by a daemon, under that very name: an alert that is
//! copied from the text can fire. And what daemons export is named by a document.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use millrace_metadata_server::{daemon::Daemon, settings::Settings};
use millrace_tests::program::repository;

/// Documents that name metrics.
const DOCUMENTS: [&str; 3] = ["docs/operations.md", "docs/hydration.md", "docs/performance.md"];

/// What such names begin with; all but the first are of names that lack it.
const BEGINNINGS: [&str; 4] = ["millrace_", "metadata_", "target_", "mount_"];

#[test]
fn every_metric_that_a_document_names_is_exported_under_that_name() -> Result<()> {
    let exported = exported()?;
    let mut complaints = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(repository().join(document));
        let text = text.with_context(|| format!("reading {document}"))?;
        let named = named(&text);
        ensure!(!named.is_empty(), "{document} names no metric");
        let wrong = named.into_iter().filter(|name| !exported.contains(*name));
        complaints.extend(wrong.map(|name| format!("{document}: no daemon exports {name}")));
    }
    ensure!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    Ok(())
}

#[test]
fn every_metric_that_is_exported_is_named_by_a_document() -> Result<()> {
    let exported = exported()?;
    let mut texts = String::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(repository().join(document));
        texts.push_str(&text.with_context(|| format!("reading {document}"))?);
    }
    let named = named(&texts);
    // The parts of a histogram go with its name.
    let is_part = |name: &str| {
        let whole = ["_bucket", "_count", "_sum"].iter().find_map(|&end| name.strip_suffix(end));
        whole.is_some_and(|whole| exported.contains(whole))
    };
    let missing = exported.iter().map(String::as_str);
    let missing = missing.filter(|name| !named.contains(name) && !is_part(name));
    let complaints: Vec<_> = missing.map(|name| format!("no document names {name}")).collect();
    ensure!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    Ok(())
}

#[test]
fn names_are_found_with_labels_and_without_their_prefix() {
    let text = "| `millrace_target_space_bytes{use=\"…\"}`, `target_used` | `millrace status` |";
    let found = named(text).into_iter().collect::<Vec<_>>();
    assert_eq!(found, ["millrace_target_space_bytes", "target_used"]);
}

/// Names of metrics between the backticks of a text, without labels.
fn named(text: &str) -> BTreeSet<&str> {
    let marked = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let names = marked.map(|marked| marked.split('{').next().unwrap_or(marked));
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let begins = |name: &str| BEGINNINGS.iter().any(|beginning| name.starts_with(*beginning));
    names.filter(|name| name.bytes().all(is_of_name) && begins(name)).collect()
}

/// The names that the three daemons export.
fn exported() -> Result<BTreeSet<String>> {
    let directory = tempfile::tempdir()?;
    let identity = identity(directory.path())?;
    let data = directory.path().join("data");
    let text = format!("listen = '127.0.0.1:0'\nidentity = {identity:?}\ndata = {data:?}\n");
    let settings: Settings = toml::from_str(&text)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let of_server = runtime.block_on(async {
        let daemon = Box::pin(Daemon::start(&settings)).await?;
        let names = daemon.metrics().names().to_vec();
        daemon.stop().await?;
        anyhow::Ok(names)
    });
    let of_target = millrace_storage_target::exported_names();
    let of_mount = millrace_client_fuse::exported_names();
    Ok([of_server?, of_target, of_mount].concat().into_iter().collect())
}

/// That of the metadata server of a new cluster.
fn identity(directory: &Path) -> Result<PathBuf> {
    let (authority, identity) = (directory.join("authority"), directory.join("metadata.pem"));
    let millrace = |arguments: &[&OsStr]| {
        let program = [OsStr::new("millrace")];
        let all = program.iter().chain(arguments).map(|word| word.to_os_string());
        millrace_admin_cli::main(all.collect::<Vec<_>>())
    };
    let word = |text: &'static str| OsStr::new(text);
    let dir = [word("--dir"), authority.as_os_str()];
    millrace(&[&[word("cluster"), word("init")][..], &dir].concat());
    let invite = [word("cluster"), word("invite"), word("--role"), word("metadata")];
    let out = [word("--out"), identity.as_os_str()];
    millrace(&[&invite[..], &dir, &out].concat());
    ensure!(identity.is_file(), "the tool has made no identity");
    Ok(identity)
}
