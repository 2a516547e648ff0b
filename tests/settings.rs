//! Every settings file in `config/` is one that its program accepts, as it stands and with every
//! commented-out key in force, and those keys show the defaults.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use millrace_admin_cli::AdminSettings;
use millrace_service::config::{ENV_PREFIX, SECTIONS, load_with};
use millrace_tests::program::repository;
use serde::{Serialize, de::DeserializeOwned};

#[test]
fn the_metadata_servers_file_is_accepted_and_shows_the_defaults() -> Result<()> {
    let examples = ["credentials_file", "address"];
    let file = File::of("metadata-server.toml")?;
    file.check::<millrace_metadata_server::settings::Settings>(&examples)
}

#[test]
fn the_storage_targets_file_is_accepted_and_shows_the_defaults() -> Result<()> {
    // Examples of what has no default, or another one on each host.
    let examples = [
        "advertise",
        "name",
        "data",
        "capacity",
        "id",
        "credentials_file",
        "server_sockets",
        "address",
    ];
    File::of("storage-target.toml")?.check::<millrace_storage_target::settings::Settings>(&examples)
}

#[test]
fn the_mounts_file_is_accepted_and_shows_the_defaults() -> Result<()> {
    let examples = ["mountpoint", "source", "allow_other", "threads", "bulk_sockets", "address"];
    File::of("client-fuse.toml")?.check::<millrace_client_fuse::settings::Settings>(&examples)
}

#[test]
fn the_operators_file_is_accepted() -> Result<()> {
    File::of("admin.toml")?.check::<AdminSettings>(&[])
}

#[test]
fn the_environment_is_shared_by_the_programs_that_there_are_and_by_no_others() -> Result<()> {
    let mut known = sections_of::<millrace_metadata_server::settings::Settings>()?;
    known.extend(sections_of::<millrace_storage_target::settings::Settings>()?);
    known.extend(sections_of::<millrace_client_fuse::settings::Settings>()?);
    known.extend(sections_of::<AdminSettings>()?);
    let listed: BTreeSet<_> = SECTIONS.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(known, listed);
    Ok(())
}

/// What is at the top of a program's settings, as it says when something else is there.
fn sections_of<S: DeserializeOwned>() -> Result<BTreeSet<String>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("settings.toml");
    std::fs::write(&path, "no_such_section = 1\n")?;
    let refused = load_with::<S>(Some(&path), ENV_PREFIX, []).err().context("it is unknown")?;
    let refused = refused.to_string();
    let allowed = refused.lines().find_map(|line| line.split_once("; allowed here: "));
    let (_, allowed) = allowed.with_context(|| refused.clone())?;
    Ok(allowed.split(", ").map(str::to_owned).collect())
}

/// A settings file of `config/`.
struct File {
    name: &'static str,
    text: String,
}

impl File {
    fn of(name: &'static str) -> Result<Self> {
        let path = repository().join("config").join(name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(Self { name, text })
    }

    /// Loads the file as it stands and with its comments in force, `examples` left out: both are
    /// the same settings.
    fn check<S: Serialize + DeserializeOwned>(&self, examples: &[&str]) -> Result<()> {
        let plain: S = self.load(&self.text)?;
        let spelt: S = self.load(&self.with_comments_in_force(&[]))?;
        drop(spelt);
        let defaults: S = self.load(&self.with_comments_in_force(examples))?;
        assert_eq!(
            serde_json::to_value(&defaults)?,
            serde_json::to_value(&plain)?,
            "{}: a commented-out key does not show its default",
            self.name
        );
        Ok(())
    }

    fn load<S: DeserializeOwned>(&self, text: &str) -> Result<S> {
        let directory = tempfile::tempdir()?;
        let path: PathBuf = directory.path().join(Path::new(self.name));
        std::fs::write(&path, text)?;
        Ok(load_with(Some(&path), ENV_PREFIX, [])?)
    }

    /// The text with `# key = value` turned into `key = value`, but for the keys in `left_out`.
    fn with_comments_in_force(&self, left_out: &[&str]) -> String {
        let lines = self.text.lines().map(|line| {
            let Some((key, _)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(" = "))
            else {
                return line;
            };
            let is_key = key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            match is_key && !left_out.contains(&key) {
                true => &line[2..],
                false => line,
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
