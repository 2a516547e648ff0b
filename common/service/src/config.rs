//! Loads a daemon's settings: one TOML file, then the environment, unknown keys refused.
//!
//! Owns the rule how sources combine and how a mistake is told to the person who made it; of the
//! programs' settings it knows no more than the names of their tables. A settings type derives
//! `Deserialize` with `deny_unknown_fields` on every struct, and `Serialize` so that the effective
//! values can be printed.
//!
//! Environment: `MILLRACE_<SECTION>__<KEY>=value` (with the prefix `MILLRACE_`) sets `key` in table
//! `[section]`; more `__` go deeper, and `MILLRACE__<KEY>` sets a key above the first section.
//! Variables without `__`, such as `MILLRACE_CONFIG`, are no settings and are left alone. A value
//! is read as TOML where it is TOML (`8`, `true`, `["a"]`), and as text otherwise. The environment
//! wins over the file. It is shared by all programs of a host, so a section that another one has is
//! passed over; one that no program has is refused, and so is an unknown key in one's own section.

use std::{
    ffi::OsString,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::{Format as _, Toml},
    value::{Dict, Map, Value},
};
use serde::{Serialize, de::DeserializeOwned};

/// The usual prefix of environment variables that are settings.
pub const ENV_PREFIX: &str = "MILLRACE_";

/// The tables and keys at the top of all programs' settings: what this one does not have, and is
/// named here, is another one's.
pub const SECTIONS: [&str; 24] = [
    "advertise",
    "buckets",
    "buffer_memory",
    "cache",
    "cluster",
    "command_log",
    "data",
    "disk_engine",
    "drain",
    "fsck",
    "identity",
    "index_cache",
    "listen",
    "log",
    "metrics",
    "mount",
    "name",
    "network",
    "processors",
    "release",
    "scrub",
    "sessions",
    "store",
    "target",
];

/// Loads settings from `path` (none: defaults only) and from variables that start with
/// `env_prefix`.
///
/// # Errors
/// [`ConfigError`] when the file cannot be read, is no TOML, or a value is unknown, missing or out
/// of its range. The message names the file or variable, the key, and what is allowed.
pub fn load<S: DeserializeOwned>(path: Option<&Path>, env_prefix: &str) -> Result<S, ConfigError> {
    load_with(path, env_prefix, std::env::vars_os())
}

/// As [`load`], with the environment given.
///
/// # Errors
/// As [`load`].
pub fn load_with<S: DeserializeOwned>(
    path: Option<&Path>,
    env_prefix: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<S, ConfigError> {
    let mut file = Figment::new();
    if let Some(path) = path {
        file = file.merge(File { path, toml: read(path)? });
    }
    let mut variables = variables(env_prefix, environment)?;
    loop {
        let figment =
            variables.iter().fold(file.clone(), |figment, variable| figment.merge(variable));
        let errors = match figment.extract() {
            Ok(settings) => return Ok(settings),
            Err(errors) => errors,
        };
        let count = variables.len();
        for error in errors.clone() {
            variables.retain(|variable| !variable.is_foreign(&error));
        }
        if variables.len() == count {
            return Err(ConfigError::Invalid { problems: describe(errors, path, env_prefix) });
        }
    }
}

fn read(path: &Path) -> Result<figment::providers::Data<Toml>, ConfigError> {
    let source = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
    // Parsed apart from figment first, because the parser's own message shows line and column.
    match source.parse::<toml::Table>() {
        Ok(_) => Ok(Toml::string(&source)),
        Err(error) => Err(ConfigError::Syntax { path: path.to_owned(), error }),
    }
}

/// The effective settings as TOML, for a person to read or to keep.
///
/// # Errors
/// [`ConfigError::Unprintable`] when the type has a shape that TOML cannot hold.
pub fn effective<S: Serialize>(settings: &S) -> Result<String, ConfigError> {
    toml::to_string_pretty(settings).map_err(ConfigError::Unprintable)
}

/// Settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there or may not be read.
    #[error("cannot read the configuration file {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{} is not valid TOML: {error}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what, over several lines.
        error: toml::de::Error,
    },
    /// An environment variable with the prefix holds bytes that are no UTF-8.
    #[error("environment variable {name} is not UTF-8 text")]
    NotText {
        /// The variable.
        name: String,
    },
    /// One or several values are wrong.
    #[error("{}", problems.join("\n"))]
    Invalid {
        /// One sentence each, with source, key and remedy.
        problems: Vec<String>,
    },
    /// The settings cannot be written as TOML.
    #[error("cannot print the settings: {0}")]
    Unprintable(toml::ser::Error),
}

/// The TOML file as a figment provider that is named after its path.
struct File<'a> {
    path: &'a Path,
    toml: figment::providers::Data<Toml>,
}

impl Provider for File<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.path.display().to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        self.toml.data()
    }
}

/// One environment variable as a figment provider of its own, so that an error can name it.
struct Variable {
    name: String,
    key: String,
    value: String,
}

impl Variable {
    fn source(&self) -> String {
        format!("environment variable {}", self.name)
    }

    /// Whether `error` says that this variable's section is another program's.
    fn is_foreign(&self, error: &figment::Error) -> bool {
        let Kind::UnknownField(field, _) = &error.kind else { return false };
        let section = self.key.split('.').next();
        let told = error.metadata.as_ref().map(|metadata| metadata.name.as_ref());
        let top = error.path.is_empty() || error.path == [field.as_str()];
        let other = SECTIONS.contains(&field.as_str());
        top && other && section == Some(field) && told == Some(self.source().as_str())
    }
}

impl Provider for &Variable {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let value: Value =
            self.value.parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
        let nested = figment::util::nest(&self.key, value);
        Ok(Profile::Default.collect(nested.into_dict().unwrap_or_default()))
    }
}

fn variables(
    prefix: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<Variable>, ConfigError> {
    let mut variables = Vec::new();
    for (name, value) in environment {
        let Some(name) = name.to_str() else { continue };
        let Some(key) = name.strip_prefix(prefix) else {
            continue;
        };
        let Some(key) = setting(key) else {
            continue;
        };
        let name = name.to_owned();
        let Ok(value) = value.into_string() else {
            return Err(ConfigError::NotText { name });
        };
        variables.push(Variable { name, key, value });
    }
    // The order of the environment is not defined; the outcome must be.
    variables.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(variables)
}

/// The path of the setting that a variable names behind the prefix; nothing for other variables.
fn setting(name: &str) -> Option<String> {
    // In front of the first section stands no name: MILLRACE__KEY.
    let name = match name.strip_prefix('_') {
        Some(above) if !above.starts_with('_') => above,
        _ if name.contains("__") => name,
        _ => return None,
    };
    let parts: Vec<_> = name.split("__").map(str::to_lowercase).collect();
    (!parts.iter().any(String::is_empty)).then(|| parts.join("."))
}

fn describe(errors: figment::Error, path: Option<&Path>, env_prefix: &str) -> Vec<String> {
    errors.into_iter().map(|error| describe_one(&error, path, env_prefix)).collect()
}

fn describe_one(error: &figment::Error, path: Option<&Path>, env_prefix: &str) -> String {
    let source = match (&error.metadata, path) {
        (Some(metadata), _) => metadata.name.to_string(),
        (None, Some(path)) => path.display().to_string(),
        (None, None) => "settings".to_owned(),
    };
    let key = error.path.join(".");
    let mut text = format!("{source}: ");
    let written = match &error.kind {
        Kind::UnknownField(field, allowed) => write!(
            text,
            "unknown key {}; allowed here: {}",
            join_key(&error.path, field),
            list(allowed)
        ),
        Kind::MissingField(field) => {
            let key = join_key(&error.path, field);
            let above = if key.contains('.') { "" } else { "_" };
            let variable = format!("{above}{}", key.to_uppercase().replace('.', "__"));
            write!(text, "{key} is missing; set it in the file or as {env_prefix}{variable}")
        }
        Kind::UnknownVariant(found, allowed) => {
            write!(text, "{key} = {found:?} is unknown; allowed: {}", list(allowed))
        }
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            write!(text, "{key} is {found}, but must be {expected}")
        }
        Kind::Message(message) => write!(text, "{key}: {message}"),
        other => write!(text, "{key}: {other}"),
    };
    debug_assert!(written.is_ok(), "writing to a string never fails");
    text
}

/// The key of `field` below `path`; serde names the field itself in some paths and not in others.
fn join_key(path: &[String], field: &str) -> String {
    let mut parts: Vec<_> = path.iter().map(String::as_str).collect();
    if parts.last() != Some(&field) {
        parts.push(field);
    }
    parts.join(".")
}

fn list(allowed: &[&str]) -> String {
    if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") }
}

#[cfg(test)]
mod tests;
