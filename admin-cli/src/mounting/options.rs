//! What `-o` and SOURCE say, as mount(8) and fstab write them.

use std::path::PathBuf;

use anyhow::Context as _;
use millrace_service::{
    address::{METADATA_PORT, ServerAddress},
    mount_options::MountOption,
};

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
    /// Reads comma-separated words; those that say nothing to a file system are left out.
    ///
    /// # Errors
    /// [`Misuse`] when a word is unknown, or its value missing or wrong.
    pub(crate) fn parse(lists: &[String]) -> Result<Self, Misuse> {
        let mut options = Self::default();
        for word in lists.iter().flat_map(|list| list.split(',')).map(str::trim) {
            if word.is_empty() {
                continue;
            }
            let parsed = word.parse::<MountOption>();
            match parsed.map_err(|error| Misuse(error.to_string()))? {
                MountOption::Identity(path) => options.identity = Some(path),
                MountOption::Config(path) => options.config = Some(path),
                MountOption::Log(path) => options.log = Some(path),
                MountOption::Foreign => {}
                _ => options.daemon.push(word.to_owned()),
            }
        }
        Ok(options)
    }
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
        assert_eq!(parse("memory=1GiB").daemon, ["memory=1GiB"]);
    }

    #[test]
    fn files_are_absolute_since_mount_8_changes_the_directory() {
        for bad in ["identity", "identity=", "identity=a.pem", "log=b"] {
            let error = MountOptions::parse(&[bad.to_owned()]).unwrap_err();
            assert!(error.to_string().contains("absolute"), "{bad}");
        }
    }

    #[test]
    fn an_unknown_word_is_refused_here_and_not_only_by_the_daemon() {
        for bad in ["bogus", "ro,bogus", "path=nosuch", "timeout=soon"] {
            assert!(MountOptions::parse(&[bad.to_owned()]).is_err(), "{bad}");
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
