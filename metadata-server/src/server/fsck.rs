//! Checks of the targets against the namespace, as operators ask for them.

use millrace_protocol::{
    Request, RequestKind,
    fsck::{CancelFsck, FsckReply, FsckReport, ShowFsck, StartFsck, TrustNamespace},
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
