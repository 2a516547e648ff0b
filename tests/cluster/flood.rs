//! A mount that asks for far more than the metadata server can do at once: others are served
//! meanwhile, each in its turn, and what waits is bounded.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
    requests::{running, serving},
};

/// Programs that ask without a pause: more than the requests that a connection may have at the
/// server.
const FLOOD: u64 = 300;

/// What one other program does takes no longer, on a machine that is busy as well.
const BOUND: Duration = Duration::from_secs(60);

const ROUNDS: usize = 5;

/// The requests of one connection, and those of all others here with a few that wait for news.
const RUNNING_MAX: u64 = 256 + 64;

/// What the server may take for itself, whoever asks.
const RESIDENT_BYTES_MAX: u64 = 512 << 20;

#[test]
fn a_mount_with_hundreds_of_requests_under_way_stalls_no_other_and_fills_no_server() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    for number in 0..FLOOD {
        fs::create_dir(cluster.mount().join(number.to_string()))?;
    }
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| -> Result<()> {
        let flooding: Vec<_> = (0..FLOOD)
            .map(|number| {
                let folder = cluster.mount().join(number.to_string());
                let (over, done) = (&over, &done);
                scope.spawn(move || flood(&folder, over, done))
            })
            .collect();
        let served = wait_for("a flood", || (done.load(Relaxed) >= FLOOD).then_some(()))
            .and_then(|()| work_meanwhile(&cluster, &second));
        over.store(true, Relaxed);
        for program in flooding {
            program.join().expect("it does not panic").context("one of the flood")?;
        }
        served
    })?;
    let resident = cluster.daemon("metadata")?.resident_bytes_max()?;
    ensure!(resident < RESIDENT_BYTES_MAX, "the server took {resident} bytes");
    Ok(())
}

/// Each of its calls is a request that nobody but the server can answer.
fn flood(folder: &Path, over: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let name = folder.join("name");
    while !over.load(Relaxed) {
        fs::create_dir(&name)?;
        fs::remove_dir(&name)?;
        done.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// What an ordinary program does on another mount.
fn work_meanwhile(cluster: &Cluster, mount: &Path) -> Result<()> {
    for round in 0..ROUNDS {
        let folder = mount.join(format!("work-{round}"));
        let (file, renamed) = (folder.join("file"), folder.join("renamed"));
        in_time("mkdir", || Ok(fs::create_dir(&folder)?))?;
        in_time("create, write, fsync", || {
            let mut file = File::create_new(&file)?;
            file.write_all(b"bytes")?;
            Ok(file.sync_all()?)
        })?;
        in_time("rename", || Ok(fs::rename(&file, &renamed)?))?;
        in_time("list", || {
            ensure!(fs::read_dir(&folder)?.count() == 1, "it lists what is there");
            Ok(())
        })?;
        in_time("read", || {
            ensure!(fs::read(&renamed)? == b"bytes", "it reads what was written");
            Ok(())
        })?;
        in_time("unlink", || Ok(fs::remove_file(&renamed)?))?;
        in_time("rmdir", || Ok(fs::remove_dir(&folder)?))?;
        let running = running(cluster)?;
        ensure!(running <= RUNNING_MAX, "{running} requests are at the server");
    }
    Ok(())
}

fn in_time(what: &str, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    act().with_context(|| what.to_owned())?;
    let took = begun.elapsed();
    ensure!(took < BOUND, "{what} took {took:?}");
    Ok(())
}
