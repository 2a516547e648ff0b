//! What is asked of a server. Each row is measured on a fresh mount, whose caches are empty.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use millrace_benches::aligned::{Aligned, PAGE};
use rustix::fs::{Advice, OFlags};

use super::store::SMALL;

/// A row of the table.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// Making a file and writing 16 KiB.
    Create,
    /// stat(2) of names that were not looked up before.
    Stat,
    /// Opening such a file and reading its 16 KiB.
    ReadCold,
    /// The same once more.
    ReadAgain,
    /// Removing what was made.
    Unlink,
    /// 4 KiB with `O_DIRECT` at random places.
    Direct1,
    /// The same by four threads.
    Direct4,
    /// Reading a large file, 1 MiB at a time, through the page cache.
    StreamCold,
    /// The same once more: the server is not asked.
    StreamAgain,
    /// Reading it with `O_DIRECT`.
    StreamDirect,
    /// Writing over a large file through the page cache.
    WriteCached,
    /// Writing over it with `O_DIRECT`.
    WriteDirect,
}

impl Row {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create + write 16 KiB",
            Self::Stat => "stat cold",
            Self::ReadCold => "open + read cold",
            Self::ReadAgain => "open + read again",
            Self::Unlink => "unlink",
            Self::Direct1 => "4 KiB direct reads, 1 thread",
            Self::Direct4 => "4 KiB direct reads, 4 threads",
            Self::StreamCold => "1 MiB reads, page cache, cold",
            Self::StreamAgain => "1 MiB reads, page cache, again",
            Self::StreamDirect => "1 MiB reads, direct",
            Self::WriteCached => "1 MiB writes, page cache",
            Self::WriteDirect => "1 MiB writes, direct",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::StreamCold
            | Self::StreamAgain
            | Self::StreamDirect
            | Self::WriteCached
            | Self::WriteDirect => "MiB/s",
            _ => "/s",
        }
    }
}

/// Measures all rows on one mount, in their order.
pub(crate) fn measure(mountpoint: &Path, files: usize, mib: usize) -> Result<Vec<(Row, f64)>> {
    let small = Small { mountpoint, files };
    let mut block = Aligned::new(1 << 20);
    let mut large = |name: &str, direct: bool, write: bool| {
        stream(&mountpoint.join(name), mib, direct, write, block.bytes())
    };
    Ok(vec![
        (Row::Create, small.create()?),
        (Row::Stat, small.stat()?),
        (Row::ReadCold, small.read()?),
        (Row::ReadAgain, small.read()?),
        (Row::Unlink, small.unlink()?),
        (Row::Direct1, direct(&mountpoint.join("large"), mib, 1)?),
        (Row::Direct4, direct(&mountpoint.join("large"), mib, 4)?),
        (Row::StreamDirect, large("large", true, false)?),
        (Row::StreamCold, large("large", false, false)?),
        (Row::StreamAgain, large("large", false, false)?),
        (Row::WriteDirect, large("target", true, true)?),
        (Row::WriteCached, large("target", false, true)?),
    ])
}

/// Small files, one after the other.
struct Small<'a> {
    mountpoint: &'a Path,
    files: usize,
}

impl Small<'_> {
    /// How many a second.
    fn each(&self, name: &str, mut act: impl FnMut(&Path) -> Result<()>) -> Result<f64> {
        let paths: Vec<_> =
            (0..self.files).map(|file| self.mountpoint.join(format!("{name}-{file}"))).collect();
        let started = Instant::now();
        for path in &paths {
            act(path)?;
        }
        Ok(paths.len() as f64 / started.elapsed().as_secs_f64())
    }

    fn create(&self) -> Result<f64> {
        let content = vec![1; SMALL];
        self.each("new", |path| Ok(File::create_new(path)?.write_all(&content)?))
    }

    fn stat(&self) -> Result<f64> {
        self.each("stat", |path| {
            fs::metadata(path)?;
            Ok(())
        })
    }

    fn read(&self) -> Result<f64> {
        let mut content = vec![0; SMALL];
        self.each("read", |path| Ok(File::open(path)?.read_exact(&mut content)?))
    }

    fn unlink(&self) -> Result<f64> {
        self.each("new", |path| Ok(fs::remove_file(path)?))
    }
}

/// 4 KiB reads a second, of all threads together.
fn direct(path: &Path, mib: usize, threads: u64) -> Result<f64> {
    let pages = (mib << 20) / PAGE;
    let counts: Result<Vec<u64>> = thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || read_at_random(path, pages as u64, thread)))
            .collect();
        let joined = readers.into_iter().map(|reader| reader.join().expect("it does not panic"));
        joined.collect()
    });
    Ok(counts?.iter().sum::<u64>() as f64 / LASTING.as_secs_f64())
}

fn read_at_random(path: &Path, pages: u64, seed: u64) -> Result<u64> {
    let file = open(path, true, false)?;
    let mut page = Aligned::new(PAGE);
    let mut place = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut count = 0;
    let started = Instant::now();
    while started.elapsed() < LASTING {
        for _ in 0..16 {
            // A linear congruential generator, whose upper bits are random enough.
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            file.read_exact_at(page.bytes(), (place >> 33) % pages * PAGE as u64)?;
            count += 1;
        }
    }
    Ok(count)
}

/// MiB a second of a whole file, 1 MiB at a time.
fn stream(path: &Path, mib: usize, direct: bool, write: bool, block: &mut [u8]) -> Result<f64> {
    let file = open(path, direct, write)?;
    let started = Instant::now();
    for index in 0..mib as u64 {
        if write {
            file.write_all_at(block, index << 20)?;
        } else {
            file.read_exact_at(block, index << 20)?;
        }
    }
    let took = started.elapsed().as_secs_f64();
    if write {
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(mib as f64 / took)
}

fn open(path: &Path, direct: bool, write: bool) -> Result<File> {
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut options = OpenOptions::new();
    options.read(!write).write(write).custom_flags(flags.bits().cast_signed());
    Ok(options.open(path)?)
}

/// How long the loads last that have no end.
const LASTING: Duration = Duration::from_millis(700);
