//! Checks of the namespace and of the targets against it, as operators ask for them.

use millrace_protocol::{
    Request, RequestKind,
    fsck::{
        CancelFsck, FsckReply, FsckReport, NamespaceReply, ShowFsck, ShowNamespace, StartFsck,
        StartRepair, TrustNamespace,
    },
};
use millrace_transport::IncomingCall;
use millrace_types::Failure;

use super::{MetadataService, respond};

impl MetadataService {
    pub(super) async fn fsck(&self, call: IncomingCall) {
        let checks = &self.reconciliation;
        match call.kind() {
            RequestKind::StartFsck => {
                answer::<StartFsck, _>(call, async |request| checks.start(request).await).await;
            }
            RequestKind::CancelFsck => {
                answer::<CancelFsck, _>(call, async |_| checks.cancel().await).await;
            }
            RequestKind::TrustNamespace => {
                answer::<TrustNamespace, _>(call, async |_| checks.trust().await).await;
            }
            RequestKind::StartRepair => {
                let repair = async |request: StartRepair| checks.start_repair(request.start).await;
                answer::<StartRepair, _>(call, repair).await;
            }
            RequestKind::ShowNamespace => {
                let shown = call.decode::<ShowNamespace>();
                let shown = shown.map(|_| NamespaceReply { report: checks.show_namespace() });
                respond::<ShowNamespace>(call, shown).await;
            }
            _ => answer::<ShowFsck, _>(call, async |_| checks.show().await).await,
        }
    }
}

async fn answer<R, F>(call: IncomingCall, work: impl FnOnce(R) -> F)
where
    R: Request<Reply = FsckReply>,
    F: Future<Output = Result<FsckReport, Failure>>,
{
    let result = match call.decode::<R>() {
        Ok(request) => work(request).await.map(|report| FsckReply { report }),
        Err(failure) => Err(failure),
    };
    respond::<R>(call, result).await;
}
