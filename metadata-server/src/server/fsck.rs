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

use super::{
    MetadataService,
    answer::{Work, other},
};

impl MetadataService {
    pub(super) fn fsck<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        let checks = &self.reconciliation;
        match call.kind() {
            RequestKind::StartFsck => report::<StartFsck, _>(call, |request| checks.start(request)),
            RequestKind::CancelFsck => report::<CancelFsck, _>(call, |_| checks.cancel()),
            RequestKind::TrustNamespace => report::<TrustNamespace, _>(call, |_| checks.trust()),
            RequestKind::StartRepair => {
                report::<StartRepair, _>(call, |request| checks.start_repair(request.start))
            }
            RequestKind::ShowNamespace => {
                call.decode::<ShowNamespace>()?;
                Ok(other::<ShowNamespace>(async {
                    Ok(NamespaceReply { report: checks.show_namespace() })
                }))
            }
            _ => report::<ShowFsck, _>(call, |_| checks.show()),
        }
    }
}

fn report<'a, R, F>(call: &IncomingCall, work: impl FnOnce(R) -> F) -> Result<Work<'a>, Failure>
where
    R: Request<Reply = FsckReply>,
    F: Future<Output = Result<FsckReport, Failure>> + Send + 'a,
{
    let report = work(call.decode::<R>()?);
    Ok(other::<R>(async move { Ok(FsckReply { report: report.await? }) }))
}
