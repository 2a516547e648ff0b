//! Stores of a real engine on the simulated disk, which stops among their writes as it does among
//! those of the log. Each run has a mount of its own.
//!
//! An engine does not end with its run as its process would: it goes on in this one, and hears of
//! each request that it has failed. What it makes of that is no matter, not even a panic (see
//! `process`): nothing of it reaches the disk any more.

use std::{
    ops::Bound,
    sync::{Arc, Mutex},
};

use millrace_metadata_server::{
    engine::StoreKind,
    store::{Batch, MetaStore, Pair, StoreError, Stores, View, lsm::LsmStores, sled::SledStores},
};
use millrace_runtime::Random;
use tempfile::TempDir;

use super::{
    disk::Ending,
    folders::Left,
    process::Process,
    served::{Mount, place_for_mounts},
    world::World,
};
use crate::chance::percent;

/// The store of a server on a disk, between runs.
#[derive(Clone, Debug)]
pub(crate) struct Mounted(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    world: World,
    kind: StoreKind,
    /// Of a hundred batches so many are followed by a checkpoint that nobody asks for.
    prompt: u64,
    random: Random,
    /// So many runs before this one did not come to open it.
    unopened: u32,
    /// The present run has begun to make it anew.
    is_made_anew: bool,
    /// The last one is that of the present run. The others are there until the end, so that no path
    /// in them leads elsewhere.
    mounts: Vec<Mount>,
    // Behind the mounts, which are taken away first.
    root: TempDir,
}

impl Mounted {
    pub(crate) fn new(world: &World, kind: StoreKind, prompt: u64, random: Random) -> Self {
        let root = place_for_mounts();
        let (world, unopened, mounts) = (world.clone(), 0, Vec::new());
        let is_made_anew = false;
        let state = State { world, kind, prompt, random, unopened, is_made_anew, mounts, root };
        let mounted = Self(Arc::new(Mutex::new(state)));
        mounted.begin();
        mounted
    }

    /// Begins the next run. If the last one `ran` it has come to open the store.
    pub(crate) fn end(&self, ending: Ending, ran: bool) -> Left {
        self.begin();
        let mut state = self.0.lock().unwrap();
        state.unopened = if ran { 0 } else { state.unopened + 1 };
        // A merge tree is not opened any more when that was cut twice.
        let is_opened_no_more = state.kind == StoreKind::Lsm && state.unopened >= 2;
        let is_half_made = std::mem::take(&mut state.is_made_anew) && !ran;
        match ending {
            Ending::Kill if !is_opened_no_more && !is_half_made => Left::All,
            _ => Left::Wreck,
        }
    }

    /// Mounts the disk for the run that it is in.
    pub(crate) fn begin(&self) {
        let mut state = self.0.lock().unwrap();
        let path = state.root.path().join(state.mounts.len().to_string());
        let mount = Mount::new(&state.world, path);
        state.mounts.push(mount);
    }

    fn with_engine(
        &self,
        work: impl FnOnce(&dyn Stores) -> Result<Box<dyn MetaStore>, StoreError> + Send + 'static,
    ) -> Result<Box<dyn MetaStore>, StoreError> {
        let state = self.0.lock().unwrap();
        let (dir, cache_bytes) = (state.mounts.last().unwrap().path().join("store"), 8 << 20);
        let (kind, world) = (state.kind, state.world.clone());
        let (prompt, random) = (state.prompt, state.random.clone());
        drop(state);
        let process = Process::begin(world, move || match kind {
            StoreKind::Sled => work(&SledStores { dir, cache_bytes }),
            _ => work(&LsmStores { dir, cache_bytes }),
        })?;
        Ok(Box::new(OnDisk { process, prompt, random }))
    }
}

impl Stores for Mounted {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        self.with_engine(|stores| stores.open())
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        self.0.lock().unwrap().is_made_anew = true;
        self.with_engine(|stores| stores.create())
    }

    fn survives(&self) -> bool {
        true
    }
}

/// An open store.
struct OnDisk {
    process: Process,
    prompt: u64,
    random: Random,
}

impl View for OnDisk {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let key = key.to_vec();
        self.process.ask(move |store| store.get(&key))
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let [from, to] = [from, to].map(|bound| bound.map(<[u8]>::to_vec));
        self.process.ask(move |store| {
            let [from, to] = [&from, &to].map(|bound| bound.as_ref().map(Vec::as_slice));
            store.scan(from, to, limit)
        })
    }
}

impl MetaStore for OnDisk {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let batch = batch.clone();
        let is_prompt = percent(&self.random, self.prompt);
        self.process.ask(move |store| {
            store.commit(&batch)?;
            if is_prompt { store.checkpoint() } else { Ok(()) }
        })
    }

    fn poll_failure(&mut self) -> Result<(), StoreError> {
        self.process.ask(|store| store.poll_failure())
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.process.ask(|store| store.checkpoint())
    }
}
