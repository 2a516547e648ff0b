//! The simulated disk as the files below log, snapshots and marker.

use std::{
    ffi::OsStr,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use millrace_metadata_server::files::{Access, Files, OpenFile};
use millrace_runtime::Random;
use rustix::io::Errno;

use super::disk::{Disk, Ending, GONE, Inode, Keeping, Lie};

/// A disk, shared by all who use it. It survives the runs.
#[derive(Clone, Debug)]
pub(crate) struct World(Arc<Mutex<Disk>>);

impl World {
    pub(crate) fn new(random: Random, lie: Lie) -> Self {
        Self::keeping(random, lie, Keeping::Apart)
    }

    /// The same, with names that come to stable storage in that way.
    pub(crate) fn keeping(random: Random, lie: Lie, keeping: Keeping) -> Self {
        Self(Arc::new(Mutex::new(Disk::new(random, lie, keeping))))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// As long as the run lasts.
    fn disk_now(&self) -> Result<MutexGuard<'_, Disk>, Errno> {
        let disk = self.disk();
        if disk.over { Err(GONE) } else { Ok(disk) }
    }

    /// As long as this run lasts.
    pub(super) fn disk_in(&self, run: u64) -> Result<MutexGuard<'_, Disk>, Errno> {
        let disk = self.disk_now()?;
        if disk.run == run { Ok(disk) } else { Err(GONE) }
    }

    /// Which run it is.
    pub(super) fn run(&self) -> u64 {
        self.disk().run
    }

    /// From now on the run ends after so many changes.
    pub(crate) fn end_after(&self, steps: u64) {
        self.disk().left = Some(steps);
    }

    /// Has the run not end while somebody looks; nothing if it has ended.
    pub(crate) fn hold(&self) -> Option<Held> {
        let mut disk = self.disk();
        if disk.over {
            return None;
        }
        disk.held += 1;
        Some(Held(self.clone()))
    }

    /// The next sync of a file fails, and what it was to write never comes to the disk. The kernel
    /// goes on to show it.
    pub(crate) fn fail_next_sync(&self) {
        self.disk().fails_next_sync = true;
    }

    /// From now on the disk fails to read this file.
    pub(crate) fn make_unreadable(&self, path: &Path) {
        let mut disk = self.disk();
        let file = disk.find_path(path).unwrap();
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
        Self(Arc::new(Mutex::new(self.disk().in_the_kernel())))
    }

    /// Ends the run, and shows the next one what is left.
    pub(crate) fn end(&self, ending: Ending) {
        self.disk().end(ending);
    }
}

/// Keeps a run from ending.
#[derive(Debug)]
pub(crate) struct Held(World);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.disk().held -= 1;
    }
}

/// A directory and a name in it.
fn split<'path>(disk: &Disk, path: &'path Path) -> io::Result<(Inode, &'path OsStr)> {
    let directory = disk.find_path(path.parent().unwrap())?;
    Ok((directory, path.file_name().unwrap()))
}

impl Files for World {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk_now()?;
        disk.make_path(dir);
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk_now()?;
        let inside = disk.list(disk.find_path(dir)?);
        let files = inside.filter(|(_, inode)| !disk.is_directory(*inode));
        Ok(files.map(|(name, _)| name.to_str().unwrap().to_owned()).collect())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn OpenFile>> {
        let mut disk = self.disk_now()?;
        let (directory, name) = split(&disk, path)?;
        let file = match (disk.find(directory, name), access) {
            (found, Access::Read | Access::Write) => found?,
            (Ok(found), Access::Create) => {
                disk.set_len(found, 0)?;
                found
            }
            (Err(_), Access::Create) => disk.make(directory, name, false)?,
        };
        Ok(Arc::new(Opened { world: self.clone(), file, run: disk.run }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk_now()?;
        let (from, to) = (split(&disk, from)?, split(&disk, to)?);
        Ok(disk.rename(from, to)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk_now()?;
        let (directory, name) = split(&disk, path)?;
        Ok(disk.remove(directory, name)?)
    }

    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk_now()?;
        let directory = disk.find_path(dir)?;
        Ok(disk.sync_directory(directory)?)
    }
}

#[derive(Debug)]
struct Opened {
    world: World,
    file: Inode,
    run: u64,
}

impl Opened {
    fn disk(&self) -> io::Result<MutexGuard<'_, Disk>> {
        Ok(self.world.disk_in(self.run)?)
    }
}

impl OpenFile for Opened {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk()?.len(self.file))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.disk()?;
        let found = disk.read(self.file, offset, buffer.len() as u64)?;
        buffer[..found.len()].copy_from_slice(found);
        Ok(found.len())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        Ok(self.disk()?.write(self.file, offset, bytes)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(self.disk()?.set_len(self.file, len)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.disk()?.sync_file(self.file, true)?)
    }
}
