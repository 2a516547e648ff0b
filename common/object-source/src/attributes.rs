//! POSIX attributes in object metadata, under the keys that other tools use.
//!
//! Written are both the keys of FSx for Lustre and those of Google's tools; read is whichever is
//! there, FSx first. Values that make no sense are passed over: metadata is written by anybody.
//!
//! | attribute | FSx for Lustre | Google |
//! |---|---|---|
//! | mode | `file-permissions`: octal `st_mode` | `goog-reserved-posix-mode`: octal, no type |
//! | owner, group | `file-owner`, `file-group`: decimal | `goog-reserved-posix-uid`, `-gid` |
//! | mtime | `file-mtime`: nanoseconds and `ns` | `goog-reserved-file-mtime`: seconds |
//!
//! A symbolic link is an object whose mode has the type bits of one and whose content is the
//! target.

use millrace_types::Timestamp;

use crate::{Error, Metadata};

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

/// The key under which an export marks the objects that it makes, so that a lost answer can be
/// settled by HEAD.
pub const EXPORT_ID_KEY: &str = "millrace-export-id";

/// The bits of `st_mode` that hold the type.
const TYPE_MASK: u32 = 0o170_000;
const PERMISSION_MASK: u32 = 0o7_777;

const FSX_MODE: &str = "file-permissions";
const FSX_UID: &str = "file-owner";
const FSX_GID: &str = "file-group";
const FSX_MTIME: &str = "file-mtime";
const GOOGLE_MODE: &str = "goog-reserved-posix-mode";
const GOOGLE_UID: &str = "goog-reserved-posix-uid";
const GOOGLE_GID: &str = "goog-reserved-posix-gid";
const GOOGLE_MTIME: &str = "goog-reserved-file-mtime";

impl PosixAttributes {
    /// The metadata that carries these attributes and the mark of an export.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the mark holds what no header may.
    pub fn to_metadata(&self, export_id: Option<&str>) -> Result<Metadata, Error> {
        let mut pairs = Vec::with_capacity(9);
        let mut add = |key: &str, value: String| pairs.push((key.to_owned(), value));
        if let Some(mode) = self.mode {
            add(FSX_MODE, format!("0{mode:o}"));
            add(GOOGLE_MODE, format!("{:o}", mode & PERMISSION_MASK));
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
        let first = |keys: [&str; 2]| keys.into_iter().find_map(|key| metadata.value(key));
        let number = |keys| first(keys).and_then(|text| text.parse().ok());
        let fsx_mtime = metadata
            .value(FSX_MTIME)
            .and_then(|text| text.trim_end_matches("ns").parse().ok())
            .map(Timestamp);
        let google_mtime = metadata
            .value(GOOGLE_MTIME)
            .and_then(|text| text.parse().ok())
            .map(|seconds| Timestamp::from_parts(seconds, 0));
        Self {
            mode: first([FSX_MODE, GOOGLE_MODE])
                .and_then(|text| u32::from_str_radix(text, 8).ok())
                .filter(|mode| mode & !(TYPE_MASK | PERMISSION_MASK) == 0),
            uid: number([FSX_UID, GOOGLE_UID]),
            gid: number([FSX_GID, GOOGLE_GID]),
            mtime: fsx_mtime.or(google_mtime),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
