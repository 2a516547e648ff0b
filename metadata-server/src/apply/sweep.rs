//! Whiteouts that nobody needs any more: those of directories that are gone, and of the directories
//! of links that are removed.
//!
//! Where names were removed by the million there are as many. One command takes
//! [`BATCH_MAX`](crate::command::BATCH_MAX) records of them along at most; a directory that has
//! more is marked, and later commands take what is left. So nobody waits for all of them, and no
//! batch has them all. As long as the directory shows its link none of them may go: the names would
//! come back. A mark says that nobody looks for them, since ids are never used twice; a directory
//! that shows another link later loses it before.

use std::ops::Bound;

use millrace_types::{ErrorKind, InodeId};

use super::{ApplyError, Transaction, remove::forget_whiteouts};
use crate::{
    command::Outcome,
    store::{View, borrow, keys, prefix_end},
};

/// The feature level from which on whiteouts go by and by.
const SWEEP_LEVEL: u32 = 22;

/// Records that a directory takes along whatever went before it: a mark costs as much as they do.
const FEW: usize = 16;

/// Marked directories that one command looks into: each costs some looks, however little it has.
const MARKS_MAX: usize = 256;

/// Forgets which imported names were removed of a directory that shows no link any more, and which
/// keys were left out there: at once as far as one command may, and otherwise by and by.
pub(super) fn forget_by_and_by(
    tx: &mut Transaction<'_>,
    directory: InodeId,
) -> Result<(), ApplyError> {
    if tx.file_system()?.feature_level < SWEEP_LEVEL {
        return forget_whiteouts(tx, directory);
    }
    tx.delete(keys::left_out(directory));
    let mark = keys::sweep(directory);
    if tx.get(&mark)?.is_some() {
        return Ok(());
    }
    let most = tx.sweeps_left.max(FEW);
    let mut found = Vec::new();
    for table in tables(directory) {
        // One more than may go shows that not all may.
        let limit = most + 1 - found.len();
        let end = prefix_end(&table);
        found.extend(tx.scan(Bound::Included(&table), borrow(&end), limit)?);
    }
    if found.len() > most {
        tx.put_bytes(mark, Vec::new());
        return Ok(());
    }
    tx.sweeps_left = tx.sweeps_left.saturating_sub(found.len());
    for (key, _) in found {
        tx.delete(key);
    }
    Ok(())
}

/// Takes some of what is left of marked directories away.
pub(super) fn sweep(tx: &mut Transaction<'_>) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < SWEEP_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let all = [keys::SWEEPS];
    let end = prefix_end(&all);
    for (mark, last) in tx.scan(Bound::Included(&all), borrow(&end), MARKS_MAX)? {
        if tx.sweeps_left == 0 {
            break;
        }
        sweep_one(tx, mark, last)?;
    }
    Ok(Outcome::Done)
}

/// Takes what it may of one directory: what is behind the last key that went. A look at the whole
/// table would go through everything that went before, which stores keep a note of for a while.
fn sweep_one(tx: &mut Transaction<'_>, mark: Vec<u8>, mut last: Vec<u8>) -> Result<(), ApplyError> {
    let directory = InodeId(keys::number_at(&mark, 1).unwrap_or_default());
    for table in tables(directory) {
        let from = match last.starts_with(&table) {
            true => Bound::Excluded(last.as_slice()),
            false if last > table => continue,
            false => Bound::Included(table.as_slice()),
        };
        let found = tx.scan(from, borrow(&prefix_end(&table)), tx.sweeps_left)?;
        tx.sweeps_left -= found.len();
        for (key, _) in found {
            last.clone_from(&key);
            tx.delete(key);
        }
        if tx.sweeps_left == 0 {
            tx.put_bytes(mark, last);
            return Ok(());
        }
    }
    tx.delete(mark);
    Ok(())
}

/// What goes of a directory, in the order in which it goes, which is that of the keys.
fn tables(directory: InodeId) -> [Vec<u8>; 2] {
    [keys::whiteouts(directory), keys::moved_files(directory)]
}

#[cfg(test)]
mod tests;
