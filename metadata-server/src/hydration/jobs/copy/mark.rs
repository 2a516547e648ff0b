//! What an export to another place writes beside the bytes of an object, so that whoever comes
//! again knows which version of which file it is.
//!
//! | metadata key          | value                                                               |
//! |-----------------------|---------------------------------------------------------------------|
//! | `millrace-copy-of`    | `CLUSTER.RESTORES.INODE.GENERATION.CHANGES`: the content; the       |
//! |                       | cluster in hexadecimal, how often a backup of it was put back, the  |
//! |                       | file, its content's generation, and the count of its changes        |
//! | `millrace-copy-place` | 32 hexadecimal digits each, with a `.` between: of the SHA-256 of   |
//! |                       | the object's URL, and of the file's path                            |
//!
//! Generation and change count are never given twice for different bytes, except by a log that is
//! older than the bucket: hence the count of restores. What a loss of power takes back was never
//! written here: it is on stable storage first.

use aws_lc_rs::digest::{SHA256, digest};
use millrace_object_source::Metadata;
use millrace_types::{ChangeCount, ClusterId, ContentGeneration, InodeId};

const OF_KEY: &str = "millrace-copy-of";
const PLACE_KEY: &str = "millrace-copy-place";

/// Bytes of a hash that are written: nobody finds two texts with the same ones.
const HASH_LEN: usize = 16;

/// Marks the objects of one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hydration::jobs) struct Marker {
    pub(super) cluster: ClusterId,
    pub(super) restores: u32,
}

/// A version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) inode: InodeId,
    pub(super) generation: ContentGeneration,
    pub(super) change_count: ChangeCount,
}

/// The mark of one version at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// Of all objects that this cluster made since its metadata were last put back.
    cluster: String,
    /// Of all versions of the file.
    file: String,
    of: String,
    url: String,
    path: String,
}

/// What an object is to a file that shall go there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// This very version.
    Same,
    /// Another version of it, or of what had its path before.
    Older,
    /// Nothing that is known.
    Foreign,
}

impl Marker {
    /// The mark of a version whose path is `path`, at `url`.
    pub(super) fn mark(self, version: Version, url: &str, path: &[u8]) -> Mark {
        let cluster = format!("{}.{}.", self.cluster, self.restores);
        let file = format!("{cluster}{}.", version.inode.0);
        let of = format!("{file}{}.{}", version.generation.0, version.change_count.0);
        Mark { cluster, file, of, url: hash(url.as_bytes()), path: hash(path) }
    }
}

impl Mark {
    /// The pairs for the object's metadata.
    pub(super) fn pairs(&self) -> [(String, String); 2] {
        let place = format!("{}.{}", self.url, self.path);
        [(OF_KEY.to_owned(), self.of.clone()), (PLACE_KEY.to_owned(), place)]
    }

    /// What the object with these metadata is.
    pub(super) fn relation(&self, metadata: &Metadata) -> Relation {
        let of = metadata.value(OF_KEY).unwrap_or_default();
        let place = metadata.value(PLACE_KEY).and_then(|place| place.split_once('.'));
        // Objects may be copied with their metadata, to where they are somebody else's.
        let Some((_, path)) = place.filter(|(url, _)| *url == self.url) else {
            return Relation::Foreign;
        };
        let same_file = of.starts_with(&self.file) || path == self.path;
        match of {
            of if of == self.of => Relation::Same,
            of if of.starts_with(&self.cluster) && same_file => Relation::Older,
            _ => Relation::Foreign,
        }
    }
}

fn hash(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest.as_ref()[..HASH_LEN].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: Marker = Marker { cluster: ClusterId([7; 16]), restores: 0 };
    const URL: &str = "s3://b/run/model.pt";
    const PATH: &[u8] = b"/run/model.pt";

    fn version(inode: u64, changes: u64) -> Version {
        Version {
            inode: InodeId(inode),
            generation: ContentGeneration(1),
            change_count: ChangeCount(changes),
        }
    }

    fn metadata(mark: &Mark) -> Metadata {
        Metadata::new(mark.pairs()).unwrap()
    }

    #[test]
    fn a_version_knows_itself_and_those_before_it_at_its_place() {
        let mark = MARKER.mark(version(5, 9), URL, PATH);
        let seen = |other: &Mark| mark.relation(&metadata(other));
        assert_eq!(seen(&mark), Relation::Same);
        assert_eq!(seen(&MARKER.mark(version(5, 8), URL, PATH)), Relation::Older);
        // Renamed since, and what had the name before.
        assert_eq!(seen(&MARKER.mark(version(5, 8), URL, b"/other")), Relation::Older);
        assert_eq!(seen(&MARKER.mark(version(6, 9), URL, PATH)), Relation::Older);
        assert_eq!(seen(&MARKER.mark(version(6, 9), URL, b"/other")), Relation::Foreign);
        // 5 is not 51.
        assert_eq!(seen(&MARKER.mark(version(51, 9), URL, b"/other")), Relation::Foreign);
    }

    #[test]
    fn what_others_made_or_copied_is_foreign() {
        let mark = MARKER.mark(version(5, 9), URL, PATH);
        let other = Marker { cluster: ClusterId([8; 16]), ..MARKER };
        let restored = Marker { restores: 1, ..MARKER };
        for foreign in [
            other.mark(version(5, 9), URL, PATH),
            restored.mark(version(5, 9), URL, PATH),
            MARKER.mark(version(5, 9), "s3://b/copy/model.pt", PATH),
        ] {
            assert_eq!(mark.relation(&metadata(&foreign)), Relation::Foreign, "{foreign:?}");
        }
        assert_eq!(mark.relation(&Metadata::default()), Relation::Foreign);
    }
}
