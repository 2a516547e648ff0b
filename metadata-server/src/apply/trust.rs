//! What the namespace is worth: which runs of the server made it, and whether it may have lost
//! something.
//!
//! Runs are remembered for two reasons. A target that saw one of them can tell a log that was put
//! back from an older copy: that one does not know the run, or says that it ended earlier. And of
//! each run it is known which ids no inode had when it began: what lies on a target under such an
//! id may be of a file that the log has lost, also when no target has seen the log since then.

use std::ops::{Bound, Range};

use millrace_types::{InodeId, LogIndex};

use super::{ApplyError, Transaction, pristine};
use crate::{
    command::Outcome,
    namespace::tree,
    store::{
        StoreError, View, keys,
        records::{DistrustRecord, RunRecord},
    },
};

/// Runs that are remembered. A target that saw none of them raises a doubt, which costs an
/// operator a look.
const RUNS_KEPT: usize = 1024;

/// The server began to run.
pub(super) fn begin_run(tx: &mut Transaction<'_>, incarnation: u64) -> Result<Outcome, ApplyError> {
    let known = tree::scan::<RunRecord>(tx, &keys::runs(), usize::MAX)?;
    for (key, _) in known.iter().take((known.len() + 1).saturating_sub(RUNS_KEPT)) {
        tx.delete(key.clone());
    }
    let begun: LogIndex = tx.index;
    let unnamed_until = tx.file_system()?.inode_limit;
    let unnamed_from = end_of_inodes(tx, unnamed_until)?;
    tx.put(keys::run(begun), &RunRecord { incarnation, unnamed_from, unnamed_until });
    pristine::forget_all(tx)?;
    Ok(Outcome::Done)
}

/// One past the highest inode below `limit` that there is: a search by halves, of some fifty looks.
fn end_of_inodes(view: &(impl View + ?Sized), limit: InodeId) -> Result<InodeId, StoreError> {
    let (mut low, mut high) = (0, limit.0);
    while low < high {
        let middle = low + (high - low) / 2;
        let (first, end) = (keys::inode(InodeId(middle)), keys::inode(InodeId(high)));
        let found = view.scan(Bound::Included(&first), Bound::Excluded(&end), 1)?;
        match found.first().and_then(|(key, _)| keys::number_at(key, 1)) {
            Some(inode) => low = inode + 1,
            None => high = middle,
        }
    }
    Ok(InodeId(low))
}

/// Ids of which this log cannot tell whether they were ever a file's: what lies on a target under
/// one of them is only freed when an operator has vouched for the namespace.
pub(crate) fn unnamed(view: &(impl View + ?Sized)) -> Result<Vec<Range<InodeId>>, StoreError> {
    let runs = tree::scan::<RunRecord>(view, &keys::runs(), usize::MAX)?;
    let ranges = runs.into_iter().map(|(_, run)| run.unnamed_from..run.unnamed_until);
    Ok(ranges.filter(|range| !range.is_empty()).collect())
}

/// The namespace may have lost something. The first reason stays.
pub(super) fn distrust(tx: &mut Transaction<'_>, reason: &str) -> Result<Outcome, ApplyError> {
    if tx.read::<DistrustRecord>(&keys::distrust())?.is_none() {
        let record = DistrustRecord { since: tx.time, reason: reason.to_owned() };
        tx.put(keys::distrust(), &record);
    }
    Ok(Outcome::Done)
}

/// An operator vouches for the namespace.
pub(super) fn trust(tx: &mut Transaction<'_>) -> Result<Outcome, ApplyError> {
    tx.delete(keys::distrust());
    for (key, run) in tree::scan::<RunRecord>(tx, &keys::runs(), usize::MAX)? {
        if run.unnamed_from < run.unnamed_until {
            tx.put(key, &RunRecord { unnamed_until: run.unnamed_from, ..run });
        }
    }
    Ok(Outcome::Done)
}
