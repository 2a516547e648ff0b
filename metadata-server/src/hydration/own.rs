//! Telling objects that this cluster made for a file from those that somebody else did.
//!
//! An upload may arrive after its server has given it up: the server ended in the middle, or its
//! answer was lost for too long. The object is then an older version of the file itself. The id of
//! each export, which travels in the object's metadata, says for which file it was: half of it
//! follows from the cluster, the file and the place, half is drawn.
//!
//! What was exported before a backup was put back may be newer than what the backup knows: it
//! counts as somebody else's.

use millrace_object_source::{EXPORT_ID_KEY, Metadata};
use millrace_types::{ClusterId, Failure, InodeId, LinkId};

use super::{environment::Environment, import::broken};
use crate::{
    namespace::{Body, Inode, ObjectState},
    store::{
        keys,
        records::{self, RestoreRecord},
    },
};

/// The half of its export's ids that a file and its place have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnMark(u64);

impl OwnMark {
    /// Of exports of this file to this key.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn of<E: Environment>(
        environment: &E,
        inode: InodeId,
        link: LinkId,
        key: &str,
    ) -> Result<Self, Failure> {
        let query = environment
            .read(|view| records::read::<RestoreRecord>(view, &keys::restores()).map_err(broken));
        let restores = query.await?.map_or(0, |record| record.restores);
        Ok(Self::new(environment.cluster(), restores, inode, link, key))
    }

    fn new(cluster: ClusterId, restores: u32, inode: InodeId, link: LinkId, key: &str) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = cluster.0;
        // Clusters draw their ids, and give an inode's id once. The place is in it because objects
        // may be copied with their metadata.
        let place = crc32c::crc32c_append(link.0, &restores.to_be_bytes());
        let place = u64::from(crc32c::crc32c_append(place, key.as_bytes()));
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ inode.0 ^ (place << 32))
    }

    /// An id of such an export.
    pub(super) fn id(self, drawn: u64) -> u128 {
        (u128::from(self.0) << 64) | u128::from(drawn)
    }

    /// Whether one of these exports made an object with these metadata.
    pub(super) fn has_made(self, metadata: &Metadata) -> bool {
        let id = metadata.value(EXPORT_ID_KEY).filter(|id| id.len() == 32);
        let id = id.and_then(|id| u128::from_str_radix(id, 16).ok());
        id.is_some_and(|id| (id >> 64) == u128::from(self.0))
    }
}

/// Whether a file was changed since it was like any object, so that an older version of its own is
/// nothing to follow, and nothing that somebody else did.
pub(super) fn is_ahead(inode: &Inode) -> bool {
    matches!(&inode.body, Body::File(file)
        if matches!(file.state, ObjectState::Local | ObjectState::Dirty))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId([7; 16]);

    fn metadata(id: &str) -> Metadata {
        Metadata::new([(EXPORT_ID_KEY.to_owned(), id.to_owned())]).unwrap()
    }

    #[test]
    fn a_file_knows_its_own_objects_at_their_place() {
        let own = OwnMark::new(CLUSTER, 0, InodeId(5), LinkId(1), "run/model.pt");
        let id = |mark: OwnMark| metadata(&format!("{:032x}", mark.id(9)));
        assert!(own.has_made(&id(own)));
        for other in [
            OwnMark::new(ClusterId([8; 16]), 0, InodeId(5), LinkId(1), "run/model.pt"),
            OwnMark::new(CLUSTER, 1, InodeId(5), LinkId(1), "run/model.pt"),
            OwnMark::new(CLUSTER, 0, InodeId(6), LinkId(1), "run/model.pt"),
            OwnMark::new(CLUSTER, 0, InodeId(5), LinkId(2), "run/model.pt"),
            OwnMark::new(CLUSTER, 0, InodeId(5), LinkId(1), "run/copy.pt"),
        ] {
            assert!(!own.has_made(&id(other)), "{other:?}");
        }
        for damaged in ["", "1", "no number at all, of 32 letters.", &"f".repeat(33)] {
            assert!(!own.has_made(&metadata(damaged)), "{damaged}");
        }
        assert!(!own.has_made(&Metadata::default()));
    }
}
