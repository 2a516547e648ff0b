//! One program that changes names and contents, and knows what each call must answer.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, symlink},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_runtime::Random;
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use super::model::{Entry, Model, Name};

/// Directories where all work.
pub(super) const SHARED: [&str; 2] = ["shared-0", "shared-1"];

/// Names of a worker in each directory; about half of them are there at a time.
const NAMES: u64 = 12;
const PIECE_MAX: u64 = 6000;

pub(super) struct Worker {
    mounts: Vec<PathBuf>,
    random: Random,
    pub(super) model: Model,
    /// Calls that changed something.
    pub(super) changes: u64,
    /// The longest call.
    pub(super) longest: Duration,
}

impl Worker {
    pub(super) fn new(number: usize, mounts: Vec<PathBuf>, seed: u64) -> Result<Self> {
        let model = Model::new(number);
        fs::create_dir(mounts[0].join(model.own()))?;
        let random = Random::seeded(seed);
        Ok(Self { mounts, random, model, changes: 0, longest: Duration::ZERO })
    }

    /// Works until `ended` is set.
    pub(super) fn work(&mut self, ended: &AtomicBool) -> Result<()> {
        while !ended.load(Ordering::Relaxed) {
            let kind = self.random.within(0..14);
            let (name, other) = (self.name(), self.name());
            self.step(kind, name, other).with_context(|| {
                let path = |name| self.model.path(name).display().to_string();
                format!("step {kind} of {} and {}", path(name), path(other))
            })?;
            let mount = self.mount();
            self.model.compare_one(&mount, name)?;
        }
        Ok(())
    }

    fn step(&mut self, kind: u64, name: Name, other: Name) -> Result<()> {
        let there = self.model.names.get(&name).cloned();
        match (kind, there) {
            (0..4, None) => self.create(name),
            (4, None) => self.make_directory(name),
            (5, None) => self.make_link(name),
            (_, None) => self.refused(name),
            (0 | 1, Some(_)) => self.remove(name),
            (2 | 3, Some(_)) => self.rename(name, other),
            (4, Some(_)) => self.exchange(name, other),
            (5, Some(_)) => self.refused_again(name),
            (6 | 7, Some(Entry::File(id))) => self.link(id, name, other),
            (8 | 9, Some(Entry::File(id))) => self.append(id, name),
            (10 | 11, Some(Entry::File(id))) => self.overwrite(id, name),
            (12, Some(Entry::File(id))) => self.truncate(id, name),
            _ => Ok(()),
        }
    }

    fn create(&mut self, name: Name) -> Result<()> {
        let (path, bytes) = (self.path(name), self.piece());
        let synced = self.random.within(0..3) == 0;
        let written = self.change(|| {
            let mut file = File::create_new(&path)?;
            file.write_all(&bytes)?;
            if synced { file.sync_all() } else { Ok(()) }
        });
        written?;
        self.model.create(name, bytes);
        Ok(())
    }

    fn make_directory(&mut self, name: Name) -> Result<()> {
        let path = self.path(name);
        self.change(|| fs::create_dir(path))?;
        self.model.names.insert(name, Entry::Directory);
        Ok(())
    }

    fn make_link(&mut self, name: Name) -> Result<()> {
        let (path, text) = (self.path(name), format!("to {}", self.changes));
        self.change(|| symlink(&text, path))?;
        self.model.names.insert(name, Entry::Link(text));
        Ok(())
    }

    fn remove(&mut self, name: Name) -> Result<()> {
        let (path, entry) = (self.path(name), &self.model.names[&name]);
        let is_directory = *entry == Entry::Directory;
        self.change(|| if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) })?;
        self.model.remove(name);
        Ok(())
    }

    fn rename(&mut self, name: Name, to: Name) -> Result<()> {
        let (entry, there) = (self.model.names[&name].clone(), self.model.names.get(&to));
        let fits =
            there.is_none_or(|there| (entry == Entry::Directory) == (*there == Entry::Directory));
        if !fits || name == to {
            return Ok(());
        }
        let [from, onto] = self.two_paths(name, to);
        // Two names of one file: nothing happens.
        let same = matches!(entry, Entry::File(_)) && there == Some(&entry);
        let keep = there.is_none() && self.random.within(0..2) == 0;
        let flags = if keep { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        self.change(|| Ok(renameat_with(CWD, from, CWD, onto, flags)?))?;
        if !same {
            self.model.remove(to);
            self.model.names.remove(&name);
            self.model.names.insert(to, entry);
        }
        Ok(())
    }

    /// Done twice, it would be as if it had not been done.
    fn exchange(&mut self, name: Name, other: Name) -> Result<()> {
        let Some(there) = self.model.names.get(&other).cloned() else { return Ok(()) };
        let [one, two] = self.two_paths(name, other);
        self.change(|| Ok(renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)?))?;
        let here = self.model.names.insert(name, there).expect("the caller looked");
        self.model.names.insert(other, here);
        self.model.compare_one(&self.mount(), other)
    }

    fn link(&mut self, id: u64, name: Name, to: Name) -> Result<()> {
        if self.model.names.contains_key(&to) {
            return Ok(());
        }
        let [from, onto] = self.two_paths(name, to);
        self.change(|| fs::hard_link(from, onto))?;
        self.model.names.insert(to, Entry::File(id));
        self.model.files.get_mut(&id).expect("it has a name").links += 1;
        Ok(())
    }

    fn append(&mut self, id: u64, name: Name) -> Result<()> {
        let (path, piece) = (self.path(name), self.piece());
        self.change(|| OpenOptions::new().append(true).open(path)?.write_all(&piece))?;
        self.model.files.get_mut(&id).expect("it has a name").bytes.extend(piece);
        Ok(())
    }

    fn overwrite(&mut self, id: u64, name: Name) -> Result<()> {
        let (path, piece) = (self.path(name), self.piece());
        let at = self.random.within(0..self.model.files[&id].bytes.len() as u64 + 1000);
        let synced = self.random.within(0..3) == 0;
        self.change(|| {
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(&piece, at)?;
            if synced { file.sync_all() } else { Ok(()) }
        })?;
        let (at, bytes) = (usize::try_from(at)?, &mut self.content(id).bytes);
        let end = at + piece.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[at..end].copy_from_slice(&piece);
        Ok(())
    }

    fn truncate(&mut self, id: u64, name: Name) -> Result<()> {
        let (path, len) = (self.path(name), self.random.within(0..2 * PIECE_MAX));
        self.change(|| OpenOptions::new().write(true).open(path)?.set_len(len))?;
        self.content(id).bytes.resize(usize::try_from(len)?, 0);
        Ok(())
    }

    /// What is refused without a kill is refused with one.
    fn refused(&mut self, name: Name) -> Result<()> {
        let path = self.path(name);
        expect(Errno::NOENT, fs::remove_file(&path))?;
        expect(Errno::NOENT, fs::rename(&path, path.with_extension("other")))
    }

    fn refused_again(&mut self, name: Name) -> Result<()> {
        let path = self.path(name);
        expect(Errno::EXIST, fs::create_dir(&path))?;
        expect(Errno::EXIST, File::create_new(&path))
    }

    /// Does something that must succeed.
    fn change<T>(&mut self, call: impl FnOnce() -> io::Result<T>) -> Result<T> {
        let begun = Instant::now();
        let done = call();
        self.longest = self.longest.max(begun.elapsed());
        self.changes += 1;
        done.with_context(|| format!("after {:?}, change {}", begun.elapsed(), self.changes))
    }

    fn content(&mut self, id: u64) -> &mut super::model::Content {
        self.model.files.get_mut(&id).expect("it has a name")
    }

    fn name(&self) -> Name {
        let directory = self.random.within(0..SHARED.len() as u64 + 1);
        (usize::try_from(directory).expect("a few"), self.random.within(0..NAMES))
    }

    fn mount(&self) -> PathBuf {
        let number = self.random.within(0..self.mounts.len() as u64);
        self.mounts[usize::try_from(number).expect("two")].clone()
    }

    fn path(&self, name: Name) -> PathBuf {
        self.mount().join(self.model.path(name))
    }

    /// On one mount: two are two file systems to their host.
    fn two_paths(&self, name: Name, other: Name) -> [PathBuf; 2] {
        let mount = self.mount();
        [name, other].map(|name| mount.join(self.model.path(name)))
    }

    fn piece(&self) -> Vec<u8> {
        let len = usize::try_from(self.random.within(1..PIECE_MAX)).expect("small");
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        bytes
    }
}

fn expect<T: Debug>(errno: Errno, answer: io::Result<T>) -> Result<()> {
    let error = answer.err().context("it was not refused")?;
    ensure!(Errno::from_io_error(&error) == Some(errno), "{error} instead of {errno}");
    Ok(())
}
