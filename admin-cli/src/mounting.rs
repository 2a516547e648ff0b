//! Mounting and unmounting: starts the FUSE client's daemon and sees it through until the kernel
//! lists the mount.
//!
//! The daemon is a program of its own (`millrace-fuse`), which stays in the foreground; this module
//! puts it into the background and waits. Modules, in reading order: [`options`] (`-o` and
//! `SOURCE`), [`start`], [`end`].

use std::path::PathBuf;

use clap::Parser;

use crate::arguments::{Cli, Command, Globals, MountArguments};

pub(crate) mod end;
pub(crate) mod options;
pub(crate) mod start;

/// The name under which mount(8) calls this program: `/sbin/mount.millrace`.
pub(crate) const HELPER_NAME: &str = "mount.millrace";

/// The arguments that mount(8) gives its helpers.
#[derive(Parser, Debug)]
#[command(name = HELPER_NAME, version, about = "Mounts Millrace; called by mount(8)")]
pub(crate) struct HelperArguments {
    /// `HOST[:PORT][,HOST...]:/PATH`
    source: String,
    /// An existing directory
    mountpoint: PathBuf,
    /// Comma-separated mount options
    #[arg(short = 'o', value_name = "OPTIONS", action = clap::ArgAction::Append)]
    options: Vec<String>,
    /// Check everything, mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Tolerate unknown options; mount(8) passes it on, and unknown ones are refused all the same
    #[arg(short = 's')]
    sloppy: bool,
    /// Do not write to /etc/mtab; there is none to write to
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Say more; there is nothing more to say
    #[arg(short = 'v')]
    verbose: bool,
    /// Namespace; mount(8) has entered it already
    #[arg(short = 'N', value_name = "NS")]
    namespace: Option<String>,
    /// The type, millrace
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

impl HelperArguments {
    /// The same as a command line of this tool.
    pub(crate) fn into_command(self) -> Cli {
        Cli {
            globals: Globals::default(),
            command: Command::Mount(MountArguments {
                options: self.options,
                source: Some(self.source),
                fake: self.fake,
                mountpoint: self.mountpoint,
                quiet: true,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_of_mount_8_become_a_mount_command() {
        HelperArguments::command().debug_assert();
        let line = "mount.millrace meta-1,meta-2:/train /mnt -n -o rw,identity=F -o ro";
        let cli = HelperArguments::try_parse_from(line.split(' ')).unwrap().into_command();
        let Command::Mount(mount) = cli.command else {
            panic!("another command");
        };
        assert_eq!(mount.source.as_deref(), Some("meta-1,meta-2:/train"));
        assert_eq!(mount.options, ["rw,identity=F", "ro"]);
        assert!(!mount.fake && mount.quiet);
    }
}
