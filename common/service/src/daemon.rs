//! The skeleton of a daemon's `main`: arguments, settings, logs, signals, exit code.
//!
//! ```text
//! main ── arguments ── settings ── logs ── run ──────────▶ drained ──▶ exit code 0
//!             │           │                 │  first signal ─▶ drain ┐
//!             └─ exit 2 ──┘                 └─ error: exit 1         └─ deadline: exit 3
//! ```
//!
//! | exit code | meaning |
//! |----------:|---------|
//! | 0 | stopped in order after SIGTERM or SIGINT |
//! | 1 | failed while starting or serving; the log says why |
//! | 2 | wrong arguments or settings; nothing was touched |
//! | 3 | the drain deadline passed, or a second signal came, before everything was drained |

use std::{future::Future, io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    config::{self, ENV_PREFIX},
    processors::{self, ProcessorSettings},
    systemd,
    telemetry::{self, LogSettings},
};

/// Arguments that every daemon takes; flatten them into the daemon's own.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct DaemonArguments {
    /// Settings as TOML; `MILLRACE_<SECTION>__<KEY>` variables win over them.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the settings, print what would be used, and exit.
    #[arg(long)]
    pub check_config: bool,
}

/// What the skeleton must know about a daemon's settings.
pub trait DaemonSettings: Serialize + DeserializeOwned {
    /// The table `[log]`.
    fn log(&self) -> &LogSettings;

    /// The table `[processors]`.
    fn processors(&self) -> &ProcessorSettings;

    /// Whether the daemon can start with these values, as far as they alone can tell.
    ///
    /// # Errors
    /// A sentence that names the key, and what it may be.
    fn check(&self) -> Result<(), String>;
}

/// Runs a daemon from its parsed arguments to its exit code.
///
/// Loads the settings, starts the logs and calls `run` on the calling thread; `run` builds whatever
/// runtimes the daemon needs and returns when it has drained (see [`until_stopped`]). `program` is
/// the executable's name, `version` that of its package.
pub fn main<S, E>(
    program: &str,
    version: &str,
    arguments: &DaemonArguments,
    run: impl FnOnce(S) -> Result<Ended, E>,
) -> ExitCode
where
    S: DaemonSettings,
    E: Into<anyhow::Error>,
{
    main_with(program, version, arguments, Ok, run)
}

/// As [`main`], with settings that the daemon's own arguments complete before they are checked.
pub fn main_with<S, E>(
    program: &str,
    version: &str,
    arguments: &DaemonArguments,
    complete: impl FnOnce(S) -> Result<S, String>,
    run: impl FnOnce(S) -> Result<Ended, E>,
) -> ExitCode
where
    S: DaemonSettings,
    E: Into<anyhow::Error>,
{
    let settings = match settings_of(arguments, complete) {
        Ok(settings) => settings,
        Err(problem) => return refuse(program, &problem),
    };
    if arguments.check_config {
        return match config::effective(&settings) {
            Ok(text) => show(&text),
            Err(error) => refuse(program, &error.to_string()),
        };
    }
    if let Err(error) = telemetry::init(settings.log()) {
        return refuse(program, &error.to_string());
    }
    let config = arguments.config.as_ref().map(|path| path.display().to_string());
    tracing::info!(program, version, config, process = std::process::id(), "starts");
    processors::watch(settings.processors());
    match run(settings) {
        Ok(Ended::Drained) => {
            tracing::info!(program, "stopped");
            ExitCode::SUCCESS
        }
        Ok(Ended::Abandoned) => {
            tracing::warn!(program, "stopped before everything was drained");
            ExitCode::from(3)
        }
        Err(error) => {
            let error: anyhow::Error = error.into();
            tracing::error!(program, "fails: {}", telemetry::in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// The settings that would be used; those that the start would refuse are refused here.
fn settings_of<S: DaemonSettings>(
    arguments: &DaemonArguments,
    complete: impl FnOnce(S) -> Result<S, String>,
) -> Result<S, String> {
    let loaded = config::load(arguments.config.as_deref(), ENV_PREFIX);
    let settings = complete(loaded.map_err(|error| error.to_string())?)?;
    settings.check()?;
    telemetry::check(settings.log()).map_err(|error| error.to_string())?;
    Ok(settings)
}

/// How a daemon came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Ended {
    /// Everything was finished in order.
    Drained,
    /// The deadline or a second signal cut the drain short.
    Abandoned,
}

/// Waits for SIGTERM or SIGINT, then calls `stop` once and waits for `drained`, at most for
/// `deadline` or until a second signal.
///
/// `drained` may also end by itself, without a signal: its result is then given back at once. It is
/// polled from the start, so it may be the server's own future. Needs a tokio runtime with signals;
/// call it before the daemon says that it is ready, so that no signal is missed.
///
/// # Errors
/// Those of `drained`, and of installing the signal handlers.
pub async fn until_stopped<E: From<std::io::Error>>(
    drained: impl Future<Output = Result<(), E>>,
    stop: impl FnOnce(),
    deadline: Duration,
) -> Result<Ended, E> {
    until_stopped_by(StopSignals::install()?, drained, stop, deadline).await
}

/// The same, by signals that were taken over before: a process that has done by then what its end
/// must undo cannot be killed by them in between.
///
/// # Errors
/// Those of `drained`.
pub async fn until_stopped_by<E>(
    mut signals: StopSignals,
    drained: impl Future<Output = Result<(), E>>,
    stop: impl FnOnce(),
    deadline: Duration,
) -> Result<Ended, E> {
    until_asked(drained, stop, deadline, async || signals.next().await).await
}

async fn until_asked<E>(
    drained: impl Future<Output = Result<(), E>>,
    stop: impl FnOnce(),
    deadline: Duration,
    mut next_signal: impl AsyncFnMut() -> &'static str,
) -> Result<Ended, E> {
    tokio::pin!(drained);
    let name = tokio::select! {
        result = &mut drained => return result.map(|()| Ended::Drained),
        name = next_signal() => name,
    };
    tracing::info!(signal = name, ?deadline, "stops: no new work, what runs is finished");
    systemd::stopping();
    stop();
    tokio::select! {
        result = &mut drained => result.map(|()| Ended::Drained),
        name = next_signal() => {
            tracing::warn!(signal = name, "second signal: stops without waiting");
            Ok(Ended::Abandoned)
        }
        () = tokio::time::sleep(deadline) => {
            tracing::warn!(?deadline, "drain deadline passed");
            Ok(Ended::Abandoned)
        }
    }
}

/// The signals that ask a daemon to stop.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Takes the signals over from their default, which would end the process at once.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one and names it. May be dropped; no signal is lost.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Tells of wrong settings. There is no log yet: its own settings may be the wrong ones.
fn refuse(program: &str, problem: &str) -> ExitCode {
    let mut stderr = std::io::stderr().lock();
    // A closed standard error leaves nobody to tell; the exit code says it too.
    drop(writeln!(stderr, "{program}: {problem}"));
    ExitCode::from(2)
}

fn show(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::pending, io};

    use serde::Deserialize;
    use tokio::sync::Notify;

    use super::*;

    const NEVER: Duration = Duration::from_secs(3600);

    #[derive(Serialize, Deserialize)]
    struct Numbered {
        number: u32,
        #[serde(default)]
        log: LogSettings,
        #[serde(default)]
        processors: ProcessorSettings,
    }

    impl DaemonSettings for Numbered {
        fn log(&self) -> &LogSettings {
            &self.log
        }

        fn processors(&self) -> &ProcessorSettings {
            &self.processors
        }

        fn check(&self) -> Result<(), String> {
            if self.number == 0 { Err("number must be at least 1".to_owned()) } else { Ok(()) }
        }
    }

    #[test]
    fn settings_are_checked_when_the_arguments_have_completed_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("daemon.toml");
        let arguments = DaemonArguments { config: Some(file.clone()), check_config: true };
        let number = |text: &str, more: u32| {
            std::fs::write(&file, text).unwrap();
            let complete =
                |settings: Numbered| Ok(Numbered { number: settings.number + more, ..settings });
            settings_of(&arguments, complete).map(|settings| settings.number)
        };
        assert_eq!(number("number = 1", 0), Ok(1));
        assert_eq!(number("number = 0", 2), Ok(2));
        assert_eq!(number("number = 0", 0), Err("number must be at least 1".to_owned()));
        assert!(number("number = -1", 1).unwrap_err().contains("daemon.toml"));
        let complete = |_: Numbered| Err("an option is wrong".to_owned());
        std::fs::write(&file, "number = 1").unwrap();
        assert_eq!(settings_of(&arguments, complete).map(drop), Err("an option is wrong".into()));
    }

    /// One signal at once, then none.
    async fn once(sent: &Cell<bool>) -> &'static str {
        if sent.replace(true) {
            pending::<()>().await;
        }
        "SIGTERM"
    }

    #[tokio::test]
    async fn a_signal_stops_and_what_drains_in_time_ends_in_order() {
        let (stop, sent) = (Notify::new(), Cell::new(false));
        let drained = async {
            stop.notified().await;
            Ok::<_, io::Error>(())
        };
        let signals = async || once(&sent).await;
        let ended = until_asked(drained, || stop.notify_one(), NEVER, signals).await;
        assert_eq!(ended.unwrap(), Ended::Drained);
    }

    #[tokio::test]
    async fn what_does_not_drain_in_time_is_abandoned() {
        let (stopped, sent) = (Cell::new(false), Cell::new(false));
        let signals = async || once(&sent).await;
        let stop = || stopped.set(true);
        let ended = until_asked(pending::<Result<(), io::Error>>(), stop, Duration::ZERO, signals);
        assert_eq!(ended.await.unwrap(), Ended::Abandoned);
        assert!(stopped.get());
    }

    #[tokio::test]
    async fn a_second_signal_ends_the_wait() {
        let signals = async || "SIGINT";
        let ended = until_asked(pending::<Result<(), io::Error>>(), || {}, NEVER, signals);
        assert_eq!(ended.await.unwrap(), Ended::Abandoned);
    }

    #[tokio::test]
    async fn an_error_of_the_server_ends_the_daemon_without_a_signal() {
        let drained = async { Err(io::Error::other("disk gone")) };
        let signals = async || pending().await;
        let ended = until_asked(drained, || panic!("nobody asked"), NEVER, signals).await;
        assert_eq!(ended.unwrap_err().to_string(), "disk gone");
    }
}
