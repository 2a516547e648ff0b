//! `millrace metadata restore FILE`: has the metadata server's program put a backup back.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::{arguments::RestoreArguments, context::Context, exit::Exit, programs};

/// Where the settings are when nobody says so.
const SERVER_FILE: &str = "/etc/millrace/metadata-server.toml";

/// The settings of the metadata server in the directory of a dev cluster.
const DEV_FILE: &str = "metadata/metadata.toml";

/// What was put back, and for which server.
#[derive(Serialize, Debug)]
struct RestoreReport {
    file: String,
    server_config: String,
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
    };
    context.output.result(&report, || IN_PLACE.to_owned())?;
    Ok(Exit::Done)
}

fn settings_of(context: &Context, arguments: &RestoreArguments) -> PathBuf {
    match (&arguments.server_config, &context.globals.dir) {
        (Some(named), _) => named.clone(),
        (None, Some(dir)) => dir.join(DEV_FILE),
        (None, None) => Path::new(SERVER_FILE).to_owned(),
    }
}

/// Nothing has been checked on the new server: what is missing is told by a check of its own.
const IN_PLACE: &str = "the backup is in place: start the metadata server, then all targets; \
                        `millrace fsck start --report-only --wait` tells what is missing; then \
                        start the clients";

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Cli, Command, FsckCommand};

    #[test]
    fn what_is_said_to_do_next_can_be_done() {
        let told = IN_PLACE.split('`').nth(1).expect("a command");
        let cli = Cli::try_parse_from(told.split(' ')).unwrap();
        let Command::Fsck(FsckCommand::Start(arguments)) = cli.command else {
            panic!("{told} starts no check");
        };
        assert!(arguments.report_only && arguments.wait.wait);
    }
}
