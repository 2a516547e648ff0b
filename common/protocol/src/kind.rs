//! Every request of the protocol has one number here, and a number is never used again.
//!
//! The high byte is the service: `0x01` sessions, `0x02` metadata, `0x03` cluster, `0x04` storage,
//! `0x05` target control, `0x06` administration, `0x07` a mount's local control socket. A request
//! that is removed keeps its line here with the word REMOVED and the version that dropped it.

use crate::codec::{Message, messages};

/// A message that asks for something, with its number and the type of its answer.
pub trait Request: Message {
    /// The number in the frame.
    const KIND: RequestKind;
    /// What a success answers.
    type Reply: Message;
}

/// Declares the kinds and binds each to its request and reply types.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $request:path => $reply:path;)*) => {
        /// The number of a request.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum RequestKind {
            $($(#[$doc])* $name = $code,)*
        }

        impl RequestKind {
            /// Every kind, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The number on the wire.
            #[must_use]
            pub fn code(self) -> u16 {
                self as u16
            }

            /// Reads a number from the wire.
            #[must_use]
            pub fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The name for logs and metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }

        messages!($($request),*);

        $(
            impl Request for $request {
                const KIND: RequestKind = RequestKind::$name;
                type Reply = $reply;
            }
        )*
    };
}

use crate::{
    access, admin, ahead, backup, bucket, by_state, cluster, control, delegation, file_list, fsck,
    job_detail, job_options, job_waits, known_state, lease, left_out, lock, loss, metadata,
    refresh, release, requests, same_host, selection, session, storage, tallied, target, unused,
    upkeep,
};

requests! {
    /// First message on a connection to the metadata server.
    Hello = 0x0101, session::Hello => session::HelloReply;
    /// Begins a session (a logged command).
    OpenSession = 0x0102, session::OpenSession => session::SessionReply;
    /// Renews the session's ticket for another lease.
    RenewTicket = 0x0103, session::RenewTicket => session::SessionReply;
    /// Ends a session: closes what it has open.
    CloseSession = 0x0104, session::CloseSession => session::Done;
    /// After a restart of the server: what the session holds that is not logged.
    Declare = 0x0105, session::Declare => session::DeclareReply;
    /// After a restart of the server: whether its log has what was seen of it before.
    CheckLog = 0x0106, session::CheckLog => session::CheckLogReply;
    /// After a restart of the server: the session has declared whatever it has from before.
    AllTold = 0x0107, session::AllTold => session::Done;
    /// Where a server on the caller's own host takes requests besides. The transport answers it.
    FindSocket = 0x0108, same_host::FindSocket => same_host::FoundSocket;

    /// Finds a name in a directory.
    Lookup = 0x0201, metadata::Lookup => metadata::InodeReply;
    /// Attributes, layout and capability of an inode.
    GetInode = 0x0202, metadata::GetInode => metadata::InodeReply;
    /// A page of a directory, with attributes.
    ReadDirectory = 0x0203, metadata::ReadDirectory => metadata::DirectoryPage;
    /// Makes a file, directory, symbolic link or special node.
    Create = 0x0204, metadata::Create => metadata::InodeReply;
    /// Gives a file another name.
    MakeLink = 0x0205, metadata::MakeLink => metadata::InodeReply;
    /// Removes a name (unlink and rmdir).
    Remove = 0x0206, metadata::Remove => session::Done;
    /// Moves a name, replacing or exchanging as the flags say.
    Rename = 0x0207, metadata::Rename => session::Done;
    /// Changes mode, owner, times or size.
    SetAttributes = 0x0208, metadata::SetAttributes => metadata::InodeReply;
    /// Opens a file for reading or writing.
    Open = 0x0209, metadata::Open => metadata::InodeReply;
    /// Ends an open.
    Close = 0x020a, metadata::Close => session::Done;
    /// A writer's proposal of size and time.
    Commit = 0x020b, metadata::Commit => metadata::InodeReply;
    /// Makes every acknowledged command durable.
    SyncMetadata = 0x020c, metadata::SyncMetadata => session::Done;
    /// Reads one extended attribute.
    GetXattr = 0x020d, metadata::GetXattr => metadata::XattrReply;
    /// Lists the names of the extended attributes.
    ListXattrs = 0x020e, metadata::ListXattrs => metadata::XattrNames;
    /// Sets one extended attribute.
    SetXattr = 0x020f, metadata::SetXattr => session::Done;
    /// Removes one extended attribute.
    RemoveXattr = 0x0210, metadata::RemoveXattr => session::Done;
    /// Capacity and use of the file system.
    FileSystemUse = 0x0211, metadata::FileSystemUse => metadata::FileSystemUseReply;
    /// Which lock is in the way of another.
    TestLock = 0x0212, lock::TestLock => lock::TestLockReply;
    /// Takes, changes or gives back a lock; queues a wait for it, and claims what came of that.
    SetLock = 0x0213, lock::SetLock => lock::SetLockReply;
    /// Ends a wait for a lock.
    CancelLock = 0x0214, lock::CancelLock => session::Done;
    /// Waits for the end of any of the session's waits for locks.
    AwaitLocks = 0x0215, lock::AwaitLocks => lock::AwaitLocksReply;
    /// Makes an inode as [`Self::Create`] does, with the umask apart.
    CreateMasked = 0x0216, metadata::CreateMasked => metadata::InodeReply;
    /// Makes and opens a file without a name.
    CreateUnnamed = 0x0217, metadata::CreateUnnamed => metadata::InodeReply;
    /// Waits until somebody wants to append where the session holds the right to.
    AwaitAppends = 0x0218, lock::AwaitAppends => lock::AwaitAppendsReply;
    /// Finds a name, to keep what it leads to.
    FindName = 0x0220, lease::FindName => lease::FoundName;
    /// Attributes of an inode, to be kept.
    ShowInode = 0x0221, lease::ShowInode => lease::ShownInode;
    /// A page of a directory, to be kept.
    ListEntries = 0x0222, lease::ListEntries => lease::EntriesPage;
    /// Listens for what must not be kept any more.
    AwaitRecalls = 0x0223, lease::AwaitRecalls => lease::Recalls;

    /// Makes an inode as [`Self::Create`] does, to keep what that changes.
    MakeName = 0x0224, lease::MakeName => lease::MadeName;
    /// Removes a name as [`Self::Remove`] does, to keep what that changes.
    RemoveName = 0x0225, lease::RemoveName => lease::RemovedName;
    /// Tells what was read, for times of access.
    NoteReads = 0x0226, access::NoteReads => session::Done;
    /// What lets a session read files of a directory, to be kept.
    ShowContents = 0x0227, lease::ShowContents => lease::ShownContents;
    /// Ends several opens for writing, as [`Self::Close`] does one.
    CloseFiles = 0x0228, metadata::CloseFiles => session::Done;
    /// The right to make files in a directory without asking for each.
    Delegate = 0x0229, delegation::Delegate => delegation::Delegated;
    /// Makes files that were opened under such a right.
    PublishFiles = 0x022a, delegation::PublishFiles => delegation::PublishedFiles;
    /// Rights that a session still has from before the server was restarted.
    DeclareDelegations = 0x022b, delegation::DeclareDelegations => session::Done;
    /// Listens for what must not be kept any more, and for what may be in place of it.
    AwaitNews = 0x022c, lease::AwaitNews => lease::News;
    /// Ends opens for writing through which nothing was written.
    CloseUnwritten = 0x022d, metadata::CloseUnwritten => session::Done;
    /// Where a listing that begins now ends.
    FindEnd = 0x022e, lease::FindEnd => lease::DirectoryEnd;
    /// A page of a directory, to be kept, with which of its entries have extended attributes.
    ListEntriesBare = 0x022f, lease::ListEntriesBare => lease::MarkedPage;

    /// A target daemon announces itself and its targets.
    RegisterHost = 0x0301, cluster::RegisterHost => cluster::RegisterHostReply;
    /// A target daemon is alive; learns the time and what is new.
    Heartbeat = 0x0302, cluster::Heartbeat => cluster::HeartbeatReply;
    /// The cluster map.
    FetchMap = 0x0303, cluster::FetchMap => cluster::Map;
    /// The signing keys; for targets alone.
    FetchKeys = 0x0304, cluster::FetchKeys => cluster::Keys;
    /// The links, so that targets can reach the buckets.
    FetchLinks = 0x0305, cluster::FetchLinks => cluster::Links;
    /// What to free, from the synced reclaim queue.
    FetchReclaim = 0x0306, cluster::FetchReclaim => cluster::ReclaimBatch;
    /// What has been freed.
    AcknowledgeReclaim = 0x0307, cluster::AcknowledgeReclaim => session::Done;
    /// Contents whose object is another version by now, or gone, as a fetch found.
    ReportChanged = 0x0308, cluster::ReportChanged => session::Done;
    /// What targets have seen of the command log: tells the log from an older copy of it.
    CompareLog = 0x0309, cluster::CompareLog => cluster::LogPoint;
    /// A target that needs room asks what may go.
    AskRelease = 0x030a, release::AskRelease => release::AskReleaseReply;
    /// Reads that had to wait for a bucket.
    ReportMisses = 0x030b, ahead::ReportMisses => session::Done;

    /// Shows the session ticket to a target.
    Attach = 0x0401, storage::Attach => storage::AttachReply;
    /// Reads part of a chunk.
    Read = 0x0402, storage::Read => storage::ReadReply;
    /// Writes part of a chunk.
    Write = 0x0403, storage::Write => storage::WriteReply;
    /// Turns part of a chunk into zeros.
    Zero = 0x0404, storage::Zero => storage::WriteReply;
    /// Makes every acknowledged write on a target durable.
    Sync = 0x0405, storage::Sync => storage::SyncReply;
    /// Finds data or a hole in part of a chunk.
    Seek = 0x0406, storage::Seek => storage::SeekReply;
    /// Writes part of a chunk with what a part of another one has.
    CopyRange = 0x0407, storage::CopyRange => storage::WriteReply;

    /// Drops what lies past a new, smaller size.
    Trim = 0x0501, target::Trim => target::TrimReply;
    /// Fetches absent, origin-backed bytes from the bucket.
    Hydrate = 0x0502, target::Hydrate => target::ItemResults;
    /// Drops clean blocks.
    Release = 0x0503, target::Release => target::ItemResults;
    /// How much of some contents is present, by block state.
    Presence = 0x0504, target::Presence => target::PresenceReply;
    /// Uploads one part of a multipart upload.
    UploadPart = 0x0505, target::UploadPart => target::UploadPartReply;
    /// Uploads a small file as one object.
    UploadObject = 0x0506, target::UploadObject => target::UploadObjectReply;
    /// Turns written blocks clean after their export.
    MarkExported = 0x0507, target::MarkExported => target::ItemResults;
    /// Tells whether this host can reach a bucket.
    CheckBucket = 0x0508, target::CheckBucket => session::Done;
    /// Everything about a target, with what was found bad on it.
    DescribeTarget = 0x0509, upkeep::DescribeTarget => upkeep::TargetDetail;
    /// Starts, pauses, resumes a target's scrub, or sets its rate.
    ControlScrub = 0x050a, upkeep::ControlScrub => upkeep::ScrubReport;
    /// Fetches absent, origin-backed bytes behind what readers wait for, while there is room.
    FetchAhead = 0x050b, ahead::FetchAhead => target::ItemResults;
    /// What this host asked some buckets.
    CountRequests = 0x050c, requests::CountRequests => requests::CountsReply;
    /// Uploads one part to a bucket that no link leads to.
    UploadPartTo = 0x050d, target::UploadPartTo => target::UploadPartReply;
    /// Uploads a small file as one object to a bucket that no link leads to.
    UploadObjectTo = 0x050e, target::UploadObjectTo => target::UploadObjectReply;
    /// Stores bytes that lived in an inode, before somebody writes the file.
    StoreInline = 0x050f, target::StoreInline => target::StoreInlineReply;
    /// What lies on a target, a page at a time.
    ListContents = 0x0510, fsck::ListContents => fsck::ContentsPage;
    /// Turns exported blocks clean, and has older write epochs refused from then on.
    MarkExportedAt = 0x0511, target::MarkExportedAt => target::ItemResults;
    /// Uploads a small file as one object, and tells whether the bucket has compared its checksum.
    StoreObject = 0x0512, target::StoreObject => target::StoreObjectReply;
    /// Tells whether this host can use a bucket, and what could not be tried.
    TryBucket = 0x0513, target::TryBucket => target::Tried;
    /// Reads what a part would send, and tells its digests.
    DigestPart = 0x0514, target::DigestPart => target::DigestPartReply;

    /// Health, servers, targets, links and jobs.
    ClusterStatus = 0x0601, admin::ClusterStatus => admin::ClusterStatusReply;
    /// The layout of a file or the defaults of a directory.
    ShowLayout = 0x0602, admin::ShowLayout => admin::LayoutReply;
    /// Sets a directory's layout defaults.
    SetLayout = 0x0603, admin::SetLayout => admin::LayoutReply;
    /// Binds a directory to a bucket and prefix.
    AddLink = 0x0604, admin::AddLink => admin::LinkReply;
    /// The links.
    ListLinks = 0x0605, admin::ListLinks => admin::LinksReply;
    /// Unbinds a directory.
    RemoveLink = 0x0606, admin::RemoveLink => session::Done;
    /// Starts a job.
    StartJob = 0x0607, admin::StartJob => admin::JobReply;
    /// The jobs, newest first.
    ListJobs = 0x0608, admin::ListJobs => admin::JobsReply;
    /// One job.
    ShowJob = 0x0609, admin::ShowJob => admin::JobReply;
    /// Asks a job to stop.
    CancelJob = 0x060a, admin::CancelJob => admin::JobReply;
    /// State of a file, or sums of a directory.
    ShowState = 0x060b, admin::ShowState => admin::StateReply;
    /// Decides which version of a file in conflict stays.
    ResolveConflict = 0x060c, admin::ResolveConflict => admin::ResolveReply;
    /// Sets how a link follows its bucket.
    SetLinkOptions = 0x060d, admin::SetLinkOptions => admin::LinkOptionsReply;
    /// How the links follow their buckets.
    ListLinkOptions = 0x060e, admin::ListLinkOptions => admin::LinkOptionsReply;
    /// The targets, each with its space and its scrub.
    ListTargets = 0x060f, upkeep::ListTargets => upkeep::TargetsReply;
    /// Everything about a target, with what was found bad on it and the files concerned.
    ShowTarget = 0x0610, upkeep::ShowTarget => upkeep::TargetReply;
    /// Starts, pauses, resumes the scrubs of targets, or sets their rate.
    ScrubTargets = 0x0611, upkeep::ScrubTargets => upkeep::ScrubsReply;
    /// What would be lost if a target went away now.
    CheckDrain = 0x0612, upkeep::CheckDrain => upkeep::DrainReply;
    /// Which files the loss of a target damages.
    LookLoss = 0x0613, loss::LookLoss => loss::LossPage;
    /// Gives a target up that will not come back.
    LoseTarget = 0x0614, loss::LoseTarget => loss::LossProgress;
    /// Starts a check of the targets against the namespace.
    StartFsck = 0x0620, fsck::StartFsck => fsck::FsckReply;
    /// The check that runs, or the last one.
    ShowFsck = 0x0621, fsck::ShowFsck => fsck::FsckReply;
    /// Ends the check that runs.
    CancelFsck = 0x0622, fsck::CancelFsck => fsck::FsckReply;
    /// Declares the namespace to be the right one.
    TrustNamespace = 0x0623, fsck::TrustNamespace => fsck::FsckReply;
    /// Starts a check that repairs the namespace where that is safe.
    StartRepair = 0x0624, fsck::StartRepair => fsck::FsckReply;
    /// What the check that runs, or the last one, found of the namespace itself.
    ShowNamespace = 0x0625, fsck::ShowNamespace => fsck::NamespaceReply;

    /// Begins a backup of the metadata, or asks how far it is.
    PrepareBackup = 0x0630, backup::PrepareBackup => backup::BackupReply;
    /// Reads a part of a backup.
    ReadBackup = 0x0631, backup::ReadBackup => backup::BackupPiece;

    /// Has targets keep a file or tree, or ends that.
    SetPin = 0x0640, release::SetPin => release::PinReply;
    /// What targets have to keep.
    ListPins = 0x0641, release::ListPins => release::PinsReply;
    /// Starts a job over a part of a tree.
    StartSelected = 0x0642, selection::StartSelected => admin::JobReply;
    /// What a job works on.
    ShowSelection = 0x0643, selection::ShowSelection => selection::SelectionReply;
    /// Starts a job once more.
    RetryJob = 0x0644, selection::RetryJob => admin::JobReply;
    // 0x0645 StartPublication, an export with a manifest: REMOVED in 0.1.0. It is an option now.
    /// Starts a job that is done in some way of its own.
    StartWithOptions = 0x0646, job_options::StartWithOptions => admin::JobReply;
    /// How a job is done.
    ShowJobOptions = 0x0647, job_options::ShowJobOptions => job_options::JobOptionsReply;
    /// What became of each file of a job.
    FetchReport = 0x0648, job_options::FetchReport => job_options::ReportPage;
    /// Adds to a list of files for a job.
    AppendFiles = 0x0649, file_list::AppendFiles => file_list::FilesReply;
    /// What a job asked buckets, and how far it is in each directory.
    ShowJobDetail = 0x064a, job_detail::ShowJobDetail => job_detail::JobDetailReply;
    /// Puts a job's report into a bucket.
    PutReport = 0x064b, job_options::PutReport => job_options::PutReportReply;
    /// Waits a while for a job to end.
    AwaitJob = 0x064c, admin::AwaitJob => admin::JobReply;
    /// Starts a job over what nobody has used for a while.
    StartUnused = 0x064d, unused::StartUnused => admin::JobReply;
    /// For how long nobody has used what a job works on.
    ShowUnused = 0x064e, unused::ShowUnused => unused::UnusedReply;
    /// Work of a target for a job, counted; of target control, whatever its number.
    Tallied = 0x064f, tallied::Tallied => tallied::TalliedReply;

    /// Has every host that needs the bucket of a link try it.
    CheckLink = 0x0650, bucket::CheckLink => bucket::CheckLinkReply;
    /// Files that changed here and in their buckets.
    ListConflicts = 0x0651, bucket::ListConflicts => bucket::ConflictsReply;
    /// Sets whether files below a link go to its bucket by themselves.
    SetAutoExport = 0x0652, bucket::SetAutoExport => bucket::AutoExportsReply;
    /// The links that export by themselves.
    ListAutoExports = 0x0653, bucket::ListAutoExports => bucket::AutoExportsReply;
    /// Sets what is fetched behind reads below a link.
    SetFetchPolicy = 0x0654, ahead::SetFetchPolicy => ahead::FetchPoliciesReply;
    /// What the links fetch behind reads.
    ListFetchPolicies = 0x0655, ahead::ListFetchPolicies => ahead::FetchPoliciesReply;
    /// How one file stands against its bucket.
    ShowFile = 0x0656, bucket::ShowFile => bucket::FileReply;
    /// What the buckets of all links were asked.
    ListRequests = 0x0657, requests::ListRequests => requests::RequestsReply;
    /// Has every host that needs the bucket of a link try it, reads included.
    TryLink = 0x0658, bucket::TryLink => bucket::TryLinkReply;
    /// Sets whether removals below a link reach its bucket.
    SetDeletePropagation = 0x0660, bucket::SetDeletePropagation => bucket::DeletePropagationReply;
    /// The links whose removals reach the bucket.
    ListDeletePropagation = 0x0661, bucket::ListDeletePropagation => bucket::DeletePropagationReply;
    /// Uploads by parts below a link that were begun and not ended.
    ListUploads = 0x0662, bucket::ListUploads => bucket::UploadsReply;

    /// Keys that can be no names.
    ShowLeftOut = 0x0668, left_out::ShowLeftOut => left_out::LeftOutReply;
    /// Sets how often a link is listed again by itself.
    SetRefreshInterval = 0x0669, refresh::SetRefreshInterval => refresh::RefreshIntervalsReply;
    /// The links that are listed again by themselves.
    ListRefreshIntervals = 0x066a, refresh::ListRefreshIntervals => refresh::RefreshIntervalsReply;
    /// The links that are being removed.
    ListRemovals = 0x066b, admin::ListRemovals => admin::RemovalsReply;

    /// Starts a job over the files in some states.
    StartByState = 0x0670, by_state::StartByState => admin::JobReply;
    /// In which states files must be that a job works on.
    ShowStates = 0x0671, by_state::ShowStates => by_state::StatesReply;
    /// State of a file, or sums of a directory, as far as the targets that answer know it.
    ShowKnownState = 0x0672, known_state::ShowKnownState => known_state::KnownStateReply;
    /// The buckets that a job waits for.
    ShowJobWaits = 0x0673, job_waits::ShowJobWaits => job_waits::JobWaitsReply;

    /// What a mount's daemon is: which cluster, which subtree.
    DescribeMount = 0x0701, control::DescribeMount => control::MountDescription;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_number_names_one_kind_and_reads_back() {
        let codes: BTreeSet<_> = RequestKind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(codes.len(), RequestKind::ALL.len());
        for &kind in RequestKind::ALL {
            assert_eq!(RequestKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(RequestKind::from_code(0), None);
    }
}
