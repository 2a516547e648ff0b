//! The freeing of orphans of one target, and the brake before it.

use millrace_protocol::{fsck::StartFsck, target::ContentName};
use millrace_types::{ErrorKind, Failure, TargetId};

use super::{Shared, compare::Suspect, tally};
use crate::{
    command::{BATCH_MAX, Command, Outcome, ReclaimOrphans},
    engine::Core,
};

/// One part in so many of a target's chunks may be freed without asking anybody.
const SHARE: u64 = 100;

/// So many chunks of a target may be freed without asking anybody, however few it has: 2 GiB in
/// chunks of 8 MiB, which is what sixteen clients that were cut off had in flight (128 MiB each).
const FREED_FREELY: u64 = 256;

/// The most chunks that a check frees by itself of a target that holds so many.
///
/// What orphans come from is rare and small. When they are many, the namespace is more likely to be
/// the wrong one than the target, in a way that nobody has thought of: then an operator decides.
pub(super) fn freed_freely(chunks: u64) -> u64 {
    (chunks / SHARE).max(FREED_FREELY)
}

/// Frees what both passes call orphans of one target.
pub(super) struct Freeing<'a> {
    pub(super) shared: &'a Shared,
    pub(super) target: TargetId,
    pub(super) request: &'a StartFsck,
}

impl Freeing<'_> {
    /// Queues `orphans`, unless they and those that were `passed_over` are too many, or nobody
    /// wants it.
    pub(super) async fn run(&self, orphans: Vec<Suspect>, passed_over: u64) -> Result<(), Failure> {
        if orphans.is_empty()
            || self.is_held_back(&orphans, passed_over)
            || self.request.report_only
        {
            return Ok(());
        }
        for orphans in orphans.chunks(BATCH_MAX) {
            if !self.queue(orphans).await? {
                break;
            }
        }
        Ok(())
    }

    /// The brake.
    fn is_held_back(&self, orphans: &[Suspect], passed_over: u64) -> bool {
        if self.request.free_many {
            return false;
        }
        let target = self.target;
        let chunks = orphans.iter().map(|orphan| orphan.chunks).sum::<u64>() + passed_over;
        self.shared.change(|report| {
            let Some(shown) = tally::target_of(report, target) else { return true };
            let limit = freed_freely(shown.chunks);
            if chunks <= limit {
                return false;
            }
            shown.held_back = Some(format!(
                "{chunks} of its {} chunks seem to be orphans, and a check frees at most {limit} \
                 of them by itself; look at `millrace fsck show`, then `millrace fsck start \
                 --target {target} --free-many`",
                shown.chunks
            ));
            tracing::error!(%target, chunks, limit, "so many orphans are not freed unasked");
            true
        })
    }

    /// Queues some, durably; tells whether that was allowed.
    async fn queue(&self, orphans: &[Suspect]) -> Result<bool, Failure> {
        let contents: Vec<ContentName> = orphans.iter().map(|orphan| orphan.content).collect();
        let target = self.target;
        let queueing = move |core: &mut Core| {
            if !core.has_compared(target) {
                let text = "it registered again during the check, maybe with another disk";
                return Err(Failure::new(ErrorKind::Unavailable, text));
            }
            if core.distrusted()?.is_some() || core.doubt_orphans(target, &contents)? {
                return Ok(None);
            }
            let reclaim = Command::ReclaimOrphans(ReclaimOrphans { target, contents });
            core.execute(None, reclaim).map(Some)
        };
        let Some(outcome) = self.shared.engine.durable_turn(queueing).await? else {
            return Ok(false);
        };
        let asked = u32::try_from(orphans.len()).unwrap_or(u32::MAX);
        if outcome == Outcome::Queued(asked) {
            self.shared.update(|report| tally::queued(report, orphans));
        } else {
            // Two passes were wrong, and the command knew better.
            tracing::error!(%target, asked, ?outcome, "some orphans belong to files");
        }
        Ok(true)
    }
}
