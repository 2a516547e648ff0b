//! Operators' requests about targets.

use millrace_protocol::{
    Request, RequestKind,
    loss::{LookLoss, LoseTarget},
    upkeep::{CheckDrain, ListTargets, ScrubTargets, ShowTarget},
};
use millrace_transport::IncomingCall;
use millrace_types::Failure;

use super::{MetadataService, answer::Work, hydrate::answered};
use crate::targets::upkeep::Upkeep;

impl MetadataService {
    pub(super) fn dispatch_upkeep(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        match call.kind() {
            RequestKind::ListTargets => self
                .upkeep::<ListTargets, _>(call, async |upkeep, request| {
                    upkeep.list(&request).await
                }),
            RequestKind::ShowTarget => self
                .upkeep::<ShowTarget, _>(call, async |upkeep, request| upkeep.show(&request).await),
            RequestKind::ScrubTargets => self
                .upkeep::<ScrubTargets, _>(call, async |upkeep, request| {
                    upkeep.scrub(&request).await
                }),
            RequestKind::LookLoss => {
                let losses = self.losses.clone();
                self.upkeep::<LookLoss, _>(call, async move |_, request| {
                    losses.look(&request).await
                })
            }
            RequestKind::LoseTarget => {
                let losses = self.losses.clone();
                self.upkeep::<LoseTarget, _>(call, async move |_, request| {
                    losses.lose(&request).await
                })
            }
            _ => self.upkeep::<CheckDrain, _>(call, async |upkeep, request| {
                upkeep.check_drain(&request).await
            }),
        }
    }

    /// Answers in the background, because daemons are asked; nobody is held up by one that is
    /// silent.
    fn upkeep<R, F>(
        &self,
        call: &IncomingCall,
        work: impl FnOnce(Upkeep, R) -> F,
    ) -> Result<Work<'_>, Failure>
    where
        R: Request,
        F: Future<Output = Result<R::Reply, Failure>> + Send + 'static,
    {
        let work = work(self.upkeep.clone(), call.decode::<R>()?);
        Ok(Work::Other(Box::pin(self.in_background(answered::<R>(work)))))
    }
}
