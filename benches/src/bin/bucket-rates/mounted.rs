//! What programs do in a mount, of Millrace or of another.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use millrace_benches::aligned::Aligned;
use millrace_runtime::Shutdown;
use rustix::fs::OFlags;

/// Lists a directory and those in it, names only; says how many files there are.
pub(crate) fn list(directory: &Path) -> Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { list(&entry.path())? } else { 1 };
    }
    Ok(files)
}

/// Reads files whole, in this order, each of the threads its share; they are so long.
pub(crate) fn read(
    directory: &Path,
    files: &[(String, u64)],
    readers: usize,
    shutdown: &Shutdown,
) -> Result<()> {
    let share = |nth: usize| -> Result<()> {
        let mut content = Vec::new();
        for (name, bytes) in files.iter().skip(nth).step_by(readers) {
            ensure!(!shutdown.is_draining(), "interrupted");
            content.clear();
            let read = File::open(directory.join(name))?.read_to_end(&mut content);
            let read = read.with_context(|| format!("read {name}"))?;
            ensure!(read as u64 == *bytes, "{name} has {read} bytes, not {bytes}");
        }
        Ok(())
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..readers).map(|nth| scope.spawn(move || share(nth))).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("it does not panic"))
    })
}

/// Reads a file of so many bytes from its begin to its end, 1 MiB at a time.
pub(crate) fn stream(path: &Path, bytes: u64, direct: bool, shutdown: &Shutdown) -> Result<()> {
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut options = OpenOptions::new();
    let mut file = options.read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let mut block = Aligned::new(MIB);
    for _ in 0..bytes / MIB as u64 {
        ensure!(!shutdown.is_draining(), "interrupted");
        file.read_exact(block.bytes())?;
    }
    Ok(())
}

/// How long the first 4 KiB of a file take, from its opening on. The rest is read too.
pub(crate) fn first_byte(path: &Path) -> Result<Duration> {
    let mut page = [0; PAGE];
    let begun = Instant::now();
    let mut file = File::open(path)?;
    file.read_exact(&mut page)?;
    let took = begun.elapsed();
    io::copy(&mut file, &mut io::sink())?;
    Ok(took)
}

/// How long 4 KiB take somewhere in a file.
pub(crate) fn read_at(path: &Path, place: u64) -> Result<Duration> {
    let mut page = [0; PAGE];
    let begun = Instant::now();
    File::open(path)?.read_exact_at(&mut page, place)?;
    Ok(begun.elapsed())
}

/// Writes files of this content, again and again; they are on disk at every target afterwards.
pub(crate) fn write(
    directory: &Path,
    files: &[(String, u64)],
    content: &[u8],
    shutdown: &Shutdown,
) -> Result<()> {
    for (name, bytes) in files {
        ensure!(!shutdown.is_draining(), "interrupted");
        let path = directory.join(name);
        fs::create_dir_all(path.parent().expect("it lies in the directory"))?;
        let mut file = File::create_new(&path)?;
        let mut left = usize::try_from(*bytes)?;
        while left > 0 {
            let piece = left.min(content.len());
            file.write_all(&content[..piece])?;
            left -= piece;
        }
    }
    rustix::fs::syncfs(File::open(directory)?).context("sync the mount")?;
    Ok(())
}

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
