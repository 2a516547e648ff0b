//! Two mounts that change one tree, held against a model: after a change on one, the other shows
//! it at once, whatever it had looked at before.
//!
//! Seeds are others each time: `MILLRACE_TEST_SEED` chooses one, which a failure names.
//! `MILLRACE_TEST_LENGTH` makes the run so many times as long.

use std::{
    collections::BTreeMap,
    fs::{self, File as Opened, OpenOptions, Permissions},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use millrace_runtime::Random;
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
    figures,
};
use rustix::fs::{FlockOperation, fcntl_lock};

const STEPS: u64 = 5000;

#[test]
fn what_one_mount_changes_the_other_never_shows_as_it_was() -> Result<()> {
    let seed = chance::seed()?;
    let steps = STEPS * chance::length()?;
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let mut tree = Tree::new([one, two], seed)?;
    for step in 0..steps {
        tree.step().with_context(|| format!("step {step} of seed {seed}: {}", tree.last))?;
    }
    tree.compare_all().with_context(|| format!("the end of seed {seed}"))?;
    figures::report(&format!(
        "{steps} changes on one of two mounts (seed {seed}): the other showed each at once"
    ))
}

/// Names of files, by directory and number; what is behind them is shared by hard links.
type Name = (usize, u64);

struct File {
    bytes: Vec<u8>,
    mode: u32,
    links: u64,
}

struct Tree {
    mounts: [PathBuf; 2],
    random: Random,
    names: BTreeMap<Name, u64>,
    files: BTreeMap<u64, File>,
    subdirectories: BTreeMap<Name, ()>,
    next: u64,
    /// What was done last, for whoever reads a failure.
    last: String,
}

const DIRECTORIES: usize = 100;
const NAMES: u64 = 5;

impl Tree {
    fn new(mounts: [PathBuf; 2], seed: u64) -> Result<Self> {
        for directory in 0..DIRECTORIES {
            fs::create_dir(mounts[0].join(format!("d{directory}")))?;
        }
        Ok(Self {
            mounts,
            random: Random::seeded(seed),
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            subdirectories: BTreeMap::new(),
            next: 0,
            last: String::new(),
        })
    }

    /// Both have looked at two names; then one changes them, and the other shows what it concerned.
    fn step(&mut self) -> Result<()> {
        let mount = usize::from(self.random.within(0..2) == 1);
        let concerned = loop {
            let (name, other) = (self.name(), self.name());
            for looks in [mount, 1 - mount] {
                self.look(looks, name)?;
                self.look(looks, other)?;
            }
            let concerned = self.change(mount, name, other)?;
            if !concerned.is_empty() {
                break concerned;
            }
        };
        for name in concerned {
            self.compare(1 - mount, name)?;
        }
        let (looks, name) = (usize::from(self.random.within(0..2) == 1), self.name());
        self.look(looks, name)?;
        if self.random.within(0..10) == 0 {
            self.compare_listing(1 - mount, name.0)?;
        }
        Ok(())
    }

    fn name(&self) -> Name {
        // A few are changed all the time, of which nothing is kept then; most are not.
        let range = if self.random.within(0..8) == 0 { 0..2 } else { 2..DIRECTORIES as u64 };
        let directory = self.random.within(range);
        (usize::try_from(directory).expect("a few"), self.random.within(0..NAMES))
    }

    fn path(&self, mount: usize, (directory, number): Name) -> PathBuf {
        self.mounts[mount].join(format!("d{directory}/n{number}"))
    }

    /// Changes something and says which names show it; none where nothing could be changed.
    fn change(&mut self, mount: usize, name: Name, other: Name) -> Result<Vec<Name>> {
        let path = self.path(mount, name);
        // Each takes back what everybody knows of the top, which is soon left alone then.
        let above = self.random.within(0..100) == 0;
        let kind = if above { 13 } else { self.random.within(0..13) };
        self.last = format!("change {kind} of {} and {other:?}", path.display());
        match kind {
            0..3 => self.write(mount, name),
            3 => self.append(mount, name),
            4 => self.remove(mount, name),
            5 => self.rename(mount, name, other),
            6 => self.link(mount, name, other),
            7 => self.chmod(mount, name),
            8 => self.truncate(mount, name),
            9 => self.directory(mount, name),
            10 => self.grow(mount, name),
            11 => self.remove_open(mount, name),
            12 => self.hand_over(mount, name),
            _ => self.move_directory(mount, name),
        }
    }

    /// Replaces the content of a file, or makes it.
    fn write(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        if self.subdirectories.contains_key(&name) {
            return Ok(Vec::new());
        }
        let bytes = self.bytes();
        fs::write(self.path(mount, name), &bytes)?;
        let id = *self.names.entry(name).or_insert(self.next);
        self.next += 1;
        let file =
            self.files.entry(id).or_insert(File { bytes: Vec::new(), mode: 0o644, links: 1 });
        file.bytes = bytes;
        Ok(self.all_names(id))
    }

    fn append(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let Some(&id) = self.names.get(&name) else { return Ok(Vec::new()) };
        let bytes = self.bytes();
        OpenOptions::new().append(true).open(self.path(mount, name))?.write_all(&bytes)?;
        self.files.get_mut(&id).expect("it has a name").bytes.extend(bytes);
        Ok(self.all_names(id))
    }

    fn remove(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let path = self.path(mount, name);
        if self.subdirectories.remove(&name).is_some() {
            fs::remove_dir(path)?;
            return Ok(vec![name]);
        }
        let Some(id) = self.names.remove(&name) else {
            let refused = fs::remove_file(path).expect_err("there is none");
            ensure!(refused.kind() == ErrorKind::NotFound, "{refused}");
            return Ok(vec![name]);
        };
        fs::remove_file(path)?;
        let mut concerned = self.drop_link(id);
        concerned.push(name);
        Ok(concerned)
    }

    fn rename(&mut self, mount: usize, name: Name, to: Name) -> Result<Vec<Name>> {
        let busy = |at| self.subdirectories.contains_key(&at);
        let Some(&id) = self.names.get(&name).filter(|_| !busy(to)) else {
            return Ok(Vec::new());
        };
        fs::rename(self.path(mount, name), self.path(mount, to))?;
        // Two names of one file: nothing happens.
        if self.names.get(&to) == Some(&id) {
            return Ok(vec![name, to]);
        }
        self.names.remove(&name);
        let mut concerned = vec![name, to];
        if let Some(replaced) = self.names.insert(to, id) {
            concerned.extend(self.drop_link(replaced));
        }
        Ok(concerned)
    }

    fn link(&mut self, mount: usize, name: Name, to: Name) -> Result<Vec<Name>> {
        let taken = self.names.contains_key(&to) || self.subdirectories.contains_key(&to);
        let Some(&id) = self.names.get(&name).filter(|_| !taken) else {
            return Ok(Vec::new());
        };
        fs::hard_link(self.path(mount, name), self.path(mount, to))?;
        self.names.insert(to, id);
        self.files.get_mut(&id).expect("it has a name").links += 1;
        Ok(self.all_names(id))
    }

    fn chmod(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let Some(&id) = self.names.get(&name) else { return Ok(Vec::new()) };
        let mode = if self.random.within(0..2) == 0 { 0o600 } else { 0o640 };
        fs::set_permissions(self.path(mount, name), Permissions::from_mode(mode))?;
        self.files.get_mut(&id).expect("it has a name").mode = mode;
        Ok(self.all_names(id))
    }

    fn truncate(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let Some(&id) = self.names.get(&name) else { return Ok(Vec::new()) };
        let len = usize::try_from(self.random.within(0..10_000))?;
        let file = OpenOptions::new().write(true).open(self.path(mount, name))?;
        file.set_len(u64::try_from(len)?)?;
        self.files.get_mut(&id).expect("it has a name").bytes.resize(len, 0);
        Ok(self.all_names(id))
    }

    fn directory(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        if self.names.contains_key(&name) || self.subdirectories.contains_key(&name) {
            return Ok(Vec::new());
        }
        fs::create_dir(self.path(mount, name))?;
        self.subdirectories.insert(name, ());
        Ok(vec![name])
    }

    /// A file that stays open while it grows: the other shows its size after each fsync.
    fn grow(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let Some(&id) = self.names.get(&name) else { return Ok(Vec::new()) };
        let mut file = OpenOptions::new().append(true).open(self.path(mount, name))?;
        for _ in 0..2 {
            let bytes = self.bytes();
            file.write_all(&bytes)?;
            file.sync_all()?;
            self.files.get_mut(&id).expect("it has a name").bytes.extend(bytes);
            self.look(1 - mount, name)?;
        }
        Ok(self.all_names(id))
    }

    /// A file is written under a lock that the other waits for: with it the other sees the bytes,
    /// through what it opened before.
    fn hand_over(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let Some(&id) = self.names.get(&name) else { return Ok(Vec::new()) };
        let bytes = self.bytes();
        let whole = self.random.within(0..2) == 0;
        let lock = |file: &Opened, operation| {
            if whole { rustix::fs::flock(file, operation) } else { fcntl_lock(file, operation) }
        };
        let open = |mount| OpenOptions::new().read(true).write(true).open(self.path(mount, name));
        let (writer, mut reader) = (open(mount)?, open(1 - mount)?);
        let mut before = Vec::new();
        reader.read_to_end(&mut before)?;
        ensure!(before == self.files[&id].bytes, "other bytes before {}", self.last);
        lock(&writer, FlockOperation::LockExclusive)?;
        let refused = lock(&reader, FlockOperation::NonBlockingLockShared);
        ensure!(refused.is_err(), "both have the lock: {}", self.last);
        writer.set_len(0)?;
        writer.write_all_at(&bytes, 0)?;
        lock(&writer, FlockOperation::Unlock)?;
        lock(&reader, FlockOperation::LockShared)?;
        let len = usize::try_from(reader.metadata()?.len())?;
        let mut after = vec![0; len];
        reader.read_exact_at(&mut after, 0)?;
        ensure!(after == bytes, "other bytes under the lock, after {}", self.last);
        lock(&reader, FlockOperation::Unlock)?;
        self.files.get_mut(&id).expect("it has a name").bytes = bytes;
        Ok(self.all_names(id))
    }

    /// A file goes that the other has open: it shows one name less there, and all its bytes.
    fn remove_open(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let Some(&id) = self.names.get(&name) else { return Ok(Vec::new()) };
        let mut file = Opened::open(self.path(1 - mount, name))?;
        let (wanted, links) = (self.files[&id].bytes.clone(), self.files[&id].links - 1);
        let concerned = self.remove(mount, name)?;
        let shown = file.metadata()?;
        ensure!((shown.len(), shown.nlink()) == (wanted.len() as u64, links), "{shown:?}");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        ensure!(bytes == wanted, "other bytes of an open file, after {}", self.last);
        Ok(concerned)
    }

    /// A directory with all that both know of it gets another name, and its own again.
    fn move_directory(&mut self, mount: usize, name: Name) -> Result<Vec<Name>> {
        let (directory, number) = (format!("d{}", name.0), format!("n{}", name.1));
        let known = self.names.contains_key(&name) || self.subdirectories.contains_key(&name);
        for (mount, from, to) in [(mount, &*directory, "moved"), (1 - mount, "moved", &*directory)]
        {
            let top = &self.mounts[mount];
            fs::rename(top.join(from), top.join(to))?;
            let other = &self.mounts[1 - mount];
            let shown = |of: &str| other.join(of).join(&number).symlink_metadata().is_ok();
            ensure!(shown(to) == known && !shown(from), "{from} became {to}");
        }
        Ok(vec![name])
    }

    fn bytes(&self) -> Vec<u8> {
        let len = usize::try_from(self.random.within(0..20_000)).expect("small");
        let first = self.random.within(0..256);
        (0..len as u64).map(|at| u8::try_from((first + at) % 251).expect("below 256")).collect()
    }

    /// One name less; the names that are left.
    fn drop_link(&mut self, id: u64) -> Vec<Name> {
        let file = self.files.get_mut(&id).expect("it had a name");
        file.links -= 1;
        if file.links == 0 {
            self.files.remove(&id);
        }
        self.all_names(id)
    }

    fn all_names(&self, id: u64) -> Vec<Name> {
        self.names.iter().filter(|(_, of)| **of == id).map(|(name, _)| *name).collect()
    }

    /// A mount shows what the model has of a name, and of its file the bytes.
    fn compare(&self, mount: usize, name: Name) -> Result<()> {
        self.look(mount, name)?;
        if let Some(id) = self.names.get(&name) {
            let path = self.path(mount, name);
            let words = || format!("{}, after {}", path.display(), self.last);
            let bytes = fs::read(&path).with_context(words)?;
            ensure!(bytes == self.files[id].bytes, "other bytes: {}", words());
        }
        Ok(())
    }

    /// A mount shows what the model has of a name, without opening anything.
    fn look(&self, mount: usize, name: Name) -> Result<()> {
        let path = self.path(mount, name);
        let words = || format!("{}, after {}", path.display(), self.last);
        let shown = match fs::symlink_metadata(&path) {
            Ok(shown) => shown,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let known =
                    self.names.contains_key(&name) || self.subdirectories.contains_key(&name);
                ensure!(!known, "it is there: {}", words());
                return Ok(());
            }
            Err(error) => return Err(error).with_context(words),
        };
        if self.subdirectories.contains_key(&name) {
            ensure!(shown.is_dir(), "it is a directory: {}", words());
            return Ok(());
        }
        let id = self.names.get(&name).with_context(|| format!("it is gone: {}", words()))?;
        let file = &self.files[id];
        let found = (shown.len(), shown.mode() & 0o7777, shown.nlink());
        let wanted = (file.bytes.len() as u64, file.mode, file.links);
        ensure!(found == wanted, "{found:?} instead of {wanted:?}: {}", words());
        Ok(())
    }

    fn compare_listing(&self, mount: usize, directory: usize) -> Result<()> {
        let mut shown = Vec::new();
        for entry in fs::read_dir(self.mounts[mount].join(format!("d{directory}")))? {
            shown.push(entry?.file_name().into_string().expect("a number"));
        }
        shown.sort();
        let names = self.names.keys().chain(self.subdirectories.keys());
        let mut wanted: Vec<_> = names
            .filter(|(of, _)| *of == directory)
            .map(|(_, number)| format!("n{number}"))
            .collect();
        wanted.sort();
        ensure!(shown == wanted, "{shown:?} instead of {wanted:?}, after {}", self.last);
        // What came with the listing.
        (0..NAMES).try_for_each(|number| self.look(mount, (directory, number)))
    }

    fn compare_all(&self) -> Result<()> {
        for mount in [0, 1] {
            for directory in 0..DIRECTORIES {
                self.compare_listing(mount, directory)?;
                for number in 0..NAMES {
                    self.compare(mount, (directory, number))?;
                }
            }
        }
        Ok(())
    }
}
