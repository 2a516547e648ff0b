//! `millrace metadata restore FILE`: has the metadata server's program put a backup back.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use millrace_service::config::ENV_PREFIX;
use serde::{Deserialize, Serialize};

use crate::{arguments::RestoreArguments, context::Context, exit::Exit, programs, watch};

/// Where the settings are when nobody says so.
const SERVER_FILE: &str = "/etc/millrace/metadata-server.toml";

/// What the server's unit adds to its environment, where settings may stand too.
const ENVIRONMENT: &str = "/etc/millrace/metadata.env";

/// The settings of the metadata server in the directory of a dev cluster.
const DEV_FILE: &str = "metadata/metadata.toml";

/// What was put back, and for which server.
#[derive(Serialize, Debug)]
struct RestoreReport {
    file: String,
    server_config: String,
    data: String,
}

/// Of the settings that the server's program would use, what is told.
#[derive(Deserialize, Debug)]
struct Effective {
    data: PathBuf,
}

/// Runs the program beside this one; what it says goes to standard error.
pub(crate) fn run(context: &Context, arguments: &RestoreArguments) -> anyhow::Result<Exit> {
    let settings = settings_of(context, arguments);
    ensure!(
        settings.is_file(),
        "there are no settings of a metadata server at {}; name them with --server-config",
        settings.display()
    );
    let program = programs::find(programs::METADATA)?;
    // The server of a dev cluster has no unit.
    let has_unit = arguments.server_config.is_some() || context.globals.dir.is_none();
    if has_unit
        && let Ok(text) = fs::read_to_string(ENVIRONMENT)
        && let Some(warning) = unread(&text, |name| std::env::var_os(name).is_some())
    {
        watch::say(&format!("warning: {warning}"));
    }
    let data = data_of(&program, &settings)?;
    let status = Command::new(&program)
        .arg("--config")
        .arg(&settings)
        .arg("restore")
        .arg(&arguments.file)
        .status()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(status.success(), "the backup was not put back: {} says why", programs::METADATA);
    let report = RestoreReport {
        file: arguments.file.display().to_string(),
        server_config: settings.display().to_string(),
        data: data.display().to_string(),
    };
    context.output.result(&report, || in_place(&data))?;
    Ok(Exit::Done)
}

fn settings_of(context: &Context, arguments: &RestoreArguments) -> PathBuf {
    match (&arguments.server_config, &context.globals.dir) {
        (Some(named), _) => named.clone(),
        (None, Some(dir)) => dir.join(DEV_FILE),
        (None, None) => Path::new(SERVER_FILE).to_owned(),
    }
}

/// The directory into which the program puts a backup: it may have it from its environment.
fn data_of(program: &Path, settings: &Path) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(program);
    command.arg("--config").arg(settings).arg("--check-config");
    let said = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    let words = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "the backup was not put back: {}", words.trim());
    let shown = String::from_utf8_lossy(&said.stdout);
    let effective: Effective = toml::from_str(&shown)
        .with_context(|| format!("cannot read the settings that {} shows", program.display()))?;
    Ok(effective.data)
}

/// A warning when settings are given to the server by its unit, with `text`, and not to this
/// command: `is_set` tells what it has. They may name another data directory.
fn unread(text: &str, is_set: impl Fn(&str) -> bool) -> Option<String> {
    let lines = text.lines().map(str::trim_start);
    let names = lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim_end());
    // As the program tells settings from other variables.
    let is_setting = |name: &&str| name.starts_with(ENV_PREFIX) && name.contains("__");
    let missing: Vec<_> = names.filter(is_setting).filter(|name| !is_set(name)).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "the metadata server also has settings from {ENVIRONMENT} ({}), and this command has \
             not; give them to it too: `set -a; . {ENVIRONMENT}; set +a` before it",
            missing.join(", ")
        )
    })
}

/// Nothing has been checked on the new server: what is missing is told by a check of its own.
fn in_place(data: &Path) -> String {
    format!(
        "the backup is in {}: start the metadata server, then all targets; `{CHECK}` tells what is \
         missing; then start the clients",
        data.display()
    )
}

const CHECK: &str = "millrace fsck start --report-only --wait";

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Cli, Command, FsckCommand};

    #[test]
    fn what_is_said_to_do_next_can_be_done() {
        let said = in_place(Path::new("/srv/meta"));
        assert!(said.starts_with("the backup is in /srv/meta: "), "{said}");
        let told = said.split('`').nth(1).expect("a command");
        let cli = Cli::try_parse_from(told.split(' ')).unwrap();
        let Command::Fsck(FsckCommand::Start(arguments)) = cli.command else {
            panic!("{told} starts no check");
        };
        assert!(arguments.report_only && arguments.wait.wait);
    }

    #[test]
    fn settings_that_the_server_alone_is_given_are_told() {
        let text = "# MILLRACE__DATA=/no\nAWS_ACCESS_KEY_ID=a\n\n MILLRACE__DATA=/srv/meta\n\
                    MILLRACE_CONFIG=/c\nMILLRACE_STORE__ENGINE=sled\n";
        let told = unread(text, |_| false).expect("a warning");
        assert!(told.contains("(MILLRACE__DATA, MILLRACE_STORE__ENGINE)"), "{told}");
        assert!(told.contains(&format!("`set -a; . {ENVIRONMENT}; set +a`")), "{told}");
        assert_eq!(unread(text, |_| true), None, "this command has them too");
        assert_eq!(unread("AWS_ACCESS_KEY_ID=a\n", |_| false), None);
    }
}
