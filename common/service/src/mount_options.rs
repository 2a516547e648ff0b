//! The words of a mount's `-o`, as mount(8) and fstab(5) write them.
//!
//! One table for `millrace mount`, which checks the words before it starts anything, and for the
//! daemon of the mount, which acts on them. What `millrace mount --help` and `docs/cli.md` list is
//! tested against it.

use std::{path::PathBuf, str::FromStr, time::Duration};

use millrace_types::ByteLen;
use serde::{Deserialize, Serialize};

use crate::duration;

/// What one word says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountOption {
    /// Something is so, or is not.
    Switch(Switch, bool),
    /// How long servers that do not answer are waited for.
    Timeout(Duration),
    /// The memory for read-ahead and write-behind.
    Memory(ByteLen),
    /// How requests come from the kernel.
    Channel(Channel),
    /// The directory of the file system to show.
    Path(PathBuf),
    /// The client's identity.
    Identity(PathBuf),
    /// Settings of the mount; for who starts its daemon.
    Config(PathBuf),
    /// Where the daemon's log goes; for who starts it.
    Log(PathBuf),
    /// A word of mount(8), fstab(5) or systemd that says nothing to a file system.
    Foreign,
}

/// What is so, or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// Every change is refused.
    ReadOnly,
    /// Other users are let in.
    AllowOther,
    /// Setuid and setgid bits count.
    Suid,
    /// Device nodes count.
    Dev,
    /// Programs can be run.
    Exec,
    /// Servers that do not answer are waited for without end.
    Hard,
    /// Locks of programs hold within this host alone.
    LocalLocks,
    /// POSIX access control lists are kept and checked.
    Acl,
    /// Attributes `security.*` are offered.
    SecurityXattrs,
    /// Files are made here where no other mount is.
    Delegations,
    /// Reading leaves times of access alone.
    NoAtime,
    /// Listing leaves times of access of directories alone.
    NoDirAtime,
}

/// How requests come from the kernel.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// What serves most work best, as measured: `/dev/fuse` at present.
    #[default]
    Auto,
    /// `/dev/fuse`.
    Dev,
    /// io_uring (Linux 6.14, with the parameter `enable_uring` of the module `fuse`); `/dev/fuse`
    /// where the kernel does not offer it, with a line in the log.
    Uring,
}

/// A word cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// It is not known.
    #[error("unknown mount option {0:?}; known are {known}", known = known().join(", "))]
    Unknown(String),
    /// Every read would be a change of metadata.
    #[error("mount option strictatime is not offered; relatime, the default, and noatime are")]
    StrictAtime,
    /// Its value is missing or not understood.
    #[error("mount option {option:?} needs {expected}")]
    Value {
        /// As it was given.
        option: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl FromStr for MountOption {
    type Err = OptionError;

    fn from_str(word: &str) -> Result<Self, OptionError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if is_foreign(name) {
            return Ok(Self::Foreign);
        }
        let found = TABLE.iter().find(|(known, _)| *known == name);
        match (found.map(|(_, form)| *form), value) {
            (Some(Form::Alone(switch, on)), None) => Ok(Self::Switch(switch, on)),
            (Some(Form::Valued(expected, read)), value) => {
                let wrong = || OptionError::Value { option: word.to_owned(), expected };
                value.and_then(read).ok_or_else(wrong)
            }
            _ if name == "strictatime" => Err(OptionError::StrictAtime),
            _ => Err(OptionError::Unknown(word.to_owned())),
        }
    }
}

impl FromStr for Channel {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "dev" => Ok(Self::Dev),
            "uring" => Ok(Self::Uring),
            _ => Err(()),
        }
    }
}

/// Every word that is acted on, those with a value with `=` at their end.
#[must_use]
pub fn known() -> Vec<String> {
    let word = |(name, form): &(&str, Form)| match form {
        Form::Alone(..) => (*name).to_owned(),
        Form::Valued(..) => format!("{name}="),
    };
    TABLE.iter().map(word).collect()
}

/// How a word is read.
#[derive(Clone, Copy)]
enum Form {
    /// It stands alone.
    Alone(Switch, bool),
    /// It has a value: what that must be, and how it is read.
    Valued(&'static str, fn(&str) -> Option<MountOption>),
}

const TABLE: &[(&str, Form)] = &[
    ("ro", Form::Alone(Switch::ReadOnly, true)),
    ("rw", Form::Alone(Switch::ReadOnly, false)),
    ("identity", Form::Valued(FILE, identity)),
    ("config", Form::Valued(FILE, config)),
    ("log", Form::Valued(FILE, log)),
    ("path", Form::Valued("an absolute path, such as path=/train", path)),
    ("hard", Form::Alone(Switch::Hard, true)),
    ("soft", Form::Alone(Switch::Hard, false)),
    ("timeout", Form::Valued("seconds, or a duration such as 5m", timeout)),
    ("local_locks", Form::Alone(Switch::LocalLocks, true)),
    ("nolocal_locks", Form::Alone(Switch::LocalLocks, false)),
    ("acl", Form::Alone(Switch::Acl, true)),
    ("noacl", Form::Alone(Switch::Acl, false)),
    ("delegations", Form::Alone(Switch::Delegations, true)),
    ("nodelegations", Form::Alone(Switch::Delegations, false)),
    ("security_xattrs", Form::Alone(Switch::SecurityXattrs, true)),
    ("nosecurity_xattrs", Form::Alone(Switch::SecurityXattrs, false)),
    ("relatime", Form::Alone(Switch::NoAtime, false)),
    ("atime", Form::Alone(Switch::NoAtime, false)),
    ("noatime", Form::Alone(Switch::NoAtime, true)),
    ("diratime", Form::Alone(Switch::NoDirAtime, false)),
    ("nodiratime", Form::Alone(Switch::NoDirAtime, true)),
    ("allow_other", Form::Alone(Switch::AllowOther, true)),
    ("noallow_other", Form::Alone(Switch::AllowOther, false)),
    ("suid", Form::Alone(Switch::Suid, true)),
    ("nosuid", Form::Alone(Switch::Suid, false)),
    ("dev", Form::Alone(Switch::Dev, true)),
    ("nodev", Form::Alone(Switch::Dev, false)),
    ("exec", Form::Alone(Switch::Exec, true)),
    ("noexec", Form::Alone(Switch::Exec, false)),
    ("memory", Form::Valued("a size such as 256MiB", memory)),
    ("channel", Form::Valued("auto, dev or uring", channel)),
];

/// Absolute because mount(8) changes the directory.
const FILE: &str = "the absolute path of a file";

fn absolute(text: &str) -> Option<PathBuf> {
    text.starts_with('/').then(|| PathBuf::from(text))
}

fn identity(text: &str) -> Option<MountOption> {
    absolute(text).map(MountOption::Identity)
}

fn config(text: &str) -> Option<MountOption> {
    absolute(text).map(MountOption::Config)
}

fn log(text: &str) -> Option<MountOption> {
    absolute(text).map(MountOption::Log)
}

fn path(text: &str) -> Option<MountOption> {
    absolute(text).map(MountOption::Path)
}

fn timeout(text: &str) -> Option<MountOption> {
    let bare = text.parse().map(Duration::from_secs).ok();
    bare.or_else(|| duration::parse(text).ok()).map(MountOption::Timeout)
}

fn memory(text: &str) -> Option<MountOption> {
    text.parse().ok().map(MountOption::Memory)
}

fn channel(text: &str) -> Option<MountOption> {
    text.parse().ok().map(MountOption::Channel)
}

/// Words that mount(8), systemd or people act on, or that change nothing here.
fn is_foreign(name: &str) -> bool {
    const WORDS: [&str; 14] = [
        "defaults",
        "auto",
        "noauto",
        "nofail",
        "_netdev",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "comment",
        "lazytime",
        "async",
        "default_permissions",
    ];
    WORDS.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(word: &str) -> Result<MountOption, String> {
        word.parse().map_err(|error: OptionError| error.to_string())
    }

    #[test]
    fn words_are_read_as_what_they_say() {
        assert_eq!(parse("ro"), Ok(MountOption::Switch(Switch::ReadOnly, true)));
        assert_eq!(parse("soft"), Ok(MountOption::Switch(Switch::Hard, false)));
        assert_eq!(parse("timeout=30"), Ok(MountOption::Timeout(Duration::from_secs(30))));
        assert_eq!(parse("timeout=5m"), Ok(MountOption::Timeout(Duration::from_secs(300))));
        assert_eq!(parse("memory=64M"), Ok(MountOption::Memory(ByteLen(64 << 20))));
        assert_eq!(parse("channel=uring"), Ok(MountOption::Channel(Channel::Uring)));
        assert_eq!(parse("path=/a"), Ok(MountOption::Path("/a".into())));
        for foreign in ["_netdev", "x-systemd.automount", "comment=mine", "X-note=1", "users"] {
            assert_eq!(parse(foreign), Ok(MountOption::Foreign), "{foreign}");
        }
    }

    #[test]
    fn a_value_that_is_missing_or_wrong_is_told_with_what_is_needed() {
        for (word, needed) in [
            ("path=nosuch", "absolute path"),
            ("path", "absolute path"),
            ("log=b", "absolute path"),
            ("identity=", "absolute path"),
            ("timeout=soon", "seconds"),
            ("memory", "256MiB"),
            ("channel=fast", "uring"),
            ("strictatime", "relatime"),
        ] {
            let refused = parse(word).unwrap_err();
            assert!(refused.contains(needed) && !refused.contains("unknown"), "{word}: {refused}");
        }
    }

    #[test]
    fn an_unknown_word_is_told_with_every_known_one() {
        for unknown in ["bogus", "writeback=1", "ro=1", "nomemory"] {
            let refused = parse(unknown).unwrap_err();
            assert!(refused.contains(&format!("{unknown:?}")), "{refused}");
            for known in known() {
                assert!(refused.contains(&known), "{known}: {refused}");
            }
        }
    }

    #[test]
    fn no_word_is_in_the_table_twice() {
        let mut names: Vec<_> = TABLE.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }
}
