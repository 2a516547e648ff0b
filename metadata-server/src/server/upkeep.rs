//! Operators' requests about targets.

use millrace_protocol::{
    Request, RequestKind,
    loss::{LookLoss, LoseTarget},
    upkeep::{CheckDrain, ListTargets, ScrubTargets, ShowTarget},
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure};

use super::{MetadataService, respond};
use crate::targets::upkeep::Upkeep;

impl MetadataService {
    pub(super) async fn dispatch_upkeep(&self, call: IncomingCall) {
        match call.kind() {
            RequestKind::ListTargets => {
                self.upkeep::<ListTargets, _>(call, async |upkeep, request| {
                    upkeep.list(&request).await
                })
                .await;
            }
            RequestKind::ShowTarget => {
                self.upkeep::<ShowTarget, _>(call, async |upkeep, request| {
                    upkeep.show(&request).await
                })
                .await;
            }
            RequestKind::ScrubTargets => {
                self.upkeep::<ScrubTargets, _>(call, async |upkeep, request| {
                    upkeep.scrub(&request).await
                })
                .await;
            }
            RequestKind::LookLoss => {
                let losses = self.losses.clone();
                self.upkeep::<LookLoss, _>(call, async move |_, request| {
                    losses.look(&request).await
                })
                .await;
            }
            RequestKind::LoseTarget => {
                let losses = self.losses.clone();
                self.upkeep::<LoseTarget, _>(call, async move |_, request| {
                    losses.lose(&request).await
                })
                .await;
            }
            _ => {
                self.upkeep::<CheckDrain, _>(call, async |upkeep, request| {
                    upkeep.check_drain(&request).await
                })
                .await;
            }
        }
    }

    /// Answers in the background, because daemons are asked; nobody is held up by one that is
    /// silent.
    async fn upkeep<R, F>(&self, call: IncomingCall, work: impl FnOnce(Upkeep, R) -> F)
    where
        R: Request,
        F: Future<Output = Result<R::Reply, Failure>> + Send + 'static,
    {
        let result = async {
            let request = call.decode::<R>()?;
            let room = self.room()?;
            let work = work(self.upkeep.clone(), request);
            let task = self.background.spawn(async move {
                let _room = room;
                work.await
            });
            task.await.unwrap_or_else(|error| {
                Err(Failure::new(ErrorKind::Internal, format!("background work failed: {error}")))
            })
        };
        let result = result.await;
        respond::<R>(call, result).await;
    }
}
