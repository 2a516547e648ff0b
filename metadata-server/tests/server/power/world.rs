//! Files in memory that lose, tear and reorder what was not synced, and stop at any step.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use millrace_metadata_server::files::{Access, Files, OpenFile};
use millrace_runtime::Random;

use crate::chance::percent;

/// Bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// What a disk says that fails.
const EIO: i32 = 5;

/// What a disk does that a sound one never does: each must be noticed by the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lie {
    /// None.
    Nothing,
    /// Names are not on stable storage when their directory was synced.
    Names,
    /// Bytes are not when the file was.
    Bytes,
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// The process is killed: the kernel keeps what it has.
    Kill,
    /// The power goes: only what was synced is certain.
    Power,
}

/// A disk, shared by all who use it. It survives the runs.
#[derive(Clone, Debug)]
pub(crate) struct World(Arc<Mutex<Disk>>);

#[derive(Debug)]
struct Disk {
    random: Random,
    lie: Lie,
    files: Vec<Contents>,
    /// Names as the kernel has them, and as the disk has them.
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    changes: Vec<NameChange>,
    dirs: BTreeSet<PathBuf>,
    /// Whether the next sync of a file fails.
    fails_next_sync: bool,
    /// Files that cannot be read.
    unreadable: BTreeSet<usize>,
    /// Steps until the end; none while nobody wants one.
    left: Option<u64>,
    /// Which run it is: files that another one has open do nothing any more.
    run: u64,
    over: bool,
}

#[derive(Debug, Default)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Cut(usize),
}

#[derive(Debug)]
enum NameChange {
    Set(PathBuf, usize),
    Move(PathBuf, PathBuf, usize),
    Gone(PathBuf),
}

impl World {
    pub(crate) fn new(random: Random, lie: Lie) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            random,
            lie,
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            dirs: BTreeSet::new(),
            fails_next_sync: false,
            unreadable: BTreeSet::new(),
            left: None,
            run: 0,
            over: false,
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// From now on the run ends after so many changes.
    pub(crate) fn end_after(&self, steps: u64) {
        self.disk().left = Some(steps);
    }

    /// The next sync of a file fails, and what it was to write never comes to the disk. The kernel
    /// goes on to show it.
    pub(crate) fn fail_next_sync(&self) {
        self.disk().fails_next_sync = true;
    }

    /// From now on the disk fails to read this file.
    pub(crate) fn make_unreadable(&self, path: &Path) {
        let mut disk = self.disk();
        let file = disk.names[path];
        disk.unreadable.insert(file);
    }

    /// The run ends now.
    pub(crate) fn cut(&self) {
        self.disk().over = true;
    }

    /// Whether the run has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.disk().over
    }

    /// What the kernel has, to be read also when the run has ended.
    pub(crate) fn in_the_kernel(&self) -> Self {
        let disk = self.disk();
        let copy = Self::new(disk.random.clone(), Lie::Nothing);
        {
            let mut copied = copy.disk();
            copied.files.resize_with(disk.files.len(), Contents::default);
            for &file in disk.names.values() {
                copied.files[file].now.clone_from(&disk.files[file].now);
            }
            copied.names.clone_from(&disk.names);
            copied.dirs.clone_from(&disk.dirs);
        }
        copy
    }

    /// Ends the run, and shows the next one what is left.
    pub(crate) fn end(&self, ending: Ending) {
        let mut disk = self.disk();
        if ending == Ending::Power {
            disk.lose();
        }
        disk.left = None;
        disk.over = false;
        disk.run += 1;
    }
}

impl Disk {
    /// One change is about to happen. At the end of the run it fails, having happened or not.
    fn step(&mut self) -> io::Result<bool> {
        if self.over {
            return Err(gone());
        }
        match &mut self.left {
            Some(0) => {
                self.over = true;
                Ok(false)
            }
            Some(left) => {
                *left -= 1;
                Ok(true)
            }
            None => Ok(true),
        }
    }

    /// Makes a change of names in the kernel.
    fn rename(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    /// Keeps any part of what was not synced.
    fn lose(&mut self) {
        let random = self.random.clone();
        // Some file systems keep the order of names, some do not.
        let ordered = percent(&random, 50);
        let cut = random.within(0..self.changes.len() as u64 + 1);
        for (at, change) in std::mem::take(&mut self.changes).iter().enumerate() {
            let kept = if ordered { (at as u64) < cut } else { percent(&random, 50) };
            if kept {
                apply(&mut self.durable_names, change);
            }
        }
        self.names.clone_from(&self.durable_names);
        for file in &mut self.files {
            for change in std::mem::take(&mut file.pending) {
                match change {
                    Change::Cut(len) if percent(&random, 50) => file.durable.resize(len, 0),
                    Change::Cut(_) => {}
                    Change::Write { offset, bytes } => {
                        // All, nothing, or any of its sectors.
                        let share = [0, 50, 100][usize::try_from(random.within(0..3)).unwrap()];
                        write_sectors(&mut file.durable, offset, &bytes, |_| {
                            percent(&random, share)
                        });
                    }
                }
            }
            file.now.clone_from(&file.durable);
        }
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &NameChange) {
    match change {
        NameChange::Set(path, file) => drop(names.insert(path.clone(), *file)),
        NameChange::Move(from, to, file) => {
            names.remove(from);
            names.insert(to.clone(), *file);
        }
        NameChange::Gone(path) => drop(names.remove(path)),
    }
}

/// Writes those sectors that `keeps`; the file is as long as the last of them asks for.
fn write_sectors(
    contents: &mut Vec<u8>,
    offset: usize,
    bytes: &[u8],
    mut keeps: impl FnMut(usize) -> bool,
) {
    let mut at = offset;
    while at < offset + bytes.len() {
        let end = (at / SECTOR * SECTOR + SECTOR).min(offset + bytes.len());
        if keeps(at / SECTOR) {
            contents.resize(contents.len().max(end), 0);
            contents[at..end].copy_from_slice(&bytes[at - offset..end - offset]);
        }
        at = end;
    }
}

fn gone() -> io::Error {
    io::Error::other("the run has ended")
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Files for World {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        if disk.over {
            return Err(gone());
        }
        disk.dirs.insert(dir.to_owned());
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk();
        if disk.over {
            return Err(gone());
        }
        if !disk.dirs.contains(dir) {
            return Err(missing());
        }
        let inside = disk.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn OpenFile>> {
        let mut disk = self.disk();
        if disk.over {
            return Err(gone());
        }
        let found = disk.names.get(path).copied();
        let file = match (found, access) {
            (Some(file), Access::Read | Access::Write) => file,
            (None, Access::Read | Access::Write) => return Err(missing()),
            (found, Access::Create) => {
                let goes_on = disk.step()?;
                let file = found.unwrap_or(disk.files.len());
                if found.is_none() {
                    disk.files.push(Contents::default());
                    disk.rename(NameChange::Set(path.to_owned(), file));
                } else {
                    disk.files[file].now.clear();
                    disk.files[file].pending.push(Change::Cut(0));
                }
                if !goes_on {
                    return Err(gone());
                }
                file
            }
        };
        Ok(Arc::new(Opened { world: self.clone(), file, run: disk.run }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let goes_on = disk.step()?;
        let file = disk.names.get(from).copied().ok_or_else(missing)?;
        if goes_on || percent(&disk.random.clone(), 50) {
            disk.rename(NameChange::Move(from.to_owned(), to.to_owned(), file));
        }
        if goes_on { Ok(()) } else { Err(gone()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let goes_on = disk.step()?;
        disk.names.get(path).ok_or_else(missing)?;
        if goes_on || percent(&disk.random.clone(), 50) {
            disk.rename(NameChange::Gone(path.to_owned()));
        }
        if goes_on { Ok(()) } else { Err(gone()) }
    }

    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        if !disk.step()? {
            return Err(gone());
        }
        if disk.lie == Lie::Names {
            return Ok(());
        }
        let all = std::mem::take(&mut disk.changes);
        let (synced, others) = all.into_iter().partition(|change| match change {
            NameChange::Set(path, _) | NameChange::Move(_, path, _) | NameChange::Gone(path) => {
                path.parent() == Some(dir)
            }
        });
        disk.changes = others;
        let synced: Vec<NameChange> = synced;
        for change in &synced {
            apply(&mut disk.durable_names, change);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Opened {
    world: World,
    file: usize,
    run: u64,
}

impl Opened {
    fn disk(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.world.disk();
        if disk.over || disk.run != self.run { Err(gone()) } else { Ok(disk) }
    }
}

impl OpenFile for Opened {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk()?.files[self.file].now.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.disk()?;
        if disk.unreadable.contains(&self.file) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let contents = &disk.files[self.file].now;
        let from = usize::try_from(offset).unwrap().min(contents.len());
        let count = buffer.len().min(contents.len() - from);
        buffer[..count].copy_from_slice(&contents[from..from + count]);
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk()?;
        let goes_on = disk.step()?;
        // A kill in the middle leaves the beginning.
        let len = match goes_on {
            true => bytes.len(),
            false => usize::try_from(disk.random.within(0..bytes.len() as u64 + 1)).unwrap(),
        };
        let (offset, bytes) = (usize::try_from(offset).unwrap(), bytes[..len].to_vec());
        let file = &mut disk.files[self.file];
        write_sectors(&mut file.now, offset, &bytes, |_| true);
        file.pending.push(Change::Write { offset, bytes });
        if goes_on { Ok(()) } else { Err(gone()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk()?;
        let goes_on = disk.step()?;
        let len = usize::try_from(len).unwrap();
        let file = &mut disk.files[self.file];
        file.now.resize(len, 0);
        file.pending.push(Change::Cut(len));
        if goes_on { Ok(()) } else { Err(gone()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk()?;
        if !disk.step()? {
            return Err(gone());
        }
        if disk.lie == Lie::Bytes {
            return Ok(());
        }
        let fails = std::mem::take(&mut disk.fails_next_sync);
        let file = &mut disk.files[self.file];
        for change in file.pending.drain(..).filter(|_| !fails) {
            match change {
                Change::Cut(len) => file.durable.resize(len, 0),
                Change::Write { offset, bytes } => {
                    write_sectors(&mut file.durable, offset, &bytes, |_| true);
                }
            }
        }
        if fails { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
    }
}
