//! Which role may send which request to the metadata server.

use millrace_protocol::{RequestKind as Kind, session::Role};

/// Whether a peer of `role` may send `kind`.
pub(super) fn admits(role: Role, kind: Kind) -> bool {
    admitted(kind).contains(&role)
}

/// Who may send it.
#[expect(clippy::too_many_lines, reason = "a table with a line for every request")]
fn admitted(kind: Kind) -> &'static [Role] {
    use Kind::{AwaitRecalls, FindName, ListEntries, MakeName, NoteReads, RemoveName, ShowInode};
    match kind {
        FindName
        | ShowInode
        | ListEntries
        | Kind::ListEntriesBare
        | MakeName
        | RemoveName
        | AwaitRecalls
        | Kind::AwaitNews
        | Kind::FindEnd
        | NoteReads
        | Kind::ShowContents => &[Role::Client],
        Kind::Hello | Kind::FetchMap => &[Role::Target, Role::Client, Role::Admin],
        Kind::OpenSession
        | Kind::RenewTicket
        | Kind::CloseSession
        | Kind::CheckLog
        | Kind::AllTold
        | Kind::Declare
        | Kind::Lookup
        | Kind::GetInode
        | Kind::ReadDirectory
        | Kind::Create
        | Kind::CreateMasked
        | Kind::CreateUnnamed
        | Kind::MakeLink
        | Kind::Remove
        | Kind::Rename
        | Kind::SetAttributes
        | Kind::Open
        | Kind::Close
        | Kind::CloseFiles
        | Kind::CloseUnwritten
        | Kind::Delegate
        | Kind::PublishFiles
        | Kind::DeclareDelegations
        | Kind::Commit
        | Kind::SyncMetadata
        | Kind::GetXattr
        | Kind::ListXattrs
        | Kind::SetXattr
        | Kind::RemoveXattr
        | Kind::FileSystemUse
        | Kind::TestLock
        | Kind::SetLock
        | Kind::CancelLock
        | Kind::AwaitLocks
        | Kind::AwaitAppends => &[Role::Client],
        Kind::RegisterHost
        | Kind::Heartbeat
        | Kind::FetchKeys
        | Kind::FetchReclaim
        | Kind::AcknowledgeReclaim
        | Kind::ReportChanged
        | Kind::ReportMisses
        | Kind::CompareLog
        | Kind::AskRelease => &[Role::Target],
        Kind::FetchLinks => &[Role::Target, Role::Admin],
        Kind::ClusterStatus
        | Kind::AddLink
        | Kind::ListLinks
        | Kind::RemoveLink
        | Kind::ListRemovals
        | Kind::SetLinkOptions
        | Kind::ListLinkOptions
        | Kind::ListTargets
        | Kind::ShowTarget
        | Kind::ScrubTargets
        | Kind::CheckDrain
        | Kind::LookLoss
        | Kind::LoseTarget
        | Kind::StartFsck
        | Kind::ShowFsck
        | Kind::CancelFsck
        | Kind::TrustNamespace
        | Kind::StartRepair
        | Kind::ShowNamespace
        | Kind::PrepareBackup
        | Kind::ReadBackup
        | Kind::ListPins
        | Kind::CheckLink
        | Kind::TryLink
        | Kind::ListConflicts
        | Kind::SetAutoExport
        | Kind::ListAutoExports
        | Kind::SetDeletePropagation
        | Kind::ListDeletePropagation
        | Kind::ListUploads
        | Kind::SetFetchPolicy
        | Kind::ListFetchPolicies
        | Kind::SetRefreshInterval
        | Kind::ListRefreshIntervals
        | Kind::ListRequests => &[Role::Admin],
        // A mount's daemon sends these on for its users.
        Kind::ShowLayout
        | Kind::SetLayout
        | Kind::StartJob
        | Kind::ListJobs
        | Kind::ShowJob
        | Kind::AwaitJob
        | Kind::StartUnused
        | Kind::ShowUnused
        | Kind::StartByState
        | Kind::ShowStates
        | Kind::CancelJob
        | Kind::ShowState
        | Kind::ShowKnownState
        | Kind::ShowFile
        | Kind::ResolveConflict
        | Kind::SetPin
        | Kind::StartSelected
        | Kind::StartWithOptions
        | Kind::ShowJobOptions
        | Kind::FetchReport
        | Kind::ShowJobDetail
        | Kind::ShowJobWaits
        | Kind::PutReport
        | Kind::AppendFiles
        | Kind::ShowSelection
        | Kind::ShowLeftOut
        | Kind::RetryJob => &[Role::Admin, Role::Client],
        // The transport answers it, for whoever has a connection.
        Kind::FindSocket
        | Kind::Attach
        | Kind::Read
        | Kind::Write
        | Kind::Zero
        | Kind::Seek
        | Kind::CopyRange
        | Kind::Sync
        | Kind::Trim
        | Kind::Hydrate
        | Kind::FetchAhead
        | Kind::Release
        | Kind::Presence
        | Kind::UploadPart
        | Kind::UploadObject
        | Kind::UploadPartTo
        | Kind::UploadObjectTo
        | Kind::StoreObject
        | Kind::DigestPart
        | Kind::MarkExported
        | Kind::MarkExportedAt
        | Kind::CheckBucket
        | Kind::TryBucket
        | Kind::CountRequests
        | Kind::Tallied
        | Kind::DescribeTarget
        | Kind::ControlScrub
        | Kind::StoreInline
        | Kind::ListContents
        | Kind::DescribeMount => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_to_targets_alone_and_links_are_made_by_admins_alone() {
        for role in [Role::Metadata, Role::Client, Role::Admin] {
            assert!(!admits(role, Kind::FetchKeys), "{role:?}");
        }
        assert!(admits(Role::Target, Kind::FetchKeys));
        assert!(admits(Role::Admin, Kind::AddLink));
        assert!(!admits(Role::Client, Kind::AddLink));
        assert!(!admits(Role::Client, Kind::RegisterHost));
        assert!(!admits(Role::Target, Kind::Lookup));
        assert!(admits(Role::Admin, Kind::ScrubTargets));
        for role in [Role::Metadata, Role::Client, Role::Target] {
            assert!(!admits(role, Kind::ShowTarget) && !admits(role, Kind::ScrubTargets));
        }
    }
}
