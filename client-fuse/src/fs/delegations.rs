//! Directories in which this mount makes files by itself, and the files that it has made there and
//! not told the server of.
//!
//! Owns the contents that the server has given for files that do not exist yet, and decides when to
//! ask for such a right: where several files were made one after the other. A right counts only in
//! the session and the life of the server that gave it, and as long as the lease of the directory
//! is not taken back; what was made under it may be published later than that.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_protocol::{
    capability::{Capability, Content, Signed},
    codec,
    delegation::{DeclareDelegations, Delegate, Delegated, Delegation},
    lease::Recall,
    metadata::Attributes,
    session::Caller,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, FileName, InodeId, SessionId, Timestamp};

use crate::fs::{FileSystem, file::File, handle::Told};

/// The delegations of one mount.
#[derive(Debug, Default)]
pub(super) struct Delegations {
    directories: Mutex<HashMap<InodeId, Directory>>,
    /// Held for reading while a file is being made here, which takes microseconds: whoever has
    /// ended a delegation waits for those that had taken something before.
    making: RwLock<()>,
    /// Files that are not published, so that most requests need no lock to see that there are none.
    unpublished: AtomicUsize,
    /// Somebody publishes those that stay open.
    is_watched: AtomicBool,
    /// The server is from before there were delegations.
    is_old: AtomicBool,
}

#[derive(Debug)]
struct Directory {
    /// Files that were made here by asking, in the burst that began then.
    made: u32,
    began: Instant,
    /// When the server was last asked for a delegation.
    asked: Option<Instant>,
    is_asking: bool,
    /// What is being asked for has ended before it was given.
    is_void: bool,
    /// The newest state of the directory that an answer has shown.
    shown: ChangeCount,
    held: Option<Held>,
    unpublished: HashMap<InodeId, Arc<File>>,
}

#[derive(Debug)]
struct Held {
    told: Told,
    directory: Attributes,
    contents: VecDeque<(Content, Signed)>,
    /// Files up to so many bytes may live in their inode.
    inline_bytes_max: u32,
    /// With fewer left more are asked for.
    low: usize,
}

/// Contents of files that do not exist yet, with the capabilities for them.
type Contents = Vec<(Content, Signed)>;

/// What an answer of the server gives.
#[derive(Debug)]
struct Granted {
    told: Told,
    directory: Attributes,
    contents: Contents,
    inline_bytes_max: u32,
}

/// What a new file needs that the server is not asked for.
#[derive(Debug)]
pub(super) struct Given {
    /// The directory, as far as a new file takes something over from it.
    pub(super) directory: Attributes,
    /// The content, which names the inode.
    pub(super) content: Content,
    /// The capability for it.
    pub(super) capability: Signed,
    /// A file up to so many bytes may live in its inode.
    pub(super) inline_bytes_max: u32,
    /// To whom the delegation was given.
    pub(super) told: Told,
    /// There is little left: somebody should ask for more.
    pub(super) is_low: bool,
}

/// What the server does not know yet of a file that exists here.
#[derive(Clone, Debug)]
pub(crate) struct Unpublished {
    /// Where.
    pub(crate) parent: InodeId,
    /// Under which name.
    pub(crate) name: FileName,
    /// Permission bits.
    pub(crate) mode: u16,
    /// Who made it.
    pub(crate) caller: Caller,
    /// When, in the server's time.
    pub(crate) made_at: Timestamp,
    /// The same by the host's clock.
    pub(crate) since: Instant,
    /// The session that may publish it.
    pub(crate) session: SessionId,
    /// It was sent, and what became of that is not known: the server may have made it as it was
    /// then.
    pub(crate) was_sent: bool,
    /// As far as that its bytes may live in its inode up to so many.
    pub(crate) inline_bytes_max: u32,
    /// It was sent with its bytes: the server may have them in the inode.
    pub(crate) was_sent_inline: bool,
}

/// So many files made one after the other let a mount ask for a delegation.
const BURST: u32 = 4;

/// Within which they count as one after the other.
const BURST_TIME: Duration = Duration::from_secs(1);

/// Contents that are asked for at once: at 2,000 files a second sixteen requests more.
const CONTENTS: u32 = 128;

/// At first: most directories get a few files.
const CONTENTS_FIRST: u32 = 16;

/// How long after a request that was answered with nothing the next one is made.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Directories that are watched; past it those in which nothing happens are forgotten.
const DIRECTORIES_MAX: usize = 1024;

impl Delegations {
    /// A file was made by asking the server, which has nothing else in that directory; tells
    /// whether to ask for a delegation.
    fn handle_made(&self, directory: InodeId, now: Instant) -> bool {
        if self.is_old.load(Ordering::Relaxed) {
            return false;
        }
        let mut directories = self.lock();
        if directories.len() >= DIRECTORIES_MAX && !directories.contains_key(&directory) {
            directories.retain(|_, directory| directory.is_in_use(now));
            if directories.len() >= DIRECTORIES_MAX {
                return false;
            }
        }
        let entry = directories.entry(directory).or_insert_with(|| Directory::new(now));
        if now.saturating_duration_since(entry.began) > BURST_TIME {
            (entry.made, entry.began) = (0, now);
        }
        entry.made += 1;
        entry.made >= BURST && entry.begin_asking(now)
    }

    /// To be held from before a file takes something until it is inserted.
    pub(super) fn making(&self) -> RwLockReadGuard<'_, ()> {
        self.making.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a new file in this directory needs, for somebody who may make one there.
    fn take(&self, directory: InodeId, caller: &Caller, now: Told) -> Option<Given> {
        let mut directories = self.lock();
        let entry = directories.get_mut(&directory)?;
        let held = entry.held.as_mut()?;
        if held.told != now || !may_add(caller, &held.directory) {
            return None;
        }
        let (content, capability) = held.contents.pop_front()?;
        let (told, directory) = (held.told, held.directory.clone());
        let inline_bytes_max = held.inline_bytes_max;
        let is_low = held.contents.len() < held.low && entry.begin_asking(Instant::now());
        Some(Given { directory, content, capability, inline_bytes_max, told, is_low })
    }

    /// A delegation was given, or none. It counts if its lease still `stands`, which is asked while
    /// nobody ends it.
    fn handle_answer(
        &self,
        directory: InodeId,
        given: Option<Granted>,
        stands: impl FnOnce() -> bool,
    ) {
        let mut directories = self.lock();
        let Some(entry) = directories.get_mut(&directory) else { return };
        entry.is_asking = false;
        let is_void = std::mem::take(&mut entry.is_void);
        let given = given.filter(|_| !is_void && stands());
        let Some(Granted { told, directory, contents, inline_bytes_max }) = given else { return };
        // What was given first is used first, so that the server sees the oldest ids go.
        let mut all = match entry.held.take() {
            Some(held) if held.told == told => held.contents,
            _ => VecDeque::new(),
        };
        let low = (contents.len() / 2).max(1);
        all.extend(contents);
        entry.asked = None;
        entry.held = Some(Held { told, directory, contents: all, inline_bytes_max, low });
    }

    /// No file is made here by itself any more, in this directory or in any. Those that were are
    /// inserted when this returns.
    pub(super) fn end(&self, directory: Option<InodeId>) {
        let mut directories = self.lock();
        match directory {
            Some(directory) => drop(directories.get_mut(&directory).map(Directory::end)),
            None => directories.values_mut().for_each(Directory::end),
        }
        drop(directories);
        drop(self.making.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether files are made here by itself in a directory.
    fn holds(&self, directory: InodeId) -> bool {
        self.lock().get(&directory).is_some_and(|entry| entry.held.is_some())
    }

    /// Whether files are, or soon may be, made here by itself in a directory.
    fn is_held(&self, directory: InodeId) -> bool {
        let directories = self.lock();
        directories.get(&directory).is_some_and(|entry| entry.held.is_some() || entry.is_asking)
    }

    /// The server knows of the file; what it shows of the directory may be kept where this tells
    /// so: it shows all that was made there, and no answer has shown more.
    pub(super) fn handle_published(
        &self,
        parent: InodeId,
        inode: InodeId,
        shown: Option<ChangeCount>,
    ) -> bool {
        self.remove(parent, inode);
        let mut directories = self.lock();
        let (Some(entry), Some(shown)) = (directories.get_mut(&parent), shown) else {
            return false;
        };
        let is_newest = shown >= entry.shown;
        entry.shown = entry.shown.max(shown);
        is_newest && entry.unpublished.is_empty()
    }

    /// A file was made here; tells whether somebody must see to it that it is published, should it
    /// stay open.
    pub(super) fn insert(&self, parent: InodeId, file: Arc<File>) -> bool {
        let mut directories = self.lock();
        let entry = directories.entry(parent).or_insert_with(|| Directory::new(Instant::now()));
        if entry.unpublished.insert(file.inode, file).is_none() {
            self.unpublished.fetch_add(1, Ordering::SeqCst);
        }
        !self.is_watched.swap(true, Ordering::SeqCst)
    }

    /// The server knows of the file, or never will.
    pub(super) fn remove(&self, parent: InodeId, inode: InodeId) {
        let mut directories = self.lock();
        let Some(entry) = directories.get_mut(&parent) else { return };
        if entry.unpublished.remove(&inode).is_some() {
            self.unpublished.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether the server knows of everything.
    pub(super) fn is_settled(&self) -> bool {
        self.unpublished.load(Ordering::SeqCst) == 0
    }

    /// The files that it does not know of, in this directory or in any.
    pub(super) fn unpublished(&self, directory: Option<InodeId>) -> Vec<Arc<File>> {
        if self.is_settled() {
            return Vec::new();
        }
        let directories = self.lock();
        let of = |entry: &Directory| entry.unpublished.values().cloned().collect::<Vec<_>>();
        match directory {
            Some(directory) => directories.get(&directory).map(of).unwrap_or_default(),
            None => directories.values().flat_map(of).collect(),
        }
    }

    /// Nobody sees to files that stay open any more, unless there are some.
    pub(super) fn end_watch(&self) -> bool {
        self.is_watched.store(false, Ordering::SeqCst);
        self.is_settled() || self.is_watched.swap(true, Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, Directory>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory {
    fn new(now: Instant) -> Self {
        Self {
            made: 0,
            began: now,
            asked: None,
            is_asking: false,
            is_void: false,
            shown: ChangeCount(0),
            held: None,
            unpublished: HashMap::new(),
        }
    }

    fn end(&mut self) {
        self.held = None;
        self.is_void = self.is_asking;
    }

    fn is_in_use(&self, now: Instant) -> bool {
        let is_recent = now.saturating_duration_since(self.began) <= BURST_TIME;
        is_recent || self.is_asking || self.held.is_some() || !self.unpublished.is_empty()
    }

    /// Whether to ask now.
    fn begin_asking(&mut self, now: Instant) -> bool {
        let waits = |asked: Instant| now.saturating_duration_since(asked) < ASK_AGAIN;
        if self.is_asking || self.asked.is_some_and(waits) {
            return false;
        }
        (self.is_asking, self.asked) = (true, Some(now));
        true
    }
}

/// Whether somebody may make files in a directory that has no access control list. The server says
/// the same again; here it decides whether it has to be asked.
fn may_add(caller: &Caller, directory: &Attributes) -> bool {
    let shift = match caller {
        Caller { uid: 0, .. } => return true,
        caller if caller.uid == directory.uid => 6,
        caller if caller.gid == directory.gid || caller.groups.contains(&directory.gid) => 3,
        _ => 0,
    };
    (directory.mode >> shift) & 0o3 == 0o3
}

impl FileSystem {
    /// A file was made by asking the server, whose answer covered its directory.
    pub(super) fn note_made(&self, directory: InodeId) {
        if self.delegates
            && self.names.is_for_all()
            && self.delegations.handle_made(directory, Instant::now())
        {
            self.ask_delegation(directory);
        }
    }

    /// Takes what a new file needs that this mount makes by itself; nothing where the server must
    /// be asked.
    pub(super) fn take_given(&self, caller: &Caller, directory: InodeId) -> Option<Given> {
        if self.cluster.is_ahead() {
            return None;
        }
        let given = self.delegations.take(directory, caller, self.told_now())?;
        if given.is_low {
            self.ask_delegation(directory);
        }
        Some(given)
    }

    fn ask_delegation(&self, directory: InodeId) {
        self.spawn(|this| async move { this.delegate(directory).await });
    }

    async fn delegate(&self, directory: InodeId) {
        let (note, told) = (self.names.note(), self.told_now());
        let contents_max =
            if self.delegations.holds(directory) { CONTENTS } else { CONTENTS_FIRST };
        let request = Delegate { session: told.session, directory, contents_max };
        let given = match self.cluster.ask(&request).await {
            Ok(Delegated { delegation }) => delegation.and_then(|given| read(told, given)),
            Err(failure) => {
                if failure.kind == ErrorKind::NotSupported {
                    self.delegations.is_old.store(true, Ordering::Relaxed);
                }
                tracing::debug!(%directory, %failure, "no delegation");
                None
            }
        };
        let stands = || self.names.is_covered(directory, note);
        self.delegations.handle_answer(directory, given, stands);
    }

    /// Returns when nothing is left of the delegations that are taken back: no file is made under
    /// them any more, and the server knows of those that were. May be dropped at its await.
    ///
    /// # Errors
    /// When there is a file of which it does not know: then this must not be acknowledged.
    pub(super) async fn end_delegations(&self, recalls: &[Recall]) -> Result<(), Failure> {
        for recall in recalls {
            let directory = match recall {
                Recall::Lease(directory) => Some(*directory),
                Recall::Everything => None,
                Recall::Attributes(inode) => {
                    // Another host is about to write it, if the server has it.
                    if let Some(file) = self.files.find(*inode) {
                        self.settle_inline(&file).await?;
                    }
                    continue;
                }
                Recall::Name(..) => continue,
            };
            self.delegations.end(directory);
            // What is refused is reported to whoever closes the file.
            self.settle_all(self.delegations.unpublished(directory)).await?;
        }
        Ok(())
    }

    /// A change of this mount is about to be sent. What it concerns is published first; a directory
    /// that changes itself, and not only what is in it, is asked for again.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub(super) async fn settle_concerned(&self, concerned: &[Recall]) -> Result<(), Failure> {
        let has_names = |directory: InodeId| {
            concerned.iter().any(|recall| matches!(recall, Recall::Name(of, _) if *of == directory))
        };
        for recall in concerned {
            match recall {
                Recall::Attributes(inode) if !has_names(*inode) => {
                    if self.delegations.is_held(*inode) {
                        self.delegations.end(Some(*inode));
                    }
                    self.settle(*inode).await?;
                }
                Recall::Name(inode, _) | Recall::Attributes(inode) | Recall::Lease(inode) => {
                    self.settle(*inode).await?;
                }
                Recall::Everything => {
                    self.settle_all(self.delegations.unpublished(None)).await?;
                }
            }
        }
        Ok(())
    }

    /// Tells a server that was restarted of what it must not give to others: the names of files
    /// that it does not know yet.
    ///
    /// # Errors
    /// What the server answers.
    pub(super) async fn declare_delegations(
        &self,
        session: SessionId,
        incarnation: u64,
    ) -> Result<(), Failure> {
        let mut directories = Vec::new();
        self.delegations.end(None);
        // It may be a newer program.
        self.delegations.is_old.store(false, Ordering::Relaxed);
        self.closes.handle_restart();
        self.bare_pages.handle_restart();
        for file in self.delegations.unpublished(None) {
            let Some(unpublished) = file.state().unpublished.clone() else { continue };
            if unpublished.session == session {
                directories.push(unpublished.parent);
            }
        }
        directories.sort_unstable();
        directories.dedup();
        if directories.is_empty() {
            return Ok(());
        }
        let request = DeclareDelegations { session, incarnation, directories };
        match self.cluster.ask_once(&request).await {
            // The same life of the server, which knows what it has given.
            Err(failure) if failure.kind == ErrorKind::Stale => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// What a delegation gives. Nothing if a part of it cannot be what the server means.
fn read(told: Told, delegation: Delegation) -> Option<Granted> {
    let Delegation { directory, contents, inline_bytes_max } = delegation;
    let content = |signed: Signed| {
        let capability: Capability = codec::decode(&signed.body).ok()?;
        Some((capability.content.checked().ok()?, signed))
    };
    let contents: Option<Contents> = contents.into_iter().map(content).collect();
    Some(Granted { told, directory, contents: contents?, inline_bytes_max })
}

#[cfg(test)]
mod tests;
