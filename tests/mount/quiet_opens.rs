//! Opens for reading of which the metadata server does not hear, until it has to.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
    requests::{answered, serving},
};
use rustix::fs::OFlags;
use serde_json::Value;

use crate::delegations::soon;

const FILES: usize = 40;
const MIB: u64 = 1 << 20;

/// A cluster of one target with two mounts.
fn cluster() -> Result<(Cluster, PathBuf, PathBuf)> {
    let environment = vec![serving()];
    let cluster = Cluster::start(Wish { targets: 1, environment, ..Wish::default() })?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let first = cluster.mount();
    Ok((cluster, first, second))
}

fn bytes(number: usize) -> Vec<u8> {
    format!("file {number} ").repeat(3_000 + number).into_bytes()
}

pub(crate) fn used(cluster: &Cluster) -> Result<u64> {
    // It ends with 1 while the cluster is degraded, and prints the same.
    let status: Value = serde_json::from_str(&cluster.cli(&["--json", "status"])?.stdout)?;
    status["targets"][0]["used_bytes"].as_u64().context("a target has used bytes")
}

/// Waits until targets have told that so much is used, or less.
pub(crate) fn wait_for_used(
    cluster: &Cluster,
    what: &str,
    is_so: impl Fn(u64) -> bool,
) -> Result<()> {
    wait_for(what, || is_so(used(cluster).ok()?).then_some(()))
}

/// Opens a file that this mount has read before, so that the server is not asked.
fn open_again(path: &Path) -> Result<File> {
    let mut first = File::open(path)?;
    first.read_exact(&mut [0])?;
    drop(first);
    // Past the page cache, so that what is read comes from the targets.
    let direct = i32::try_from(OFlags::DIRECT.bits())?;
    let file = OpenOptions::new().read(true).custom_flags(direct).open(path)?;
    Ok(file)
}

/// Whether the file shows what [`write`] made, as the targets have it.
fn check(file: &mut File, len: u64, byte: u8) -> Result<()> {
    file.rewind()?;
    let mut all = Vec::new();
    file.read_to_end(&mut all)?;
    ensure!(all.len() as u64 == len, "{} bytes of {len}", all.len());
    ensure!(all.iter().all(|seen| *seen == byte), "other bytes");
    Ok(())
}

fn write(path: &Path, len: u64, byte: u8) -> Result<()> {
    let len = usize::try_from(len)?;
    fs::write(path, vec![byte; len]).with_context(|| path.display().to_string())
}

#[test]
fn what_was_looked_up_and_read_opens_again_while_the_metadata_server_stands_still() -> Result<()> {
    let (cluster, first, second) = cluster()?;
    fs::create_dir(first.join("set"))?;
    let set = |mount: &Path, number: usize| mount.join("set").join(format!("{number:03}"));
    for number in 0..FILES {
        fs::write(set(&first, number), bytes(number))?;
    }
    let order = || (0..FILES).map(|nth| nth * 17 % FILES);
    // A change waits until the other mount has given back that it may make files by itself; what is
    // only looked at meanwhile is not kept, and has to be asked for once more.
    fs::create_dir(second.join("set/change"))?;
    let asks = || -> Result<bool> {
        let before = answered(&cluster)?;
        order().try_for_each(|number| read(set(&second, number), number))?;
        let after = answered(&cluster)?;
        let is_asked = |kind: &&str| before.get(*kind) != after.get(*kind);
        Ok(["FindName", "Open", "ShowInode", "ShowContents"].iter().any(is_asked))
    };
    wait_for("files that are opened without a message", || match asks() {
        Ok(true) => None,
        Ok(false) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    })??;
    let paused = cluster.daemon("metadata")?.pause()?;
    let mut again = order().chain(0..FILES);
    again
        .try_for_each(|number| read(set(&second, number), number))
        .context("while the server stands still")?;
    drop(paused);
    Ok(())
}

/// Opens one of [`bytes`] and reads it, if that takes no longer than where nobody is waited for.
fn read(path: PathBuf, number: usize) -> Result<()> {
    let (len, all) = soon(move || -> io::Result<(u64, Vec<u8>)> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut all = Vec::new();
        file.read_to_end(&mut all)?;
        Ok((len, all))
    })??;
    ensure!(len == bytes(number).len() as u64, "{number}: {len} bytes");
    ensure!(all == bytes(number), "{number}");
    Ok(())
}

#[test]
fn what_is_open_outlives_its_name_whoever_takes_it_and_is_freed_by_its_last_close() -> Result<()> {
    let (cluster, first, second) = cluster()?;
    let before = used(&cluster)?;
    let len = 8 * MIB;
    type Remove = fn(&Path, &Path) -> Result<()>;
    let ways: [(&str, Remove); 4] = [
        ("removed elsewhere", |first, _| Ok(fs::remove_file(first.join("f"))?)),
        ("removed here", |_, second| Ok(fs::remove_file(second.join("f"))?)),
        ("replaced elsewhere", |first, _| {
            fs::write(first.join("g"), "new")?;
            Ok(fs::rename(first.join("g"), first.join("f"))?)
        }),
        ("replaced here", |_, second| {
            fs::write(second.join("g"), "new")?;
            Ok(fs::rename(second.join("g"), second.join("f"))?)
        }),
    ];
    for (way, remove) in ways {
        write(&first.join("f"), len, 7)?;
        let mut open = open_again(&second.join("f"))?;
        // What nobody has open is freed, and by the same pass.
        write(&first.join("other"), len, 8)?;
        wait_for_used(&cluster, "both to be stored", |used| used >= before + 2 * len)?;
        remove(&first, &second).with_context(|| way.to_owned())?;
        fs::remove_file(first.join("other"))?;
        let what = "what nobody has open to be freed";
        wait_for_used(&cluster, what, |used| used < before + 2 * len)?;
        check(&mut open, len, 7).with_context(|| way.to_owned())?;
        ensure!(open.metadata()?.nlink() == 0, "{way}: it has no name");
        drop(open);
        wait_for_used(&cluster, "what was open to be freed", |used| used < before + len)
            .with_context(|| way.to_owned())?;
        drop(fs::remove_file(first.join("f")));
    }
    Ok(())
}

#[test]
fn what_another_host_writes_the_next_open_shows_however_often_it_was_open_before() -> Result<()> {
    let (_cluster, first, second) = cluster()?;
    let path = second.join("f");
    for round in 0..60 {
        let text = format!("round {round} ").repeat(1 + round);
        fs::write(first.join("f"), &text)?;
        for _ in 0..3 {
            ensure!(fs::read_to_string(&path)? == text, "round {round}");
        }
        let open = File::open(&path)?;
        let file = OpenOptions::new().write(true).open(first.join("f"))?;
        file.write_all_at(b"R", 0)?;
        drop(file);
        ensure!(fs::read(&path)?.first() == Some(&b'R'), "round {round}, changed in place");
        drop(open);
    }
    Ok(())
}

#[test]
fn what_is_open_by_either_of_two_names_outlives_both() -> Result<()> {
    let (_cluster, first, second) = cluster()?;
    let len = 2 * MIB;
    write(&first.join("f"), len, 3)?;
    let mut open = open_again(&second.join("f"))?;
    fs::hard_link(first.join("f"), first.join("g"))?;
    fs::remove_file(second.join("f"))?;
    let mut also = open_again(&second.join("g"))?;
    fs::remove_file(first.join("g"))?;
    check(&mut open, len, 3)?;
    drop(open);
    check(&mut also, len, 3)?;
    Ok(())
}

#[test]
fn what_is_open_outlives_a_killed_metadata_server_and_then_its_name() -> Result<()> {
    let (cluster, first, second) = cluster()?;
    let (before, len) = (used(&cluster)?, 4 * MIB);
    write(&first.join("f"), len, 9)?;
    File::open(first.join("f"))?.sync_all()?;
    let mut open = open_again(&second.join("f"))?;
    cluster.crash("metadata")?;
    cluster.up()?;
    fs::remove_file(first.join("f"))?;
    check(&mut open, len, 9)?;
    // It is told of after the restart, so that nothing is freed when the time to tell is over.
    write(&first.join("other"), len, 8)?;
    wait_for_used(&cluster, "both to be stored", |used| used >= before + 2 * len)?;
    fs::remove_file(first.join("other"))?;
    let what = "what nobody has open to be freed";
    wait_for_used(&cluster, what, |used| used < before + 2 * len)?;
    check(&mut open, len, 9)
}

#[test]
fn what_is_removed_after_a_kill_of_the_server_is_freed_when_all_mounts_have_told() -> Result<()> {
    let (cluster, first, second) = cluster()?;
    let (before, len) = (used(&cluster)?, 4 * MIB);
    for (name, seed) in [("open", 5), ("closed", 6)] {
        write(&first.join(name), len, seed)?;
        File::open(first.join(name))?.sync_all()?;
    }
    let mut open = open_again(&second.join("open"))?;
    drop(open_again(&second.join("closed"))?);
    wait_for_used(&cluster, "both to be stored", |used| used >= before + 2 * len)?;
    cluster.crash("metadata")?;
    let since = Instant::now();
    for name in ["open", "closed"] {
        fs::remove_file(first.join(name))?;
    }
    let what = "what nobody has open to be freed";
    wait_for_used(&cluster, what, |used| used < before + 2 * len)?;
    // Of a mount that did not say that all is told, it would be kept for 96 s.
    ensure!(since.elapsed() < Duration::from_secs(85), "{:?}", since.elapsed());
    check(&mut open, len, 5)?;
    drop(open);
    wait_for_used(&cluster, "the other one to be freed", |used| used < before + len)
}

#[test]
fn a_lock_holds_while_another_open_of_its_file_ends() -> Result<()> {
    let (_cluster, first, second) = cluster()?;
    fs::write(first.join("f"), "locked")?;
    ensure!(fs::read_to_string(second.join("f"))? == "locked");
    let (locked, other) = (File::open(second.join("f"))?, File::open(second.join("f"))?);
    locked.lock()?;
    drop(other);
    drop(File::open(second.join("f"))?);
    let wants = File::open(first.join("f"))?;
    ensure!(wants.try_lock().is_err(), "somebody has it");
    drop(locked);
    wait_for("the lock to be given back", || wants.try_lock().ok())
}

#[test]
fn when_an_import_has_ended_the_next_open_shows_what_the_bucket_has() -> Result<()> {
    let (cluster, first, second) = cluster()?;
    let bucket = tempfile::tempdir()?;
    let object = bucket.path().join("object");
    fs::write(&object, "first")?;
    let url = format!("file://{}", bucket.path().display());
    cluster.cli(&["link", "add", &url, "mr:/set"])?.ok()?;
    let paths = [first.join("set/object"), second.join("set/object")];
    for round in 0..25 {
        let text = format!("version {round} ").repeat(1 + round);
        fs::write(&object, &text)?;
        cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
        for path in &paths {
            for _ in 0..2 {
                let seen = fs::read_to_string(path).with_context(|| format!("round {round}"))?;
                ensure!(seen == text, "round {round}: {seen:?}");
            }
        }
    }
    Ok(())
}
