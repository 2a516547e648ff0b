//! What `-o` and SOURCE say, as mount(8) and fstab write them.

use std::path::PathBuf;

use anyhow::Context as _;
use millrace_service::address::{METADATA_PORT, ServerAddress};

use crate::exit::Misuse;

/// The words of all `-o`, sorted by who acts on them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// `identity=FILE`.
    pub(crate) identity: Option<PathBuf>,
    /// `config=FILE`: settings of the mount.
    pub(crate) config: Option<PathBuf>,
    /// `log=FILE`: where the daemon's log goes.
    pub(crate) log: Option<PathBuf>,
    /// For the daemon, in the order given.
    pub(crate) daemon: Vec<String>,
}

impl MountOptions {
    /// Reads comma-separated words.
    ///
    /// # Errors
    /// [`Misuse`] when a word that needs a value has none.
    pub(crate) fn parse(lists: &[String]) -> Result<Self, Misuse> {
        let mut options = Self::default();
        for word in lists.iter().flat_map(|list| list.split(',')) {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (word, None),
            };
            let file = |value: Option<&str>| match value {
                Some(path) if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
                _ => Err(Misuse(format!("-o {key}=FILE needs an absolute path"))),
            };
            match key {
                "identity" => options.identity = file(value)?,
                "config" => options.config = file(value)?,
                "log" => options.log = file(value)?,
                _ if is_for_mount(key) => {}
                _ => options.daemon.push(word.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Words of fstab that mount(8), systemd or people act on, and that say nothing to a file system.
fn is_for_mount(key: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner",
        "group", "comment",
    ];
    WORDS.contains(&key) || key.starts_with("x-") || key.starts_with("X-")
}

/// What to mount: `HOST[:PORT][,HOST...]:/PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// The metadata servers.
    pub(crate) servers: Vec<ServerAddress>,
    /// The directory of the file system, from its root.
    pub(crate) path: String,
    /// As it was given: mount(8) compares it with fstab to tell what is mounted already.
    pub(crate) text: String,
}

impl Source {
    /// Reads the text.
    ///
    /// # Errors
    /// When it has another form.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (hosts, path) = text.split_once(":/").with_context(|| {
            Misuse(format!("{text} is no source; write HOST[:PORT][,HOST...]:/PATH"))
        })?;
        let servers = hosts
            .split(',')
            .map(|host| ServerAddress::parse_with_port(host, METADATA_PORT))
            .collect::<Result<_, _>>()
            .map_err(|error| Misuse(format!("{text}: {error}")))?;
        Ok(Self { servers, path: format!("/{path}"), text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> MountOptions {
        MountOptions::parse(&[list.to_owned()]).unwrap()
    }

    #[test]
    fn words_of_fstab_are_left_out_and_the_rest_goes_to_the_daemon() {
        let options = parse("rw,defaults,_netdev,nofail,x-systemd.automount,hard,identity=/a.pem");
        assert_eq!(options.identity, Some("/a.pem".into()));
        assert_eq!(options.daemon, ["rw", "hard"]);
        assert_eq!(parse("").daemon, Vec::<String>::new());
        assert_eq!(parse("cache=1GiB").daemon, ["cache=1GiB"]);
    }

    #[test]
    fn files_are_absolute_since_mount_8_changes_the_directory() {
        for bad in ["identity", "identity=", "identity=a.pem", "log=b"] {
            let error = MountOptions::parse(&[bad.to_owned()]).unwrap_err();
            assert!(error.to_string().contains("absolute"), "{bad}");
        }
    }

    #[test]
    fn a_source_names_servers_and_a_path() {
        let source = Source::parse("meta-1,meta-2:9000:/a/b").unwrap();
        let servers: Vec<_> = source.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["meta-1:7440", "meta-2:9000"]);
        assert_eq!(source.path, "/a/b");
        assert_eq!(Source::parse("[::1]:9:/").unwrap().path, "/");
        for bad in ["meta-1", "meta-1:a", ":/", "meta 1:/", ",a:/"] {
            assert!(Source::parse(bad).is_err(), "{bad}");
        }
    }
}
