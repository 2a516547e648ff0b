//! Which cluster the commands speak to: the operator's settings file.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use millrace_service::{
    cluster::ClusterSettings,
    config::{self, ENV_PREFIX},
};
use serde::{Deserialize, Serialize};

use crate::{arguments::Globals, authority};

/// The operator's settings; `config/admin.toml` is a commented example.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct AdminSettings {
    /// Where the cluster is, and the operator's identity.
    pub cluster: ClusterSettings,
}

/// The settings file that the options and the environment point at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Somebody named it; it has to exist.
    Named(PathBuf),
    /// The place where it lies when nobody says anything.
    Default(PathBuf),
}

impl Source {
    /// `--config`, then `--dir`, then `MILLRACE_CONFIG`, then `/etc/millrace/admin.toml`.
    pub(crate) fn find(globals: &Globals, environment: Option<PathBuf>) -> Self {
        if let Some(config) = &globals.config {
            return Self::Named(config.clone());
        }
        if let Some(dir) = &globals.dir {
            return Self::Named(dir.join(ADMIN_FILE));
        }
        match environment.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) => Self::Named(path),
            None => Self::Default(PathBuf::from(DEFAULT_FILE)),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Named(path) | Self::Default(path) => path,
        }
    }
}

impl AdminSettings {
    /// Loads the settings that the options and the environment point at.
    ///
    /// # Errors
    /// When there are none, or they are wrong; the message says what to do.
    pub(crate) fn load(globals: &Globals) -> anyhow::Result<Self> {
        let environment = std::env::var_os("MILLRACE_CONFIG").map(PathBuf::from);
        let source = Source::find(globals, environment);
        let path = source.path();
        if let Source::Default(path) = &source
            && !path.exists()
        {
            anyhow::bail!(
                "no cluster is configured: {} does not exist. Say which one with --config FILE, \
                 MILLRACE_CONFIG=FILE, or --dir D for one made by `millrace dev up --dir D`",
                path.display()
            );
        }
        let mut settings: Self =
            config::load(Some(path), ENV_PREFIX).with_context(|| match &globals.dir {
                // `dev up` would take the authority of a cluster of several hosts for its own.
                Some(dir)
                    if globals.config.is_none()
                        && !path.exists()
                        && authority::file(dir).exists() =>
                {
                    format!(
                        "{} holds an authority, and no settings: name them with --config FILE, or \
                         leave --dir out where they are in {DEFAULT_FILE}",
                        dir.display()
                    )
                }
                Some(dir) if globals.config.is_none() => format!(
                    "{} holds no running cluster; `millrace dev up --dir {0}` makes one",
                    dir.display()
                ),
                _ => "cannot use the settings".to_owned(),
            })?;
        // A relative identity is meant beside the file that names it, wherever the command runs.
        if let Some(parent) = path.parent() {
            settings.cluster.identity = parent.join(&settings.cluster.identity);
        }
        Ok(settings)
    }
}

/// The operator's settings within the directory of a cluster.
pub(crate) const ADMIN_FILE: &str = "admin.toml";

const DEFAULT_FILE: &str = "/etc/millrace/admin.toml";

#[cfg(test)]
mod tests {
    use super::*;

    fn globals(config: Option<&str>, dir: Option<&str>) -> Globals {
        Globals { config: config.map(PathBuf::from), dir: dir.map(PathBuf::from), json: false }
    }

    #[test]
    fn the_nearest_word_decides_which_cluster() {
        let named = |path: &str| Source::Named(PathBuf::from(path));
        let environment = || Some(PathBuf::from("env.toml"));
        let both = globals(Some("a.toml"), Some("d"));
        assert_eq!(Source::find(&both, environment()), named("a.toml"));
        let dir = globals(None, Some("d"));
        assert_eq!(Source::find(&dir, environment()), named("d/admin.toml"));
        let none = globals(None, None);
        assert_eq!(Source::find(&none, environment()), named("env.toml"));
        let default = Source::Default(PathBuf::from(DEFAULT_FILE));
        assert_eq!(Source::find(&none, Some(PathBuf::new())), default);
        assert_eq!(Source::find(&none, None), default);
    }

    #[test]
    fn an_identity_is_looked_for_beside_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(ADMIN_FILE);
        let text = "[cluster]\nservers = ['meta-1:7440']\nidentity = 'admin.pem'\n";
        std::fs::write(&file, text).unwrap();
        let globals = Globals { dir: Some(directory.path().to_owned()), ..Globals::default() };
        let settings = AdminSettings::load(&globals).unwrap();
        assert_eq!(settings.cluster.identity, directory.path().join("admin.pem"));
    }

    #[test]
    fn a_directory_without_a_cluster_says_how_to_make_one() {
        let error = AdminSettings::load(&globals(None, Some("/no/such"))).unwrap_err();
        assert!(format!("{error:#}").contains("dev up --dir /no/such"), "{error:#}");
    }

    #[test]
    fn the_directory_of_an_authority_alone_is_not_offered_for_a_dev_cluster() {
        let directory = tempfile::tempdir().unwrap();
        authority::create(directory.path()).unwrap();
        let globals = Globals { dir: Some(directory.path().to_owned()), ..Globals::default() };
        let error = format!("{:#}", AdminSettings::load(&globals).unwrap_err());
        assert!(error.contains("--config FILE") && !error.contains("dev up"), "{error}");
    }
}
