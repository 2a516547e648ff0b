//! Reads and closes beside a writer that never pauses, or while a target says nothing: they wait
//! for what was written before them, where it concerns them.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
};
use rustix::fs::OFlags;

use crate::delegations::{PATIENCE, soon, within};

/// What the writers write at a time.
const PIECE: usize = 256 * 1024;

const CHUNK: u64 = 64 * 1024;

/// Opens a file so that each read comes to the mount.
fn open_past_pages(path: &Path) -> Result<File> {
    let direct = i32::try_from(OFlags::DIRECT.bits())?;
    Ok(OpenOptions::new().read(true).custom_flags(direct).open(path)?)
}

/// Each byte tells which piece it lies in.
fn byte_at(at: u64) -> u8 {
    (at / PIECE as u64 % 250).to_le_bytes()[0] + 1
}

fn check(bytes: &[u8], from: u64) -> Result<()> {
    let is_right = |(at, byte): (u64, &u8)| *byte == byte_at(at);
    ensure!((from..).zip(bytes).all(is_right), "other bytes from {from} on");
    Ok(())
}

fn write_piece(file: &File, at: u64) -> io::Result<()> {
    file.write_all_at(&vec![byte_at(at); PIECE], at)
}

#[test]
fn a_read_waits_for_no_target_that_has_nothing_of_its_range() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let folder = cluster.mount().join("folder");
    fs::create_dir(&folder)?;
    let name = folder.to_str().context("a path of text")?;
    let wide = ["stripe", "set", "--chunk-size", "64KiB", "--count", "-1", name];
    cluster.cli(&wide)?.ok()?;
    let path = folder.join("file");
    fs::write(&path, vec![1; 1 << 20])?;
    let shown = cluster.json(&["stripe", "show", path.to_str().context("a path of text")?])?;
    let target = |chunk: u64| {
        let chunk = &shown["chunks"][usize::try_from(chunk).unwrap_or(usize::MAX)];
        chunk["targets"][0].as_str()
    };
    let silent = target(0).context("a target")?;
    let is_other = |chunk: &u64| target(*chunk).is_some_and(|target| target != silent);
    let other = (1..16).find(is_other).context("a chunk on the other target")?;
    let serves = |name: &&&str| cluster.log(name).contains(silent);
    let daemon = ["target-0", "target-1"].iter().find(serves).context("a daemon serves it")?;

    let writer = OpenOptions::new().write(true).open(&path)?;
    let reader = open_past_pages(&path)?;
    let paused = cluster.daemon(daemon)?.pause()?;
    writer.write_all_at(b"silent", 100)?;
    writer.write_all_at(b"other", other * CHUNK + 100)?;
    let read = soon(move || -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        reader.read_exact_at(&mut bytes, other * CHUNK)?;
        Ok(bytes)
    });
    drop(paused);
    let mut expected = vec![1; 4096];
    expected[100..105].copy_from_slice(b"other");
    ensure!(read?? == expected, "other bytes");
    writer.sync_all()?;
    ensure!(fs::read(&path)?[100..106] == *b"silent");
    Ok(())
}

#[test]
fn nobody_waits_for_a_writer_that_never_pauses() -> Result<()> {
    // Round and round, so that the disks of the targets hold it however long it takes.
    const ROUND: u64 = 128 * PIECE as u64;
    // For ever is what it would be; a busy machine has much to do for the writer first.
    const MOST: Duration = PATIENCE.saturating_mul(5);
    let cluster = Cluster::start(Wish::default())?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let path = cluster.mount().join("file");
    let written = File::create(&path)?;
    let (over, end) = (AtomicBool::new(false), AtomicU64::new(0));
    let stream = || -> Result<()> {
        let mut at = 0;
        while !over.load(SeqCst) {
            write_piece(&written, at)?;
            at += PIECE as u64;
            end.store(at, SeqCst);
            at %= ROUND;
        }
        Ok(())
    };
    let beside = || -> Result<()> {
        wait_for("the size on another host", || {
            let found = fs::metadata(second.join("file")).ok()?;
            (found.len() >= 1_000_000).then_some(())
        })?;
        let reader = Arc::new(open_past_pages(&path)?);
        for _ in 0..40 {
            let (at, reader) = (end.load(SeqCst).saturating_sub(1_000_000), Arc::clone(&reader));
            let bytes = within(MOST, move || -> io::Result<Vec<u8>> {
                let mut bytes = vec![0; 500_000];
                reader.read_exact_at(&mut bytes, at)?;
                Ok(bytes)
            });
            check(&bytes.context("a read")??, at)?;
            let path = path.clone();
            let closed = within(MOST, move || -> io::Result<()> {
                let file = OpenOptions::new().write(true).open(path)?;
                file.write_all_at(&[byte_at(0)], 0)
            });
            closed.context("a close")??;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let writer = scope.spawn(stream);
        let done = beside();
        over.store(true, SeqCst);
        writer.join().expect("it does not panic")?;
        done
    })
}

#[test]
fn no_host_sees_an_end_before_which_bytes_are_missing() -> Result<()> {
    const END: u64 = 256 * PIECE as u64;
    let cluster = Cluster::start(Wish::default())?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let (path, there) = (cluster.mount().join("file"), second.join("file"));
    let written = File::create(&path)?;
    let over = AtomicBool::new(false);
    let stream = || -> io::Result<()> {
        let done = (0..END).step_by(PIECE).try_for_each(|at| write_piece(&written, at));
        over.store(true, SeqCst);
        done
    };
    let look = || -> Result<()> {
        while !over.load(SeqCst) {
            // Its close tells the server how long the file is by now.
            drop(OpenOptions::new().write(true).open(&path)?);
            let file = File::open(&there)?;
            let len = file.metadata()?.len();
            let from = len.saturating_sub(8 << 20);
            let mut bytes = vec![0; usize::try_from(len - from)?];
            file.read_exact_at(&mut bytes, from).with_context(|| format!("at {from} of {len}"))?;
            check(&bytes, from)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let writer = scope.spawn(stream);
        let looked = look();
        writer.join().expect("it does not panic")?;
        looked
    })?;
    drop(written);
    let all = fs::read(&there)?;
    ensure!(all.len() as u64 == END, "{} bytes", all.len());
    check(&all, 0)
}
