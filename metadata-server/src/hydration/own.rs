//! Telling objects that this cluster made for a file from those that somebody else did.
//!
//! An upload may arrive after its server has given it up: the server ended in the middle, or its
//! answer was lost for too long. The object is then an older version of the file itself. The id of
//! each export, which travels in the object's metadata, says for which file it was: half of it
//! follows from the cluster, the file and the place, half is drawn.
//!
//! What was exported before a backup was put back may be newer than what the backup knows. So
//! nothing counts as own where that has happened, and such an object is a conflict.

use millrace_object_source::{EXPORT_ID_KEY, Metadata};
use millrace_types::{ClusterId, Failure, InodeId, LinkId};

use super::{environment::Environment, import::broken};
use crate::{
    namespace::{Body, Inode, ObjectState},
    store::{
        keys,
        records::{self, FileSystem, RestoreRecord},
    },
};

/// The half of its export's ids that a file and its place have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnMark {
    half: u64,
    /// Whether no backup was ever put back.
    is_certain: bool,
}

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
        let is_certain = query.await?.is_none_or(|record| record.restores == 0);
        Ok(Self { is_certain, ..Self::new(environment.cluster(), inode, link, key) })
    }

    fn new(cluster: ClusterId, inode: InodeId, link: LinkId, key: &str) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = cluster.0;
        // Clusters draw their ids, and give an inode's id once. The place is in it because objects
        // may be copied with their metadata.
        let place = u64::from(crc32c::crc32c_append(link.0, key.as_bytes()));
        let half = u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ inode.0 ^ (place << 32);
        Self { half, is_certain: true }
    }

    /// The file whose export to this key made an object with these metadata, if one of this cluster
    /// did; half of the evidence that there is for a certain file.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn maker<E: Environment>(
        environment: &E,
        link: LinkId,
        key: &str,
        metadata: &Metadata,
    ) -> Result<Option<InodeId>, Failure> {
        let none = Self::of(environment, InodeId(0), link, key).await?;
        let file = none.difference(metadata).map(InodeId);
        let Some(file) = file.filter(|_| none.is_certain) else { return Ok(None) };
        // What a foreign id would give is, as good as always, beyond all that were ever given.
        let query = environment.read(move |view| {
            let system: Option<FileSystem> =
                records::read(view, &keys::file_system()).map_err(broken)?;
            Ok(system.is_some_and(|system| file > InodeId::ROOT && file < system.inode_limit))
        });
        Ok(query.await?.then_some(file))
    }

    /// An id of such an export.
    pub(super) fn id(self, drawn: u64) -> u128 {
        (u128::from(self.half) << 64) | u128::from(drawn)
    }

    /// Whether one of these exports made an object with these metadata.
    pub(super) fn has_made(self, metadata: &Metadata) -> bool {
        self.is_certain && self.difference(metadata) == Some(0)
    }

    /// Zero for an object of one of these exports.
    fn difference(self, metadata: &Metadata) -> Option<u64> {
        let id = metadata.value(EXPORT_ID_KEY).filter(|id| id.len() == 32)?;
        let id = u128::from_str_radix(id, 16).ok()?;
        Some(u64::try_from(id >> 64).expect("the upper half") ^ self.half)
    }
}

/// Whether a file was changed since it was like any object, and needs no byte of one: an older
/// version of its own is then nothing to follow, and nothing that somebody else did.
pub(super) fn is_ahead(inode: &Inode) -> bool {
    matches!(&inode.body, Body::File(file)
        if matches!(file.state, ObjectState::Local | ObjectState::Dirty)
            && file.origin_length == 0)
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
        let own = OwnMark::new(CLUSTER, InodeId(5), LinkId(1), "run/model.pt");
        let id = |mark: OwnMark| metadata(&format!("{:032x}", mark.id(9)));
        assert!(own.has_made(&id(own)));
        for other in [
            OwnMark::new(ClusterId([8; 16]), InodeId(5), LinkId(1), "run/model.pt"),
            OwnMark::new(CLUSTER, InodeId(6), LinkId(1), "run/model.pt"),
            OwnMark::new(CLUSTER, InodeId(5), LinkId(2), "run/model.pt"),
            OwnMark::new(CLUSTER, InodeId(5), LinkId(1), "run/copy.pt"),
        ] {
            assert!(!own.has_made(&id(other)), "{other:?}");
        }
        let restored = OwnMark { is_certain: false, ..own };
        assert!(!restored.has_made(&id(own)), "what was exported may be newer than the backup");
        for damaged in ["", "1", "no number at all, of 32 letters.", &"f".repeat(33)] {
            assert!(!own.has_made(&metadata(damaged)), "{damaged}");
        }
        assert!(!own.has_made(&Metadata::default()));
    }
}
