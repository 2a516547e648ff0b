//! What is served: one directory of files in memory. All servers answer from the same; libfuse's
//! program in C is written likewise.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

/// The root's inode.
pub(crate) const ROOT: u64 = 1;
/// For how long the kernel may believe what it has seen: nobody else changes anything.
pub(crate) const VALID: Duration = Duration::from_secs(3600);

/// A file's bytes.
pub(crate) type Content = Arc<RwLock<Vec<u8>>>;

/// The files.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<Files>);

#[derive(Debug, Default)]
struct Files {
    names: HashMap<OsString, u64>,
    contents: HashMap<u64, Content>,
    last: u64,
}

/// What stat(2) says of a file or the root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) node: u64,
    pub(crate) size: u64,
}

impl Store {
    /// `count` files `stat-N` and as many `read-N` of 16 KiB, and the files `large` and `target` of
    /// so many MiB.
    pub(crate) fn new(count: usize, mib: usize) -> Self {
        let store = Self(Mutex::new(Files { last: ROOT, ..Files::default() }));
        {
            let mut files = store.files();
            for number in 0..count {
                files.add(format!("stat-{number}").into(), Vec::new());
                files.add(format!("read-{number}").into(), vec![7; SMALL]);
            }
            for name in ["large", "target"] {
                files.add(name.into(), vec![7; mib << 20]);
            }
        }
        store
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, name: &OsStr) -> Option<Attributes> {
        let files = self.files();
        let node = *files.names.get(name)?;
        files.attributes(node)
    }

    pub(crate) fn attributes(&self, node: u64) -> Option<Attributes> {
        self.files().attributes(node)
    }

    pub(crate) fn create(&self, name: &OsStr) -> Attributes {
        let mut files = self.files();
        let node = files.add(name.to_owned(), Vec::new());
        Attributes { node, size: 0 }
    }

    pub(crate) fn unlink(&self, name: &OsStr) -> bool {
        let mut files = self.files();
        let Some(node) = files.names.remove(name) else { return false };
        files.contents.remove(&node).is_some()
    }

    pub(crate) fn content(&self, node: u64) -> Option<Content> {
        self.files().contents.get(&node).cloned()
    }
}

impl Files {
    fn add(&mut self, name: OsString, content: Vec<u8>) -> u64 {
        self.last += 1;
        self.names.insert(name, self.last);
        self.contents.insert(self.last, Arc::new(RwLock::new(content)));
        self.last
    }

    fn attributes(&self, node: u64) -> Option<Attributes> {
        if node == ROOT {
            return Some(Attributes { node, size: 0 });
        }
        let content = self.contents.get(&node)?.read().unwrap_or_else(PoisonError::into_inner);
        Some(Attributes { node, size: content.len() as u64 })
    }
}

/// Calls `answer` with the bytes of a range, up to the end of the file.
pub(crate) fn read<T>(
    content: &Content,
    offset: u64,
    size: u32,
    answer: impl FnOnce(&[u8]) -> T,
) -> T {
    let bytes = content.read().unwrap_or_else(PoisonError::into_inner);
    let start = place(offset).min(bytes.len());
    let end = start.saturating_add(place(size.into())).min(bytes.len());
    answer(&bytes[start..end])
}

pub(crate) fn write(content: &Content, offset: u64, data: &[u8]) {
    let mut bytes = content.write().unwrap_or_else(PoisonError::into_inner);
    let start = place(offset);
    if bytes.len() < start + data.len() {
        bytes.resize(start + data.len(), 0);
    }
    bytes[start..start + data.len()].copy_from_slice(data);
}

pub(crate) fn truncate(content: &Content, size: u64) {
    content.write().unwrap_or_else(PoisonError::into_inner).resize(place(size), 0);
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("no file is larger than memory")
}

/// Bytes of a small file.
pub(crate) const SMALL: usize = 16 * 1024;
