//! What is different after a backup was put back: whatever the lost end of the log may have given
//! out is given out no more.
//!
//! Ids go on far above what the backup knows, and so do generations and write epochs of files: a
//! target may hold contents that this namespace has never heard of. Sessions end, because their
//! clients have seen what is gone; capabilities end with the keys that signed them.

use millrace_types::{
    ContentGeneration, ErrorKind, GroupEpoch, KeyId, LinkId, SessionId, WriteEpoch,
};

use super::{ApplyError, Transaction, session, trust};
use crate::{
    command::Outcome,
    namespace::tree,
    store::{
        StoreError, keys,
        records::{FileSystem, GroupRecord, LinkRecord, RestoreRecord, SessionRecord},
    },
};

/// Ids of 64 bits that a restore skips: many times what a cluster gives out between two backups,
/// and a small part of an id space of 2^48.
const WIDE: u64 = 1 << 32;

/// Ids and epochs of 32 bits that it skips: keys are made once an hour at most, links by hand.
const NARROW: u32 = 1 << 16;

/// Raises of one file's generation or write epoch that it skips.
const RAISES: u32 = 1 << 22;

/// Ids of one id space, which inodes stay in.
const INODES: u64 = 1 << 48;

/// A backup was put back.
pub(super) fn restored(tx: &mut Transaction<'_>, reason: &str) -> Result<Outcome, ApplyError> {
    for (key, _) in tree::scan::<SessionRecord>(tx, &keys::sessions(), usize::MAX)? {
        if let Some(id) = keys::number_at(&key, 1) {
            session::close(tx, SessionId(id))?;
        }
    }
    tx.delete_all(&keys::signing_keys())?;
    for (key, group) in tree::scan::<GroupRecord>(tx, b"G", usize::MAX)? {
        let epoch = group.epoch.0.checked_add(NARROW).ok_or(ErrorKind::InvalidArgument)?;
        tx.put(key, &GroupRecord { epoch: GroupEpoch(epoch), ..group });
    }
    let restores = restores(tx)? + 1;
    restores.checked_mul(RAISES).ok_or(ErrorKind::InvalidArgument)?;
    tx.put(keys::restores(), &RestoreRecord { restores });
    let mut file_system = tx.file_system()?;
    skip(&mut file_system).ok_or(ErrorKind::InvalidArgument)?;
    tx.put(keys::file_system(), &file_system);
    // What the backup wanted to be deleted may have been put into the bucket anew since.
    for (key, _) in tree::scan::<LinkRecord>(tx, &keys::links(), usize::MAX)? {
        if let Some(link) = keys::link_of(&key) {
            tx.delete_all(&keys::deletions(link))?;
        }
    }
    trust::distrust(tx, reason)
}

/// Raises every count of what is given out once; nothing where one has no room left.
fn skip(file_system: &mut FileSystem) -> Option<()> {
    let wide = |number: &mut u64| {
        *number = number.checked_add(WIDE)?;
        Some(())
    };
    wide(&mut file_system.inode_limit.0)?;
    wide(&mut file_system.next_session.0)?;
    wide(&mut file_system.next_job.0)?;
    wide(&mut file_system.map_epoch.0)?;
    wide(&mut file_system.links_version)?;
    file_system.next_link = LinkId(file_system.next_link.0.checked_add(NARROW)?);
    file_system.next_key = KeyId(file_system.next_key.0.checked_add(NARROW)?);
    (file_system.inode_limit.0 < INODES).then_some(())
}

/// How often a backup was put back.
fn restores(tx: &Transaction<'_>) -> Result<u32, StoreError> {
    let record = tx.read::<RestoreRecord>(&keys::restores())?;
    Ok(record.map_or(0, |record| record.restores))
}

/// The generation that follows `present`.
pub(super) fn next_generation(
    tx: &Transaction<'_>,
    present: ContentGeneration,
) -> Result<ContentGeneration, StoreError> {
    Ok(present.next().max(ContentGeneration(restores(tx)? * RAISES)))
}

/// Whether a write epoch is of a time before the last backup was put back: targets may have seen
/// later ones of the same file.
pub(super) fn is_of_before(tx: &Transaction<'_>, epoch: WriteEpoch) -> Result<bool, StoreError> {
    Ok(epoch < WriteEpoch(restores(tx)? * RAISES))
}

/// The write epoch that follows `present`.
pub(super) fn next_write_epoch(
    tx: &Transaction<'_>,
    present: WriteEpoch,
) -> Result<WriteEpoch, StoreError> {
    Ok(present.next().max(WriteEpoch(restores(tx)? * RAISES)))
}
