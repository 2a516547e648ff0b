//! A file system on a disk, in memory: of each file and each name it has what the kernel shows and
//! what is on stable storage. When the power goes, what was not synced is lost, torn and reordered.
//! It stops at any change.
//!
//! - **Bytes** are on stable storage when their file was synced. Of a write that was not, all, no
//!   or any sectors are there after a loss of power, and each on its own; so is each new length.
//! - **Names** are when their directory was synced. A rename is there as a whole or not at all. Of
//!   the others some are there, in some order: POSIX promises no more ([`Keeping::Apart`]). File
//!   systems with a journal keep the order, and any fsync, also that of a file, brings all names
//!   with it ([`Keeping::Journal`]): so do ext4 and XFS.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    path::{Component, Path},
};

use millrace_runtime::Random;
use rustix::io::Errno;

use crate::chance::percent;

/// Bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// What a disk does that a sound one never does: each must be noticed by the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lie {
    /// None.
    Nothing,
    /// Names are not on stable storage when they were synced.
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

/// How names come to stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeping {
    /// Those of each directory when it is synced; until then, in any order.
    Apart,
    /// In their order; all of them with each fsync.
    Journal,
}

/// Numbers an inode. None is ever used again.
pub(super) type Inode = usize;

/// The directory that has all others.
pub(super) const ROOT: Inode = 0;

/// A directory and a name in it.
type Place = (Inode, OsString);

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) random: Random,
    lie: Lie,
    keeping: Keeping,
    nodes: Vec<Node>,
    /// Names as the kernel has them, and as the disk has them.
    names: BTreeMap<Place, Inode>,
    durable_names: BTreeMap<Place, Inode>,
    changes: Vec<NameChange>,
    /// Whether the next sync of a file fails.
    pub(super) fails_next_sync: bool,
    /// Files that cannot be read.
    pub(super) unreadable: BTreeSet<Inode>,
    /// Steps until the end; none while nobody wants one.
    pub(super) left: Option<u64>,
    /// So many look at something that is not to end meanwhile.
    pub(super) held: u32,
    /// Which run it is: files that another one has open do nothing any more.
    pub(super) run: u64,
    pub(super) over: bool,
}

#[derive(Debug)]
enum Node {
    Directory,
    File(Contents),
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
    Set(Place, Inode),
    Move(Place, Place, Inode),
    Gone(Place),
}

impl NameChange {
    /// The directory that is synced for it.
    fn directory(&self) -> Inode {
        let (Self::Set(place, _) | Self::Move(_, place, _) | Self::Gone(place)) = self;
        place.0
    }
}

impl Disk {
    /// An empty one.
    pub(super) fn new(random: Random, lie: Lie, keeping: Keeping) -> Self {
        Self {
            random,
            lie,
            keeping,
            nodes: vec![Node::Directory],
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            fails_next_sync: false,
            unreadable: BTreeSet::new(),
            left: None,
            held: 0,
            run: 0,
            over: false,
        }
    }

    /// What the kernel has, by itself.
    pub(super) fn in_the_kernel(&self) -> Self {
        let mut copy = Self::new(self.random.clone(), Lie::Nothing, self.keeping);
        let empty = |node: &Node| match node {
            Node::Directory => Node::Directory,
            Node::File(_) => Node::File(Contents::default()),
        };
        copy.nodes = self.nodes.iter().map(empty).collect();
        for &inode in self.names.values() {
            if let (Node::File(from), Node::File(to)) = (&self.nodes[inode], &mut copy.nodes[inode])
            {
                to.now.clone_from(&from.now);
            }
        }
        copy.names.clone_from(&self.names);
        copy
    }

    /// Ends the run, and shows the next one what is left.
    pub(super) fn end(&mut self, ending: Ending) {
        if ending == Ending::Power {
            self.lose();
        }
        (self.left, self.over) = (None, false);
        self.run += 1;
    }

    /// One change is about to happen. At the end of the run it fails, having happened or not.
    fn step(&mut self) -> Result<bool, Errno> {
        if self.over {
            return Err(GONE);
        }
        match &mut self.left {
            Some(_) if self.held > 0 => Ok(true),
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

    /// Keeps any part of what was not synced.
    fn lose(&mut self) {
        let random = self.random.clone();
        // Some file systems keep the order of names, some do not.
        let ordered = self.keeping == Keeping::Journal || percent(&random, 50);
        let cut = random.within(0..self.changes.len() as u64 + 1);
        for (at, change) in std::mem::take(&mut self.changes).iter().enumerate() {
            let kept = if ordered { (at as u64) < cut } else { percent(&random, 50) };
            if kept {
                apply(&mut self.durable_names, change);
            }
        }
        self.names.clone_from(&self.durable_names);
        for node in &mut self.nodes {
            if let Node::File(contents) = node {
                contents.lose(&random);
            }
        }
    }
}

/// Names.
impl Disk {
    pub(super) fn is_directory(&self, inode: Inode) -> bool {
        matches!(self.nodes.get(inode), Some(Node::Directory))
    }

    pub(super) fn find(&self, directory: Inode, name: &OsStr) -> Result<Inode, Errno> {
        self.names.get(&(directory, name.to_owned())).copied().ok_or(Errno::NOENT)
    }

    /// What is at a path from the root on.
    pub(super) fn find_path(&self, path: &Path) -> Result<Inode, Errno> {
        names(path).try_fold(ROOT, |directory, name| self.find(directory, name))
    }

    /// What is in a directory, in the order of names.
    pub(super) fn list(&self, directory: Inode) -> impl Iterator<Item = (&OsStr, Inode)> {
        let (from, to) = ((directory, OsString::new()), (directory + 1, OsString::new()));
        self.names.range(from..to).map(|((_, name), inode)| (name.as_os_str(), *inode))
    }

    /// Makes a directory with all those above it. They are on stable storage, and count no step.
    pub(super) fn make_path(&mut self, path: &Path) {
        let mut directory = ROOT;
        for name in names(path) {
            directory = self.find(directory, name).unwrap_or_else(|_| {
                let (place, made) = ((directory, name.to_owned()), self.nodes.len());
                self.nodes.push(Node::Directory);
                self.durable_names.insert(place.clone(), made);
                self.names.insert(place, made);
                made
            });
        }
    }

    /// Makes an empty file or directory.
    pub(super) fn make(
        &mut self,
        directory: Inode,
        name: &OsStr,
        is_directory: bool,
    ) -> Result<Inode, Errno> {
        if self.find(directory, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let goes_on = self.step()?;
        let made = self.nodes.len();
        self.nodes.push(match is_directory {
            true => Node::Directory,
            false => Node::File(Contents::default()),
        });
        self.rename_at_end(NameChange::Set((directory, name.to_owned()), made), goes_on)?;
        Ok(made)
    }

    /// Removes a name; that of a directory, if it is empty.
    pub(super) fn remove(&mut self, directory: Inode, name: &OsStr) -> Result<(), Errno> {
        let inode = self.find(directory, name)?;
        if self.is_directory(inode) && self.list(inode).next().is_some() {
            return Err(Errno::NOTEMPTY);
        }
        let goes_on = self.step()?;
        self.rename_at_end(NameChange::Gone((directory, name.to_owned())), goes_on)
    }

    /// Moves a name, over whatever has the new one but a directory.
    pub(super) fn rename(
        &mut self,
        from: (Inode, &OsStr),
        to: (Inode, &OsStr),
    ) -> Result<(), Errno> {
        let inode = self.find(from.0, from.1)?;
        if self.find(to.0, to.1).is_ok_and(|replaced| self.is_directory(replaced)) {
            return Err(Errno::EXIST);
        }
        let goes_on = self.step()?;
        let [from, to] = [from, to].map(|(directory, name)| (directory, name.to_owned()));
        self.rename_at_end(NameChange::Move(from, to, inode), goes_on)
    }

    /// Makes a change of names in the kernel; with the one at which the run ends, perhaps.
    fn rename_at_end(&mut self, change: NameChange, goes_on: bool) -> Result<(), Errno> {
        if goes_on || percent(&self.random, 50) {
            apply(&mut self.names, &change);
            self.changes.push(change);
        }
        done(goes_on)
    }

    pub(super) fn sync_directory(&mut self, directory: Inode) -> Result<(), Errno> {
        if !self.step()? {
            return Err(GONE);
        }
        self.sync_names(|change| change.directory() == directory);
        Ok(())
    }

    /// Brings the names `which` to stable storage, and those that come with them.
    fn sync_names(&mut self, which: impl Fn(&NameChange) -> bool) {
        if self.lie == Lie::Names {
            return;
        }
        let all = self.keeping == Keeping::Journal;
        let changes = std::mem::take(&mut self.changes);
        let (synced, others): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| all || which(change));
        self.changes = others;
        for change in &synced {
            apply(&mut self.durable_names, change);
        }
    }
}

/// Bytes.
impl Disk {
    pub(super) fn len(&self, file: Inode) -> u64 {
        match &self.nodes[file] {
            Node::File(contents) => contents.now.len() as u64,
            Node::Directory => 0,
        }
    }

    /// So many bytes from a place on, as far as the file has them.
    pub(super) fn read(&self, file: Inode, offset: u64, len: u64) -> Result<&[u8], Errno> {
        match &self.nodes[file] {
            Node::File(_) if self.unreadable.contains(&file) => Err(Errno::IO),
            Node::File(Contents { now, .. }) => {
                let end = |offset: u64| place(offset.min(now.len() as u64));
                Ok(&now[end(offset)..end(offset.saturating_add(len))])
            }
            Node::Directory => Err(Errno::ISDIR),
        }
    }

    fn contents(&mut self, file: Inode) -> Result<&mut Contents, Errno> {
        match &mut self.nodes[file] {
            Node::File(contents) => Ok(contents),
            Node::Directory => Err(Errno::ISDIR),
        }
    }

    pub(super) fn write(&mut self, file: Inode, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let goes_on = self.step()?;
        // A kill in the middle leaves the beginning.
        let len = match goes_on {
            true => bytes.len(),
            false => place(self.random.within(0..bytes.len() as u64 + 1)),
        };
        let (offset, bytes) = (place(offset), bytes[..len].to_vec());
        let contents = self.contents(file)?;
        write_sectors(&mut contents.now, offset, &bytes, |_| true);
        contents.pending.push(Change::Write { offset, bytes });
        done(goes_on)
    }

    pub(super) fn set_len(&mut self, file: Inode, len: u64) -> Result<(), Errno> {
        let goes_on = self.step()?;
        let len = place(len);
        let contents = self.contents(file)?;
        contents.now.resize(len, 0);
        contents.pending.push(Change::Cut(len));
        done(goes_on)
    }

    /// Syncs a file; without its `data_only`, names may come with it.
    pub(super) fn sync_file(&mut self, file: Inode, data_only: bool) -> Result<(), Errno> {
        if !self.step()? {
            return Err(GONE);
        }
        if !data_only {
            self.sync_names(|_| false);
        }
        if self.lie == Lie::Bytes {
            return Ok(());
        }
        let fails = std::mem::take(&mut self.fails_next_sync);
        let contents = self.contents(file)?;
        for change in contents.pending.drain(..).filter(|_| !fails) {
            change.apply(&mut contents.durable, |_| true);
        }
        if fails { Err(Errno::IO) } else { Ok(()) }
    }
}

impl Contents {
    fn lose(&mut self, random: &Random) {
        for change in std::mem::take(&mut self.pending) {
            // All, nothing, or any of its sectors.
            let share = match change {
                Change::Write { .. } => [0, 50, 100][place(random.within(0..3))],
                Change::Cut(_) => 50,
            };
            change.apply(&mut self.durable, |_| percent(random, share));
        }
        self.now.clone_from(&self.durable);
    }
}

impl Change {
    /// Makes it, or those sectors of it that `keeps`.
    fn apply(self, to: &mut Vec<u8>, mut keeps: impl FnMut(usize) -> bool) {
        match self {
            Self::Write { offset, bytes } => write_sectors(to, offset, &bytes, keeps),
            Self::Cut(len) if keeps(len / SECTOR) => to.resize(len, 0),
            Self::Cut(_) => {}
        }
    }
}

fn apply(names: &mut BTreeMap<Place, Inode>, change: &NameChange) {
    match change {
        NameChange::Set(place, inode) => drop(names.insert(place.clone(), *inode)),
        NameChange::Move(from, to, inode) => {
            // The old place may have been taken since, and synced before this.
            if names.get(from) == Some(inode) {
                names.remove(from);
            }
            names.insert(to.clone(), *inode);
        }
        NameChange::Gone(place) => drop(names.remove(place)),
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

/// The names in a path.
fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

fn done(goes_on: bool) -> Result<(), Errno> {
    if goes_on { Ok(()) } else { Err(GONE) }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// What everybody hears when the run has ended.
pub(super) const GONE: Errno = Errno::IO;
