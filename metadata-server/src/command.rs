//! Commands: everything that ever changes the metadata, as plain values.
//!
//! A command carries its own time, ids and choices, so that applying it reads no clock, no random
//! number and no network, and a replay gives the same tree. In the log stands one version byte,
//! then the rkyv record of [`Envelope`]; a change of shape needs a new version that still reads
//! this one. Types that the wire shares are frozen by the wire's own golden bytes.
//!
//! What each command does, and when it is refused, is in [`crate::apply`], a file per family.

#![expect(
    missing_docs,
    reason = "rkyv does not carry the documentation of fields over to the twins that it derives"
)]

use millrace_protocol::{
    capability::Origin,
    cluster::{Bucket, LinkMode},
    metadata::{NewNode, RenameMode, XattrMode},
    session::{Caller, Operation},
};
use millrace_types::{
    ByteLen, ChangeCount, ContentGeneration, FileName, HostId, InodeId, JobId, KeyId, LinkId,
    SessionId, TargetId, Timestamp, WriteEpoch,
};
use rkyv::{Archive, Deserialize, Serialize};

use crate::store::records::{Record, record};

mod access;
mod bucket;
mod create;
mod heard;
mod inline;
mod job;
mod layout;
mod loss;
mod pin;
mod repair;
mod trust;

pub use access::NoteReads;
pub use bucket::{
    DropDirectory, ForgetDeletion, ForgetEntries, FoundObject, NoteLeftOut, Observation,
    ObserveObject, ResolveConflict, SetAutoExport, SetDeletePropagation, SetFetchPolicy,
    SetLinkOptions, SetRefreshInterval,
};
pub use create::{CreateMasked, CreateUnnamed, Publish};
pub use inline::{PublishInline, Spilled};
pub use job::{
    AddJob, AddJobByState, AddJobWithOptions, AddSelectedJob, AddUnusedJob, BeginExport,
    CompleteExport, JobCounts, NoteJobDetail, RecordCopy, UpdateJob,
};
pub use layout::SetDefaults;
pub use loss::Loss;
pub use pin::SetPin;
pub use repair::{LOST_FOUND, Repair};
pub use trust::{NoteShown, ReclaimOrphans};

/// One record of the log: a command, when it was given, and for which operation of which session.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The server's time; never earlier than that of the command before.
    pub time: Timestamp,
    /// Executed exactly once, if a client asked for it.
    pub operation: Option<Operation>,
    /// What to do.
    pub command: Command,
}
record!(Envelope, 1, "command");

/// What to do.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Makes an empty file system: the first command of every log.
    Format(Format),
    /// Switches to another behaviour of apply.
    SetFeatureLevel(u32),
    /// No inode id below this will be given out that was not reserved before.
    ReserveIds(InodeId),

    /// Begins a session.
    OpenSession(OpenSession),
    /// Ends a session and closes what it has open.
    CloseSession(SessionId),

    /// Makes a signing key and retires all but the one before.
    NewKey(NewKey),
    /// A target daemon with its targets: new ones join the first pool with their groups.
    RegisterHost(RegisterHost),
    /// A target came back without its data.
    TargetBlank(TargetId),
    /// Chunks were freed: the entries of this target's queue go.
    Reclaimed {
        /// The target.
        target: TargetId,
        /// Up to and with this position.
        through: u64,
    },
    /// Every target has heard of a shrink.
    Trimmed {
        /// The file.
        inode: InodeId,
        /// The epoch that the targets confirmed; a later shrink stays pending.
        write_epoch: WriteEpoch,
    },

    /// Makes an inode and its name.
    Create(Create),
    /// Gives a file a further name.
    MakeLink(MakeLink),
    /// Removes a name.
    Remove(Remove),
    /// Moves a name.
    Rename(Rename),
    /// Changes attributes and size.
    SetAttributes(SetAttributes),
    /// Opens a file for writing.
    OpenWrite(OpenWrite),
    /// Ends an open for writing.
    CloseWrite(Opener),
    /// A session no longer reads an inode that lost its last name meanwhile.
    DropReader(Opener),
    /// A writer's proposal of size and time.
    Commit(Commit),
    /// Sets an extended attribute.
    SetXattr(SetXattr),
    /// Removes an extended attribute.
    RemoveXattr(RemoveXattr),
    /// Sets what new files in a directory get.
    SetDefaults(SetDefaults),

    /// Binds a directory to a bucket and prefix.
    AddLink(AddLink),
    /// Stops importing through a link, before its imported names are removed.
    BeginLinkRemoval(LinkId),
    /// Removes imported names below a linked directory, without whiteouts.
    ForgetEntries(ForgetEntries),
    /// Unbinds a directory.
    RemoveLink(LinkId),
    /// Adds or refreshes names that a bucket lists.
    ImportEntries(ImportEntries),
    /// A linked directory has been listed to its end.
    MarkDirectoryListed(InodeId),

    /// Takes a job into the queue.
    AddJob(AddJob),
    /// How far a job is, and where it stands.
    UpdateJob(UpdateJob),
    /// Freezes a file for its upload.
    BeginExport(BeginExport),
    /// The bucket has named the multipart upload.
    RecordUpload {
        /// The file.
        inode: InodeId,
        /// The export.
        export: u128,
        /// The upload.
        upload_id: String,
    },
    /// The object stands in the bucket.
    CompleteExport(CompleteExport),
    /// The upload was given up, or the targets know of the object: the export is forgotten.
    AbortExport {
        /// The file.
        inode: InodeId,
        /// The export.
        export: u128,
    },

    // New ones stand at the end, and none is larger than `AddJob`: the bytes above have both.
    /// What the bucket said of a file's object when it was asked again.
    ObserveObject(ObserveObject),
    /// Decides which version of a file in conflict stays.
    ResolveConflict(ResolveConflict),
    /// Sets how a link follows its bucket.
    SetLinkOptions(SetLinkOptions),
    /// Removes an imported directory of which the bucket has nothing left.
    DropDirectory(DropDirectory),
    /// A session reads an inode that has no name any more.
    KeepReader(Opener),
    /// The server began to run, under this number.
    BeginRun(u64),
    /// The namespace may have lost files whose chunks targets still hold, for this reason: nothing
    /// is freed as an orphan until [`Self::Trust`].
    Distrust(String),
    /// An operator says that the namespace is the right one.
    Trust,
    /// Frees contents on a target that no file has.
    ReclaimOrphans(ReclaimOrphans),
    /// A backup was put back, for this reason the namespace is doubted: nothing is given out again
    /// that the lost end of the log may have given out.
    Restored(String),
    /// A session may keep names and attributes from now on: after a restart changes wait for it.
    KeepNames(SessionId),
    /// Makes an inode and its name, with the program's umask apart from its mode.
    CreateMasked(CreateMasked),
    /// Makes a file without a name and opens it for writing.
    CreateUnnamed(CreateUnnamed),
    /// Repairs the namespace where it does not agree with itself.
    Repair(Repair),
    /// Raises times of access.
    NoteReads(NoteReads),
    /// Pins an inode, or ends that.
    SetPin(SetPin),
    /// Takes a job over a part of its tree into the queue.
    AddSelectedJob(Box<AddSelectedJob>),
    /// Gives a target up.
    Loss(Loss),
    /// Sets whether files below a link go to its bucket by themselves.
    SetAutoExport(SetAutoExport),
    /// Sets what is fetched behind reads below a link.
    SetFetchPolicy(SetFetchPolicy),
    /// A file that was exported is dirty again, unless it changed since: its targets do not know
    /// which of their blocks the object has.
    ReopenExport {
        /// The file.
        inode: InodeId,
        /// The export.
        export: u128,
    },
    /// Takes an export with a manifest into the queue. Not made any more: it is one with options.
    AddPublication(AddJob),
    /// Takes a job that is done in some way of its own into the queue.
    AddJobWithOptions(Box<AddJobWithOptions>),
    /// Records what a job asked buckets, and how far it is in each directory.
    NoteJobDetail(Box<NoteJobDetail>),
    /// An upload by parts to a bucket that no link leads to begins, or has got its name.
    RecordCopy(Box<RecordCopy>),
    /// Such an upload is over.
    ForgetCopy {
        /// The job that it was for.
        job: JobId,
        /// The file.
        inode: InodeId,
    },
    /// Sets whether removals below a link reach its bucket.
    SetDeletePropagation(SetDeletePropagation),
    /// An object that was to be deleted is gone, or stays.
    ForgetDeletion(Box<ForgetDeletion>),
    /// Records what the last listing of a directory left out.
    NoteLeftOut(NoteLeftOut),
    /// Sets how often a link is listed again by itself.
    SetRefreshInterval(SetRefreshInterval),
    /// Ends opens for writing, each as [`Self::CloseWrite`] does.
    CloseWrites {
        /// Who had them.
        session: SessionId,
        /// The file of each.
        inodes: Vec<InodeId>,
    },
    /// Makes a file that its maker has written already.
    Publish(Box<Publish>),
    /// With bytes that live in its inode.
    PublishInline(Box<PublishInline>),
    /// The targets have the bytes that lived in an inode.
    Spilled(Spilled),
    /// Takes a job over what nobody has used for a while into the queue.
    AddUnusedJob(Box<AddUnusedJob>),
    /// Ends opens for writing through which nothing was written.
    CloseUnwritten {
        /// Who had them.
        session: SessionId,
        /// The file of each.
        inodes: Vec<InodeId>,
    },
    /// Takes a job over the files in some states into the queue.
    AddJobByState(Box<AddJobByState>),
    /// An object that was to be deleted has been, and what hid it here goes too.
    ObjectDeleted(Box<ForgetDeletion>),
    /// As [`Self::ForgetEntries`], and refused where one of the files is not its object's any more.
    ForgetSaved(ForgetEntries),
    /// As [`Self::BeginLinkRemoval`], also when that has begun: what the bucket lacks is given up.
    BeginLinkDiscard(LinkId),
    /// Remembers what a target has shown of the log.
    NoteShown(NoteShown),
    /// Takes away whiteouts that nobody needs any more, at most [`BATCH_MAX`] records of them.
    SweepWhiteouts,
}

/// Makes an empty file system.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Format {
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u16,
}

/// Begins a session.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct OpenSession {
    /// The node.
    pub host: HostId,
    /// Its name.
    pub host_name: String,
    /// The number that the client drew.
    pub nonce: u64,
}

/// Makes a signing key.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The secret.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NewKey(secret not shown)")
    }
}

/// A target daemon with its targets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RegisterHost {
    /// The daemon's node.
    pub host: HostId,
    /// Its name.
    pub name: String,
    /// Its socket addresses.
    pub addresses: Vec<String>,
    /// Its targets with their capacity.
    pub targets: Vec<(TargetId, ByteLen)>,
}

/// Makes an inode and its name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Create {
    /// For whom.
    pub caller: Caller,
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: FileName,
    /// What to make.
    pub node: NewNode,
    /// Permission bits.
    pub mode: u16,
    /// The id of the new inode; unused when the name exists.
    pub inode: InodeId,
    /// Where its layout begins.
    pub seed: u32,
    /// Open a regular file for writing for this session.
    pub open: Option<SessionId>,
    /// Fail if the name exists.
    pub exclusive: bool,
}

/// Gives a file a further name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MakeLink {
    /// For whom.
    pub caller: Caller,
    /// The file.
    pub inode: InodeId,
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: FileName,
}

/// Removes a name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Remove {
    /// For whom.
    pub caller: Caller,
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: FileName,
    /// True for rmdir.
    pub directory: bool,
    /// Sessions that read the inode now: it stays while they do.
    pub readers: Vec<SessionId>,
}

/// Moves a name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Rename {
    /// For whom.
    pub caller: Caller,
    /// The old directory.
    pub source_parent: InodeId,
    /// The old name.
    pub source_name: FileName,
    /// The new directory.
    pub target_parent: InodeId,
    /// The new name.
    pub target_name: FileName,
    /// What happens to an existing target.
    pub mode: RenameMode,
    /// Sessions that read the replaced inode now: it stays while they do.
    pub readers: Vec<SessionId>,
}

/// Changes attributes; `None` leaves one as it is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// For whom; `None` when the file is open for writing there (sizes only).
    pub caller: Option<Caller>,
    /// The inode.
    pub inode: InodeId,
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New size.
    pub size: Option<u64>,
    /// Last read.
    pub accessed: Option<SetTime>,
    /// Last change of content.
    pub modified: Option<SetTime>,
    /// The content may have holes from now on.
    pub make_sparse: bool,
}

/// A time to set.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The command's own time: allowed to whoever may write.
    Now,
    /// Another time: allowed to the owner.
    At(Timestamp),
}

/// Opens a file for writing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct OpenWrite {
    /// For whom; `None` when permissions were checked before.
    pub caller: Option<Caller>,
    /// Who opens.
    pub opener: Opener,
    /// Replace the content by an empty one.
    pub truncate: bool,
}

/// A session at an inode.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opener {
    /// The session.
    pub session: SessionId,
    /// The inode.
    pub inode: InodeId,
}

/// A writer's proposal.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The file.
    pub inode: InodeId,
    /// The content that was written.
    pub generation: ContentGeneration,
    /// The epoch under which it was written.
    pub write_epoch: WriteEpoch,
    /// One past the largest byte written.
    pub end: u64,
    /// When the last write took place, at most the command's time.
    pub written_at: Option<Timestamp>,
}

/// Sets an extended attribute.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetXattr {
    /// For whom.
    pub caller: Caller,
    /// The inode.
    pub inode: InodeId,
    /// The whole name.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Whether it must exist.
    pub mode: XattrMode,
}

/// Removes an extended attribute.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RemoveXattr {
    /// For whom.
    pub caller: Caller,
    /// The inode.
    pub inode: InodeId,
    /// The whole name.
    pub name: Vec<u8>,
}

/// Binds an empty directory to a bucket and prefix.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AddLink {
    /// The directory.
    pub directory: InodeId,
    /// The bucket.
    pub bucket: Bucket,
    /// The whole prefix within the bucket: empty, or ending in `/`.
    pub prefix: String,
    /// What may be changed.
    pub mode: LinkMode,
}

/// Adds or refreshes names that a bucket lists.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ImportEntries {
    /// The linked directory.
    pub directory: InodeId,
    /// What the bucket lists, at most [`BATCH_MAX`].
    pub entries: Vec<ImportEntry>,
}

/// The most entries of one command: keeps a record and the time of applying it small.
pub const BATCH_MAX: usize = 1000;

/// One name that a bucket lists.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ImportEntry {
    /// The name.
    pub name: FileName,
    /// The id that a new inode gets.
    pub inode: InodeId,
    /// Where its layout begins.
    pub seed: u32,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub modified: Timestamp,
    /// What it is.
    pub kind: ImportKind,
}

/// What a bucket lists under a name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum ImportKind {
    /// A common prefix; its whole prefix is the directory's with the name and `/`.
    Directory,
    /// An object.
    File(Origin),
    /// A symbolic link that an export stored with its target.
    Symlink(Vec<u8>),
}

/// What a command did, as far as its answer needs it. Kept per operation for repeated requests.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It is about this inode.
    Inode(InodeId),
    /// The file shrank: targets must trim before the answer.
    Shrunk(InodeId),
    /// This session was opened.
    Session(SessionId),
    /// This key was made.
    Key(KeyId),
    /// This link was made.
    Link(LinkId),
    /// This job was taken.
    Job(JobId),
    /// So many names were new, and so many were refreshed.
    Imported {
        /// New names.
        added: u32,
        /// Files whose object changed.
        refreshed: u32,
        /// Files that changed on both sides.
        conflicts: u32,
    },
    /// A file was frozen at this change count.
    Frozen(ChangeCount),
    /// Whether the file was still the one that was frozen, and is exported now.
    Exported(bool),
    /// What an observation of the bucket led to.
    Observed(Observation),
    /// So many contents were put into a reclaim queue.
    Queued(u32),
}
record!(Outcome, 1, "outcome");

impl Envelope {
    /// The bytes of its record in the log.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        Record::encode(self)
    }

    /// Reads a record of the log; `None` when a later program wrote it or it is damaged.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        <Self as Record>::decode(bytes)
    }
}
