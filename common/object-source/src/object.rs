//! The nouns of bucket access: versions, entries, conditions, uploads.

use std::{collections::BTreeMap, fmt};

use millrace_types::{FileName, MIB, Timestamp, name::NAME_LEN_MAX};

use crate::Error;

/// The longest object that is fetched whole ([`crate::Bucket::get_whole`]): longer ones pay for the
/// wait until the last byte is there, and for the memory.
pub const WHOLE_LEN_MAX: u64 = MIB;

/// The longest key in bytes (S3's limit).
pub const KEY_LEN_MAX: usize = 1024;

/// The version of an object, as its server names it (S3: the entity tag with its quotes).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(String);

/// The longest tag that is believed, in bytes.
const TAG_LEN_MAX: usize = 256;

impl Tag {
    /// Takes what a server or the command log says.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is empty, longer than 256 bytes, or no visible ASCII: such a tag
    /// cannot be sent back in a header.
    pub fn new(tag: impl Into<String>) -> Result<Self, Error> {
        let tag = tag.into();
        let sound = (1..=TAG_LEN_MAX).contains(&tag.len())
            && tag.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if sound { Ok(Self(tag)) } else { Err(Error::invalid("an entity tag that cannot be sent")) }
    }

    /// The text, with quotes where the server uses them.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object's version and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The version.
    pub tag: Tag,
    /// Bytes.
    pub size: u64,
    /// When it was last modified, in the server's clock.
    pub modified: Timestamp,
}

/// What an answer tells of a whole object that was just put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The version.
    pub tag: Tag,
    /// Whether the bucket has told the CRC32C of what it has, and that is the one of what was sent:
    /// then it has all of it. Others compare what arrives, too, or not; they do not say so.
    pub is_checked: bool,
}

impl Stored {
    /// Where nothing is told but the version.
    #[must_use]
    pub const fn unchecked(tag: Tag) -> Self {
        Self { tag, is_checked: false }
    }
}

/// What HEAD tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Version and size.
    pub version: ObjectVersion,
    /// User metadata, keys in lower case without the `x-amz-meta-` prefix.
    pub metadata: Metadata,
}

/// One entry of a directory in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name within the directory.
    pub name: FileName,
    /// What it is.
    pub kind: EntryKind,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// Keys start with the directory's prefix, this name and `/`.
    Directory,
    /// An object has this very key.
    Object(ObjectVersion),
}

/// Some entries of a directory, in the order of the bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// How many keys of this page can be no names here.
    pub skipped: u64,
    /// Which, in the order of the bucket: [`LEFT_OUT_MAX`] of them at most.
    pub left_out: Vec<LeftOut>,
    /// Ask again with this to get the next page; `None` means that this is the last one.
    pub next: Option<Continuation>,
}

/// The most keys of one page that are named as left out: as many as S3 has on a page.
pub const LEFT_OUT_MAX: usize = 1000;

/// A key that can be no name here, or one that stands for all keys that begin with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The whole key; what is no UTF-8 is replaced.
    pub key: String,
    /// Why it is left out.
    pub reason: LeftOutReason,
}

/// Why a key is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeftOutReason {
    /// A part between two slashes is empty.
    EmptyPart,
    /// A part is `.` or `..`.
    DotPart,
    /// A part has an ASCII control character.
    ControlCharacter,
    /// A part has more than 255 bytes, or all of it more than 1,024.
    TooLong,
    /// On `file://`: it is no UTF-8.
    NotUtf8,
    /// On `file://`: it is neither a regular file nor a directory.
    SpecialFile,
    /// It ends in a slash, as the mark of a directory, and has bytes.
    MarkWithBytes,
}

/// Why a part of a key can be no name, if so.
pub(crate) fn reason_against(part: &str) -> Option<LeftOutReason> {
    match part {
        "" => Some(LeftOutReason::EmptyPart),
        "." | ".." => Some(LeftOutReason::DotPart),
        part if part.bytes().any(|byte| byte.is_ascii_control()) => {
            Some(LeftOutReason::ControlCharacter)
        }
        part if part.len() > NAME_LEN_MAX => Some(LeftOutReason::TooLong),
        _ => None,
    }
}

/// Where the next page begins. Not worth storing: a listing that was interrupted starts over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Continuation(pub(crate) Place);

/// A place in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The server's own cursor.
    Cursor(String),
    /// Behind this, in the order of keys as bytes: the key without the directory's prefix.
    Behind(String),
}

impl Continuation {
    /// The place behind a name in a directory, whether or not the directory has it: of keys that
    /// are greater as bytes. Only for buckets that list ranges ([`crate::Bucket::lists_ranges`]);
    /// what such a bucket shows may still begin before it. Whether a directory `b` is shown to who
    /// begins behind `b` or `b-c` is up to the server: `b/` lies behind them as a key, and `b` does
    /// not as a name.
    #[must_use]
    pub fn behind(name: &str) -> Self {
        Self(Place::Behind(name.to_owned()))
    }

    /// A server's own cursor, such as a page of it has.
    #[must_use]
    pub fn cursor(cursor: &str) -> Self {
        Self(Place::Cursor(cursor.to_owned()))
    }

    /// The name that it is behind, unless it is a server's own cursor.
    #[must_use]
    pub fn name_text(&self) -> Option<&str> {
        match &self.0 {
            Place::Behind(name) => Some(name),
            Place::Cursor(_) => None,
        }
    }

    /// The text of a server's own cursor.
    #[must_use]
    pub fn cursor_text(&self) -> Option<&str> {
        match &self.0 {
            Place::Cursor(cursor) => Some(cursor),
            Place::Behind(_) => None,
        }
    }
}

/// The cursor of a listing of a kind of bucket that has nothing else.
///
/// # Errors
/// [`Error::Invalid`] for a place that is no cursor.
pub(crate) fn cursor_of(after: Option<&Continuation>) -> Result<Option<&str>, Error> {
    match after.map(|Continuation(place)| place) {
        None => Ok(None),
        Some(Place::Cursor(cursor)) => Ok(Some(cursor)),
        Some(Place::Behind(_)) => {
            Err(Error::invalid("listings of this bucket begin at their start only"))
        }
    }
}

/// What must hold at a key for a put or completion to take effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    None,
    /// No object exists there.
    Absent,
    /// The object there has this version.
    Matches(Tag),
}

/// User metadata of an object: lower-case keys, visible ASCII values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(BTreeMap<String, String>);

/// The most bytes of all user metadata of one object (S3's limit).
const METADATA_LEN_MAX: usize = 2048;

impl Metadata {
    /// Checks and takes pairs.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a pair cannot travel in a header, or all together pass 2 KiB.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let pairs: BTreeMap<_, _> = pairs.into_iter().collect();
        let key_sound = |key: &str| {
            !key.is_empty()
                && key
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        let sound = pairs.iter().all(|(key, value)| key_sound(key) && is_sound(value));
        let all = Self(pairs);
        if sound && all.len() <= METADATA_LEN_MAX {
            Ok(all)
        } else {
            Err(Error::invalid(
                "object metadata takes lower-case keys and visible ASCII values, 2 KiB in all",
            ))
        }
    }

    /// The same with one pair more, unless its value cannot travel in a header or there is no room.
    /// Who calls this knows that the bucket takes such a key.
    pub(crate) fn with_if_it_fits(mut self, key: &str, value: &str) -> Self {
        if is_sound(value) && self.len() + key.len() + value.len() <= METADATA_LEN_MAX {
            self.0.insert(key.to_owned(), value.to_owned());
        }
        self
    }

    /// Bytes of all keys and values.
    fn len(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len()).sum()
    }

    /// Takes what a server sent, leaving out what could not be sent back.
    pub(crate) fn received(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let lower = pairs.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value));
        Self(lower.collect())
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// All pairs, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// Whether a value can travel in a header.
fn is_sound(value: &str) -> bool {
    value.trim() == value && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Names a multipart upload at its bucket. Any process with access to the bucket may go on with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UploadId(String);

impl UploadId {
    /// Takes what the bucket said, perhaps to another process.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is empty, longer than 1 KiB, or holds what no server sends.
    pub fn new(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        if (1..=1024).contains(&id.len()) && id.bytes().all(|byte| (b'!'..=b'~').contains(&byte)) {
            Ok(Self(id))
        } else {
            Err(Error::invalid("an upload id that no bucket gives out"))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The most parts of one multipart upload (S3's limit).
pub const PARTS_MAX: u16 = 10_000;

/// One part that the bucket has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// 1 to 10,000.
    pub number: u16,
    /// What completion must name.
    pub tag: Tag,
    /// Bytes of the part.
    pub len: u64,
}

/// Where a part belongs that is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPlace {
    /// 1 to 10,000.
    pub number: u16,
    /// Its first byte in the object.
    pub offset: u64,
    /// Bytes; at most 5 GiB (S3's limit).
    pub len: u64,
}

/// An upload by parts that was begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunUpload {
    /// The whole key.
    pub key: String,
    /// Its name.
    pub upload: UploadId,
    /// When it was begun; on `file://` when a part last arrived. The bucket's clock.
    pub begun: Timestamp,
}

/// Some uploads that were begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadsPage {
    /// In the order of the bucket.
    pub uploads: Vec<BegunUpload>,
    /// Ask again with this to get the next page; `None` means that this is the last one.
    pub next: Option<Continuation>,
}

/// Refuses a key that cannot be a path: it would be another object after the way through names.
pub(crate) fn check_key(key: &str) -> Result<(), Error> {
    let part_sound = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.chars().any(|c| c.is_ascii_control())
    };
    if key.len() <= KEY_LEN_MAX && key.split('/').all(part_sound) {
        Ok(())
    } else {
        Err(Error::invalid(format!("the key {key:?} is no path of file names")))
    }
}

/// Refuses a prefix that is neither empty nor a checked key and a slash.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), Error> {
    match prefix.strip_suffix('/') {
        None if prefix.is_empty() => Ok(()),
        Some(key) => check_key(key),
        None => Err(Error::invalid(format!("the prefix {prefix:?} does not end in a slash"))),
    }
}
