//! A daemon's process: found again, checked, signalled and waited for without ever hitting another.
//!
//! A process is the same one when its id, its start time and its command line agree. The id stands
//! alone in a file, for people and their scripts, and the start time in one beside it. A process is
//! signalled through a descriptor (`pidfd`) that was opened before the check, so that the kernel
//! cannot give the id to another process in between.

use std::{
    ffi::OsStr,
    fs::File,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::dev::plan::replace;

/// A process that was seen running.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    descriptor: OwnedFd,
}

impl Process {
    /// Finds the running process that `pid_file` names and whose command line has the settings
    /// `argument`. When the file is missing or old, the user's processes are looked through.
    pub(crate) fn find(pid_file: &Path, argument: &Path) -> Option<Self> {
        let named = remembered(pid_file);
        let named = named.and_then(|(pid, start)| Self::open(pid, argument, Some(start)));
        named.or_else(|| Self::search(argument))
    }

    /// The running process with this id, whatever it is.
    pub(crate) fn by_id(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { pid, descriptor })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Asks for an end with SIGTERM; after `patience` ends it with SIGKILL. Returns whether it went
    /// by itself.
    ///
    /// # Errors
    /// When it may not be signalled, or outlives SIGKILL (it hangs in the kernel).
    pub(crate) fn stop(&self, patience: Duration) -> anyhow::Result<bool> {
        self.signal(Signal::TERM)?;
        if self.wait(patience)? {
            return Ok(true);
        }
        self.signal(Signal::KILL)?;
        if self.wait(KILL_PATIENCE)? {
            return Ok(false);
        }
        bail!("process {} does not end, not even with SIGKILL", self.id())
    }

    /// Remembers the process in `pid_file`, and beside it when it started.
    ///
    /// # Errors
    /// When a file cannot be written, or the process is gone already.
    pub(crate) fn remember(child: &Child, pid_file: &Path) -> anyhow::Result<()> {
        let pid = child.id();
        let start = start_time(pid).context("the process has ended at once")?;
        replace(&start_file(pid_file), format!("{start}\n").as_bytes())?;
        replace(pid_file, format!("{pid}\n").as_bytes())
    }

    /// Forgets the process that `pid_file` names, which has ended.
    pub(crate) fn forget(pid_file: &Path) {
        // A file that stays is found to be old by its start time.
        drop(std::fs::remove_file(pid_file));
        drop(std::fs::remove_file(start_file(pid_file)));
    }

    fn open(pid: u32, argument: &Path, start: Option<u64>) -> Option<Self> {
        let process = Self::by_id(pid)?;
        // Checked after opening: what is read now belongs to the process that the descriptor holds,
        // or to none.
        let same_start = start.is_none_or(|start| start_time(pid) == Some(start));
        let found = same_start && has_settings(pid, argument);
        (found && !process.wait(Duration::ZERO).unwrap_or(true)).then_some(process)
    }

    fn search(argument: &Path) -> Option<Self> {
        let processes = std::fs::read_dir("/proc").ok()?;
        let ids =
            processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|&pid| pid != std::process::id() && is_own(pid) && has_settings(pid, argument))
            .find_map(|pid| Self::open(pid, argument, None))
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        match pidfd_send_signal(&self.descriptor, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => {
                Err(error).with_context(|| format!("cannot signal process {}", self.id()))
            }
        }
    }

    /// Waits until the process has ended, at most for `patience`; tells whether it has.
    ///
    /// # Errors
    /// When the system does not let it wait.
    pub(crate) fn wait(&self, patience: Duration) -> anyhow::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).context("a wait too long")?;
            let mut watched = [PollFd::new(&self.descriptor, PollFlags::IN)];
            match poll(&mut watched, Some(&timeout)) {
                Ok(ended) => return Ok(ended > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for a process"),
            }
        }
    }
}

/// Starts `command` in a session of its own, so that it outlives the terminal and its Ctrl-C, with
/// its output at the end of `log`.
///
/// # Errors
/// When the program or the log cannot be opened.
pub(crate) fn spawn(mut command: Command, log: &Path) -> anyhow::Result<Child> {
    // SAFETY: between fork and exec the closure calls setsid(2) alone, which is async-signal-safe
    // and touches no memory.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    spawn_beside(command, log)
}

/// Starts `command` in the process group of this program, with its output at the end of `log`. To
/// outlive the terminal it has to leave the group by itself.
///
/// # Errors
/// When the program or the log cannot be opened.
pub(crate) fn spawn_beside(mut command: Command, log: &Path) -> anyhow::Result<Child> {
    let output = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot open {}", log.display()))?;
    let errors = output.try_clone().context("cannot open the log twice")?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir("/");
    command
        .spawn()
        .with_context(|| format!("cannot start {}", Path::new(command.get_program()).display()))
}

/// The settings files of the daemons that run: what follows `--config` in command lines.
pub(crate) fn settings_files() -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let named = |line: Vec<u8>| {
        let words = line.split(|&byte| byte == 0);
        let file = words.skip_while(|&word| word != b"--config").nth(1)?;
        Some(PathBuf::from(OsStr::from_bytes(file)))
    };
    lines.filter_map(named).collect()
}

/// The process that was remembered in `pid_file`, and when it started. Earlier versions wrote both
/// there.
fn remembered(pid_file: &Path) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(pid_file).ok()?;
    match text.trim().split_once(' ') {
        Some((pid, start)) => Some((pid.parse().ok()?, start.parse().ok()?)),
        None => {
            let start = std::fs::read_to_string(start_file(pid_file)).ok()?;
            Some((text.trim().parse().ok()?, start.trim().parse().ok()?))
        }
    }
}

/// Beside `daemon.pid`, `daemon.start`.
fn start_file(pid_file: &Path) -> PathBuf {
    pid_file.with_extension("start")
}

/// Whether a process serves with these settings: they follow `--config`, as who only edits or shows
/// them does not say, and it was not started for something else.
fn has_settings(pid: u32, argument: &Path) -> bool {
    let wanted = argument.as_os_str().as_bytes();
    // Of an ended process that nobody has waited for the command line is empty.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
        let words: Vec<_> = line.split(|&byte| byte == 0).collect();
        let is_named = words.windows(2).any(|pair| pair == [b"--config".as_slice(), wanted]);
        let serves = |word: &&[u8]| *word != b"restore" && *word != b"--check-config";
        is_named && words.iter().all(serves)
    })
}

/// Whether a process is the caller's. Anybody may run any command line.
fn is_own(pid: u32) -> bool {
    let caller = rustix::process::geteuid().as_raw();
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == caller)
}

/// When the process started, in clock ticks since the system's start: proc(5), field 22 of `stat`.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may itself hold both.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// How long the kernel may take to end a process after SIGKILL.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use rustix::process::{getpgid, getpgrp};

    use super::*;

    /// A process that waits for ever, with `argument` on its command line.
    fn sleeper(directory: &Path, argument: &Path) -> Child {
        std::fs::write(argument, "").unwrap();
        let mut command = Command::new("perl");
        command.args(["-e", "sleep 600", "--", "--config"]).arg(argument);
        spawn(command, &directory.join("daemon.log")).unwrap()
    }

    /// Waits until it is found: in the moment in which a process becomes another program it has no
    /// arguments.
    fn found(pid_file: &Path, argument: &Path) -> Process {
        loop {
            match Process::find(pid_file, argument) {
                Some(found) => break found,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_process_is_found_by_its_file_or_its_command_line_and_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let argument = directory.path().join("a.toml");
        let pid_file = directory.path().join("daemon.pid");
        assert!(Process::find(&pid_file, &argument).is_none());
        let mut child = sleeper(directory.path(), &argument);
        Process::remember(&child, &pid_file).unwrap();
        assert_eq!(found(&pid_file, &argument).id(), child.id());
        Process::forget(&pid_file);
        assert!(remembered(&pid_file).is_none());
        let found = Process::find(&pid_file, &argument).unwrap();
        assert_eq!(found.id(), child.id());
        assert!(found.stop(Duration::from_secs(10)).unwrap());
        assert!(Process::find(&pid_file, &argument).is_none(), "a zombie does not run");
        child.wait().unwrap();
    }

    #[test]
    fn the_file_holds_the_process_id_alone_and_those_of_earlier_versions_are_understood() {
        let directory = tempfile::tempdir().unwrap();
        let argument = directory.path().join("a.toml");
        let pid_file = directory.path().join("daemon.pid");
        let mut child = sleeper(directory.path(), &argument);
        Process::remember(&child, &pid_file).unwrap();
        let text = std::fs::read_to_string(&pid_file).unwrap();
        assert_eq!(text, format!("{}\n", child.id()), "as `kill $(cat daemon.pid)` takes it");
        let start = start_time(child.id()).unwrap();
        assert_eq!(remembered(&pid_file), Some((child.id(), start)));
        Process::forget(&pid_file);
        std::fs::write(&pid_file, format!("{} {start}\n", child.id())).unwrap();
        assert_eq!(remembered(&pid_file), Some((child.id(), start)));
        std::fs::write(&pid_file, format!("{}\n", child.id())).unwrap();
        assert_eq!(remembered(&pid_file), None, "nothing says when it started");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_begins_in_a_session_of_its_own_or_stays_in_the_group_of_who_starts_it() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("daemon.log");
        let command = || {
            let mut command = Command::new("sleep");
            command.arg("600");
            command
        };
        let mut apart = spawn(command(), &log).unwrap();
        let mut beside = spawn_beside(command(), &log).unwrap();
        let id = |child: &Child| Pid::from_raw(i32::try_from(child.id()).unwrap());
        let group = |child: &Child| getpgid(id(child)).unwrap();
        assert_eq!(Some(group(&apart)), id(&apart));
        assert_eq!(group(&beside), getpgrp());
        for child in [&mut apart, &mut beside] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn another_process_with_the_same_number_is_not_mistaken_for_the_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let argument = directory.path().join("a.toml");
        let pid_file = directory.path().join("daemon.pid");
        let own = std::process::id();
        std::fs::write(&pid_file, format!("{own}\n")).unwrap();
        let start = start_time(own).unwrap();
        std::fs::write(start_file(&pid_file), format!("{start}\n")).unwrap();
        assert!(Process::find(&pid_file, &argument).is_none(), "other command line");
        let mut child = sleeper(directory.path(), &argument);
        assert_eq!(found(&pid_file, &argument).id(), child.id());
        let opened = Process::open(child.id(), &argument, Some(1));
        assert!(opened.is_none(), "other start time");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_only_shows_the_settings_is_no_daemon_nor_is_who_restores_with_them() {
        let directory = tempfile::tempdir().unwrap();
        let argument = directory.path().join("a.toml");
        let pid_file = directory.path().join("daemon.pid");
        std::fs::write(&argument, "").unwrap();
        let log = directory.path().join("log");
        let settings = argument.to_str().unwrap();
        let shows = ["-n", settings];
        let has_others = ["--config", "other", settings];
        let restores = ["--config", settings, "restore"];
        for words in [&shows[..], &has_others, &restores] {
            let mut command = Command::new("perl");
            command.args(["-e", "$| = 1; print STDOUT '!'; sleep 600", "--"]).args(words);
            let mut child = spawn(command, &log).unwrap();
            // It is the other program by then, with these arguments.
            while std::fs::read(&log).unwrap().is_empty() {
                std::thread::yield_now();
            }
            assert!(Process::find(&pid_file, &argument).is_none(), "{words:?}");
            child.kill().unwrap();
            child.wait().unwrap();
            std::fs::remove_file(&log).unwrap();
        }
    }

    #[test]
    fn a_process_that_ignores_the_request_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let argument = directory.path().join("deaf.toml");
        let ready = directory.path().join("daemon.log");
        std::fs::write(&argument, "").unwrap();
        let mut command = Command::new("sh");
        let script = "trap '' TERM; echo deaf; exec perl -e 'sleep 600' -- --config \"$1\"";
        command.args(["-c", script, "sh"]);
        command.arg(&argument);
        let mut child = spawn(command, &ready).unwrap();
        while std::fs::read(&ready).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let found = found(&directory.path().join("pid"), &argument);
        assert!(!found.stop(Duration::from_millis(1)).unwrap());
        child.wait().unwrap();
    }
}
