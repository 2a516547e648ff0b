//! What the engine's thread owns, and how it executes commands.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    sync::Arc,
    time::Duration,
};

use millrace_protocol::{cluster::Map, session::Operation};
use millrace_types::{
    ClusterId, ErrorKind, Failure, HostId, InodeId, LogIndex, SessionId, Timestamp,
};

use super::{
    clock::ServerClock,
    ids::IdBlock,
    marker::Marker,
    names::Names,
    rebuild::applied,
    room::Room,
    startup::{EngineSettings, StartError},
};
use crate::{
    apply::{self, ApplyError, Effect},
    capability::Keyring,
    command::{Command, Envelope, Outcome},
    consistency::census::Census,
    leases::{self, Table, Wait},
    locks::Locks,
    log::{LogError, Syncer, Writer},
    namespace::tree,
    sessions::{Expiry, Readers},
    store::{
        MetaStore, StoreError, View, keys,
        records::{self, FileSystem, SessionRecord},
    },
    targets::{Registry, losses::Damage, map},
    written::Written,
};

mod attention;
mod consistency;
mod level;
mod problems;
mod recall;
mod repair;
mod sessions;
mod signing;
mod small_files;
mod snapshot;
mod trust;

use attention::Attention;
pub use consistency::Looked;
use repair::Repair;
use signing::signing_keys;
use snapshot::Snapshots;
use trust::Doubt;

/// The log, the store, and what is kept beside them. Turns get it to themselves.
#[derive(Debug)]
pub struct Core {
    settings: EngineSettings,
    log: Writer,
    store: StoreBox,
    clock: ServerClock,
    ids: IdBlock,
    /// Answers that must wait for the name of a content.
    names: Names,
    keyring: Arc<Keyring>,
    /// A key that is logged and not yet synced.
    coming_key: Option<LogIndex>,
    /// Leases.
    pub(crate) expiry: Expiry,
    /// Opens for reading.
    pub(crate) readers: Readers,
    /// Locks of programs on files.
    pub(crate) locks: Locks,
    /// What clients may keep.
    pub(crate) leases: Table,
    /// What the operation of this turn must wait for before it is executed.
    recall: Option<Wait>,
    /// What others have given back for the operation of this turn.
    given_back: Vec<Wait>,
    /// Of a command of which others shall have heard: what is over when they have.
    heard: Option<Vec<Wait>>,
    /// What the answer to the operation of this turn must wait for.
    answer_waits: Vec<Wait>,
    /// The session for which the server executes a command of its own.
    asked_by: Option<SessionId>,
    /// When it was last looked who is silent.
    attention: Attention,
    /// Whether the log knows of this run.
    is_run_logged: bool,
    /// Since when sessions from before the start can declare, but for when nobody was heard.
    declaring_since: Timestamp,
    /// What heartbeats tell.
    pub(crate) registry: Registry,
    /// Files that lack what went with a target.
    pub(crate) damage: Damage,
    map: Arc<Map>,
    /// The last command that changed the map.
    map_index: LogIndex,
    /// The last command that changed the links.
    links_index: LogIndex,
    sessions_by_nonce: HashMap<(HostId, u64), SessionId>,
    /// Sessions whose end has begun, and the inodes up to which that has come.
    ending: BTreeMap<SessionId, InodeId>,
    incarnation: u64,
    started: Timestamp,
    /// Why nothing may be changed any more.
    broken: Option<Failure>,
    repair: Repair,
    doubt: Doubt,
    room: Room,
    /// Whether new files beyond a page may live in their inodes.
    small_files_have_room: bool,
    /// What clients write, make and rename, for those who send it on.
    written: Arc<Written>,
    snapshots: Snapshots,
    /// A count that is under way.
    census: Option<Census>,
    marker: Marker,
    _lock: File,
}

struct StoreBox(Box<dyn MetaStore>);

impl std::fmt::Debug for StoreBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MetaStore")
    }
}

impl Core {
    pub(super) fn new(
        settings: EngineSettings,
        log: Writer,
        store: Box<dyn MetaStore>,
        lock: File,
        marker: Marker,
        rebuilt: Option<String>,
    ) -> Result<Self, StartError> {
        let clock = ServerClock::new(settings.clock.clone(), applied(&*store)?.time);
        let now = clock.now();
        let map = Arc::new(map::read(&*store)?);
        let registry = Registry::new(&map, clock.instant(), settings.lease);
        let file_system = file_system(&*store)?;
        let mut expiry = Expiry::new(settings.lease, settings.clock_error);
        let mut sessions_by_nonce = HashMap::new();
        for (session, record) in sessions(&*store)? {
            // Its last ticket may have been given out just before the end.
            expiry.handle_ticket(session, now);
            sessions_by_nonce.insert((record.host, record.nonce), session);
        }
        let (index, first) = (log.last(), file_system.inode_limit);
        let snapshots = Snapshots::new(&settings, &log)?;
        let mut core = Self {
            snapshots,
            census: None,
            ids: IdBlock::after(file_system.inode_limit),
            names: Names::default(),
            keyring: Arc::default(),
            coming_key: None,
            readers: Readers::after_restart(sessions_by_nonce.values().copied(), first),
            locks: Locks::after_restart(sessions_by_nonce.values().copied()),
            leases: Table::after_restart(
                leases::table::Limits::default(),
                recall::keepers(&*store)?,
            ),
            recall: None,
            given_back: Vec::new(),
            heard: None,
            answer_waits: Vec::new(),
            asked_by: None,
            attention: Attention::new(clock.instant()),
            is_run_logged: false,
            declaring_since: now,
            expiry,
            registry,
            damage: Damage::default(),
            map,
            map_index: index,
            links_index: index,
            sessions_by_nonce,
            ending: BTreeMap::new(),
            incarnation: settings.random.number(),
            started: now,
            broken: None,
            repair: Repair::new(now),
            doubt: Doubt::new(rebuilt),
            room: Room::new(settings.dir.clone(), settings.reserve()),
            small_files_have_room: true,
            written: Arc::default(),
            clock,
            settings,
            log,
            store: StoreBox(store),
            marker,
            _lock: lock,
        };
        core.prepare()?;
        Ok(core)
    }

    /// The first block of ids and the first key, durable before the first request.
    fn prepare(&mut self) -> Result<(), StartError> {
        self.check_feature_level()?;
        self.begin_run();
        self.raise_feature_level();
        self.reserve_ids();
        if signing_keys(&*self.store.0)?.is_empty() {
            self.make_key();
        }
        self.log.syncer().sync_all()?;
        self.ids.handle_synced(self.log.state().synced);
        self.load_keys()?;
        self.settle_doubt();
        Ok(())
    }

    /// Reads what the namespace shows.
    #[must_use]
    pub fn view(&self) -> &dyn View {
        &*self.store.0
    }

    /// Executes a command, exactly once if it has an operation. When this returns, the command
    /// survives a kill of the process.
    ///
    /// # Errors
    /// What apply refuses it with; [`ErrorKind::NoSpace`] when the log's disk is full: nothing has
    /// happened then.
    pub fn execute(
        &mut self,
        operation: Option<Operation>,
        command: Command,
    ) -> Result<Outcome, Failure> {
        self.repair();
        if let Some(failure) = &self.broken {
            return Err(failure.clone());
        }
        if let Some(outcome) = self.remembered(operation)? {
            return Ok(outcome);
        }
        self.begin_run_before(&command)?;
        let envelope = Envelope { time: self.clock.now(), operation, command };
        let index = self.log.last().next();
        let effect = match apply::apply(&*self.store.0, index, &envelope) {
            Ok(applied) => applied,
            Err(error) => self.apply_after(error, index, &envelope)?,
        };
        if !envelope.command.is_lazy() {
            self.take_back(operation, &effect.batch)?;
        }
        let record = envelope.to_bytes();
        // A client also closes what it could not commit. Only the end of its session has targets
        // drop what they have of that, so its own closes wait for room as its commits do.
        let only_ends = operation.is_none() && envelope.command.only_ends();
        if !self.room.admits(record.len(), only_ends) {
            return Err(log_failure(LogError::NoSpace));
        }
        let appended = self.log.append(&record).map_err(log_failure)?;
        assert_eq!(appended, index, "one owner appends");
        self.note_raises(&effect, index);
        self.tell_writers(operation, &effect);
        let Effect { batch, outcome, .. } = effect;
        self.set_aside(&batch);
        if let Err(error) = self.store.0.commit(&batch) {
            let failure = self.failure(error.into());
            self.repair();
            // Made anew from the log, the store has this command too.
            if self.broken.is_some() {
                return Err(failure);
            }
        }
        self.forget_gone(&batch);
        if let Err(error) = self.observe(&envelope.command, &outcome) {
            return Err(self.failure(error.into()));
        }
        Ok(outcome)
    }

    /// Applies a command that was not applied for `error`, if a repair can have mended that.
    fn apply_after(
        &mut self,
        error: ApplyError,
        index: LogIndex,
        envelope: &Envelope,
    ) -> Result<Effect, Failure> {
        let refused = matches!(error, ApplyError::Refused(_));
        let failure = self.failure(error);
        self.repair();
        if refused || self.broken.is_some() {
            return Err(failure);
        }
        apply::apply(&*self.store.0, index, envelope).map_err(|error| self.failure(error))
    }

    /// The outcome of an operation that was executed before.
    ///
    /// # Errors
    /// [`ErrorKind::SessionGone`].
    pub fn remembered(&mut self, operation: Option<Operation>) -> Result<Option<Outcome>, Failure> {
        let Some(operation) = operation else {
            return Ok(None);
        };
        apply::remembered(&*self.store.0, operation).map_err(|error| self.failure(error))
    }

    /// An id for a new inode, which nobody had before.
    ///
    /// # Errors
    /// When the disk of the log is full or fails.
    pub fn new_inode_id(&mut self) -> Result<InodeId, Failure> {
        self.ids.handle_synced(self.log.state().synced);
        self.reserve_ids();
        if let Some(id) = self.ids.take() {
            return Ok(id);
        }
        // A burst used up the block before the background sync: rare, and one sync long.
        self.log.syncer().sync_all().map_err(log_failure)?;
        self.ids.handle_synced(self.log.state().synced);
        let full = || Failure::new(ErrorKind::NoSpace, "no inode ids can be reserved");
        self.ids.take().ok_or_else(full)
    }

    /// The answer of this turn names the present content of `inode`: it goes out once that name is
    /// on stable storage, so that a loss of power never gives it to other bytes.
    pub fn note_name(&mut self, inode: InodeId) {
        self.names.handle_synced(self.log.state().synced);
        self.names.note(inode);
    }

    /// What must be synced before the answer of the turn that ends here.
    pub(super) fn poll_hold(&mut self) -> Option<LogIndex> {
        self.names.poll_hold()
    }

    fn note_raises(&mut self, effect: &Effect, index: LogIndex) {
        if effect.raised.is_empty() {
            return;
        }
        self.names.handle_synced(self.log.state().synced);
        for &inode in &effect.raised {
            self.names.handle_raise(inode, index);
        }
    }

    /// Makes sure that no inode gets an id up to `highest`, which a target holds chunks of.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn skip_inode_ids(&mut self, highest: InodeId) -> Result<(), Failure> {
        if let Some(limit) = self.ids.skip(highest) {
            self.distrust(format!(
                "a target holds chunks of {highest}, an id that was never given out"
            ));
            self.execute(None, Command::ReserveIds(limit))?;
            self.ids.handle_logged(limit, self.log.last());
        }
        Ok(())
    }

    /// Turns an error of the store or of apply into what the caller hears. A broken store stops all
    /// changes until [`Self::tick`] has made it anew.
    pub fn failure(&mut self, error: ApplyError) -> Failure {
        match error {
            ApplyError::Refused(kind) => kind.into(),
            ApplyError::Store(error) => {
                let kind = if error.is_full_disk() { ErrorKind::NoSpace } else { ErrorKind::Disk };
                let text = format!("{error}; it is made anew from the command log");
                let failure = Failure::new(kind, text);
                if self.broken.is_none() {
                    tracing::error!(%error, "the store is broken: nothing is changed for now");
                    self.broken = Some(failure.clone());
                    self.distrust_store();
                }
                failure
            }
        }
    }

    /// Applies deadlines that have passed: leases, silent targets, keys; repairs a broken store.
    ///
    /// # Errors
    /// When the log's disk is full or fails; called again, it goes on.
    pub fn tick(&mut self) -> Result<(), Failure> {
        let look = self.look();
        for (target, state) in self.registry.handle_timeout(look.instant) {
            tracing::warn!(%target, ?state, "target is silent");
        }
        if self.broken.is_none()
            && let Err(error) = self.store.0.poll_failure()
        {
            self.failure(error.into());
        }
        self.repair();
        if self.broken.is_some() {
            return Ok(());
        }
        self.settle_trust();
        // What fails, with a full disk above all, keeps nothing else from being done.
        let ended = self.end_dead_sessions();
        self.leases.end_idle_delegations(self.now());
        let declared = self.end_reading();
        self.poll_snapshot();
        let rotated = self.rotate_key(self.now());
        ended.and(declared).and(rotated)
    }

    /// What clients write, make and rename.
    #[must_use]
    pub(super) fn written(&self) -> &Arc<Written> {
        &self.written
    }

    /// The clock, for those beside the engine.
    #[must_use]
    pub fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// The server's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The monotonic clock.
    #[must_use]
    pub fn instant(&self) -> std::time::Instant {
        self.clock.instant()
    }

    /// The last command.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.log.last()
    }

    /// Bytes of the log.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// For waiting until an index is synced.
    #[must_use]
    pub fn syncer(&self) -> &Arc<Syncer> {
        self.log.syncer()
    }

    /// Signs capabilities and tickets.
    #[must_use]
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// The cluster map, and the index that must be synced before anybody acts on it.
    #[must_use]
    pub fn map(&self) -> (Arc<Map>, LogIndex) {
        (Arc::clone(&self.map), self.map_index)
    }

    /// The index that must be synced before anybody acts on the links.
    #[must_use]
    pub fn links_index(&self) -> LogIndex {
        self.links_index
    }

    /// Drawn at each start.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Length of a lease.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.settings.lease
    }

    /// How long a session stands after its last renewal.
    #[must_use]
    pub fn session_end(&self) -> Duration {
        self.settings.lease + self.settings.clock_error
    }

    /// The cluster that the log belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.settings.cluster
    }

    /// When the server started, in its own time.
    #[must_use]
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Counts and reserved ids.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn file_system(&mut self) -> Result<FileSystem, Failure> {
        file_system(&*self.store.0).map_err(|error| self.failure(error.into()))
    }

    /// Has the next start rebuild the store, also within this boot of the machine.
    fn distrust_store(&self) {
        if let Err(error) = Marker::forget(&*self.settings.files, &self.settings.dir) {
            let dir = self.settings.store_dir();
            tracing::error!(%error, dir = %dir.display(), "remove this directory before the next \
                start: it is broken, and the marker that vouches for it cannot be removed");
        }
    }

    /// Syncs everything and marks the shutdown as clean.
    pub(super) fn close(mut self) -> Result<(), StartError> {
        self.log.syncer().sync_all()?;
        if self.broken.is_some() || self.doubt.is_pending() {
            return Ok(());
        }
        self.store.0.checkpoint().inspect_err(|_| self.distrust_store())?;
        self.marker.clean = true;
        self.marker.last = self.log.last();
        let path = self.settings.dir.clone();
        self.marker
            .save(&*self.settings.files, &path)
            .map_err(|source| StartError::Disk { path, source })
    }

    /// Keeps what is derived from the store in step with it.
    fn observe(&mut self, command: &Command, outcome: &Outcome) -> Result<(), StoreError> {
        match command {
            Command::RegisterHost(_) | Command::TargetBlank(_) | Command::Loss(_) => {
                let map = map::read(&*self.store.0)?;
                if map != *self.map {
                    self.map = Arc::new(map);
                    self.map_index = self.log.last();
                }
                self.registry.handle_map(&self.map, self.clock.instant());
                if matches!(command, Command::Loss(_)) {
                    self.damage.handle_loss();
                }
            }
            Command::OpenSession(open) => {
                if let Outcome::Session(session) = outcome {
                    self.sessions_by_nonce.insert((open.host, open.nonce), *session);
                }
            }
            Command::CloseSession(session) => {
                self.sessions_by_nonce.retain(|_, known| known != session);
                self.ending.remove(session);
                self.expiry.handle_end(*session);
                self.readers.handle_end(*session);
                self.locks.handle_end(*session);
                self.leases.handle_end(*session);
            }
            // What is signed by older ones must be used before those are not known any more.
            Command::NewKey(_) => self.leases.end_delegations(),
            Command::AddLink(_) | Command::RemoveLink(_) => self.links_index = self.log.last(),
            _ => {}
        }
        self.written.note(&*self.store.0, command, outcome)
    }

    fn reserve_ids(&mut self) {
        let Some(limit) = self.ids.poll_reservation() else {
            return;
        };
        match self.execute(None, Command::ReserveIds(limit)) {
            Ok(_) => self.ids.handle_logged(limit, self.log.last()),
            // The block at hand goes on; the next id tries again.
            Err(error) => tracing::warn!(%error, "cannot reserve inode ids"),
        }
    }
}

fn file_system(view: &(impl View + ?Sized)) -> Result<FileSystem, StoreError> {
    let record = records::read(view, &keys::file_system())?;
    record.ok_or_else(|| StoreError::Inconsistent("there is no file system record".to_owned()))
}

fn sessions(view: &(impl View + ?Sized)) -> Result<Vec<(SessionId, SessionRecord)>, StoreError> {
    let found = tree::scan::<SessionRecord>(view, &keys::sessions(), usize::MAX)?;
    let id = |key: &[u8]| SessionId(keys::number_at(key, 1).unwrap_or_default());
    Ok(found.into_iter().map(|(key, record)| (id(&key), record)).collect())
}

fn log_failure(error: LogError) -> Failure {
    let kind = match error {
        LogError::NoSpace => ErrorKind::NoSpace,
        LogError::TooLarge(_) => ErrorKind::InvalidArgument,
        LogError::Disk { .. } | LogError::Stopped | LogError::Damaged { .. } => ErrorKind::Disk,
    };
    Failure::new(kind, error.to_string())
}
