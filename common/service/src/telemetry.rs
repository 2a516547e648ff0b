//! Logs: `tracing` to standard error, for a person or as JSON lines.
//!
//! Which messages appear is decided by the environment variable `RUST_LOG` where it is set, and by
//! the setting `log.level` otherwise; both take the directives of `tracing-subscriber`, such as
//! `info` or `warn,millrace_transport=debug`. Messages are lower-case, in the present tense, with
//! ids as fields. ERROR means that a person must look.

use std::io::IsTerminal as _;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{EnvFilter, util::SubscriberInitExt as _};

/// The table `[log]` of every daemon's settings.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or directives per module.
    /// `RUST_LOG` wins over it. Default `info`; `debug` costs a line or more a request.
    pub level: String,
    /// How a line looks. Default `human`.
    pub format: LogFormat,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Human }
    }
}

/// How a log line looks.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text, coloured when standard error is a terminal.
    #[default]
    Human,
    /// One JSON object a line, for a log collector.
    Json,
}

/// Starts logging for the whole process. Call it once, before anything that logs.
///
/// # Errors
/// [`TelemetryError`] when the directives cannot be parsed, or logging was started before.
pub fn init(settings: &LogSettings) -> Result<(), TelemetryError> {
    let filter = filter(settings, std::env::var("RUST_LOG").ok())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match settings.format {
        LogFormat::Human => builder.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    }
    .map_err(|_| TelemetryError::Started)
}

/// Whether logging could be started so.
///
/// # Errors
/// [`TelemetryError::Directives`].
pub fn check(settings: &LogSettings) -> Result<(), TelemetryError> {
    filter(settings, std::env::var("RUST_LOG").ok()).map(drop)
}

fn filter(settings: &LogSettings, rust_log: Option<String>) -> Result<EnvFilter, TelemetryError> {
    let (source, directives) = match rust_log {
        Some(directives) if !directives.is_empty() => ("RUST_LOG", directives),
        _ => ("log.level", settings.level.clone()),
    };
    EnvFilter::builder().parse(&directives).map_err(|error| TelemetryError::Directives {
        source_name: source,
        directives,
        error,
    })
}

/// An error with its causes in one line; a cause that an error in front of it repeats is left out.
#[must_use]
pub fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if words.is_empty() {
            words = cause;
        } else if !words.contains(&cause) {
            words.push_str(": ");
            words.push_str(&cause);
        }
    }
    words
}

/// Logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The directives are not understood.
    #[error(
        "{source_name} = {directives:?} is no log level: {error} \
         (use error, warn, info, debug or trace)"
    )]
    Directives {
        /// Where they were set.
        source_name: &'static str,
        /// What was set.
        directives: String,
        /// Why it is refused.
        error: tracing_subscriber::filter::ParseError,
    },
    /// A logger was installed before.
    #[error("logging was started twice")]
    Started,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_log_wins_over_the_setting_unless_it_is_empty() {
        let settings = LogSettings { level: "warn".to_owned(), format: LogFormat::Human };
        let shown = |rust_log: Option<&str>| {
            filter(&settings, rust_log.map(str::to_owned)).unwrap().to_string()
        };
        assert_eq!(shown(None), "warn");
        assert_eq!(shown(Some("")), "warn");
        assert_eq!(shown(Some("debug")), "debug");
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = std::io::Error::other("no such disk");
        let repeating = anyhow::Error::new(cause).context("reading: no such disk");
        assert_eq!(in_words(&repeating.context("starting")), "starting: reading: no such disk");
    }

    #[test]
    fn a_level_that_does_not_exist_is_refused_by_name() {
        let settings = LogSettings { level: "millrace=chatty".to_owned(), format: LogFormat::Json };
        let error = filter(&settings, None).unwrap_err().to_string();
        assert!(error.contains("log.level = \"millrace=chatty\""), "{error}");
    }
}
