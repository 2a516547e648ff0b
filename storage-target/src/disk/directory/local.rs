//! A directory on a file system of this machine.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::{fs::FallocateFlags, io::Errno};

use super::{Data, Directory, PlainFile};
use crate::disk::{self, DataFile, DiskEngine, DiskError, DiskQueue, lock};

/// The directory, which this process has to itself.
#[derive(Debug)]
pub struct LocalDirectory {
    path: PathBuf,
    /// Keeps other processes out until it is closed; the lock ends with the process, however it
    /// ends.
    lock: Mutex<Option<File>>,
}

impl LocalDirectory {
    /// Takes the directory at `path`. Blocks for 5 seconds at most while another process has it:
    /// one that was killed keeps its files until the last of its threads has left the disk.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another process keeps it; otherwise what the system says.
    pub fn lock(path: &Path) -> io::Result<Self> {
        let directory = File::open(path)?;
        lock::lock(&directory)?;
        Ok(Self { path: path.to_owned(), lock: Mutex::new(Some(directory)) })
    }
}

impl Directory for LocalDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect()
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn PlainFile>> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        Ok(Arc::new(options.open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn PlainFile>> {
        Ok(Arc::new(OpenOptions::new().write(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_names(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn data(&self, path: &Path) -> io::Result<Arc<dyn Data>> {
        let is_new = !path.exists();
        let file = DataFile::open(path)?;
        if is_new {
            self.sync_names(&self.path)?;
        }
        // Through the page cache, which needs no aligned memory.
        let plain = File::open(path)?;
        Ok(Arc::new(LocalData { file, plain }))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let figures = rustix::fs::statvfs(&self.path)?;
        Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
    }

    fn unlock(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl PlainFile for File {
    fn allocate(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(self, FallocateFlags::KEEP_SIZE, 0, len) {
            Err(Errno::OPNOTSUPP) => Ok(()),
            other => other.map_err(io::Error::from),
        }
    }

    fn give_back_room(&self) -> io::Result<()> {
        self.set_len(self.metadata()?.len())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[derive(Debug)]
struct LocalData {
    file: DataFile,
    plain: File,
}

impl Data for LocalData {
    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.plain.read_exact_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.plain.sync_data()
    }

    fn grow(&self, old_len: u64, new_len: u64) -> Result<(), DiskError> {
        self.file.grow(old_len, new_len)
    }

    fn start(&self, engine: DiskEngine) -> io::Result<DiskQueue> {
        disk::start(engine, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::disk::lock::LEAVING_TICK;

    #[test]
    fn a_process_that_is_leaving_is_waited_for() {
        let home = tempfile::tempdir().expect("a directory");
        let leaving = LocalDirectory::lock(home.path()).expect("it is free");
        thread::scope(|scope| {
            let next = scope.spawn(|| LocalDirectory::lock(home.path()).map(drop));
            thread::sleep(10 * LEAVING_TICK); // What leaving takes it.
            drop(leaving);
            next.join().expect("no panic").expect("it is free again");
        });
    }
}
