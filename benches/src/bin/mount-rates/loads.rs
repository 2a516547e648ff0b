//! What is done on a mount.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use millrace_benches::{
    aligned::{Aligned, PAGE},
    figures::Figure,
};
use millrace_runtime::Random;
use rustix::fs::OFlags;

/// The loads of one round on one mount.
pub(crate) struct Loads<'a> {
    /// An empty directory.
    pub(crate) directory: &'a Path,
    /// Small files.
    pub(crate) files: usize,
    /// Bytes of each.
    pub(crate) bytes: usize,
    /// Names in the directory that is listed.
    pub(crate) names: usize,
    /// MiB of the large file.
    pub(crate) mib: usize,
    /// For the orders and places that are drawn.
    pub(crate) seed: u64,
}

impl Loads<'_> {
    /// Measures everything, in this order.
    pub(crate) fn measure(&self) -> Result<Vec<Figure>> {
        let paths = self.paths("small", self.files)?;
        let mut shuffled = paths.clone();
        shuffle(&mut shuffled, self.seed);
        let mut content = vec![1; self.bytes];
        let mut figures = vec![each("create + write small", &paths, |path| {
            Ok(File::create_new(path)?.write_all(&content)?)
        })?];
        forget(NAMES)?;
        figures.push(each("stat cold, random order", &shuffled, stat)?);
        forget(NAMES)?;
        figures.push(each("stat cold, in order", &paths, stat)?);
        figures.push(each("stat again", &paths, stat)?);
        let mut read = |path: &Path| Ok(File::open(path)?.read_exact(&mut content)?);
        forget(EVERYTHING)?;
        figures.push(each("open + read cold", &paths, &mut read)?);
        figures.push(each("open + read again", &paths, &mut read)?);
        figures.push(each("open + read again, random order", &shuffled, &mut read)?);
        forget(EVERYTHING)?;
        figures.push(each("open + read cold, random order", &shuffled, &mut read)?);
        figures.push(each("unlink", &paths, |path| Ok(fs::remove_file(path)?))?);
        figures.extend(self.list()?);
        figures.push(self.crowd()?);
        figures.extend(self.streams()?);
        Ok(figures)
    }

    fn paths(&self, directory: &str, count: usize) -> Result<Vec<PathBuf>> {
        let directory = self.directory.join(directory);
        fs::create_dir(&directory)?;
        Ok((0..count).map(|number| directory.join(format!("file-{number:07}.bin"))).collect())
    }

    /// Names and attributes of a directory, which come with a listing; and `ls -l`, which also asks
    /// for each file's access control list.
    fn list(&self) -> Result<[Figure; 3]> {
        let paths = self.paths("listed", self.names)?;
        let made = each("create empty", &paths, |path| {
            File::create_new(path)?;
            Ok(())
        })?;
        forget(NAMES)?;
        let started = Instant::now();
        let mut count = 0;
        let directory = self.directory.join("listed");
        for entry in fs::read_dir(&directory)? {
            entry?.metadata()?;
            count += 1;
        }
        let took = started.elapsed().as_secs_f64();
        ensure!(count == paths.len(), "{count} names of {}", paths.len());
        forget(NAMES)?;
        let mut program = Command::new("ls");
        program.arg("-l").arg(&directory).stdout(Stdio::null());
        let started = Instant::now();
        ensure!(program.status()?.success(), "ls -l fails");
        let program_took = started.elapsed().as_secs_f64();
        Ok([
            made,
            ("list with attributes", "names/s", count as f64 / took),
            ("ls -l", "names/s", count as f64 / program_took),
        ])
    }

    /// Several programs make files in directories of their own.
    fn crowd(&self) -> Result<Figure> {
        let each = self.files.div_ceil(CROWD);
        let started = Instant::now();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..CROWD)
                .map(|worker| {
                    scope.spawn(move || {
                        for path in self.paths(&format!("crowd-{worker}"), each)? {
                            File::create_new(path)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("it does not panic"))
        })
        .map_err(|error: anyhow::Error| error.context("a crowd"))?;
        let rate = (each * CROWD) as f64 / started.elapsed().as_secs_f64();
        Ok(("create empty, 8 threads", "/s", rate))
    }

    fn streams(&self) -> Result<Vec<Figure>> {
        let path = self.directory.join("large");
        let mut block = Aligned::new(MIB);
        let written = self.stream("1 MiB writes, then fsync", || {
            let mut file = File::create_new(&path)?;
            for _ in 0..self.mib {
                file.write_all(block.bytes())?;
            }
            Ok(file.sync_all()?)
        })?;
        let mut read = |name, flags: OFlags| {
            self.stream(name, || {
                let mut options = OpenOptions::new();
                let options = options.read(true).custom_flags(flags.bits().cast_signed());
                let mut file = options.open(&path)?;
                for _ in 0..self.mib {
                    file.read_exact(block.bytes())?;
                }
                Ok(())
            })
        };
        forget(EVERYTHING)?;
        let cold = read("1 MiB reads, cold", OFlags::empty())?;
        let again = read("1 MiB reads, again", OFlags::empty())?;
        let direct = read("1 MiB reads, direct", OFlags::DIRECT)?;
        let random = Random::seeded(self.seed);
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(&path)?;
        let mut page = Aligned::new(PAGE);
        let started = Instant::now();
        for _ in 0..PAGE_READS {
            let place = random.within(0..(self.mib * MIB / PAGE) as u64) * PAGE as u64;
            file.read_exact_at(page.bytes(), place)?;
        }
        let rate = PAGE_READS as f64 / started.elapsed().as_secs_f64();
        Ok(vec![written, cold, again, direct, ("4 KiB direct reads", "/s", rate)])
    }

    fn stream(&self, name: &'static str, act: impl FnOnce() -> Result<()>) -> Result<Figure> {
        let started = Instant::now();
        act()?;
        Ok((name, "MiB/s", self.mib as f64 / started.elapsed().as_secs_f64()))
    }
}

/// The order that this seed gives.
pub(crate) fn shuffle(paths: &mut [PathBuf], seed: u64) {
    let random = Random::seeded(seed);
    for last in (1..paths.len()).rev() {
        let other = random.within(0..last as u64 + 1);
        paths.swap(last, usize::try_from(other).expect("an index"));
    }
}

pub(crate) fn stat(path: &Path) -> Result<()> {
    fs::metadata(path)?;
    Ok(())
}

/// How many a second.
pub(crate) fn each(
    name: &'static str,
    paths: &[PathBuf],
    mut act: impl FnMut(&Path) -> Result<()>,
) -> Result<Figure> {
    let started = Instant::now();
    for path in paths {
        act(path)?;
    }
    Ok((name, "/s", paths.len() as f64 / started.elapsed().as_secs_f64()))
}

/// Has the kernel drop what it can of its caches; what a client keeps by itself stays.
pub(crate) fn forget(what: &str) -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", what).context("drop caches")
}

/// Dentries and inodes.
pub(crate) const NAMES: &str = "2";
/// These, and clean pages.
const EVERYTHING: &str = "3";
const MIB: usize = 1 << 20;
const CROWD: usize = 8;
const PAGE_READS: usize = 3000;
