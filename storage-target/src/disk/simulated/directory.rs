//! A directory in memory: a simulated disk as its data file, and small files and names that lose
//! power together with it.
//!
//! # Fault model of files and names
//! - The bytes of each file are on a simulated disk of its own, written by sectors: unsynced ones
//!   are lost, torn or reordered by a cut as those of any other.
//! - The length of a file is, after a cut, the one of its last sync or the newest one.
//! - Names are, after a cut, those of the last sync of names and of some of the changes since then,
//!   from the first on and without gaps, as file systems with a journal have it. A file that was
//!   never given a durable name is gone, synced or not.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_runtime::Random;

use super::{Ending, Flush, Power, SECTOR, SimulatedDisk, gate::Gate};
use crate::disk::{
    ALIGNMENT, Directory, Disk, DiskEngine, DiskError, DiskQueue, Operation, Request,
    directory::{Data, PlainFile},
};

/// Bytes that a small file may have at most.
const FILE_LEN_MAX: u64 = 1 << 32;

/// The directory. Clones are handles of the same one; one of them serves an engine while another
/// plays fate.
#[derive(Clone, Debug)]
pub struct SimulatedDirectory {
    path: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    power: Arc<Power>,
    random: Random,
    data: SimulatedFile,
    gate: Arc<Gate>,
    names: Mutex<Names>,
}

#[derive(Debug)]
struct Names {
    /// As processes see them. A directory has no file.
    present: BTreeMap<PathBuf, Option<SimulatedFile>>,
    durable: BTreeMap<PathBuf, Option<SimulatedFile>>,
    /// Unsynced changes, oldest first.
    pending: Vec<Change>,
    /// Of files made from now on, and of names.
    flush: Flush,
}

#[derive(Clone, Debug)]
enum Change {
    Put(PathBuf, Option<SimulatedFile>),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Change {
    fn apply(self, names: &mut BTreeMap<PathBuf, Option<SimulatedFile>>) {
        match self {
            Self::Put(path, file) => drop(names.insert(path, file)),
            Self::Remove(path) => drop(names.remove(&path)),
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(&from) {
                    names.insert(to, file);
                }
            }
        }
    }
}

impl SimulatedDirectory {
    /// An empty directory whose data file may have `data_len` bytes, and whose chances follow from
    /// `seed`.
    ///
    /// # Panics
    /// When `data_len` is no multiple of a page.
    #[must_use]
    pub fn new(data_len: u64, seed: u64) -> Self {
        let power: Arc<Power> = Arc::default();
        let random = Random::seeded(seed);
        let disk = SimulatedDisk::powered(data_len, random.number(), Arc::clone(&power));
        let names = Names {
            present: BTreeMap::new(),
            durable: BTreeMap::new(),
            pending: Vec::new(),
            flush: Flush::Honest,
        };
        let gate: Arc<Gate> = Arc::default();
        let data = SimulatedFile { gate: Some(Arc::clone(&gate)), ..SimulatedFile::on(disk) };
        let names = Mutex::new(names);
        Self {
            path: PathBuf::from("/simulated"),
            shared: Arc::new(Shared { power, random, data, gate, names }),
        }
    }

    /// The disk under the data file.
    #[must_use]
    pub fn data_disk(&self) -> &SimulatedDisk {
        &self.shared.data.disk
    }

    /// Bytes of the data file as it is now.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.shared.data.lengths().now
    }

    /// Makes the syncs of the data file honest or not.
    pub fn set_data_flush(&self, flush: Flush) {
        self.data_disk().set_flush(flush);
    }

    /// Makes the syncs of all other files, and of names, honest or not.
    pub fn set_file_flush(&self, flush: Flush) {
        let mut names = self.names();
        names.flush = flush;
        let others = |file: &&SimulatedFile| file.gate.is_none();
        for file in names.present.values().flatten().filter(others) {
            file.disk.set_flush(flush);
        }
    }

    /// Holds the next sync of the data file that a queue is asked for, before it does anything,
    /// until [`Self::release_sync`].
    pub fn hold_sync(&self) {
        self.shared.gate.shut();
    }

    /// Waits for the sync that shall be held; returns whether it came.
    #[must_use]
    pub fn wait_for_held_sync(&self) -> bool {
        self.shared.gate.wait_until_held()
    }

    /// Lets the sync that is held go on.
    pub fn release_sync(&self) {
        self.shared.gate.open();
    }

    /// Cuts the power during the `nth` change from now on: a write or sync of data or another file,
    /// or a change or sync of names.
    pub fn cut_power_in(&self, nth: u64) {
        self.shared.power.end_in(nth, Ending::Cut);
    }

    /// Kills the process during the `nth` change from now on.
    pub fn kill_in(&self, nth: u64) {
        self.shared.power.end_in(nth, Ending::Kill);
    }

    /// Whether requests fail because the power is off or the process was killed.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.shared.power.is_off()
    }

    /// Cuts the power if it is on, decides what became of unsynced bytes, lengths and names, and
    /// turns it on again.
    pub fn restart(&self) {
        let mut names = self.names();
        let pending = std::mem::take(&mut names.pending);
        let kept = self.shared.random.within(0..pending.len() as u64 + 1);
        let kept = usize::try_from(kept).expect("at most what there is");
        for change in pending.into_iter().take(kept) {
            change.apply(&mut names.durable);
        }
        names.present = names.durable.clone();
        for file in names.present.values().flatten() {
            file.settle(&self.shared.random);
        }
        drop(names);
        self.shared.data.settle(&self.shared.random);
        self.shared.data.disk.resume();
    }

    /// Serves the next process; nothing that was written is lost.
    pub fn resume(&self) {
        self.shared.data.disk.resume();
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.shared.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change of names, unless the end has come before it.
    fn change(&self, change: Change) -> io::Result<()> {
        let mut names = self.names();
        if self.shared.power.is_off() {
            return Err(stopped());
        }
        let ending = self.shared.power.change();
        if ending.is_none() || self.shared.random.within(0..2) == 0 {
            names.pending.push(change.clone());
            change.apply(&mut names.present);
        }
        ending.map_or(Ok(()), |_| Err(stopped()))
    }

    fn file(&self, path: &Path) -> io::Result<SimulatedFile> {
        if self.is_off() {
            return Err(stopped());
        }
        let found = self.names().present.get(path).cloned();
        found.flatten().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Directory for SimulatedDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn exists(&self, path: &Path) -> bool {
        self.names().present.contains_key(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.file(path)?;
        let len = usize::try_from(file.lengths().now).expect("small");
        let mut bytes = vec![0; len];
        file.disk.media().peek(0, &mut bytes);
        Ok(bytes)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        if self.is_off() {
            return Err(stopped());
        }
        let names = self.names();
        if !names.present.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(names.present.keys().filter(|found| found.parent() == Some(path)).cloned().collect())
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.change(Change::Put(path.to_owned(), None))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn PlainFile>> {
        let (seed, power) = (self.shared.random.number(), Arc::clone(&self.shared.power));
        let file = SimulatedFile::on(SimulatedDisk::powered(FILE_LEN_MAX, seed, power));
        file.disk.set_flush(self.names().flush);
        self.change(Change::Put(path.to_owned(), Some(file.clone())))?;
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn PlainFile>> {
        Ok(Arc::new(self.file(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(Change::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(Change::Remove(path.to_owned()))
    }

    fn sync_names(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names();
        if self.shared.power.is_off() {
            return Err(stopped());
        }
        if path != self.path && !names.present.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let ending = self.shared.power.change();
        let done = ending.is_none() || self.shared.random.within(0..2) == 0;
        if done && names.flush == Flush::Honest {
            // One journal serves the whole file system: a sync of one directory is one of all.
            names.durable = names.present.clone();
            names.pending.clear();
        }
        ending.map_or(Ok(()), |_| Err(stopped()))
    }

    fn data(&self, path: &Path) -> io::Result<Arc<dyn Data>> {
        if !self.exists(path) {
            self.change(Change::Put(path.to_owned(), Some(self.shared.data.clone())))?;
            self.sync_names(&self.path)?;
        }
        Ok(Arc::new(self.file(path)?))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.data_disk().media().len)
    }

    fn unlock(&self) {}
}

/// A file: its bytes are on a disk of its own.
#[derive(Clone, Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    lengths: Arc<Mutex<Lengths>>,
    /// Of the data file.
    gate: Option<Arc<Gate>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    now: u64,
    durable: u64,
}

impl SimulatedFile {
    fn on(disk: SimulatedDisk) -> Self {
        Self { disk, lengths: Arc::default(), gate: None }
    }

    fn lengths(&self) -> MutexGuard<'_, Lengths> {
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, random: &Random) {
        self.disk.media().settle();
        let mut lengths = self.lengths();
        if random.within(0..2) == 0 {
            lengths.now = lengths.durable;
        }
        lengths.durable = lengths.now;
    }

    /// Takes the length for durable if the disk has nothing unsynced left.
    fn synced(&self) {
        if self.disk.media().pending.is_empty() {
            let mut lengths = self.lengths();
            lengths.durable = lengths.now;
        }
    }
}

impl PlainFile for SimulatedFile {
    fn allocate(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn give_back_room(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut media = self.disk.media();
        if media.power.is_off() {
            return Err(stopped());
        }
        let ending = media.power.change();
        let end = offset + bytes.len() as u64;
        let first_page = offset / ALIGNMENT as u64 * ALIGNMENT as u64;
        let last_page = end.next_multiple_of(ALIGNMENT as u64);
        let len = usize::try_from(last_page - first_page).expect("small");
        let mut pages = vec![0; len];
        media.peek(first_page, &mut pages);
        let mut lengths = self.lengths();
        let known = usize::try_from(lengths.now.saturating_sub(first_page)).expect("small");
        pages[known.min(len)..].fill(0);
        let at = usize::try_from(offset - first_page).expect("within a page");
        pages[at..at + bytes.len()].copy_from_slice(bytes);
        // Only the sectors that are touched.
        let first = at / SECTOR * SECTOR;
        let last = (at + bytes.len()).next_multiple_of(SECTOR);
        media.put_until(ending, first_page + first as u64, &pages[first..last]);
        lengths.now = lengths.now.max(end);
        ending.map_or(Ok(()), |_| Err(stopped()))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.media().sync_now().map_err(io::Error::other)?;
        self.synced();
        Ok(())
    }
}

impl Data for SimulatedFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.lengths().now)
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.disk.is_off() {
            return Err(stopped());
        }
        if offset + bytes.len() as u64 > self.lengths().now {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.disk.media().peek(offset, bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        PlainFile::sync(self)
    }

    fn grow(&self, old_len: u64, new_len: u64) -> Result<(), DiskError> {
        let media = self.disk.media();
        assert!(old_len <= new_len, "a file grows");
        if media.power.is_off() {
            return Err(DiskError::Stopped);
        }
        if new_len > media.len {
            return Err(DiskError::NoSpace);
        }
        let ending = media.power.change();
        let mut lengths = self.lengths();
        lengths.now = lengths.now.max(new_len);
        ending.map_or(Ok(()), |_| Err(DiskError::Stopped))
    }

    fn start(&self, _engine: DiskEngine) -> io::Result<DiskQueue> {
        Ok(DiskQueue::new(Arc::new(FileDisk(self.clone()))))
    }
}

/// Serves the requests for a data file.
#[derive(Debug)]
struct FileDisk(SimulatedFile);

impl Disk for FileDisk {
    fn submit(&self, mut request: Request) {
        let is_sync = request.operation == Operation::Sync;
        if is_sync && let Some(gate) = &self.0.gate {
            gate.pass();
        }
        let result = self.0.disk.media().execute(&mut request);
        if is_sync && result.is_ok() {
            self.0.synced();
        }
        request.complete(result);
    }

    fn name(&self) -> &'static str {
        "simulated"
    }
}

fn stopped() -> io::Error {
    io::Error::other("the power is off, or the process was killed")
}
