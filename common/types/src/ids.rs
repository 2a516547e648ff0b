//! Identifiers. Each is a type of its own, so that an inode can never be passed for a chunk.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// Declares a number that names something: ordered, hashable, archivable, printed with a prefix.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize,
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number that follows this one.
            ///
            /// # Panics
            /// When the counter would wrap, which no counter here reaches in a machine's life.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("an identifier never wraps"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number! {
    /// A file, directory or symbolic link. The top 16 bits are the id space (one today: 0).
    /// Also the FUSE node id. Never used twice in the life of a cluster.
    InodeId(u64), "i"
}
number! {
    /// Names one content of an inode; raised when the content is replaced as a whole.
    ContentGeneration(u32), "g"
}
number! {
    /// Raised when a file shrinks; a write or commit from an older epoch changes nothing.
    WriteEpoch(u32), "w"
}
number! {
    /// Raised by every write open, commit and setattr of an inode.
    ChangeCount(u64), "c"
}
number! {
    /// Position of a chunk in its file: byte offset divided by the chunk size.
    ChunkIndex(u32), "k"
}
number! {
    /// Which copy of a chunk within its placement group; 0 until there is redundancy.
    CopyIndex(u8), "r"
}
number! {
    /// A placement group: a redundancy set of targets. Inodes name groups, never targets.
    GroupId(u32), "pg"
}
number! {
    /// Version of one group's set of targets, raised only when that set changes.
    GroupEpoch(u32), "e"
}
number! {
    /// Version of the whole cluster map.
    MapEpoch(u64), "m"
}
number! {
    /// An append-only array of placement groups.
    PoolId(u16), "pool"
}
number! {
    /// A client's session with the metadata server; survives reconnects and restarts.
    SessionId(u64), "s"
}
number! {
    /// Position of a record in the command log; the first record has index 1.
    LogIndex(u64), "l"
}
number! {
    /// A job: import, hydrate, release or export.
    JobId(u64), "j"
}
number! {
    /// A link between a directory and a bucket prefix.
    LinkId(u32), "link"
}
number! {
    /// A key that signs capabilities and session tickets.
    KeyId(u32), "key"
}
number! {
    /// Numbers the writes of one session, so that a repeated one is answered without being applied.
    WriteNumber(u64), "n"
}

/// Declares a random identifier that is printed and parsed as hexadecimal digits.
macro_rules! random {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(
            Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            Default,
        )]
        pub struct $name(pub [u8; $bytes]);

        impl $name {
            /// Reads the hexadecimal form that [`fmt::Display`] prints.
            ///
            /// # Errors
            /// [`ParseIdError`] when the text has another length or another digit.
            pub fn parse(text: &str) -> Result<Self, ParseIdError> {
                if text.len() != 2 * $bytes || !text.is_ascii() {
                    return Err(ParseIdError);
                }
                let mut bytes = [0; $bytes];
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16)
                        .map_err(|_| ParseIdError)?;
                }
                Ok(Self(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

random! {
    /// Names a cluster; drawn when its certificate authority is made.
    ClusterId, 16
}
random! {
    /// Names one node (a daemon's identity or a client host), as its certificate does.
    HostId, 16
}
random! {
    /// Names one target (one disk); written in its superblock, survives moves between hosts.
    TargetId, 8
}

/// A text is no identifier of the expected length in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an identifier: expected hexadecimal digits of the right length")]
pub struct ParseIdError;

/// Names one chunk of one content of one file on a target.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct ChunkKey {
    /// The file.
    pub inode: InodeId,
    /// Which of its contents.
    pub generation: ContentGeneration,
    /// Which chunk of that content.
    pub index: ChunkIndex,
    /// Which copy of that chunk.
    pub copy: CopyIndex,
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.inode, self.generation, self.index, self.copy)
    }
}

impl InodeId {
    /// The root directory of the file system (FUSE fixes the number).
    pub const ROOT: Self = Self(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_reads_back_what_it_prints_and_nothing_else() {
        let id = TargetId([0, 1, 2, 3, 0xfc, 0xfd, 0xfe, 0xff]);
        assert_eq!(id.to_string(), "00010203fcfdfeff");
        assert_eq!(TargetId::parse("00010203fcfdfeff"), Ok(id));
        assert_eq!(TargetId::parse("00010203fcfdfef"), Err(ParseIdError));
        assert_eq!(TargetId::parse("00010203fcfdfexx"), Err(ParseIdError));
        assert_eq!(TargetId::parse("0001020\u{e9}fcfdfef"), Err(ParseIdError));
    }
}
