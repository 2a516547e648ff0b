//! One daemon of a dev cluster: where its files are, whether it runs, how it is started.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Child, Command},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    dev::{
        log::Log,
        plan::replace,
        process::{self, Process},
    },
    programs,
};

/// One daemon of a dev cluster.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    /// `metadata`, `target-0`, `mount-0`: also its directory's name.
    pub(crate) name: String,
    /// `metadata`, `target` or `mount`.
    pub(crate) role: &'static str,
    /// Its executable's name.
    pub(crate) program: &'static str,
    /// Where its files are.
    pub(crate) directory: PathBuf,
    /// Its settings file, which its command line names.
    pub(crate) settings_file: PathBuf,
    /// What stands in the settings file.
    pub(crate) settings: toml::Table,
    /// Arguments after `--config FILE`.
    pub(crate) arguments: Vec<OsString>,
    /// Where it listens, or where it is mounted.
    pub(crate) address: String,
}

impl Daemon {
    /// Its process, if it runs.
    pub(crate) fn process(&self) -> Option<Process> {
        Process::find(&self.pid_file(), &self.settings_file)
    }

    /// Writes its settings anew.
    ///
    /// # Errors
    /// When its directory cannot be written to.
    pub(crate) fn write_settings(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot make {}", self.directory.display()))?;
        let text = toml::to_string(&self.settings).context("cannot write settings")?;
        let note = "# Written by `millrace dev up`, which replaces every change made here.\n";
        replace(&self.settings_file, format!("{note}{text}").as_bytes())
    }

    /// Starts it and remembers its process.
    ///
    /// # Errors
    /// When the executable is missing, or it ends at once.
    pub(crate) fn start(&self) -> anyhow::Result<Started> {
        let log = Log::at_end(&self.log_file());
        let mut command = Command::new(programs::find(self.program)?);
        command.arg("--config").arg(&self.settings_file);
        command.args(&self.arguments);
        let child = process::spawn(command, &self.log_file())?;
        let mut started = Started { name: self.name.clone(), child, log };
        if let Err(error) = Process::remember(&started.child, &self.pid_file()) {
            started.check()?;
            return Err(error);
        }
        Ok(started)
    }

    /// How long it has to end before it is killed.
    pub(crate) fn stop_patience(&self) -> Duration {
        match self.role {
            "mount" => MOUNT_STOP_PATIENCE,
            _ => STOP_PATIENCE,
        }
    }

    /// Its log, which is appended to by each start.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.directory.join("daemon.log")
    }

    /// Forgets the process, which has ended.
    pub(crate) fn forget(&self) {
        Process::forget(&self.pid_file());
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("daemon.pid")
    }
}

/// A daemon that was just started.
#[derive(Debug)]
pub(crate) struct Started {
    name: String,
    /// Its process.
    pub(crate) child: Child,
    /// Its log, from this start on.
    pub(crate) log: Log,
}

impl Started {
    /// Fails with the daemon's last words when it has ended.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("cannot ask for a daemon's end")? {
            None => Ok(()),
            Some(status) => {
                anyhow::bail!("{} ended ({status}); {}", self.name, self.log.last_words())
            }
        }
    }

    /// Whether it has ended because somebody else listens at its port.
    pub(crate) fn has_found_its_port_taken(&mut self) -> bool {
        let says_so =
            |line: &str| line.contains("cannot listen on") && line.contains("already in use");
        self.check().is_err() && self.log.last_words().lines().any(says_so)
    }

    /// Ends it, unless it has ended.
    ///
    /// # Errors
    /// When it does not end.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        // Until it is waited for, nobody else gets its process id.
        if self.child.try_wait().context("cannot ask for a daemon's end")?.is_none()
            && let Some(process) = Process::by_id(self.child.id())
        {
            process.stop(STOP_PATIENCE)?;
            self.child.wait().context("cannot wait for a daemon's end")?;
        }
        Ok(())
    }
}

/// How long a server has to end: longer than the 30 s that each allows itself to drain.
const STOP_PATIENCE: Duration = Duration::from_secs(40);

/// How long a mount has to end: 30 s until the kernel has let go of it, as long to store what it
/// holds, and some to tell the servers. Killed before, it would lose what it still sends.
const MOUNT_STOP_PATIENCE: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn daemon(directory: &Path, program: &'static str) -> Daemon {
        Daemon {
            name: "target-0".into(),
            role: "target",
            program,
            directory: directory.to_owned(),
            settings_file: directory.join("target.toml"),
            settings: toml::Table::new(),
            arguments: Vec::new(),
            address: "127.0.0.1:1".into(),
        }
    }

    #[test]
    fn a_daemon_that_ends_is_told_with_what_this_start_has_logged() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = daemon(directory.path(), "ls");
        std::fs::write(daemon.log_file(), "words of an earlier start\n").unwrap();
        // `ls --config FILE` is no daemon: it complains and ends.
        let told = match daemon.start() {
            Err(error) => error.to_string(),
            Ok(mut started) => loop {
                if let Err(error) = started.check() {
                    break error.to_string();
                }
                std::thread::yield_now();
            },
        };
        assert!(told.contains("target-0 ended (exit status"), "{told}");
        assert!(told.contains("--config"), "{told}");
        assert!(!told.contains("earlier"), "{told}");
    }

    fn started(directory: &Path, arguments: &[&str]) -> Started {
        let path = directory.join("daemon.log");
        let log = Log::at_end(&path);
        let mut command = Command::new("sh");
        command.arg("-c").args(arguments);
        let child = process::spawn(command, &path).unwrap();
        Started { name: "target-0".into(), child, log }
    }

    #[test]
    fn a_daemon_whose_port_is_taken_is_told_from_others_that_end() {
        let directory = tempfile::tempdir().unwrap();
        for (words, expected) in [
            ("fails: cannot listen on 127.0.0.1:1: Address already in use (os error 98)", true),
            ("fails: cannot listen on 127.0.0.1:1: Permission denied (os error 13)", false),
        ] {
            let mut daemon = started(directory.path(), &["echo \"$1\"", "sh", words]);
            daemon.child.wait().unwrap();
            assert_eq!(daemon.has_found_its_port_taken(), expected, "{words}");
        }
    }

    #[test]
    fn a_mount_has_longer_to_end_than_a_server() {
        let daemon = daemon(Path::new("/nowhere"), "ls");
        assert_eq!(daemon.stop_patience(), STOP_PATIENCE);
        let mount = Daemon { role: "mount", ..daemon };
        assert_eq!(mount.stop_patience(), MOUNT_STOP_PATIENCE);
    }

    #[test]
    fn a_daemon_is_ended_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut daemon = started(directory.path(), &["exec sleep 600"]);
        assert!(!daemon.has_found_its_port_taken(), "it runs");
        for _ in 0..2 {
            daemon.end().unwrap();
            assert!(daemon.check().is_err());
        }
    }
}
