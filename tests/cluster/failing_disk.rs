//! A target whose disk fails in the middle of load, and is well again later.
//!
//! The disk is a file system on a loop device, which answers EIO to everything from one moment on,
//! until it is unmounted and mounted again.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    disk::BreakableDisk,
    program::wait_for,
};
use rustix::io::Errno;
use serde_json::Value;

const WRITERS: u64 = 4;
const PAGE: usize = 4096;
const PAGES: usize = 12;

/// Files of each writer before the disk fails, and after it is well.
const FILES_MIN: u64 = 15;

/// What a status says of the target meanwhile.
const READ_ONLY: &str = "on target-1 takes no changes: its journal failed";

#[test]
fn writers_hear_of_a_disk_that_fails_and_what_was_synced_outlives_it() -> Result<()> {
    let cluster = Cluster::prepare(Wish::default())?;
    let (image, place) = (cluster.scratch()?.join("image"), cluster.dir().join("target-1/data"));
    let Some(disk) = BreakableDisk::mount(image, place, 1 << 30)? else { return Ok(()) };
    cluster.up()?;
    let daemons = cluster.daemons();
    let world = World { mount: cluster.mount(), cluster, disk };

    let [sound, failing] = world.one_file_on_each()?;
    let mut writers: Vec<_> = (0..WRITERS).map(|number| Writer::new(number, &world)).collect();
    let ended = AtomicBool::new(false);
    let written: Vec<_> = writers.iter().map(|writer| writer.progress.clone()).collect();
    thread::scope(|scope| {
        let working: Vec<_> = writers
            .iter_mut()
            .map(|writer| {
                let ended = &ended;
                scope.spawn(move || writer.write(ended))
            })
            .collect();
        let told = world.fail_and_mend(&written, &sound, &failing);
        ended.store(true, Ordering::Relaxed);
        for writer in working {
            writer.join().expect("a writer answers with errors")?;
        }
        told
    })?;

    ensure!(world.cluster.daemons() == daemons, "a daemon ended, or another one started");
    let second = world.cluster.mount_named("second");
    world.cluster.mount_also(&second)?;
    for after in ["the failure", "a restart of the target"] {
        for writer in &writers {
            writer.check(&second).with_context(|| format!("after {after}"))?;
        }
        world.cluster.crash("target-1")?;
    }
    Ok(())
}

struct World {
    mount: PathBuf,
    cluster: Cluster,
    // Goes last: the cluster uses it.
    disk: BreakableDisk,
}

impl World {
    /// The disk fails under the writers and is mended again; what is seen meanwhile.
    fn fail_and_mend(&self, written: &[Progress], sound: &Path, failing: &Path) -> Result<()> {
        let all_have = |count: fn(&Progress) -> u64, more: u64| {
            let before: Vec<_> = written.iter().map(count).collect();
            wait_for("every writer's progress", || {
                let enough =
                    |(progress, before): (&Progress, &u64)| count(progress) >= before + more;
                written.iter().zip(&before).all(enough).then_some(())
            })
        };
        all_have(Progress::synced, FILES_MIN)?;
        self.disk.break_down()?;
        wait_for("a target that says it", || self.failed().ok().filter(|failed| *failed))?;
        let list = self.cluster.cli(&["target", "list"])?.ok()?;
        ensure!(list.contains("(read-only)"), "{list}");
        let status = self.cluster.cli(&["status"])?;
        let told = status.stdout.starts_with("degraded") && status.stdout.contains(READ_ONLY);
        ensure!(status.code == Some(1) && told, "{status}");
        // Who writes there hears of it; who writes elsewhere does not.
        all_have(Progress::refused, 1)?;
        let refused = rewrite(failing, 1).err().context("a failed disk took a write")?;
        ensure!(Errno::from_io_error(&refused) == Some(Errno::IO), "{refused}");
        for version in 1..4 {
            rewrite(sound, version).context("another target goes on")?;
            ensure!(fs::read(sound)? == body(100, version), "version {version}");
        }
        ensure!(self.failed()?, "the disk is still ill");

        self.disk.mend()?;
        wait_for("a target that is well", || self.failed().ok().filter(|failed| !failed))?;
        let status = self.cluster.cli(&["status"])?;
        ensure!(!status.stdout.contains(READ_ONLY), "{status}");
        all_have(Progress::synced, FILES_MIN)?;
        let list = self.cluster.json(&["target", "list"])?;
        let losses = list.as_array().context("a list")?.iter().map(|one| &one["loss_count"]);
        ensure!(losses.filter_map(Value::as_u64).any(|count| count >= 2), "{list}");
        rewrite(failing, 5)?;
        ensure!(fs::read(failing)? == body(100, 5));
        Ok(())
    }

    /// Whether a target says that it takes no changes. All are online meanwhile, but for one whose
    /// heartbeat is late.
    fn failed(&self) -> Result<bool> {
        wait_for("both targets to be online", || {
            let list = self.cluster.json(&["target", "list"]).ok()?;
            let list = list.as_array()?;
            let are_online = list.len() == 2 && list.iter().all(|one| one["state"] == "online");
            are_online.then(|| list.iter().any(|one| one["failed"] == true))
        })
    }

    /// A file on the target that stays sound, and one on that which will fail.
    fn one_file_on_each(&self) -> Result<[PathBuf; 2]> {
        let status = self.cluster.json(&["target", "list"])?;
        let of_host = |name: &str| {
            let found = status.as_array()?.iter().find(|one| one["host"] == name)?;
            Some(found["id"].clone())
        };
        let mut found = [None, None];
        for number in 0.. {
            let path = self.mount.join(format!("probe-{number}"));
            rewrite(&path, 0)?;
            let place = path.to_str().context("it is text")?;
            let shown = self.cluster.json(&["stripe", "show", place])?;
            let target = Some(shown["chunks"][0]["targets"][0].clone());
            for (found, host) in found.iter_mut().zip(["target-0", "target-1"]) {
                if of_host(host) == target {
                    *found = Some(path.clone());
                }
            }
            if found.iter().all(Option::is_some) || number > 100 {
                break;
            }
        }
        let [sound, failing] = found;
        Ok([sound.context("a file on target-0")?, failing.context("a file on target-1")?])
    }
}

/// How far a writer is, for who watches it.
#[derive(Clone, Default)]
struct Progress(std::sync::Arc<[AtomicU64; 2]>);

impl Progress {
    fn synced(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    fn refused(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }

    fn add(&self, which: usize) {
        self.0[which].fetch_add(1, Ordering::Relaxed);
    }
}

/// A program that makes one synced file after the other, and writes one again and again.
struct Writer {
    number: u64,
    mount: PathBuf,
    progress: Progress,
    /// The files that were acknowledged as durable.
    synced: Vec<u64>,
    /// Of the file that is written again and again: the newest version that was acknowledged as
    /// durable, and the newest that was tried.
    durable: u64,
    tried: u64,
}

impl Writer {
    fn new(number: u64, world: &World) -> Self {
        let (mount, progress) = (world.mount.clone(), Progress::default());
        Self { number, mount, progress, synced: Vec::new(), durable: 0, tried: 0 }
    }

    fn write(&mut self, ended: &AtomicBool) -> Result<()> {
        for file in 0.. {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let made = write_new(&self.path(&self.mount, file), &body(self.number, file));
            if self.heard(made)? {
                self.synced.push(file);
            }
            self.tried += 1;
            let again = rewrite_whole(&self.again(&self.mount), &body(self.number, self.tried));
            if self.heard(again)? {
                self.durable = self.tried;
            }
        }
        Ok(())
    }

    /// Whether a write was acknowledged. There is one error that a writer may hear.
    fn heard(&self, answer: io::Result<()>) -> Result<bool> {
        let Err(error) = answer else {
            self.progress.add(0);
            return Ok(true);
        };
        ensure!(Errno::from_io_error(&error) == Some(Errno::IO), "a writer heard {error}");
        self.progress.add(1);
        // Pacing only: a refused writer does not burn the processor.
        thread::sleep(Duration::from_millis(20));
        Ok(false)
    }

    fn path(&self, mount: &Path, file: u64) -> PathBuf {
        mount.join(format!("{}-{file}", self.number))
    }

    fn again(&self, mount: &Path) -> PathBuf {
        mount.join(format!("{}-again", self.number))
    }

    /// Everything that was acknowledged as durable is there.
    fn check(&self, mount: &Path) -> Result<()> {
        ensure!(self.synced.len() as u64 >= FILES_MIN, "{} files", self.synced.len());
        for &file in &self.synced {
            let path = self.path(mount, file);
            let found = fs::read(&path).with_context(|| format!("{}", path.display()))?;
            ensure!(found == body(self.number, file), "{}: other bytes", path.display());
        }
        let found = fs::read(self.again(mount)).context("the file that was written again")?;
        ensure!(found.len() == PAGES * PAGE, "{} bytes", found.len());
        for (number, page) in found.chunks_exact(PAGE).enumerate() {
            let version = u64::from_le_bytes(page[8..16].try_into()?);
            let whole = body(self.number, version);
            ensure!(page == &whole[number * PAGE..][..PAGE], "page {number} is a mix");
            let allowed = self.durable..=self.tried;
            ensure!(allowed.contains(&version), "page {number}: {version}, not {allowed:?}");
        }
        Ok(())
    }
}

/// Bytes of which every 24 say whose they are, which version, and where.
fn body(writer: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGES * PAGE);
    for at in 0..(PAGES * PAGE / 16) as u64 {
        bytes.extend((writer << 32 | at).to_le_bytes());
        bytes.extend(version.to_le_bytes());
    }
    bytes
}

fn write_new(path: &Path, body: &[u8]) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.write_all_at(body, 0)?;
    file.sync_all()
}

fn rewrite_whole(path: &Path, body: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    file.write_all_at(body, 0)?;
    file.sync_all()
}

fn rewrite(path: &Path, version: u64) -> io::Result<()> {
    rewrite_whole(path, &body(100, version))
}
