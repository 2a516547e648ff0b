//! What the namespace is worth: which runs of the server made it, and whether it may have lost
//! something. Runs are remembered so that a target that saw one of them can tell a log that was put
//! back from an older copy: that one does not know the run, or says that it ended earlier.

use millrace_types::LogIndex;

use super::{ApplyError, Transaction};
use crate::{
    command::Outcome,
    namespace::tree,
    store::{
        keys,
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
    tx.put(keys::run(begun), &RunRecord { incarnation });
    Ok(Outcome::Done)
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
    Ok(Outcome::Done)
}
