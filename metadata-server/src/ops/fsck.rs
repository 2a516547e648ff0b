//! What targets have seen of the command log.

use millrace_protocol::cluster::{CompareLog, LogPoint, TARGETS_PER_HOST_MAX};
use millrace_types::{ErrorKind, Failure};

use super::{
    Client, Step,
    cluster::{check_own_target, is_lost},
};
use crate::engine::Core;

/// A daemon shows what its targets have seen of the log. The answer must wait for the sync: the
/// targets forget what they saw before.
///
/// # Errors
/// [`ErrorKind::Forbidden`] for a target of another daemon; [`ErrorKind::Unavailable`] when a doubt
/// cannot be logged; [`ErrorKind::Stale`] when one is an older copy of itself.
pub fn compare_log(
    core: &mut Core,
    client: &Client,
    request: &CompareLog,
) -> Result<Step<LogPoint>, Failure> {
    if request.targets.len() > TARGETS_PER_HOST_MAX {
        return Err(Failure::new(ErrorKind::InvalidArgument, "a daemon serves 1 to 64 targets"));
    }
    let mut witnesses = Vec::new();
    for witness in &request.targets {
        if !is_lost(core, witness.target)? {
            check_own_target(core, client, witness.target)?;
            witnesses.push(*witness);
        } else if core.is_older_copy(witness.target) {
            // Its daemon may have an old map yet, by which it would serve it.
            return Err(Failure::new(ErrorKind::Stale, "the target was given up"));
        }
    }
    let mut older = Ok(());
    for witness in witnesses {
        match core.compare_log(witness) {
            // What the others show counts all the same.
            Err(failure) if failure.kind == ErrorKind::Stale => older = Err(failure),
            compared => compared?,
        }
    }
    older?;
    if core.is_doubt_pending() {
        let text = "the command log cannot take what the targets have shown";
        return Err(Failure::new(ErrorKind::Unavailable, text));
    }
    Ok(Step::Done(core.log_point()))
}
