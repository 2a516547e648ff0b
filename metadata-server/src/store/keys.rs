//! Every key of the metadata store, in one table.
//!
//! The first byte is the table. Numbers are big-endian, so that keys order as the numbers do. Names
//! are always last and take the rest of the key.
//!
//! | table | key after the first byte      | value                                              |
//! |-------|-------------------------------|----------------------------------------------------|
//! | `A`   |                               | [`Applied`]: the log index that the store shows    |
//! | `B`   | index 8                       | [`RunRecord`]: a run of the server, by its start   |
//! | `C`   | directory 8, cookie 8         | name of the entry at that position                 |
//! | `D`   | directory 8, name             | [`Entry`]: inode, kind, cookie                     |
//! | `E`   | inode 8                       | [`Export`]: an upload under way                    |
//! | `F`   |                               | [`FileSystem`]: counts, feature level, ids         |
//! | `G`   | pool 2, group 4               | [`GroupRecord`]: targets and epoch                 |
//! | `H`   | host 16                       | [`HostRecord`]: a target daemon's addresses        |
//! | `I`   | inode 8                       | [`Inode`]                                          |
//! | `J`   | job 8                         | [`JobRecord`]                                      |
//! | `K`   | key 4                         | [`KeyRecord`]: a signing key                       |
//! | `L`   | link 4                        | [`LinkRecord`]                                     |
//! | `M`   |                               | [`DistrustRecord`]: why the namespace is doubted   |
//! | `N`   | inode 8, parent 8, name       | empty: a further name of an inode                  |
//! | `O`   | inode 8, session 8            | [`OpenRecord`]: who keeps an inode open            |
//! | `P`   | pool 2                        | [`PoolRecord`]                                     |
//! | `Q`   | target 8, position 8          | [`ReclaimRecord`]: a content whose chunks may go   |
//! | `R`   | session 8, sequence 8         | [`Outcome`](crate::command::Outcome)               |
//! | `S`   | session 8                     | [`SessionRecord`]                                  |
//! | `T`   | target 8                      | [`TargetRecord`]                                   |
//! | `U`   | inode 8                       | empty: a file that changed here and in its bucket  |
//! | `V`   | inode 8                       | [`TrimRecord`]: a shrink that targets must hear of |
//! | `W`   | directory 8, name             | [`Whiteout`]: an imported name that was removed    |
//! | `X`   | inode 8, name                 | value of an extended attribute                     |
//! | `Y`   | session 8, inode 8            | empty: what a session keeps open, for its end      |
//! | `Z`   |                               | [`RestoreRecord`]: how often a backup was put back |
//! | `a`   | session 8                     | empty: a session that may keep names under leases  |
//! | `b`   | inode 8                       | link 4 or empty: a file that may get its first name |
//! | `c`   | inode 8                       | empty: a file or directory that is pinned          |
//! | `d`   | job 8                         | [`SelectionRecord`]: a job over a part of its tree |
//! | `e`   | target 8                      | [`LostTarget`]: a target that was given up         |
//! | `f`   | directory 8, name             | inode 8: which file had the name of a whiteout     |
//! | `g`   | link 4                        | [`AutoExportRecord`]: a link that exports by itself |
//! | `h`   | link 4                        | [`FetchRecord`]: what is fetched behind reads      |
//! | `i`   | job 8                         | empty: an export that ends with a manifest, as     |
//! |       |                               | made before there were options                     |
//! | `j`   | job 8                         | [`JobOptionsRecord`]: how a job is done            |
//! | `k`   | job 8, inode 8                | [`CopyRecord`]: an upload by parts to a bucket of  |
//! |       |                               | no link, under way                                 |
//! | `l`   | link 4                        | [`DeletePropagationRecord`]: removals below the    |
//! |       |                               | link reach its bucket                              |
//! | `l`   | link 4, `/`, key              | [`DeletionRecord`]: an object that is to go        |
//! | `m`   | directory 8                   | [`LeftOutRecord`]: keys that can be no names       |
//! | `n`   | link 4                        | [`RefreshIntervalRecord`]: a link that is listed   |
//! |       |                               | again by itself                                    |
//! | `o`   | job 8                         | [`JobDetailRecord`]: what a job asked, and where   |
//! | `p`   | inode 8                       | the bytes of a small file                          |
//! | `q`   | job 8                         | [`UnusedRecord`]: a job over what nobody uses      |
//! | `r`   | inode 8                       | [`PristineRecord`]: a file open to be written      |
//! | `s`   | job 8                         | [`StatesRecord`]: a job over files in some states  |
//! | `t`   | link 4                        | empty: a removal that gives up what is only here   |
//! | `u`   | target 8                      | [`ShownRecord`]: what it has shown of the log      |
//! | `v`   | directory 8                   | the last key that the sweep of its whiteouts took  |
//!
//! [`Applied`]: super::records::Applied
//! [`AutoExportRecord`]: super::records::AutoExportRecord
//! [`CopyRecord`]: super::records::CopyRecord
//! [`DeletePropagationRecord`]: super::records::DeletePropagationRecord
//! [`DeletionRecord`]: super::records::DeletionRecord
//! [`DistrustRecord`]: super::records::DistrustRecord
//! [`Entry`]: super::records::Entry
//! [`Export`]: super::records::Export
//! [`FetchRecord`]: super::records::FetchRecord
//! [`FileSystem`]: super::records::FileSystem
//! [`GroupRecord`]: super::records::GroupRecord
//! [`HostRecord`]: super::records::HostRecord
//! [`Inode`]: crate::namespace::Inode
//! [`JobDetailRecord`]: super::records::JobDetailRecord
//! [`JobOptionsRecord`]: super::records::JobOptionsRecord
//! [`JobRecord`]: super::records::JobRecord
//! [`KeyRecord`]: super::records::KeyRecord
//! [`LeftOutRecord`]: super::records::LeftOutRecord
//! [`LinkRecord`]: super::records::LinkRecord
//! [`LostTarget`]: super::records::LostTarget
//! [`OpenRecord`]: super::records::OpenRecord
//! [`PoolRecord`]: super::records::PoolRecord
//! [`PristineRecord`]: super::records::PristineRecord
//! [`ReclaimRecord`]: super::records::ReclaimRecord
//! [`RefreshIntervalRecord`]: super::records::RefreshIntervalRecord
//! [`RestoreRecord`]: super::records::RestoreRecord
//! [`RunRecord`]: super::records::RunRecord
//! [`SelectionRecord`]: super::records::SelectionRecord
//! [`SessionRecord`]: super::records::SessionRecord
//! [`ShownRecord`]: super::records::ShownRecord
//! [`StatesRecord`]: super::records::StatesRecord
//! [`TargetRecord`]: super::records::TargetRecord
//! [`TrimRecord`]: super::records::TrimRecord
//! [`UnusedRecord`]: super::records::UnusedRecord
//! [`Whiteout`]: super::records::Whiteout

pub use of_job::{job_detail, job_options, publication, selection, states, unused};
pub use parts::{after, link_of, number_at, pool_of};

mod of_job;
mod parts;

use millrace_types::{
    GroupId, HostId, InodeId, JobId, KeyId, LinkId, LogIndex, PoolId, SessionId, TargetId,
};

/// Builds a key from its table and its parts, each as big-endian bytes.
macro_rules! key {
    ($table:literal $(, $part:expr)*) => {{
        let parts: &[&[u8]] = &[&[$table] $(, &$part[..])*];
        parts.concat()
    }};
}

/// The table of small files' bytes. A value of it is never changed, and nobody asks for it before
/// its inode says that it is there; they are larger than others, and read less often.
pub const CONTENTS: u8 = b'p';

/// The table of opens, which [`super::near`] keeps at hand.
pub const OPENS: u8 = b'O';

/// The table of directories whose whiteouts go by and by.
pub const SWEEPS: u8 = b'v';

/// The log index that the store shows.
#[must_use]
pub fn applied() -> Vec<u8> {
    key!(b'A')
}

/// Counts and reserved ids.
#[must_use]
pub fn file_system() -> Vec<u8> {
    key!(b'F')
}

/// All runs of the server that are remembered.
#[must_use]
pub fn runs() -> Vec<u8> {
    key!(b'B')
}

/// The run of the server that began with this record of the log.
#[must_use]
pub fn run(begun: LogIndex) -> Vec<u8> {
    key!(b'B', begun.0.to_be_bytes())
}

/// Why the namespace is doubted.
#[must_use]
pub fn distrust() -> Vec<u8> {
    key!(b'M')
}

/// How often a backup was put back.
#[must_use]
pub fn restores() -> Vec<u8> {
    key!(b'Z')
}

/// All positions of a directory.
#[must_use]
pub fn cookies(directory: InodeId) -> Vec<u8> {
    key!(b'C', directory.0.to_be_bytes())
}

/// One position of a directory.
#[must_use]
pub fn cookie(directory: InodeId, cookie: u64) -> Vec<u8> {
    key!(b'C', directory.0.to_be_bytes(), cookie.to_be_bytes())
}

/// All names of all directories.
#[must_use]
pub fn all_entries() -> Vec<u8> {
    key!(b'D')
}

/// All names of a directory.
#[must_use]
pub fn entries(directory: InodeId) -> Vec<u8> {
    key!(b'D', directory.0.to_be_bytes())
}

/// One name of a directory.
#[must_use]
pub fn entry(directory: InodeId, name: &[u8]) -> Vec<u8> {
    key!(b'D', directory.0.to_be_bytes(), name)
}

/// All exports under way.
#[must_use]
pub fn exports() -> Vec<u8> {
    key!(b'E')
}

/// The export of an inode.
#[must_use]
pub fn export(inode: InodeId) -> Vec<u8> {
    key!(b'E', inode.0.to_be_bytes())
}

/// All groups of a pool.
#[must_use]
pub fn groups(pool: PoolId) -> Vec<u8> {
    key!(b'G', pool.0.to_be_bytes())
}

/// One group.
#[must_use]
pub fn group(pool: PoolId, group: GroupId) -> Vec<u8> {
    key!(b'G', pool.0.to_be_bytes(), group.0.to_be_bytes())
}

/// All target daemons.
#[must_use]
pub fn hosts() -> Vec<u8> {
    key!(b'H')
}

/// One target daemon.
#[must_use]
pub fn host(host: HostId) -> Vec<u8> {
    key!(b'H', host.0)
}

/// All inodes.
#[must_use]
pub fn inodes() -> Vec<u8> {
    key!(b'I')
}

/// One inode.
#[must_use]
pub fn inode(inode: InodeId) -> Vec<u8> {
    key!(b'I', inode.0.to_be_bytes())
}

/// All jobs.
#[must_use]
pub fn jobs() -> Vec<u8> {
    key!(b'J')
}

/// One job.
#[must_use]
pub fn job(job: JobId) -> Vec<u8> {
    key!(b'J', job.0.to_be_bytes())
}

/// All signing keys.
#[must_use]
pub fn signing_keys() -> Vec<u8> {
    key!(b'K')
}

/// One signing key.
#[must_use]
pub fn signing_key(key: KeyId) -> Vec<u8> {
    key!(b'K', key.0.to_be_bytes())
}

/// All links.
#[must_use]
pub fn links() -> Vec<u8> {
    key!(b'L')
}

/// One link.
#[must_use]
pub fn link(link: LinkId) -> Vec<u8> {
    key!(b'L', link.0.to_be_bytes())
}

/// All further names of an inode.
#[must_use]
pub fn names(inode: InodeId) -> Vec<u8> {
    key!(b'N', inode.0.to_be_bytes())
}

/// One further name of an inode.
#[must_use]
pub fn name(inode: InodeId, parent: InodeId, name: &[u8]) -> Vec<u8> {
    key!(b'N', inode.0.to_be_bytes(), parent.0.to_be_bytes(), name)
}

/// Everybody who keeps an inode open.
#[must_use]
pub fn opens(inode: InodeId) -> Vec<u8> {
    key!(b'O', inode.0.to_be_bytes())
}

/// One session that keeps an inode open.
#[must_use]
pub fn open(inode: InodeId, session: SessionId) -> Vec<u8> {
    key!(b'O', inode.0.to_be_bytes(), session.0.to_be_bytes())
}

/// All pools.
#[must_use]
pub fn pools() -> Vec<u8> {
    key!(b'P')
}

/// One pool.
#[must_use]
pub fn pool(pool: PoolId) -> Vec<u8> {
    key!(b'P', pool.0.to_be_bytes())
}

/// The reclaim queue of every target.
#[must_use]
pub fn reclaims() -> Vec<u8> {
    key!(b'Q')
}

/// The reclaim queue of a target.
#[must_use]
pub fn reclaims_of(target: TargetId) -> Vec<u8> {
    key!(b'Q', target.0)
}

/// One place in the reclaim queue of a target.
#[must_use]
pub fn reclaim(target: TargetId, position: u64) -> Vec<u8> {
    key!(b'Q', target.0, position.to_be_bytes())
}

/// All remembered outcomes of a session.
#[must_use]
pub fn outcomes(session: SessionId) -> Vec<u8> {
    key!(b'R', session.0.to_be_bytes())
}

/// One remembered outcome.
#[must_use]
pub fn outcome(session: SessionId, sequence: u64) -> Vec<u8> {
    key!(b'R', session.0.to_be_bytes(), sequence.to_be_bytes())
}

/// All sessions.
#[must_use]
pub fn sessions() -> Vec<u8> {
    key!(b'S')
}

/// One session.
#[must_use]
pub fn session(session: SessionId) -> Vec<u8> {
    key!(b'S', session.0.to_be_bytes())
}

/// All targets.
#[must_use]
pub fn targets() -> Vec<u8> {
    key!(b'T')
}

/// One target.
#[must_use]
pub fn target(target: TargetId) -> Vec<u8> {
    key!(b'T', target.0)
}

/// All files that changed here and in their bucket.
#[must_use]
pub fn conflicts() -> Vec<u8> {
    key!(b'U')
}

/// One of them.
#[must_use]
pub fn conflict(inode: InodeId) -> Vec<u8> {
    key!(b'U', inode.0.to_be_bytes())
}

/// All shrinks that targets must hear of.
#[must_use]
pub fn trims() -> Vec<u8> {
    key!(b'V')
}

/// The shrink of one inode.
#[must_use]
pub fn trim(inode: InodeId) -> Vec<u8> {
    key!(b'V', inode.0.to_be_bytes())
}

/// All removed imported names of a directory.
#[must_use]
pub fn whiteouts(directory: InodeId) -> Vec<u8> {
    key!(b'W', directory.0.to_be_bytes())
}

/// One removed imported name.
#[must_use]
pub fn whiteout(directory: InodeId, name: &[u8]) -> Vec<u8> {
    key!(b'W', directory.0.to_be_bytes(), name)
}

/// All files that had removed imported names of a directory.
#[must_use]
pub fn moved_files(directory: InodeId) -> Vec<u8> {
    key!(b'f', directory.0.to_be_bytes())
}

/// The file that had a removed imported name. It may be gone since.
#[must_use]
pub fn moved_file(directory: InodeId, name: &[u8]) -> Vec<u8> {
    key!(b'f', directory.0.to_be_bytes(), name)
}

/// A directory whose whiteouts go by and by.
#[must_use]
pub fn sweep(directory: InodeId) -> Vec<u8> {
    key!(b'v', directory.0.to_be_bytes())
}

/// All extended attributes of an inode.
#[must_use]
pub fn xattrs(inode: InodeId) -> Vec<u8> {
    key!(b'X', inode.0.to_be_bytes())
}

/// One extended attribute.
#[must_use]
pub fn xattr(inode: InodeId, name: &[u8]) -> Vec<u8> {
    key!(b'X', inode.0.to_be_bytes(), name)
}

/// Everything that a session keeps open.
#[must_use]
pub fn opened_by(session: SessionId) -> Vec<u8> {
    key!(b'Y', session.0.to_be_bytes())
}

/// One inode that a session keeps open.
#[must_use]
pub fn opened(session: SessionId, inode: InodeId) -> Vec<u8> {
    key!(b'Y', session.0.to_be_bytes(), inode.0.to_be_bytes())
}

/// All sessions that may keep something.
#[must_use]
pub fn keepers() -> Vec<u8> {
    key!(b'a')
}

/// One session that may keep something.
#[must_use]
pub fn keeper(session: SessionId) -> Vec<u8> {
    key!(b'a', session.0.to_be_bytes())
}

/// A file that was made without a name and may get one.
#[must_use]
pub fn nameable(inode: InodeId) -> Vec<u8> {
    key!(b'b', inode.0.to_be_bytes())
}

/// Everything that is pinned.
#[must_use]
pub fn pins() -> Vec<u8> {
    key!(b'c')
}

/// A file or directory that is pinned.
#[must_use]
pub fn pin(inode: InodeId) -> Vec<u8> {
    key!(b'c', inode.0.to_be_bytes())
}

/// All files that are open for writing and not written.
#[must_use]
pub fn pristines() -> Vec<u8> {
    key!(b'r')
}

/// What a file was before it was opened for writing, until somebody writes it.
#[must_use]
pub fn pristine(inode: InodeId) -> Vec<u8> {
    key!(b'r', inode.0.to_be_bytes())
}

/// All uploads by parts to buckets of no link.
#[must_use]
pub fn copies() -> Vec<u8> {
    key!(b'k')
}

/// Those of a job.
#[must_use]
pub fn copies_of(job: JobId) -> Vec<u8> {
    key!(b'k', job.0.to_be_bytes())
}

/// The upload of one file for a job.
#[must_use]
pub fn copy(job: JobId, inode: InodeId) -> Vec<u8> {
    key!(b'k', job.0.to_be_bytes(), inode.0.to_be_bytes())
}

/// Whether removals below a link reach its bucket.
#[must_use]
pub fn delete_propagation(link: LinkId) -> Vec<u8> {
    key!(b'l', link.0.to_be_bytes())
}

/// All objects of a link that are to go.
#[must_use]
pub fn deletions(link: LinkId) -> Vec<u8> {
    key!(b'l', link.0.to_be_bytes(), b"/")
}

/// One of them, by its key in the bucket.
#[must_use]
pub fn deletion(link: LinkId, key: &str) -> Vec<u8> {
    key!(b'l', link.0.to_be_bytes(), b"/", key.as_bytes())
}

/// What a target has shown of the log.
#[must_use]
pub fn shown(target: TargetId) -> Vec<u8> {
    key!(b'u', target.0)
}

/// Every target that was given up.
#[must_use]
pub fn lost_targets() -> Vec<u8> {
    key!(b'e')
}

/// A target that was given up.
#[must_use]
pub fn lost_target(target: TargetId) -> Vec<u8> {
    key!(b'e', target.0)
}

/// Every link that exports by itself.
#[must_use]
pub fn auto_exports() -> Vec<u8> {
    key!(b'g')
}

/// How a link exports by itself.
#[must_use]
pub fn auto_export(link: LinkId) -> Vec<u8> {
    key!(b'g', link.0.to_be_bytes())
}

/// Every link whose policy was set.
#[must_use]
pub fn fetches() -> Vec<u8> {
    key!(b'h')
}

/// What is fetched behind reads below a link.
#[must_use]
pub fn fetch(link: LinkId) -> Vec<u8> {
    key!(b'h', link.0.to_be_bytes())
}

/// All directories whose last listing left keys out.
#[must_use]
pub fn left_outs() -> Vec<u8> {
    key!(b'm')
}

/// What the last listing of a directory left out.
#[must_use]
pub fn left_out(directory: InodeId) -> Vec<u8> {
    key!(b'm', directory.0.to_be_bytes())
}

/// All links that are listed again by themselves.
#[must_use]
pub fn refresh_intervals() -> Vec<u8> {
    key!(b'n')
}

/// How often a link is listed again by itself.
#[must_use]
pub fn refresh_interval(link: LinkId) -> Vec<u8> {
    key!(b'n', link.0.to_be_bytes())
}

/// That the removal of a link gives up what its bucket does not have.
#[must_use]
pub fn discard(link: LinkId) -> Vec<u8> {
    key!(b't', link.0.to_be_bytes())
}

/// The bytes of a small file.
#[must_use]
pub fn contents(inode: InodeId) -> Vec<u8> {
    key!(b'p', inode.0.to_be_bytes())
}
