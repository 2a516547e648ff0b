//! A mount that the server took for dead, and that was only silent: what its programs are told.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
};
use rustix::io::Errno;

const LEN: usize = 1 << 20;

/// Threads that write while the session ends.
const WRITERS: usize = 8;

fn is_lost(outcome: io::Result<()>) -> bool {
    outcome.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::IO))
}

/// Writes a byte at `at` and syncs it, again and again, and once more when it `is_over`. It may be
/// told that something is lost.
fn write_until(is_over: &AtomicBool, file: &File, at: u64) -> io::Result<()> {
    loop {
        let is_last = is_over.load(Ordering::Acquire);
        match file.write_all_at(b"1", at).and_then(|()| file.sync_all()) {
            Ok(()) if is_last => return Ok(()),
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
}

/// None of its descriptors has locked anything.
#[test]
fn a_mount_that_was_cut_off_tells_each_descriptor_once_what_it_lost_and_goes_on() -> Result<()> {
    let lease = ("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned());
    let cluster = Cluster::start(Wish { environment: vec![lease], ..Wish::default() })?;
    let path = cluster.mount().join("file");
    let stored = vec![b'0'; LEN];
    fs::write(&path, &stored)?;
    cluster.mount_as("cut", &cluster.dir().join("client.pem"), "")?.ok()?;
    let on_cut = cluster.mount_named("cut").join("file");
    let writer = || OpenOptions::new().write(true).open(&on_cut);
    let (written, synced, refused, first) = (writer()?, writer()?, writer()?, writer()?);
    let reader = File::open(&on_cut)?;
    // These do not wait until the next session is known everywhere.
    let busy = cluster.mount_named("cut").join("busy");
    fs::write(&busy, [b'0'; WRITERS])?;
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|at| {
            let (file, is_over) = (OpenOptions::new().write(true).open(&busy)?, is_over.clone());
            Ok(thread::spawn(move || write_until(&is_over, &file, at as u64)))
        })
        .collect::<Result<_>>()?;

    // Nobody takes what is written, so that it is here alone when the session ends.
    let targets = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    written.write_all_at(b"lost", 0)?;
    let silent = cluster.daemon("cut")?.pause()?;
    cluster.wait_for_log("metadata", &["its lease ran out"])?;
    drop(targets);
    drop(silent);
    cluster.wait_for_log("cut", &["the session has ended; what it had not stored is lost"])?;
    wait_for("a descriptor that is told", || is_lost(first.sync_all()).then_some(()))?;

    ensure!(is_lost(synced.sync_all()), "a sync tells it");
    synced.sync_all().context("and the next one does not")?;
    ensure!(is_lost(refused.write_all_at(b"more", 100)), "a write does not pretend");
    ensure!(is_lost(refused.sync_all()), "and leaves it to a sync to tell");
    refused.sync_all().context("once")?;
    ensure!(is_lost(written.sync_all()), "so does the one that it was written through");

    // Whatever was open goes on in a new session, with what the servers have.
    let mut read = vec![0; LEN];
    reader.read_exact_at(&mut read, 0).context("an open of before")?;
    ensure!(read == stored, "it reads {:?}", &read[..8]);
    for path in [&path, &on_cut] {
        ensure!(fs::read(path)? == stored, "what was lost is shown in {}", path.display());
    }
    for (at, file) in [(10, &written), (20, &synced), (30, &refused)] {
        file.write_all_at(b"later", at).with_context(|| format!("at {at}"))?;
        file.sync_all().with_context(|| format!("at {at}"))?;
    }
    is_over.store(true, Ordering::Release);
    for writer in writers {
        writer.join().expect("a writer does not panic").context("of one that writes on")?;
    }
    for path in [cluster.mount().join("busy"), busy] {
        ensure!(fs::read(&path)? == [b'1'; WRITERS], "it is kept in {}", path.display());
    }
    fs::write(cluster.mount_named("cut").join("new"), "new")?;
    let mut expected = stored;
    for at in [10, 20, 30] {
        expected[at..at + 5].copy_from_slice(b"later");
    }
    for path in [&path, &on_cut] {
        ensure!(fs::read(path)? == expected, "another content in {}", path.display());
    }
    ensure!(fs::read(cluster.mount().join("new"))? == b"new");
    Ok(())
}
