//! Which request is answered how.

use millrace_protocol::{
    Request, RequestKind, admin, ahead, bucket, by_state, cluster, file_list, job_detail,
    job_options, job_waits, known_state, left_out, refresh, requests, selection, unused,
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure};

use super::{
    MetadataService,
    answer::{SyncedRead, Work, reading, synced, written},
};
use crate::ops;

impl MetadataService {
    /// How a request is answered.
    ///
    /// # Errors
    /// What is wrong with it by itself.
    pub(super) fn dispatch<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        match call.kind() {
            RequestKind::Hello => written(call, ops::session::hello),
            RequestKind::OpenSession => synced(call, ops::session::open),
            RequestKind::RenewTicket => written(call, ops::session::renew),
            RequestKind::CloseSession => synced(call, ops::session::close),
            RequestKind::CheckLog => written(call, ops::session::check_log),
            RequestKind::AllTold => written(call, ops::session::all_told),
            RequestKind::RegisterHost => synced(call, ops::cluster::register),
            RequestKind::Heartbeat => written(call, ops::cluster::heartbeat),
            RequestKind::FetchMap => self.read_synced(call, ops::cluster::map),
            RequestKind::FetchKeys => written(call, ops::cluster::signing_keys),
            RequestKind::FetchLinks => self.read_synced(call, ops::cluster::links),
            RequestKind::FetchReclaim => self.read_synced(call, ops::cluster::reclaim),
            RequestKind::AcknowledgeReclaim => written(call, ops::cluster::acknowledge_reclaim),
            RequestKind::CompareLog => synced(call, ops::fsck::compare_log),
            RequestKind::AskRelease => written(call, ops::release::ask),
            RequestKind::ReportChanged => self.hydrate::<cluster::ReportChanged>(call),
            RequestKind::ReportMisses => self.hydrate::<ahead::ReportMisses>(call),
            RequestKind::ReadDirectory => self.read_directory(call),
            RequestKind::Commit => self.commit(call),
            RequestKind::SyncMetadata => self.sync(call),
            _ => self.dispatch_names(call),
        }
    }

    fn dispatch_names<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        match call.kind() {
            RequestKind::Lookup => written(call, ops::lookup::lookup),
            RequestKind::GetInode => written(call, ops::lookup::inode),
            RequestKind::Create => written(call, ops::create::create),
            RequestKind::CreateMasked => written(call, ops::create::create_masked),
            RequestKind::CreateUnnamed => written(call, ops::create::create_unnamed),
            RequestKind::MakeLink => written(call, ops::create::make_link),
            RequestKind::Remove => written(call, ops::remove::remove),
            RequestKind::Rename => written(call, ops::rename::rename),
            RequestKind::SetAttributes => written(call, ops::set_attributes::set),
            RequestKind::Open => written(call, ops::open::open),
            RequestKind::Close => written(call, ops::open::close),
            RequestKind::CloseFiles => written(call, ops::open::close_files),
            RequestKind::CloseUnwritten => written(call, ops::open::close_unwritten),
            RequestKind::GetXattr => written(call, ops::xattr::get),
            RequestKind::ListXattrs => written(call, ops::xattr::list),
            RequestKind::SetXattr => written(call, ops::xattr::set),
            RequestKind::RemoveXattr => written(call, ops::xattr::remove),
            RequestKind::FileSystemUse => written(call, ops::statfs::read),
            RequestKind::TestLock
            | RequestKind::SetLock
            | RequestKind::CancelLock
            | RequestKind::AwaitLocks
            | RequestKind::AwaitAppends
            | RequestKind::Declare => self.locks(call),
            RequestKind::FindName => written(call, ops::lease::find),
            RequestKind::ShowInode => written(call, ops::lease::show),
            RequestKind::ShowContents => written(call, ops::contents::show),
            RequestKind::MakeName => written(call, ops::kept_change::make),
            RequestKind::RemoveName => written(call, ops::kept_change::remove),
            RequestKind::Delegate => written(call, ops::delegation::delegate),
            RequestKind::PublishFiles => written(call, ops::delegation::publish),
            RequestKind::DeclareDelegations => written(call, ops::delegation::declare),
            RequestKind::NoteReads => written(call, ops::access::note),
            RequestKind::ListEntries => self.list_entries(call),
            RequestKind::ListEntriesBare => self.list_entries_bare(call),
            RequestKind::FindEnd => written(call, ops::lease::find_end),
            RequestKind::AwaitRecalls => self.await_recalls(call),
            RequestKind::AwaitNews => self.await_news(call),
            _ => self.dispatch_admin(call),
        }
    }

    fn dispatch_admin<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        match call.kind() {
            RequestKind::ClusterStatus => written(call, ops::admin::status),
            RequestKind::ShowLayout => written(call, ops::admin::show_layout),
            RequestKind::SetLayout => synced(call, ops::admin::set_layout),
            RequestKind::SetPin => synced(call, ops::release::set_pin),
            RequestKind::ListPins => written(call, ops::release::pins),
            RequestKind::ListConflicts => written(call, ops::conflicts::list),
            RequestKind::ListJobs => written(call, ops::job::list),
            RequestKind::ShowJob => written(call, ops::job::show),
            RequestKind::StartJob => self.start::<admin::StartJob>(call),
            RequestKind::CancelJob => self.cancel_job(call),
            RequestKind::StartSelected => self.start::<selection::StartSelected>(call),
            RequestKind::StartWithOptions => self.start::<job_options::StartWithOptions>(call),
            RequestKind::ShowJobOptions => self.about_job::<job_options::ShowJobOptions>(call),
            RequestKind::FetchReport => self.about_job::<job_options::FetchReport>(call),
            RequestKind::PutReport => self.about_job::<job_options::PutReport>(call),
            RequestKind::AwaitJob => self.await_job(call),
            RequestKind::StartUnused => self.start::<unused::StartUnused>(call),
            RequestKind::ShowUnused => self.about_job::<unused::ShowUnused>(call),
            RequestKind::StartByState => self.start::<by_state::StartByState>(call),
            RequestKind::ShowStates => self.about_job::<by_state::ShowStates>(call),
            RequestKind::ShowJobWaits => self.about_job::<job_waits::ShowJobWaits>(call),
            RequestKind::ShowJobDetail => self.about_job::<job_detail::ShowJobDetail>(call),
            RequestKind::AppendFiles => self.hydrate::<file_list::AppendFiles>(call),
            RequestKind::RetryJob => self.retry_job(call),
            RequestKind::ShowSelection => self.about_job::<selection::ShowSelection>(call),
            RequestKind::ShowFile => self.hydrate::<bucket::ShowFile>(call),
            RequestKind::ShowState => self.hydrate::<admin::ShowState>(call),
            RequestKind::ShowKnownState => self.hydrate::<known_state::ShowKnownState>(call),
            RequestKind::ResolveConflict => self.hydrate::<admin::ResolveConflict>(call),
            RequestKind::ListTargets
            | RequestKind::ShowTarget
            | RequestKind::ScrubTargets
            | RequestKind::CheckDrain
            | RequestKind::LookLoss
            | RequestKind::LoseTarget => self.dispatch_upkeep(call),
            RequestKind::StartFsck
            | RequestKind::ShowFsck
            | RequestKind::CancelFsck
            | RequestKind::TrustNamespace
            | RequestKind::StartRepair
            | RequestKind::ShowNamespace => self.fsck(call),
            RequestKind::PrepareBackup => self.prepare_backup(call),
            RequestKind::ReadBackup => self.read_backup(call),
            _ => self.dispatch_link(call),
        }
    }

    fn dispatch_link<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        match call.kind() {
            RequestKind::CheckLink => self.hydrate::<bucket::CheckLink>(call),
            RequestKind::TryLink => self.hydrate::<bucket::TryLink>(call),
            RequestKind::SetAutoExport => self.hydrate::<bucket::SetAutoExport>(call),
            RequestKind::ListAutoExports => self.hydrate::<bucket::ListAutoExports>(call),
            RequestKind::SetDeletePropagation => self.hydrate::<bucket::SetDeletePropagation>(call),
            RequestKind::ListDeletePropagation => {
                self.hydrate::<bucket::ListDeletePropagation>(call)
            }
            RequestKind::ListUploads => self.hydrate::<bucket::ListUploads>(call),
            RequestKind::SetFetchPolicy => self.hydrate::<ahead::SetFetchPolicy>(call),
            RequestKind::ListFetchPolicies => self.hydrate::<ahead::ListFetchPolicies>(call),
            RequestKind::ShowLeftOut => self.hydrate::<left_out::ShowLeftOut>(call),
            RequestKind::SetRefreshInterval => self.hydrate::<refresh::SetRefreshInterval>(call),
            RequestKind::ListRefreshIntervals => {
                self.hydrate::<refresh::ListRefreshIntervals>(call)
            }
            RequestKind::ListLinks => written(call, ops::admin::links),
            RequestKind::AddLink => self.hydrate::<admin::AddLink>(call),
            RequestKind::RemoveLink => self.hydrate::<admin::RemoveLink>(call),
            RequestKind::ListRemovals => self.hydrate::<admin::ListRemovals>(call),
            RequestKind::SetLinkOptions => self.hydrate::<admin::SetLinkOptions>(call),
            RequestKind::ListLinkOptions => self.hydrate::<admin::ListLinkOptions>(call),
            RequestKind::ListRequests => self.hydrate::<requests::ListRequests>(call),
            other => {
                // `admits` lets nothing else in.
                let text = format!("{} is no request to a metadata server", other.name());
                Err(Failure::new(ErrorKind::NotSupported, text))
            }
        }
    }

    /// Answers with something that others act on, once it is synced.
    fn read_synced<R: Request>(
        &self,
        call: &IncomingCall,
        read: SyncedRead<R>,
    ) -> Result<Work<'_>, Failure> {
        let read = reading(call, read)?;
        Ok(Work::Other(Box::pin(self.once_synced(read))))
    }
}
