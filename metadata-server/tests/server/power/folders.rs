//! Stores of a real engine, each in a folder. The end of a run keeps all of it, goes back to how
//! it was at an earlier end, removes it or damages it.

use std::{
    fs,
    ops::Bound,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use millrace_metadata_server::{
    engine::StoreKind,
    store::{Batch, MetaStore, Pair, StoreError, Stores, View, lsm::LsmStores, sled::SledStores},
};
use millrace_runtime::Random;

use super::disk::Ending;
use crate::{
    chance::{percent, pick},
    engine::copy,
};

/// What an end leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Everything that the engine has written.
    All,
    /// What it had written at an earlier end.
    Beginning,
    /// Nothing that can be used, or what a disk may make of it.
    Wreck,
}

/// The folders, between runs.
#[derive(Clone, Debug)]
pub(crate) struct Folders(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: Random,
    kind: StoreKind,
    root: PathBuf,
    /// Numbers the folders.
    count: u64,
    present: PathBuf,
    /// Copies from the ends of runs, the oldest first.
    earlier: Vec<PathBuf>,
    /// So many of them are from before the last loss of power.
    outdated: usize,
}

impl Folders {
    pub(crate) fn new(kind: StoreKind, root: PathBuf, random: Random) -> Self {
        let present = root.join("0");
        let (count, earlier, outdated) = (0, Vec::new(), 0);
        Self(Arc::new(Mutex::new(State { random, kind, root, count, present, earlier, outdated })))
    }

    /// Ends a run, which had the store open if it `ran`. What a clean end has synced stays.
    pub(crate) fn end(&self, ending: Ending, ran: bool, is_clean: bool) -> Left {
        let mut state = self.0.lock().unwrap();
        if ran && percent(&state.random, 40) {
            let (from, to) = (state.present.clone(), state.next_folder());
            copy(&from, &to);
            state.earlier.push(to);
        }
        match ending {
            Ending::Kill => state.kill(),
            Ending::Power => {
                let left = if is_clean { Left::All } else { state.lose_power() };
                state.outdated = state.earlier.len();
                left
            }
        }
    }

    fn of_engine(&self) -> Box<dyn Stores> {
        let state = self.0.lock().unwrap();
        let (dir, cache_bytes) = (state.present.clone(), 8 << 20);
        match state.kind {
            StoreKind::Sled => Box::new(SledStores { dir, cache_bytes }),
            _ => Box::new(LsmStores { dir, cache_bytes }),
        }
    }

    fn opened(&self, store: Box<dyn MetaStore>) -> Box<dyn MetaStore> {
        let state = self.0.lock().unwrap();
        Box::new(Prompt { store, kind: state.kind, random: state.random.clone() })
    }
}

impl State {
    fn next_folder(&mut self) -> PathBuf {
        self.count += 1;
        self.root.join(self.count.to_string())
    }

    /// A kill may take any end of what the log has; folders that are removed or damaged by somebody
    /// are no worse.
    fn kill(&mut self) -> Left {
        match self.random.within(0..10) {
            0..5 => Left::All,
            5..8 => self.go_back(self.outdated),
            8 => {
                self.present = self.next_folder();
                Left::Wreck
            }
            _ => self.spoil(),
        }
    }

    /// What is left of a store then is anybody's guess.
    fn lose_power(&mut self) -> Left {
        match self.random.within(0..10) {
            0..4 => return Left::All,
            4..6 => return self.go_back(0),
            6 => self.present = self.next_folder(),
            at => {
                let Some(path) = pick(&self.random, &files(&self.present)).cloned() else {
                    return Left::All;
                };
                let mut bytes = fs::read(&path).unwrap();
                let place = self.random.within(0..bytes.len().max(1) as u64);
                let place = usize::try_from(place).unwrap();
                if at < 8 && place < bytes.len() {
                    bytes[place] ^= 0x10;
                } else {
                    bytes.truncate(place);
                }
                fs::write(&path, bytes).unwrap();
            }
        }
        Left::Wreck
    }

    fn go_back(&mut self, oldest: usize) -> Left {
        let Some(folder) = pick(&self.random, &self.earlier[oldest..]).cloned() else {
            return Left::All;
        };
        self.present = self.next_folder();
        copy(&folder, &self.present);
        Left::Beginning
    }

    /// Damages the file without which the store does not open.
    fn spoil(&self) -> Left {
        let file = match self.kind {
            StoreKind::Sled => "conf",
            _ => "tree/current",
        };
        let file = self.present.join(file);
        if !file.exists() {
            return Left::All;
        }
        fs::write(file, b"nothing that an engine has written").unwrap();
        Left::Wreck
    }
}

impl Stores for Folders {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        Ok(self.opened(self.of_engine().open()?))
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        Ok(self.opened(self.of_engine().create()?))
    }

    fn survives(&self) -> bool {
        true
    }
}

/// A store that is sometimes quicker to the disk than it need be: so that it may have what the log
/// has not synced.
struct Prompt {
    store: Box<dyn MetaStore>,
    kind: StoreKind,
    random: Random,
}

impl View for Prompt {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.get(key)
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.store.scan(from, to, limit)
    }
}

impl MetaStore for Prompt {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.store.commit(batch)?;
        match percent(&self.random, 3) {
            true => self.store.checkpoint(),
            false => Ok(()),
        }
    }

    fn poll_failure(&mut self) -> Result<(), StoreError> {
        self.store.poll_failure()
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.store.checkpoint()
    }
}

impl Drop for Prompt {
    /// sled writes all when it is dropped, partly by threads that end later: what is looked at or
    /// copied then is there by now. A merge tree loses what is in memory.
    fn drop(&mut self) {
        if self.kind == StoreKind::Sled || percent(&self.random, 50) {
            // It is then as after a kill before that.
            drop(self.store.checkpoint());
        }
    }
}

/// All files of a folder that may be missing.
fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}
