//! Applies a command: the one place where metadata changes.
//!
//! A pure function of what the store shows and the command: no clock, no random number, no network,
//! so that a replay of the log gives the same tree. POSIX rules are checked here and not before, so
//! that a command that waited in a queue or a replicated log is checked against the tree it meets.
//!
//! A refused command changes nothing and is never logged. Behaviour changes only behind
//! [`FileSystem::feature_level`](crate::store::records::FileSystem).

use millrace_protocol::session::Operation;
use millrace_types::{ErrorKind, InodeId, LogIndex};

use crate::{
    command::{Command, Envelope, Outcome},
    store::{
        Batch, StoreError, View, keys,
        records::{Applied, Record},
    },
};

mod access;
mod acl;
mod cluster;
mod commit;
mod copy;
mod create;
mod deletion;
mod export;
mod import;
pub(crate) mod inline;
mod job;
mod layout;
mod link;
mod loss;
mod observe;
mod open;
mod orphan;
mod pin;
mod place;
mod pristine;
mod publish;
mod remove;
mod rename;
mod repair;
mod restore;
mod session;
mod set_attributes;
mod sweep;
mod transaction;
mod trust;
mod unnamed;
mod xattr;

#[cfg(test)]
pub(crate) use cluster::GROUPS_PER_TARGET;
pub(crate) use deletion::OBJECT_DELETED_LEVEL;
pub(crate) use export::has_made as export_has_made;
pub(crate) use layout::layouts;
pub(crate) use link::{DISCARD_LEVEL, FORGET_SAVED_LEVEL};
pub(crate) use orphan::POSITION_BITS;
pub(crate) use place::of_key as place_of_key;
pub(crate) use rename::KEEPS_PLACE_LEVEL;
use transaction::Transaction;
pub(crate) use trust::unnamed;
pub(crate) use xattr::CAPABILITY;

/// The newest behaviour that this program knows; a server that starts has its log go on with it.
///
/// | level | new                                                                              |
/// |------:|----------------------------------------------------------------------------------|
/// | 1     | everything before                                                                |
/// | 2     | access control lists; a program's capabilities go when its bytes or owner change |
/// | 3     | repairs of the namespace                                                         |
/// | 4     | times of access that follow reads                                                |
/// | 5     | pins; jobs over a part of a tree; nothing is imported into what was removed      |
/// | 6     | targets that are given up; what was removed below a link stays removed; an       |
/// |       | export's object is known also when the file was truncated meanwhile              |
/// | 7     | links that export by themselves                                                  |
/// | 8     | links that say what is fetched behind reads                                      |
/// | 9     | exports that are known until all targets know of them; exports with a manifest   |
/// | 10    | options of jobs; exports to buckets of no link; removals that reach the bucket;  |
/// |       | keys that are left out; links that are listed by themselves; a directory takes   |
/// |       | the place of an object of its name; whiteouts that stay with who needs them;     |
/// |       | objects whose file is renamed, replaced or removed before its export ends        |
/// | 11    | opens that end together                                                          |
/// | 12    | files that are made with their bytes; an empty file that others write gets a     |
/// |       | content of its own when it is truncated                                          |
/// | 13    | small files that live in their inodes                                            |
/// | 14    | their bytes in records of their own                                              |
/// | 15    | jobs over what nobody has used for a while                                       |
/// | 16    | a file that was opened for writing and not written is what it was before         |
/// | 17    | what was removed as a file hides no directory                                    |
/// | 18    | places in the reclaim queues counted for each target; no removal waits for a key |
/// |       | that no bucket can have; an exported file whose mode changed is dirty again, too |
/// |       | where targets do not know which of its blocks the object has                     |
/// | 19    | an empty file that somebody wrote whose session has ended gets a content of its  |
/// |       | own when it is truncated; a name that another file takes keeps its place in the  |
/// |       | listing                                                                          |
/// | 20    | jobs over the files in some states; an export begins another write epoch, and    |
/// |       | after it a file has no holes; so does an open for writing after a backup was put |
/// |       | back                                                                             |
/// | 21    | an object that was deleted because its file was removed hides nothing any more;  |
/// |       | names below a link that is being removed go only while buckets have their files  |
/// | 22    | removals of links that are recorded to give up what their buckets do not have;   |
/// |       | many whiteouts of a directory that is gone go by and by                          |
/// | 23    | what targets have shown of the log is remembered                                 |
/// | 24    | imports that go on with one that did not succeed                                 |
/// | 25    | imported directories with the times of their marks go with these                 |
/// | 26    | what an export has replaced is hidden no more, should it come back; directories  |
/// |       | that lie deeper than any key of a bucket show nothing of one; a file that is     |
/// |       | zeroed past its end is not cut where others made it longer                       |
pub const FEATURE_LEVEL: u32 = 26;

/// From this level on small files live in their inodes, where their directory says so.
pub const INLINE_LEVEL: u32 = 13;

/// The level at which every log begins, whichever program made it.
pub(crate) const FIRST_LEVEL: u32 = 1;

/// Why a command was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The rules refuse it. Nothing changed.
    #[error(transparent)]
    Refused(#[from] ErrorKind),
    /// The store cannot be trusted: the server must stop changing it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a command does.
#[derive(Debug)]
pub struct Effect {
    /// What changes in the store.
    pub batch: Batch,
    /// What the caller is answered.
    pub outcome: Outcome,
    /// Inodes whose content has another generation or write epoch. Nobody may hear of one before
    /// the command is on stable storage: after a loss of power it would be given again.
    pub raised: Vec<InodeId>,
}

/// What `envelope` as record `index` changes in `view`, and what it answers.
///
/// # Errors
/// [`ApplyError::Refused`] with the kind that the caller is told.
pub fn apply(view: &dyn View, index: LogIndex, envelope: &Envelope) -> Result<Effect, ApplyError> {
    let mut transaction = Transaction::new(view, index, envelope.time);
    if let Some(operation) = envelope.operation {
        session::check_operation(&transaction, operation)?;
    }
    let Envelope { command, operation, .. } = envelope;
    let outcome = dispatch(&mut transaction, command, *operation).inspect_err(|error| {
        tracing::trace!(?operation, ?command, %error, "command refused");
    })?;
    if let Some(operation) = envelope.operation {
        session::remember(&mut transaction, operation, &outcome)?;
    }
    orphan::place_reclaims(&mut transaction)?;
    let applied = Applied { index, time: envelope.time };
    transaction.put(keys::applied(), &applied);
    let (batch, raised) = transaction.finish();
    Ok(Effect { batch, outcome, raised })
}

/// What was answered to `operation`, if it was executed.
///
/// # Errors
/// [`ErrorKind::SessionGone`]; [`ErrorKind::InvalidArgument`] when the client has said that it does
/// not wait for this one any more.
pub fn remembered(
    view: &(impl View + ?Sized),
    operation: Operation,
) -> Result<Option<Outcome>, ApplyError> {
    session::remembered(view, operation)
}

#[expect(clippy::too_many_lines, reason = "a table with a line for every command")]
fn dispatch(
    tx: &mut Transaction<'_>,
    command: &Command,
    operation: Option<Operation>,
) -> Result<Outcome, ApplyError> {
    match command {
        Command::Format(format) => create::format(tx, format),
        Command::SetFeatureLevel(level) => cluster::set_feature_level(tx, *level),
        Command::ReserveIds(limit) => cluster::reserve_ids(tx, *limit),
        Command::OpenSession(open) => session::open(tx, open),
        Command::CloseSession(session) => session::close(tx, *session),
        Command::NewKey(key) => cluster::new_key(tx, key),
        Command::RegisterHost(host) => cluster::register_host(tx, host),
        Command::TargetBlank(target) => cluster::target_blank(tx, *target),
        Command::NoteShown(note) => cluster::note_shown(tx, *note),
        Command::Reclaimed { target, through } => orphan::reclaimed(tx, *target, *through),
        Command::Trimmed { inode, write_epoch } => commit::trimmed(tx, *inode, *write_epoch),
        Command::Create(create) => create::create(tx, create, 0),
        Command::MakeLink(link) => create::make_link(tx, link, operation),
        Command::Remove(remove) => remove::remove(tx, remove),
        Command::Rename(rename) => rename::rename(tx, rename),
        Command::SetAttributes(set) => set_attributes::set(tx, set, operation),
        Command::OpenWrite(open) => open::open_write(tx, open),
        Command::CloseWrite(opener) => open::close_write(tx, *opener),
        Command::CloseWrites { session, inodes } => open::close_writes(tx, *session, inodes),
        Command::CloseUnwritten { session, inodes } => open::close_unwritten(tx, *session, inodes),
        Command::DropReader(opener) => open::drop_reader(tx, *opener),
        Command::Commit(commit) => commit::commit(tx, commit),
        Command::SetXattr(set) => xattr::set(tx, set),
        Command::RemoveXattr(remove) => xattr::remove(tx, remove),
        Command::SetDefaults(set) => layout::set_defaults(tx, set),
        Command::AddLink(link) => link::add(tx, link),
        Command::BeginLinkRemoval(link) => link::begin_removal(tx, *link),
        Command::BeginLinkDiscard(link) => link::begin_discard(tx, *link),
        Command::ForgetEntries(forget) => link::forget_entries(tx, forget, false),
        Command::ForgetSaved(forget) => link::forget_saved(tx, forget),
        Command::RemoveLink(link) => link::remove(tx, *link),
        Command::ImportEntries(import) => import::entries(tx, import),
        Command::MarkDirectoryListed(directory) => import::mark_listed(tx, *directory),
        Command::AddJob(job) => job::add(tx, job),
        Command::AddSelectedJob(job) => job::add_selected(tx, job),
        Command::UpdateJob(update) => job::update(tx, update),
        Command::BeginExport(begin) => export::begin(tx, begin),
        Command::RecordUpload { inode, export, upload_id } => {
            export::record_upload(tx, *inode, *export, upload_id)
        }
        Command::CompleteExport(complete) => export::complete(tx, complete),
        Command::AbortExport { inode, export } => export::abort(tx, *inode, *export),
        Command::ObserveObject(observe) => observe::object(tx, observe),
        Command::ResolveConflict(resolve) => observe::resolve(tx, resolve),
        Command::SetLinkOptions(set) => link::set_options(tx, set),
        Command::DropDirectory(drop) => observe::drop_directory(tx, drop),
        Command::KeepReader(opener) => open::keep_reader(tx, *opener),
        Command::BeginRun(incarnation) => trust::begin_run(tx, *incarnation),
        Command::Distrust(reason) => trust::distrust(tx, reason),
        Command::Trust => trust::trust(tx),
        Command::ReclaimOrphans(orphans) => orphan::reclaim_orphans(tx, orphans),
        Command::Restored(reason) => restore::restored(tx, reason),
        Command::KeepNames(session) => session::keep_names(tx, *session),
        Command::CreateMasked(masked) => create::create(tx, &masked.create, masked.umask),
        Command::CreateUnnamed(create) => unnamed::create(tx, create),
        Command::Publish(publish) => publish::publish(tx, publish, None),
        Command::PublishInline(file) => publish::publish(tx, &file.publish, Some(&file.bytes)),
        Command::Spilled(spilled) => inline::spilled(tx, spilled),
        Command::Repair(order) => repair::repair(tx, order),
        Command::NoteReads(note) => access::note(tx, note),
        Command::SetPin(set) => pin::set(tx, set),
        Command::Loss(loss) => loss::step(tx, loss),
        Command::SetAutoExport(set) => link::set_auto_export(tx, *set),
        Command::SetFetchPolicy(set) => link::set_fetch_policy(tx, *set),
        Command::ReopenExport { inode, export } => export::reopen(tx, *inode, *export),
        Command::AddPublication(job) => job::add_publication(tx, job),
        Command::AddJobWithOptions(job) => job::add_with_options(tx, job),
        Command::AddUnusedJob(job) => job::add_unused(tx, job),
        Command::AddJobByState(job) => job::add_by_state(tx, job),
        Command::NoteJobDetail(note) => job::note_detail(tx, note),
        Command::RecordCopy(record) => copy::record(tx, record),
        Command::ForgetCopy { job, inode } => copy::forget(tx, *job, *inode),
        Command::SetDeletePropagation(set) => deletion::set(tx, *set),
        Command::ForgetDeletion(forget) => deletion::forget(tx, forget),
        Command::ObjectDeleted(deleted) => deletion::object_deleted(tx, deleted),
        Command::NoteLeftOut(note) => import::note_left_out(tx, note),
        Command::SetRefreshInterval(set) => link::set_refresh_interval(tx, *set),
        Command::SweepWhiteouts => sweep::sweep(tx),
    }
}

/// The bytes of a value.
fn encode(record: &impl Record) -> Vec<u8> {
    record.encode()
}
