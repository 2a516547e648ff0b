//! What one worker knows of its own names.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::worker::SHARED;

/// A name of a worker: the number of its directory, and its own.
pub(super) type Name = (usize, u64);

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// A file, which may have further names.
    File(u64),
    Directory,
    /// A symbolic link with this text.
    Link(String),
}

/// A file's contents and how many names lead to it.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) links: u64,
}

#[derive(Debug)]
pub(super) struct Model {
    worker: usize,
    pub(super) names: BTreeMap<Name, Entry>,
    pub(super) files: BTreeMap<u64, Content>,
    next: u64,
}

impl Model {
    pub(super) fn new(worker: usize) -> Self {
        Self { worker, names: BTreeMap::new(), files: BTreeMap::new(), next: 0 }
    }

    /// The worker's own directory.
    pub(super) fn own(&self) -> PathBuf {
        format!("own-{}", self.worker).into()
    }

    /// A name's path below a mount.
    pub(super) fn path(&self, (directory, number): Name) -> PathBuf {
        let folder = SHARED.get(directory).map_or_else(|| self.own(), PathBuf::from);
        folder.join(format!("w{}-{number}", self.worker))
    }

    /// Every path that is there.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.names.keys().map(|name| self.path(*name))
    }

    /// Gives a new file its first name.
    pub(super) fn create(&mut self, name: Name, bytes: Vec<u8>) {
        self.files.insert(self.next, Content { bytes, links: 1 });
        self.names.insert(name, Entry::File(self.next));
        self.next += 1;
    }

    /// Takes a name away, and its file with the last one.
    pub(super) fn remove(&mut self, name: Name) {
        if let Some(Entry::File(id)) = self.names.remove(&name) {
            let content = self.files.get_mut(&id).expect("it had a name");
            content.links -= 1;
            if content.links == 0 {
                self.files.remove(&id);
            }
        }
    }

    /// Everything is on a mount as it is here.
    pub(super) fn compare(&self, mount: &Path) -> Result<()> {
        let mut inodes = BTreeMap::new();
        for (name, entry) in &self.names {
            self.compare_one(mount, *name)?;
            if let Entry::File(id) = entry {
                let inode = fs::metadata(mount.join(self.path(*name)))?.ino();
                let known = *inodes.entry(id).or_insert(inode);
                ensure!(known == inode, "{}: another file", self.path(*name).display());
            }
        }
        Ok(())
    }

    /// One name, which may be one that is not there, is on a mount as it is here.
    pub(super) fn compare_one(&self, mount: &Path, name: Name) -> Result<()> {
        let path = mount.join(self.path(name));
        let words = || format!("{}", path.display());
        let shown = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            shown => Some(shown.with_context(words)?),
        };
        match (self.names.get(&name), shown) {
            (None, None) => {}
            (Some(Entry::Directory), Some(shown)) => {
                ensure!(shown.is_dir() && shown.nlink() == 2, "{shown:?}: {}", words());
            }
            (Some(Entry::Link(text)), Some(shown)) => {
                ensure!(shown.is_symlink(), "{shown:?}: {}", words());
                ensure!(fs::read_link(&path)? == Path::new(text), "another text: {}", words());
            }
            (Some(Entry::File(id)), Some(shown)) => {
                let content = &self.files[id];
                let found = (shown.len(), shown.nlink());
                let wanted = (content.bytes.len() as u64, content.links);
                ensure!(found == wanted, "{found:?}, not {wanted:?}: {}", words());
                let bytes = fs::read(&path).with_context(words)?;
                ensure!(bytes == content.bytes, "other bytes: {}", words());
            }
            (wanted, shown) => {
                ensure!(false, "{} instead of {wanted:?}: {}", shown.is_some(), words());
            }
        }
        Ok(())
    }
}
