//! The options of a mount: what the help and the documents list is what works.

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::{Context, Result};
use millrace_client_fuse::settings::{Overrides, Settings, parse_servers};
use millrace_service::mount_options;
use millrace_tests::program::{PATIENCE, binaries, finish, repository};

#[test]
fn every_listed_mount_option_works_and_help_and_documents_list_the_same() -> Result<()> {
    let helped = of_help()?;
    assert_eq!(helped, of_document()?, "the help on the left, docs/cli.md on the right");
    assert!(helped.len() > 10, "{helped:?}");
    assert_eq!(words_of(&helped), known(), "the help on the left, what is understood on the right");
    for option in &helped {
        // Files have to be given with absolute paths; everything else is an example as it stands.
        let option = option.replace("=FILE", "=/no/such/file");
        let fake = ["mount", "--fake", "-o", &option, "/"];
        finish(Command::new(binaries().join("millrace")).args(fake), PATIENCE)?
            .ok()
            .with_context(|| option.clone())?;
        if option.starts_with("config=") || option.starts_with("log=") {
            continue; // The tool's own; the daemon never sees them.
        }
        let overrides = Overrides {
            mountpoint: Some("/mnt".into()),
            identity: Some("/client.pem".into()),
            servers: parse_servers("meta-1").map_err(anyhow::Error::msg)?,
            source: None,
            options: vec![option.clone()],
        };
        Settings::default().with(overrides).with_context(|| option.clone())?;
    }
    Ok(())
}

#[test]
fn an_option_that_nobody_knows_is_refused_although_nothing_is_mounted() -> Result<()> {
    for (option, word) in [("foo", "known are ro, rw"), ("path=nosuch", "an absolute path")] {
        let fake = ["mount", "-f", "-o", option, "/"];
        let said = finish(Command::new(binaries().join("millrace")).args(fake), PATIENCE)?;
        assert!(said.code == Some(2) && said.stderr.contains(word), "{said}");
    }
    Ok(())
}

/// Options without what an example gives them.
fn words_of(options: &BTreeSet<String>) -> BTreeSet<String> {
    let word = |option: &String| match option.split_once('=') {
        Some((name, _)) => format!("{name}="),
        None => option.clone(),
    };
    options.iter().map(word).collect()
}

/// What is understood, but for another name of `relatime`.
fn known() -> BTreeSet<String> {
    mount_options::known().into_iter().filter(|word| word != "atime").collect()
}

/// The words in front of the explanations, between the line about `-o` and the next empty one.
fn of_help() -> Result<BTreeSet<String>> {
    let mut millrace = Command::new(binaries().join("millrace"));
    let help = finish(millrace.args(["mount", "--help"]), PATIENCE)?.ok()?;
    let lines = help.lines().skip_while(|line| !line.starts_with("Options (-o)")).skip(1);
    let lines = lines.take_while(|line| !line.trim().is_empty());
    let words = lines.filter_map(|line| line.trim_start().split("  ").next());
    Ok(words.flat_map(|words| words.split(", ")).map(str::to_owned).collect())
}

/// The words in the first column of the table of options.
fn of_document() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(repository().join("docs/cli.md"))?;
    let rows = text.lines().skip_while(|line| !line.starts_with("| option (`-o`)")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.split('|').nth(1));
    Ok(columns.flat_map(|column| column.split('`').skip(1).step_by(2)).map(str::to_owned).collect())
}
