//! A running engine on a directory, whose clock stands still between commands.

use std::{
    fs,
    ops::Bound,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use millrace_metadata_server::{
    apply,
    command::Envelope,
    engine::{Core, Engine, EngineSettings, Handle, StartError, StoreKind},
    files::MachineFiles,
    log::{self, LogError, SyncState, segment},
    ops::Client,
    store::{MetaStore, Pair, View, lsm::LsmStore, memory::MemoryStore, sled::SledStore},
};
use millrace_runtime::{Clock, Random, VirtualTime};
use millrace_types::{ClusterId, Failure, LogIndex, SessionId, Timestamp};

pub(crate) const CLUSTER: ClusterId = ClusterId([7; 16]);

/// Every engine whose store is there after a stop.
pub(crate) const ON_DISK: [StoreKind; 2] = [StoreKind::Sled, StoreKind::Lsm];

/// Every engine.
pub(crate) const ENGINES: [StoreKind; 3] = [StoreKind::Memory, StoreKind::Sled, StoreKind::Lsm];

/// An engine that can be stopped and started again. Its first start makes the file system.
pub(crate) struct Server {
    pub(crate) settings: EngineSettings,
    pub(crate) time: VirtualTime,
    /// The sessions that were opened.
    pub(crate) listeners: Mutex<Vec<(Client, SessionId)>>,
    engine: Option<Engine>,
    runtime: tokio::runtime::Runtime,
}

/// Settings with small segments and a clock that only the test moves.
pub(crate) fn settings(dir: &Path, store: StoreKind) -> (EngineSettings, VirtualTime) {
    let (clock, time) = Clock::manual(Timestamp::from_parts(1_800_000_000, 0));
    let settings = EngineSettings {
        store,
        cache_bytes: 8 << 20,
        segment_bytes: 64 << 10,
        clock,
        random: Random::seeded(7),
        ..EngineSettings::new(dir.to_owned(), CLUSTER)
    };
    (settings, time)
}

impl Server {
    pub(crate) fn start(dir: &Path, store: StoreKind) -> Self {
        let (settings, time) = settings(dir, store);
        Self::start_with(settings, time)
    }

    pub(crate) fn start_with(settings: EngineSettings, time: VirtualTime) -> Self {
        let mut server = Self::stopped(settings, time);
        server.begin();
        server
    }

    /// One that was not started yet.
    pub(crate) fn stopped(settings: EngineSettings, time: VirtualTime) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { settings, time, listeners: Mutex::default(), engine: None, runtime }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.engine.is_some()
    }

    /// Starts it again after [`Self::stop`].
    pub(crate) fn begin(&mut self) {
        self.try_begin().unwrap();
    }

    pub(crate) fn try_begin(&mut self) -> Result<(), StartError> {
        assert!(self.engine.is_none(), "it is stopped");
        self.engine = Some(Engine::start(self.settings.clone())?);
        Ok(())
    }

    pub(crate) fn stop(&mut self) {
        self.try_stop().unwrap();
    }

    pub(crate) fn try_stop(&mut self) -> Result<(), StartError> {
        self.engine.take().expect("it runs").stop()
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        self.begin();
    }

    /// For sending turns.
    pub(crate) fn handle(&self) -> &Handle {
        self.engine.as_ref().expect("it runs").handle()
    }

    /// Lets time pass in which the server looks again and again at who is silent.
    pub(crate) fn pass(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(Duration::from_secs(1));
            self.time.advance(step);
            self.turn(|core| core.tick().unwrap());
            left -= step;
        }
    }

    /// Runs `work` on the engine's thread.
    pub(crate) fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> T {
        self.try_turn(move |core| Ok(work(core))).expect("the engine runs")
    }

    pub(crate) fn try_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.runtime.block_on(self.handle().turn(work))
    }

    /// What of the log is written and what is on stable storage.
    pub(crate) fn log_state(&self) -> SyncState {
        self.handle().log_state()
    }

    /// Everything that the store shows.
    pub(crate) fn contents(&self) -> Contents {
        self.turn(|core| contents(core.view()))
    }

    pub(crate) fn store_dir(&self) -> PathBuf {
        self.settings.store_dir()
    }

    /// The store by itself, with the server stopped.
    pub(crate) fn open_store(&self) -> Box<dyn MetaStore> {
        let (dir, cache) = (self.store_dir(), 8 << 20);
        match self.settings.store {
            StoreKind::Sled => Box::new(SledStore::open(&dir, cache).unwrap()),
            StoreKind::Lsm => Box::new(LsmStore::open(&dir, cache).unwrap()),
            StoreKind::Memory => panic!("it has no files"),
        }
    }

    /// Damages the file without which the store does not open.
    pub(crate) fn spoil_store(&self) {
        let file = match self.settings.store {
            StoreKind::Sled => "conf",
            StoreKind::Lsm => "tree/current",
            StoreKind::Memory => panic!("it has no files"),
        };
        let file = self.store_dir().join(file);
        assert!(file.exists());
        fs::write(file, b"nothing that an engine has written").unwrap();
    }

    pub(crate) fn log_dir(&self) -> PathBuf {
        self.settings.dir.join("log")
    }

    pub(crate) fn snapshot_dir(&self) -> PathBuf {
        self.settings.dir.join("snapshots")
    }
}

/// All pairs of a store, in order.
#[derive(PartialEq, Eq)]
pub(crate) struct Contents(pub(crate) Vec<Pair>);

pub(crate) fn contents(view: &(impl View + ?Sized)) -> Contents {
    Contents(view.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX).unwrap())
}

/// What the log alone gives, applied to an empty store without the engine.
pub(crate) fn rebuilt(log_dir: &Path) -> Contents {
    applied(&records(log_dir))
}

/// What records from the first on give, applied to an empty store without the engine.
pub(crate) fn applied(records: &[(LogIndex, Vec<u8>)]) -> Contents {
    let mut store = MemoryStore::default();
    for (index, body) in records {
        let envelope = Envelope::from_bytes(body).expect("the engine's own record decodes");
        let effect = apply::apply(&store, *index, &envelope).expect("what is logged applies");
        store.commit(&effect.batch).unwrap();
    }
    contents(&store)
}

/// The records of a log, by index.
pub(crate) fn records(log_dir: &Path) -> Vec<(LogIndex, Vec<u8>)> {
    let first = segment::list(&MachineFiles, log_dir).unwrap()[0].0;
    records_from(log_dir, first)
}

/// The records of a log from one on.
pub(crate) fn records_from(log_dir: &Path, first: LogIndex) -> Vec<(LogIndex, Vec<u8>)> {
    let mut found = Vec::new();
    log::replay(&MachineFiles, log_dir, CLUSTER, first, |index, body| {
        found.push((index, body.to_vec()));
        Ok::<(), LogError>(())
    })
    .unwrap();
    found
}

impl Contents {
    /// Compares key by key; shows the first difference.
    pub(crate) fn assert_equal(&self, other: &Self, what: &str) {
        for (left, right) in self.0.iter().zip(&other.0) {
            assert!(left == right, "{what}: {} is not {}", shown(left), shown(right));
        }
        let (left, right) = (self.0.len(), other.0.len());
        let more = self.0.get(right).or_else(|| other.0.get(left));
        assert!(left == right, "{what}: {left} and {right} keys, first {:?}", more.map(shown));
    }
}

fn shown((key, value): &Pair) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{}{} = {}", key[0].escape_ascii(), hex(&key[1..]), hex(value))
}

/// Copies a directory with everything in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
