//! Uploads by parts to buckets that no link leads to. They change no file: what is recorded is only
//! what goes on, or is given up, after a crash.

use millrace_types::{ErrorKind, InodeId, JobId};

use super::{ApplyError, Transaction};
use crate::{
    command::{Outcome, RecordCopy},
    store::{keys, records::CopyRecord},
};

/// The feature level from which on there are exports to buckets of no link.
const COPY_LEVEL: u32 = 10;

/// Remembers an upload; the one that was under way is over.
pub(super) fn record(tx: &mut Transaction<'_>, record: &RecordCopy) -> Result<Outcome, ApplyError> {
    check_level(tx)?;
    let RecordCopy { bucket, key, generation, change_count, size, part_size, upload_id, .. } =
        record.clone();
    let copy = CopyRecord { bucket, key, generation, change_count, size, part_size, upload_id };
    tx.put(keys::copy(record.job, record.inode), &copy);
    Ok(Outcome::Done)
}

/// Forgets an upload; one that is gone already is no error.
pub(super) fn forget(
    tx: &mut Transaction<'_>,
    job: JobId,
    inode: InodeId,
) -> Result<Outcome, ApplyError> {
    check_level(tx)?;
    tx.delete(keys::copy(job, inode));
    Ok(Outcome::Done)
}

fn check_level(tx: &Transaction<'_>) -> Result<(), ApplyError> {
    match tx.file_system()?.feature_level < COPY_LEVEL {
        true => Err(ErrorKind::NotSupported.into()),
        false => Ok(()),
    }
}
