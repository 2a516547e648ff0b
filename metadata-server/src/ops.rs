//! Operations of clients, one file each: check the peer, run a command or a read, reply.
//!
//! An operation is a function of the engine's [`Core`]: it runs within one turn and waits for
//! nothing. Where something outside must happen first (a linked directory listed, a shrink
//! confirmed by the targets) it answers [`Step::Need`], and the server calls it again after that.
//!
//! What the peer's certificate allows is enforced here: its subtree and its root squash. POSIX
//! permissions of changes are checked by [`crate::apply`], of reads here.

use std::time::Duration;

use millrace_protocol::{
    capability::Rights,
    metadata::{FileKind, InodeReply},
    session::{Caller, Operation, Role},
};
use millrace_types::{ErrorKind, Failure, FileName, HostId, InodeId, SessionId};

use crate::{
    apply::ApplyError,
    engine::Core,
    hydration::import::is_old,
    leases::Wait,
    namespace::{Body, Inode, ObjectState, acl::List, permission, tree},
    store::{
        StoreError, keys,
        records::{self, LinkRecord, OpenRecord, SessionRecord, TrimRecord},
    },
};

pub mod access;
pub mod admin;
pub mod cluster;
pub mod commit;
pub mod conflicts;
pub mod contents;
pub mod create;
pub mod delegation;
pub mod directory;
pub mod fsck;
pub mod job;
pub mod kept_change;
mod last_name;
pub mod lease;
pub mod lock;
pub mod lookup;
pub mod open;
pub mod path;
pub mod release;
pub mod remove;
pub mod rename;
pub mod session;
pub mod set_attributes;
pub mod statfs;
pub mod xattr;

/// How far an operation came in one turn.
#[derive(Debug)]
pub enum Step<T> {
    /// It is done.
    Done(T),
    /// Something must happen first; then it is tried again.
    Need(Need),
}

/// What must happen before an operation can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// A name in a linked directory that has not been listed must be asked for in the bucket.
    Name {
        /// The directory.
        directory: InodeId,
        /// The name.
        name: FileName,
    },
    /// A linked directory must be listed to its end.
    Listing(InodeId),
    /// A directory was listed longer ago than its link allows: news are worth a short wait.
    Fresh {
        /// The directory.
        directory: InodeId,
        /// The name that is looked up; `None` for a listing.
        name: Option<FileName>,
    },
    /// The targets must hear of a shrink.
    Trim(InodeId),
    /// Bytes that live in an inode must be at the targets before somebody writes there.
    Spill {
        /// The file.
        inode: InodeId,
        /// The session that wants to write there.
        by: SessionId,
    },
    /// Other clients must give back what it changes. To be held until it is tried again.
    Recall(Wait),
    /// Names in a directory that is looked into are not heard of yet by who was told of them: worth
    /// a short wait.
    Told(Vec<Wait>),
    /// Other writers of a file must hear that its content was cut, which has happened.
    Heard(Wait),
    /// Others must have their turns: a part of it was executed, and there is more.
    Turns,
}

/// Who asks: what the certificate of the connection allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// What it may be.
    pub role: Role,
    /// Which node it is.
    pub host: HostId,
    /// SHA-256 of its certificate.
    pub fingerprint: [u8; 32],
    /// The directory that it may see.
    pub subtree: Option<Vec<u8>>,
    /// Whether root on that host counts as nobody.
    pub squash_root: bool,
    /// What has happened for this request already, so that it is not asked for again.
    pub settled: Vec<Need>,
}

/// How long a client that is too far ahead of its oldest operation waits before it tries again.
const SPAN_PAUSE: Duration = Duration::from_millis(100);

/// The user that a squashed root becomes: Linux's overflow user.
const NOBODY: u32 = 65_534;

impl Client {
    /// The user, after root squash.
    #[must_use]
    pub fn caller(&self, caller: &Caller) -> Caller {
        let mut caller = caller.clone();
        caller.groups.truncate(Caller::GROUPS_MAX);
        if self.squash_root {
            let squash = |id: &mut u32| {
                if *id == 0 {
                    *id = NOBODY;
                }
            };
            squash(&mut caller.uid);
            squash(&mut caller.gid);
            caller.groups.retain(|&gid| gid != 0);
        }
        caller
    }

    /// The top of what the client may see. It knows it as the root.
    ///
    /// # Errors
    /// [`ErrorKind::Forbidden`] when the certificate names a directory that does not exist.
    pub fn top(&self, core: &mut Core) -> Result<InodeId, Failure> {
        let Some(subtree) = &self.subtree else {
            return Ok(InodeId::ROOT);
        };
        match tree::resolve(core.view(), InodeId::ROOT, subtree) {
            Ok(inode) if inode.is_directory() => Ok(inode.id),
            Ok(_) | Err(ApplyError::Refused(_)) => Err(Failure::new(
                ErrorKind::Forbidden,
                "the directory that the certificate is restricted to does not exist",
            )),
            Err(error) => Err(core.failure(error)),
        }
    }

    /// The inode that the client means, if it lies in its subtree.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] when it does not exist; [`ErrorKind::Forbidden`] outside of the
    /// subtree.
    pub fn enter(&self, core: &mut Core, inode: InodeId) -> Result<Inode, Failure> {
        let top = self.top(core)?;
        let inode = if inode == InodeId::ROOT { top } else { inode };
        let inode = tree::inode(core.view(), inode).map_err(|error| core.failure(error))?;
        if self.sees(core, top, &inode)? {
            Ok(inode)
        } else {
            Err(Failure::new(
                ErrorKind::Forbidden,
                "outside of the directory that the certificate is restricted to",
            ))
        }
    }

    /// Whether an inode lies below `top`, that of this client.
    fn sees(&self, core: &mut Core, top: InodeId, inode: &Inode) -> Result<bool, Failure> {
        if top == InodeId::ROOT {
            return Ok(true);
        }
        // Without names it has no place: who has it open was let in when it had one, or has made
        // it.
        if inode.links == 0 {
            return self.has_open(core, inode.id);
        }
        tree::is_below(core.view(), inode, top).map_err(|error| core.failure(error.into()))
    }

    /// Whether a session of this node keeps an inode open that has no name, which is recorded by
    /// then.
    fn has_open(&self, core: &mut Core, inode: InodeId) -> Result<bool, Failure> {
        let openers = tree::scan::<OpenRecord>(core.view(), &keys::opens(inode), usize::MAX)
            .map_err(|error| broken(core, error))?;
        for (key, _) in openers {
            let Some(session) = keys::number_at(&key, keys::opens(inode).len()) else { continue };
            if self.own_session(core, SessionId(session)).is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks that the session of an operation was opened from this node, and that its number is
    /// near enough to the lowest that the client waits for.
    ///
    /// # Errors
    /// [`ErrorKind::SessionGone`]; [`ErrorKind::Busy`] past [`Operation::SPAN_MAX`].
    pub fn own(&self, core: &mut Core, operation: Operation) -> Result<(), Failure> {
        self.own_session(core, operation.session)?;
        if operation.is_within_span() {
            return Ok(());
        }
        // Here and not in apply: a log from before this bound still replays. What is refused is
        // never logged, so that the log decides all the same what the store holds.
        let text = format!(
            "operation {} is {} or more numbers past {}, which {} still waits for: that one must \
             be answered or given up first",
            operation.sequence,
            Operation::SPAN_MAX,
            operation.lowest_pending,
            operation.session,
        );
        Err(Failure::new(ErrorKind::Busy, text).retry_after(SPAN_PAUSE))
    }

    /// Checks that a session was opened from this node.
    ///
    /// # Errors
    /// [`ErrorKind::SessionGone`].
    pub fn own_session(&self, core: &mut Core, session: SessionId) -> Result<(), Failure> {
        let record: Option<SessionRecord> = read(core, &keys::session(session))?;
        match record {
            Some(record) if record.host == self.host => Ok(()),
            _ => Err(ErrorKind::SessionGone.into()),
        }
    }
}

/// Reads a record of the store.
pub(crate) fn read<R: records::Record>(core: &mut Core, key: &[u8]) -> Result<Option<R>, Failure> {
    records::read(core.view(), key).map_err(|error| broken(core, error))
}

/// A failure of the store.
pub(crate) fn broken(core: &mut Core, error: StoreError) -> Failure {
    core.failure(error.into())
}

/// Whether the operation was executed before. Its answer then depends on nothing that may have
/// changed since, such as the directory that it worked in.
pub(crate) fn is_repeated(core: &mut Core, operation: Operation) -> Result<bool, Failure> {
    Ok(core.remembered(Some(operation))?.is_some())
}

/// Whether targets must still hear of a shrink of the inode.
pub(crate) fn needs_trim(core: &mut Core, inode: InodeId) -> Result<bool, Failure> {
    Ok(read::<TrimRecord>(core, &keys::trim(inode))?.is_some())
}

/// What must happen before a session may write a file, of which a caller is checked to have the
/// right to.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] where the caller does not.
pub(crate) fn need_spill(
    core: &mut Core,
    inode: &Inode,
    caller: Option<&Caller>,
    by: SessionId,
) -> Result<Option<Need>, Failure> {
    if !is_inline(inode) {
        return Ok(None);
    }
    if let Some(caller) = caller {
        let may = permission::check(core.view(), caller, inode, permission::Access::Write);
        may.map_err(|error| core.failure(error))?;
    }
    Ok(Some(Need::Spill { inode: inode.id, by }))
}

/// Whether the bytes of a file live in its inode.
pub(crate) fn is_inline(inode: &Inode) -> bool {
    matches!(&inode.body, Body::File(file) if file.inline.is_some())
}

/// How many opens for writing the session has on the inode.
pub(crate) fn writes(core: &mut Core, session: SessionId, inode: InodeId) -> Result<u32, Failure> {
    let open: Option<OpenRecord> = read(core, &keys::open(inode, session))?;
    Ok(open.map_or(0, |open| open.writes))
}

/// The reply that shows an inode, with a capability for `session` where it may have one, and with
/// the bytes that live there.
pub(crate) fn show(
    core: &mut Core,
    client: &Client,
    inode: &Inode,
    session: Option<SessionId>,
) -> Result<InodeReply, Failure> {
    let mut reply = show_without_bytes(core, client, inode, session)?;
    if reply.capability.is_some() && is_inline(inode) {
        let bytes = tree::inline(core.view(), inode);
        reply.inline = bytes.map_err(|error| core.failure(error))?;
    }
    Ok(reply)
}

/// The same for who has the bytes.
pub(crate) fn show_without_bytes(
    core: &mut Core,
    client: &Client,
    inode: &Inode,
    session: Option<SessionId>,
) -> Result<InodeReply, Failure> {
    if inode.kind == FileKind::Regular {
        core.note_name(inode.id);
    }
    let mut capability = None;
    if let (Some(session), Some(content)) = (session, inode.content())
        && may_read_data(core, client, inode)?
    {
        // A write into part of a lost block would make zeros of its rest.
        let is_lost = inode.file().is_ok_and(|file| file.state == ObjectState::Lost);
        let rights = match writes(core, session, inode.id)? {
            1.. if !is_lost => Rights::ReadWrite,
            _ => Rights::Read,
        };
        capability = Some(core.keyring().capability(rights, session, content)?);
    }
    let mut attributes = inode.attributes();
    if client.subtree.is_some() && client.top(core)? == inode.id {
        attributes.inode = InodeId::ROOT;
    }
    let symlink = match &inode.body {
        Body::Symlink(target) => Some(target.clone()),
        Body::File(_) | Body::Directory(_) | Body::Special => None,
    };
    Ok(InodeReply {
        attributes,
        content: inode.content(),
        capability,
        symlink,
        inline: None,
        coverage: millrace_protocol::metadata::Coverage::None,
        index: core.last_index(),
    })
}

/// A client without squash checks its users itself; a squashed one gets nothing that only root and
/// root's group may read.
fn may_read_data(core: &mut Core, client: &Client, inode: &Inode) -> Result<bool, Failure> {
    if !client.squash_root || inode.uid != 0 || inode.mode & 0o004 != 0 {
        return Ok(true);
    }
    if inode.mode & 0o040 == 0 || inode.gid != 0 {
        return Ok(inode.mode & 0o040 != 0);
    }
    // The bits of the group are the mask of a list, which may let others in.
    let list = List::Access.read(core.view(), inode).map_err(|error| broken(core, error))?;
    Ok(list.is_some())
}

/// Fetches an inode again after a command and shows it.
pub(crate) fn show_again(
    core: &mut Core,
    client: &Client,
    inode: InodeId,
    session: Option<SessionId>,
) -> Result<InodeReply, Failure> {
    let inode = tree::inode(core.view(), inode).map_err(|error| core.failure(error))?;
    show(core, client, &inode, session)
}

/// What a directory needs before a name in it can be found missing, changed or replaced.
pub(crate) fn need_name(client: &Client, directory: &Inode, name: &FileName) -> Option<Need> {
    let Body::Directory(body) = &directory.body else {
        return None;
    };
    let linked = body.linked.as_ref()?;
    let need = Need::Name { directory: directory.id, name: name.clone() };
    (linked.listed.is_none() && !client.settled.contains(&need)).then_some(need)
}

/// What is worth a short wait before a directory is looked into: that names are shown which the
/// directory's own attributes speak of. What is not told after that is left out.
pub(crate) fn need_told(core: &Core, client: &Client, directory: InodeId) -> Option<Need> {
    let is_settled = client.settled.iter().any(|need| matches!(need, Need::Told(_)));
    let waits = core.leases.unheard().of_directory(directory);
    (!is_settled && !waits.is_empty()).then_some(Need::Told(waits))
}

/// What a directory needs before it can be listed or removed.
pub(crate) fn need_listing(client: &Client, directory: &Inode) -> Option<Need> {
    let Body::Directory(body) = &directory.body else {
        return None;
    };
    let linked = body.linked.as_ref()?;
    let need = Need::Listing(directory.id);
    (linked.listed.is_none() && !client.settled.contains(&need)).then_some(need)
}

/// What a directory needs before it is answered from a listing that may be old.
pub(crate) fn need_fresh(
    core: &mut Core,
    client: &Client,
    directory: &Inode,
    name: Option<&FileName>,
) -> Result<Option<Need>, Failure> {
    let Body::Directory(body) = &directory.body else { return Ok(None) };
    let Some(linked) = &body.linked else { return Ok(None) };
    if linked.listed.is_none() {
        return Ok(None);
    }
    let link: Option<LinkRecord> = read(core, &keys::link(linked.link))?;
    let refresh = link.map_or(0, |link| link.refresh_seconds);
    if !is_old(linked.listed, refresh, core.now()) {
        return Ok(None);
    }
    let need = Need::Fresh { directory: directory.id, name: name.cloned() };
    Ok((!client.settled.contains(&need)).then_some(need))
}

/// Finds an entry of a directory that the caller may search.
pub(crate) fn find(
    core: &mut Core,
    caller: &Caller,
    directory: &Inode,
    name: &FileName,
) -> Result<Option<Inode>, Failure> {
    directory.directory()?;
    let allowed = permission::check(core.view(), caller, directory, permission::Access::Search);
    allowed.map_err(|error| core.failure(error))?;
    let entry = tree::entry(core.view(), directory.id, name);
    match entry.map_err(|error| broken(core, error))? {
        None => Ok(None),
        Some(entry) => {
            let inode = tree::named(core.view(), &entry);
            inode.map(Some).map_err(|error| broken(core, error))
        }
    }
}

/// Whether an inode is a regular file.
pub(crate) fn is_regular(inode: &Inode) -> bool {
    inode.kind == FileKind::Regular
}
