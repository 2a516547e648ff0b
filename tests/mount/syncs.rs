//! What `fsync` makes durable, by what it asks the servers.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
    requests::{answered, serving, synced},
};
use rustix::fs::{OFlags, XattrFlags, setxattr};

use crate::owners::as_user;

const LEN: usize = 1 << 20;

/// A cluster whose servers count, and a folder on two mounts in which files have many chunks.
fn counting() -> Result<(Cluster, PathBuf, PathBuf)> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let (one, two) = (cluster.mount().join("folder"), second.join("folder"));
    fs::create_dir(&one)?;
    let wide = ["stripe", "set", "--chunk-size", "64KiB", "--count", "-1", text(&one)?];
    cluster.cli(&wide)?.ok()?;
    Ok((cluster, one, two))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path of text")
}

/// On how many targets a file lies.
fn spread(cluster: &Cluster, path: &Path) -> Result<u64> {
    let shown = cluster.json(&["stripe", "show", text(path)?])?;
    let chunks = shown["chunks"].as_array().context("a list")?;
    let targets: BTreeSet<_> =
        chunks.iter().filter_map(|chunk| chunk["targets"][0].as_str()).collect();
    Ok(u64::try_from(targets.len())?)
}

/// How many targets this asks to sync.
fn targets_asked(cluster: &Cluster, act: impl FnOnce() -> Result<()>) -> Result<u64> {
    let count = || anyhow::Ok(synced(cluster, "target-0")? + synced(cluster, "target-1")?);
    let before = count()?;
    act()?;
    Ok(count()? - before)
}

fn metadata_syncs(cluster: &Cluster) -> Result<u64> {
    Ok(answered(cluster)?.get("SyncMetadata").copied().unwrap_or(0))
}

/// How often this asks the metadata server what an inode is.
fn questions(cluster: &Cluster, act: impl FnOnce() -> Result<()>) -> Result<u64> {
    let count = || {
        let answered = answered(cluster)?;
        let of = |kind| answered.get(kind).copied().unwrap_or(0);
        anyhow::Ok(of("GetInode") + of("ShowInode") + of("FindName"))
    };
    let before = count()?;
    act()?;
    Ok(count()? - before)
}

#[test]
fn a_sync_covers_what_was_written_through_other_opens_and_on_other_hosts() -> Result<()> {
    let (cluster, one, two) = counting()?;
    fs::write(one.join("file"), vec![7; LEN])?;
    let targets = spread(&cluster, &one.join("file"))?;
    ensure!(targets == 2, "it lies on both: {targets}");
    let before = metadata_syncs(&cluster)?;
    for mount in [&one, &two] {
        let file = File::open(mount.join("file"))?;
        let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
        ensure!(asked == targets, "{asked} targets by {}", mount.display());
        let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
        ensure!(asked == 0, "{asked} targets again by {}", mount.display());
    }
    wait_for("the log to be synced for both", || {
        (metadata_syncs(&cluster).ok()? >= before + 2).then_some(())
    })?;

    // Through a descriptor that was open before.
    let file = File::open(two.join("file"))?;
    file.sync_all()?;
    let writer = OpenOptions::new().write(true).open(one.join("file"))?;
    writer.write_all_at(b"more", 0)?;
    drop(writer);
    let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
    ensure!(asked == targets, "{asked} targets");
    Ok(())
}

#[test]
fn a_sync_of_ones_own_file_asks_the_targets_that_were_written_alone() -> Result<()> {
    let (cluster, one, _two) = counting()?;
    let path = one.join("file");
    let file = File::create(&path)?;
    file.write_all_at(&vec![7; LEN], 0)?;
    let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
    let targets = spread(&cluster, &path)?;
    ensure!(asked == targets, "{asked} of {targets} targets");
    file.write_all_at(b"more", 100)?;
    let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
    ensure!(asked == 1, "{asked} targets for one chunk");
    file.set_len(u64::try_from(LEN)? + 10)?;
    file.write_all_at(b"more", 100)?;
    let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
    ensure!(asked == 1, "{asked} targets for one chunk of a longer file");
    // What else this host changes has no bytes.
    setxattr(&path, "user.name", b"value", XattrFlags::empty())?;
    file.write_all_at(b"more", 100)?;
    file.set_modified(SystemTime::UNIX_EPOCH)?;
    let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
    ensure!(asked == 1, "{asked} targets for one chunk of a file with other attributes");
    drop(file);
    // Opened again for each record.
    for number in 0..3 {
        let file = OpenOptions::new().write(true).open(&path)?;
        file.write_all_at(b"more", 100)?;
        let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
        ensure!(asked == 1, "{asked} targets through open {number}");
    }
    Ok(())
}

#[test]
fn a_write_that_is_to_be_durable_answers_for_its_own_bytes_alone() -> Result<()> {
    let (cluster, one, two) = counting()?;
    fs::write(one.join("file"), vec![7; LEN])?;
    let targets = spread(&cluster, &one.join("file"))?;
    ensure!(targets == 2, "it lies on both: {targets}");
    File::open(one.join("file"))?.sync_all()?;
    let durable = i32::try_from(OFlags::DSYNC.bits())?;
    let file = OpenOptions::new().write(true).custom_flags(durable).open(one.join("file"))?;
    let other = OpenOptions::new().write(true).open(two.join("file"))?;
    for round in 0..3 {
        other.write_all_at(b"theirs", 0)?;
        other.sync_all()?;
        let asked = targets_asked(&cluster, || Ok(file.write_all_at(b"ours", 100)?))?;
        ensure!(asked == 1, "{asked} targets in round {round}");
    }
    let asked = targets_asked(&cluster, || Ok(file.sync_all()?))?;
    ensure!(asked == targets, "{asked} targets for everybody's bytes");
    Ok(())
}

#[test]
fn who_writes_and_syncs_alone_asks_for_nothing_whoever_it_is() -> Result<()> {
    const ROUNDS: u64 = 20;
    let (cluster, one, _two) = counting()?;
    let file = File::create(one.join("file"))?;
    file.write_all_at(b"first", 0)?;
    file.sync_all()?;
    let asked = questions(&cluster, || {
        for round in 0..ROUNDS {
            as_user(|| file.write_all_at(b"more", round))??;
            file.sync_all()?;
        }
        Ok(())
    })?;
    // What nobody has asked for may be told just before a sync.
    ensure!(asked < ROUNDS / 2, "{asked} questions for {ROUNDS} writes of an ordinary user");
    let asked = questions(&cluster, || {
        for _ in 0..ROUNDS {
            file.sync_all()?;
        }
        Ok(())
    })?;
    ensure!(asked < ROUNDS / 2, "{asked} questions for {ROUNDS} syncs without a write");
    Ok(())
}
