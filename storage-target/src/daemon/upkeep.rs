//! What operators ask of a target, by way of the metadata server.

use millrace_protocol::upkeep::{ControlScrub, DescribeTarget, ScrubReport, TargetDetail};
use millrace_types::{ErrorKind, Failure};

use super::Daemon;

impl Daemon {
    /// Tells everything about a target.
    pub(crate) fn describe_target(
        &self,
        request: &DescribeTarget,
    ) -> Result<TargetDetail, Failure> {
        let store = self.open_store(request.target)?;
        if let Some(why) = store.held_back() {
            // Not one that is tried again: an operator waits.
            return Err(Failure::new(ErrorKind::Stale, why));
        }
        let volume = store.volume();
        let detail = volume.describe(request.after, request.findings_max);
        let introduced = self.introduced.load(std::sync::atomic::Ordering::Relaxed);
        Ok(TargetDetail { blank: detail.blank && !introduced, ..detail })
    }

    /// Does what an operator asks of a target's scrub.
    pub(crate) fn control_scrub(&self, request: &ControlScrub) -> Result<ScrubReport, Failure> {
        Ok(self.store(request.target)?.volume().act_on_scrub(request.action))
    }
}
