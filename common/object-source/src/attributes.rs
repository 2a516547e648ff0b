//! POSIX attributes in object metadata, under the keys that other tools use.
//!
//! Written are both the keys of FSx for Lustre and those of Google's tools; read is whichever makes
//! sense, FSx first. Values that make none are passed over: metadata is written by anybody.
//!
//! | attribute | FSx for Lustre | Google |
//! |---|---|---|
//! | mode | `file-permissions`: octal `st_mode` | `goog-reserved-posix-mode`: octal, no type |
//! | owner, group | `file-owner`, `file-group`: decimal | `goog-reserved-posix-uid`, `-gid` |
//! | mtime | `file-mtime`: nanoseconds and `ns` | `goog-reserved-file-mtime`: seconds |
//! | symbolic link | the type in the mode | `goog-reserved-file-is-symlink`: `true` |
//!
//! A symbolic link is an object whose content is the target. Those of older gcsfuse are empty, and
//! have the target as the value of `gcsfuse_symlink_target`; newer ones have that beside Google's
//! key and the content.
//!
//! Times of access are neither written nor read. Here they tell how long nobody has used a file on
//! this cluster, by which it is chosen what is released: with an old one it would go at once.

use millrace_types::{Timestamp, name::SYMLINK_LEN_MAX};

use crate::{Error, Head, Location, Metadata};

/// The attributes of one file, each if known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PosixAttributes {
    /// Type and permission bits, as in `st_mode`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the last change of the contents.
    pub mtime: Option<Timestamp>,
}

/// How an object stores a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredSymlink<'a> {
    /// Its content is the target.
    Content,
    /// It is empty, and this is the target.
    Target(&'a str),
}

/// The key under which an export marks the objects that it makes, so that a lost answer can be
/// settled by HEAD.
pub const EXPORT_ID_KEY: &str = "millrace-export-id";

/// The bits of `st_mode` that hold the type, and those of a symbolic link.
const TYPE_MASK: u32 = 0o170_000;
const TYPE_SYMLINK: u32 = 0o120_000;
const PERMISSION_MASK: u32 = 0o7_777;

const FSX_MODE: &str = "file-permissions";
const FSX_UID: &str = "file-owner";
const FSX_GID: &str = "file-group";
const FSX_MTIME: &str = "file-mtime";
const GOOGLE_MODE: &str = "goog-reserved-posix-mode";
const GOOGLE_UID: &str = "goog-reserved-posix-uid";
const GOOGLE_GID: &str = "goog-reserved-posix-gid";
const GOOGLE_MTIME: &str = "goog-reserved-file-mtime";
const GOOGLE_SYMLINK: &str = "goog-reserved-file-is-symlink";
const GCSFUSE_TARGET: &str = "gcsfuse_symlink_target";

const NANOS_PER_MILLISECOND: i64 = 1_000_000;

impl PosixAttributes {
    /// The metadata that carries these attributes and the mark of an export.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the mark holds what no header may.
    pub fn to_metadata(&self, export_id: Option<&str>) -> Result<Metadata, Error> {
        let mut pairs = Vec::with_capacity(10);
        let mut add = |key: &str, value: String| pairs.push((key.to_owned(), value));
        if let Some(mode) = self.mode {
            add(FSX_MODE, format!("0{mode:o}"));
            // gsutil passes over what has fewer than three digits.
            add(GOOGLE_MODE, format!("{:03o}", mode & PERMISSION_MASK));
            if is_symlink(mode) {
                add(GOOGLE_SYMLINK, "true".to_owned());
            }
        }
        if let Some(uid) = self.uid {
            add(FSX_UID, uid.to_string());
            add(GOOGLE_UID, uid.to_string());
        }
        if let Some(gid) = self.gid {
            add(FSX_GID, gid.to_string());
            add(GOOGLE_GID, gid.to_string());
        }
        if let Some(mtime) = self.mtime {
            add(FSX_MTIME, format!("{}ns", mtime.0));
            add(GOOGLE_MTIME, mtime.seconds().to_string());
        }
        if let Some(id) = export_id {
            add(EXPORT_ID_KEY, id.to_owned());
        }
        Metadata::new(pairs)
    }

    /// What the metadata of an object says.
    #[must_use]
    pub fn from_metadata(metadata: &Metadata) -> Self {
        let mode = |key| {
            let mode = u32::from_str_radix(metadata.value(key)?, 8).ok()?;
            (mode & !(TYPE_MASK | PERMISSION_MASK) == 0).then_some(mode)
        };
        let number = |key| metadata.value(key)?.parse().ok();
        let google_mtime = || {
            let seconds = metadata.value(GOOGLE_MTIME)?.parse().ok()?;
            Some(Timestamp::from_parts(seconds, 0))
        };
        Self {
            mode: mode(FSX_MODE).or_else(|| mode(GOOGLE_MODE)),
            uid: number(FSX_UID).or_else(|| number(GOOGLE_UID)),
            gid: number(FSX_GID).or_else(|| number(GOOGLE_GID)),
            mtime: metadata.value(FSX_MTIME).and_then(fsx_time).or_else(google_mtime),
        }
    }
}

impl Head {
    /// How the object stores a symbolic link, if it does. What says so and cannot be one, because
    /// no target has its size, is a file.
    #[must_use]
    pub fn symlink(&self) -> Option<StoredSymlink<'_>> {
        let can_be = |len: u64| (1..=SYMLINK_LEN_MAX as u64).contains(&len);
        let metadata = &self.metadata;
        if self.version.size == 0 {
            let target = metadata.value(GCSFUSE_TARGET)?;
            return can_be(target.len() as u64).then_some(StoredSymlink::Target(target));
        }
        let is_marked =
            || metadata.value(GOOGLE_SYMLINK).is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let mode = PosixAttributes::from_metadata(metadata).mode;
        let is_told = mode.is_some_and(is_symlink) || is_marked();
        (is_told && can_be(self.version.size)).then_some(StoredSymlink::Content)
    }
}

impl Metadata {
    /// Those of a symbolic link, with what older gcsfuse wants, where `location` is GCS and a value
    /// can hold the target: visible ASCII for which there is room.
    ///
    /// Nowhere else is it of use, and a `_` in a key may do harm there: some servers drop such a
    /// header, and then refuse the request because it was signed.
    #[must_use]
    pub fn with_symlink_target(self, target: &[u8], location: &Location) -> Self {
        match (location, std::str::from_utf8(target)) {
            (Location::Google { .. }, Ok(target)) => self.with_if_it_fits(GCSFUSE_TARGET, target),
            _ => self,
        }
    }
}

fn is_symlink(mode: u32) -> bool {
    mode & TYPE_MASK == TYPE_SYMLINK
}

/// Nanoseconds where it says so, otherwise milliseconds, as FSx takes it.
fn fsx_time(text: &str) -> Option<Timestamp> {
    let nanoseconds: Option<i64> = match text.strip_suffix("ns") {
        Some(nanoseconds) => nanoseconds.parse().ok(),
        None => text.parse::<i64>().ok()?.checked_mul(NANOS_PER_MILLISECOND),
    };
    nanoseconds.map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectVersion, Tag};

    fn metadata(pairs: &[(&str, &str)]) -> Metadata {
        let own = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        Metadata::received(pairs.iter().map(own))
    }

    #[test]
    fn attributes_come_back_as_they_were_written() {
        let attributes = PosixAttributes {
            mode: Some(0o100_640),
            uid: Some(1000),
            gid: Some(0),
            mtime: Some(Timestamp(1_595_002_920_123_456_789)),
        };
        let metadata = attributes.to_metadata(Some("j7-00ff")).unwrap();
        assert_eq!(metadata.value("file-permissions"), Some("0100640"));
        assert_eq!(metadata.value("file-mtime"), Some("1595002920123456789ns"));
        assert_eq!(metadata.value("goog-reserved-posix-mode"), Some("640"));
        assert_eq!(metadata.value(EXPORT_ID_KEY), Some("j7-00ff"));
        assert_eq!(PosixAttributes::from_metadata(&metadata), attributes);
    }

    #[test]
    fn the_keys_of_other_tools_are_read() {
        let google = metadata(&[
            ("Goog-Reserved-File-Mtime", "1595002920"),
            ("goog-reserved-posix-mode", "755"),
            ("goog-reserved-posix-uid", "7"),
        ]);
        let attributes = PosixAttributes::from_metadata(&google);
        assert_eq!(attributes.mtime, Some(Timestamp::from_parts(1_595_002_920, 0)));
        assert_eq!((attributes.mode, attributes.uid, attributes.gid), (Some(0o755), Some(7), None));
    }

    #[test]
    fn nonsense_is_passed_over() {
        let bad = metadata(&[
            ("file-permissions", "0999"),
            ("file-owner", "-1"),
            ("file-group", "99999999999"),
            ("file-mtime", "yesterday"),
        ]);
        assert_eq!(PosixAttributes::from_metadata(&bad), PosixAttributes::default());
        let wide = metadata(&[("file-permissions", "7777777")]);
        assert_eq!(PosixAttributes::from_metadata(&wide).mode, None);
    }

    #[test]
    fn googles_values_stand_where_those_of_fsx_make_no_sense() {
        let both = metadata(&[
            ("file-permissions", "rw-r-----"),
            ("goog-reserved-posix-mode", "640"),
            ("file-owner", "root"),
            ("goog-reserved-posix-uid", "7"),
            ("file-group", ""),
            ("goog-reserved-posix-gid", "8"),
            ("file-mtime", "9223372036854775807"),
            ("goog-reserved-file-mtime", "1595002920"),
        ]);
        let expected = PosixAttributes {
            mode: Some(0o640),
            uid: Some(7),
            gid: Some(8),
            mtime: Some(Timestamp::from_parts(1_595_002_920, 0)),
        };
        assert_eq!(PosixAttributes::from_metadata(&both), expected);
    }

    #[test]
    fn a_time_of_fsx_without_its_unit_is_in_milliseconds() {
        let told = metadata(&[("file-mtime", "1595002920123")]);
        let mtime = PosixAttributes::from_metadata(&told).mtime;
        assert_eq!(mtime, Some(Timestamp(1_595_002_920_123_000_000)));
    }

    #[test]
    fn a_mode_has_three_digits_for_googles_tools() {
        let told = PosixAttributes { mode: Some(0o100_040), ..PosixAttributes::default() };
        let metadata = told.to_metadata(None).unwrap();
        assert_eq!(metadata.value("goog-reserved-posix-mode"), Some("040"));
        assert_eq!(metadata.value("goog-reserved-file-is-symlink"), None, "it is a file");
    }

    fn head(size: usize, pairs: &[(&str, &str)]) -> Head {
        let (tag, size) = (Tag::new("\"t\"").unwrap(), size.try_into().unwrap());
        let version = ObjectVersion { tag, size, modified: Timestamp(0) };
        Head { version, metadata: metadata(pairs) }
    }

    #[test]
    fn symbolic_links_are_known_by_the_keys_of_all_who_make_them() {
        const MARK: (&str, &str) = ("goog-reserved-file-is-symlink", "True");
        const TARGET: (&str, &str) = ("gcsfuse_symlink_target", "step-100");
        let in_content = Some(StoredSymlink::Content);
        for pairs in [
            &[("file-permissions", "0120777")][..],
            &[MARK][..],
            &[MARK, TARGET][..],
            &[MARK, ("goog-reserved-posix-mode", "644")][..],
        ] {
            assert_eq!(head(8, pairs).symlink(), in_content, "{pairs:?}");
            assert_eq!(head(SYMLINK_LEN_MAX, pairs).symlink(), in_content, "{pairs:?}");
            assert_eq!(head(SYMLINK_LEN_MAX + 1, pairs).symlink(), None, "{pairs:?}");
        }
        assert_eq!(head(0, &[TARGET]).symlink(), Some(StoredSymlink::Target("step-100")));
        for (size, pairs) in [
            (0, &[MARK][..]),
            (0, &[("gcsfuse_symlink_target", "")][..]),
            // Nobody makes such a one, and its bytes would be hidden.
            (8, &[TARGET][..]),
            (8, &[("goog-reserved-file-is-symlink", "false")][..]),
            (8, &[("file-permissions", "0100777")][..]),
        ] {
            assert_eq!(head(size, pairs).symlink(), None, "{size} {pairs:?}");
        }
        let long = "x".repeat(SYMLINK_LEN_MAX + 1);
        assert_eq!(head(0, &[("gcsfuse_symlink_target", &long)]).symlink(), None);
    }

    #[test]
    fn a_symbolic_link_is_told_to_googles_tools_and_on_gcs_to_older_gcsfuse() {
        let link = PosixAttributes { mode: Some(0o120_777), ..PosixAttributes::default() };
        let metadata = link.to_metadata(Some("j7-00ff")).unwrap();
        assert_eq!(metadata.value("goog-reserved-file-is-symlink"), Some("true"));
        let (bucket, prefix) = ("b".to_owned(), String::new());
        let s3 = Location::S3 { bucket: bucket.clone(), prefix: prefix.clone() };
        assert_eq!(metadata.clone().with_symlink_target(b"step-100", &s3), metadata);
        let google = Location::Google { bucket, prefix };
        let with = |target: &[u8]| metadata.clone().with_symlink_target(target, &google);
        let told = with(b"../step 100");
        assert_eq!(told.value("gcsfuse_symlink_target"), Some("../step 100"));
        assert_eq!(told.iter().count(), metadata.iter().count() + 1, "the others are there");
        let long = "x".repeat(2_000);
        for target in ["\u{fc}ber", " blank", "line\nfeed", &long] {
            assert_eq!(with(target.as_bytes()), metadata, "{target:?}");
        }
        assert_eq!(with(b"\xff"), metadata);
    }
}
