//! Runs programs to their end, with a deadline and with what they said.

use std::{
    ffi::OsStr,
    fmt,
    io::Read,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Nothing that a test runs takes longer; a program that does hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The same for what works a lot, such as a database or a compiler, on a busy machine.
pub const LONG_PATIENCE: Duration = Duration::from_secs(280);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What a program said and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The exit status; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Said {
    /// Whether the exit status was 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// Standard output, if the exit status was 0.
    ///
    /// # Errors
    /// Everything the program said, when it was not.
    pub fn ok(self) -> Result<String> {
        if self.succeeded() {
            return Ok(self.stdout);
        }
        bail!("{self}")
    }
}

impl fmt::Display for Said {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, stdout, stderr } = self;
        write!(formatter, "exit {code:?}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// Where the workspace's programs are: `MILLRACE_TEST_BINARIES`, or the folder above the one that
/// this test runs from.
///
/// # Panics
/// When they have not been built.
#[must_use]
pub fn binaries() -> PathBuf {
    let folder = std::env::var_os("MILLRACE_TEST_BINARIES").map_or_else(beside, PathBuf::from);
    let program = folder.join("millrace");
    assert!(program.exists(), "{} is missing: run `cargo build` first", program.display());
    folder
}

fn beside() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let deps = test.parent().expect("a file has a folder");
    deps.parent().expect("deps lies in the profile's folder").to_owned()
}

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("this package lies in the repository").to_owned()
}

/// Runs a program found on PATH.
///
/// # Errors
/// When it cannot be started or outlives [`PATIENCE`].
pub fn run(program: &str, arguments: &[&dyn AsRef<OsStr>]) -> Result<Said> {
    let mut command = Command::new(program);
    for argument in arguments {
        command.arg(argument.as_ref());
    }
    finish(&mut command, PATIENCE)
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started or outlives `patience`; then it is killed.
pub fn finish(command: &mut Command, patience: Duration) -> Result<Said> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let stdout = collect(child.stdout.take().context("stdout is piped")?);
    let stderr = collect(child.stderr.take().context("stderr is piped")?);
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("{command:?} did not end within {patience:?}");
        }
        thread::sleep(POLL_INTERVAL);
    };
    let text = |thread: thread::JoinHandle<Vec<u8>>| {
        let bytes = thread.join().expect("a reader does not panic");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Said { code: status.code(), stdout: text(stdout), stderr: text(stderr) })
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still worth showing.
        drop(from.read_to_end(&mut bytes));
        bytes
    })
}

/// Asks until `ready` answers something, or fails after [`PATIENCE`] with `what`.
///
/// # Errors
/// When time is up.
pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready() {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("waited {PATIENCE:?} for {what}");
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_and_how_it_ends_is_told() {
        let said = run("sh", &[&"-c", &"echo out; echo err >&2; exit 3"]).unwrap();
        assert_eq!(said.code, Some(3));
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out\n", "err\n"));
        assert!(said.ok().unwrap_err().to_string().contains("exit Some(3)"));
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_named() {
        let mut command = Command::new("sleep");
        let error = finish(command.arg("1000"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("sleep"), "{error}");
    }
}
