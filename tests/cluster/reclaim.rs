//! Space comes back, also what nobody remembers; what a target lacks is told by its path; and an
//! older copy of a target is known, and served by nobody until an operator takes it as it is.

use std::{
    fs, io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::wait_for,
};
use rustix::io::Errno;
use serde_json::Value;

/// A cluster of one target, so that it has part of every file, with short leases, for which checks
/// wait.
fn cluster() -> Result<Cluster> {
    Cluster::start(Wish { targets: 1, environment: short_lease(), ..Wish::default() })
}

fn short_lease() -> Vec<(String, String)> {
    vec![("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned())]
}

/// Runs a check to its end and returns what it prints, whatever it found.
fn check(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let mut all = vec!["--json", "fsck", "start", "--wait"];
    all.extend(arguments);
    // Targets show what they saw of the log a moment after they are back.
    wait_for("a check of every target", || {
        let said = cluster.cli(&all).ok()?;
        let report: Value = serde_json::from_str(&said.stdout).ok()?;
        let whole = report["targets"].as_array()?.iter().all(|t| t["not_checked"].is_null());
        (whole && report["state"] == "done").then_some(report)
    })
}

fn used(cluster: &Cluster) -> Result<u64> {
    // It ends with 1 while the cluster is degraded, and prints the same.
    let status: Value = serde_json::from_str(&cluster.cli(&["--json", "status"])?.stdout)?;
    status["targets"][0]["used_bytes"].as_u64().context("a target has used bytes")
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").args(["--archive", "--"]).arg(from).arg(to).status()?;
    ensure!(status.success(), "copying {}", from.display());
    Ok(())
}

/// The directory that a daemon keeps everything in.
fn data(cluster: &Cluster, daemon: &str) -> PathBuf {
    cluster.dir().join(daemon).join("data")
}

/// Puts an older copy back.
fn restore(older: &Path, data: &Path) -> Result<()> {
    fs::remove_dir_all(data)?;
    copy(older, data)
}

/// Puts an older copy of the target's disk back, and waits until the cluster knows it.
fn put_back(cluster: &Cluster, older: &Path) -> Result<()> {
    restore(older, &data(cluster, "target-0"))?;
    // It ends with 1 if the target has shown by then what it saw of the log.
    drop(cluster.up_once());
    wait_for("a target that is known to be older", || {
        let status = cluster.cli(&["status"]).ok()?.stdout;
        (status.starts_with("degraded") && status.contains(OLDER)).then_some(())
    })
}

/// What is said of such a target.
const OLDER: &str = "is an older copy of itself";

#[test]
fn orphans_of_an_older_metadata_directory_are_only_reported_until_an_operator_trusts_it()
-> Result<()> {
    let cluster = cluster()?;
    let mount = cluster.mount();
    fs::write(mount.join("before"), vec![1; 3_000_000])?;
    cluster.cli(&["dev", "down"])?.ok()?;
    let (state, older) = (data(&cluster, "metadata"), cluster.scratch()?.join("older"));
    copy(&state, &older)?;
    cluster.up()?;
    fs::write(mount.join("after"), vec![2; 20_000_000])?;
    fs::File::open(mount.join("after"))?.sync_all()?;
    // A check of a cluster in order finds nothing, and lets the target see this run's log.
    let sound = check(&cluster, &[])?;
    assert_eq!(
        (&sound["orphans"]["contents"], &sound["missing"]["contents"]),
        (&0.into(), &0.into())
    );
    cluster.daemon("mount-0")?.kill()?;
    cluster.daemon("metadata")?.kill()?;
    restore(&older, &state)?;
    // It ends with 1 if a target has told by then: the cluster is degraded.
    drop(cluster.up_once());
    let held_back = check(&cluster, &[])?;
    assert_eq!(held_back["orphans"]["size_bytes"], 20_000_000, "{held_back}");
    assert_eq!(held_back["queued"]["contents"], 0, "{held_back}");
    let why = held_back["distrust"].as_str().context("a doubt")?;
    assert!(why.contains("older copy"), "{why}");
    let status = cluster.cli(&["status"])?.stdout;
    assert!(status.starts_with("degraded") && status.contains(why), "{status}");
    let before = used(&cluster)?;
    cluster.cli(&["fsck", "trust"])?.ok()?;
    let freed = check(&cluster, &[])?;
    assert_eq!(freed["queued"], freed["orphans"], "{freed}");
    assert_eq!(freed["queued"]["size_bytes"], 20_000_000, "{freed}");
    wait_for("the space", || (used(&cluster).ok()? + 20_000_000 <= before).then_some(()))?;
    wait_for("a healthy cluster", || {
        (cluster.json(&["status"]).ok()?["health"] == "healthy").then_some(())
    })?;
    assert_eq!(check(&cluster, &[])?["orphans"]["contents"], 0);
    assert_eq!(fs::read(mount.join("before"))?, vec![1; 3_000_000]);
    Ok(())
}

#[test]
fn what_a_target_lost_is_reported_with_the_paths_of_the_files_that_need_it() -> Result<()> {
    let cluster = cluster()?;
    let mount = cluster.mount();
    fs::create_dir(mount.join("run7"))?;
    fs::write(mount.join("old"), vec![4; 1_000_000])?;
    cluster.cli(&["dev", "down"])?.ok()?;
    let (disk, older) = (data(&cluster, "target-0"), cluster.scratch()?.join("older"));
    copy(&disk, &older)?;
    cluster.up()?;
    fs::write(mount.join("run7/model.pt"), vec![3; 10_000_000])?;
    fs::write(mount.join("empty"), "")?;
    // The target has shown by then what it saw of this run's log.
    check(&cluster, &[])?;
    cluster.cli(&["dev", "down"])?.ok()?;
    // The target comes back as it was before the file.
    put_back(&cluster, &older)?;
    cluster.cli(&["fsck", "trust"])?.ok()?;
    let report = check(&cluster, &[])?;
    assert_eq!(report["missing"]["contents"], 1, "{report}");
    assert_eq!(report["missing"]["size_bytes"], 10_000_000, "{report}");
    assert_eq!(report["findings"][0]["path"], "/run7/model.pt", "{report}");
    let status = cluster.cli(&["status"])?;
    assert!(status.stdout.contains("/run7/model.pt"), "{}", status.stdout);
    Ok(())
}

#[test]
fn an_older_copy_of_a_target_is_not_served_and_the_right_disk_is_again() -> Result<()> {
    let cluster = cluster()?;
    let path = cluster.mount().join("file");
    fs::write(&path, vec![1; 3_000_000])?;
    cluster.cli(&["dev", "down"])?.ok()?;
    let (disk, scratch) = (data(&cluster, "target-0"), cluster.scratch()?);
    let (older, right) = (scratch.join("older"), scratch.join("right"));
    copy(&disk, &older)?;
    cluster.up()?;
    // In place: only the target knows that it has other bytes now.
    let file = fs::File::options().write(true).open(&path)?;
    file.write_all_at(&vec![2; 3_000_000], 0)?;
    file.sync_all()?;
    drop(file);
    // The target has shown by then what it saw of this run's log.
    check(&cluster, &[])?;
    cluster.cli(&["dev", "down"])?.ok()?;
    copy(&disk, &right)?;
    put_back(&cluster, &older)?;
    wait_for("the daemon's word", || {
        cluster.cli(&["target", "list"]).ok()?.stdout.contains(OLDER).then_some(())
    })?;
    cluster.cli(&["dev", "down"])?.ok()?;
    restore(&right, &disk)?;
    cluster.up()?;
    assert_eq!(fs::read(&path)?, vec![2; 3_000_000]);
    Ok(())
}

#[test]
fn an_object_is_replaced_while_it_is_fetched_and_checked_and_nothing_in_use_is_freed() -> Result<()>
{
    const LEN: usize = 40_000_000;
    let bucket = Bucket::start()?;
    bucket.put("set/file", &vec![1; LEN])?;
    let wish = Wish { environment: short_lease(), ..Wish::default() };
    let cluster = Cluster::start(wish.with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--refresh", "1"])?.ok()?;
    let path = cluster.mount().join("set/file");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let reader = scope.spawn(|| read_until(&stop, &path, LEN));
        let replaced = replace_during_checks(&cluster, &bucket, LEN);
        stop.store(true, Ordering::Relaxed);
        let whole = reader.join().expect("the reader fails in words")?;
        ensure!(whole > 0, "some reads saw a whole version");
        replaced
    })?;
    let last = vec![LAST; LEN];
    wait_for("the last version", || fs::read(&path).ok().filter(|read| *read == last))?;
    let report = check(&cluster, &[])?;
    assert_eq!(report["missing"]["contents"], 0, "{report}");
    assert_eq!(check(&cluster, &[])?["orphans"]["contents"], 0, "nothing is left behind");
    // From here on a freed chunk would be gone for good.
    cluster.cli(&["link", "set", "mr:/set", "--refresh", "0"])?.ok()?;
    drop(bucket);
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    ensure!(fs::read(second.join("set/file"))? == last, "all of it is on the targets");
    Ok(())
}

/// What the object holds in the end.
const LAST: u8 = 4;

/// Replaces the object in each state of a check.
fn replace_during_checks(cluster: &Cluster, bucket: &Bucket, len: usize) -> Result<()> {
    for (version, state) in (2..=LAST).zip(["listing", "waiting", "confirming"]) {
        wait_for("a check", || cluster.cli(&["fsck", "start"]).ok()?.succeeded().then_some(()))?;
        wait_for(state, || {
            // A check that is past it, or so fast that it was not seen there, is as good.
            let now = cluster.json(&["fsck", "show"]).ok()?["state"].as_str()?.to_owned();
            (now == state || now == "done").then_some(())
        })?;
        bucket.put("set/file", &vec![version; len])?;
        let ended = cluster.cli(&["--json", "fsck", "show", "--wait"])?;
        let report: Value = serde_json::from_str(&ended.stdout)?;
        ensure!(report["missing"]["contents"] == 0, "{report}");
    }
    Ok(())
}

/// Reads the file again and again: whole versions, or ESTALE. Returns how often it was whole.
fn read_until(stop: &AtomicBool, path: &Path, len: usize) -> Result<u32> {
    let mut whole = 0;
    while !stop.load(Ordering::Relaxed) {
        match fs::read(path) {
            Ok(read) => {
                ensure!(read.len() == len && read.iter().all(|byte| *byte == read[0]), "a mix");
                whole += 1;
            }
            Err(error) if is_stale(&error) => {}
            Err(error) => return Err(error).context("reading"),
        }
    }
    Ok(whole)
}

fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::STALE.raw_os_error())
}

#[test]
fn a_check_in_which_each_daemon_is_killed_is_made_again_and_harms_no_file() -> Result<()> {
    let cluster = cluster()?;
    let mount = cluster.mount();
    fs::write(mount.join("removed"), vec![7; 12_000_000])?;
    fs::write(mount.join("kept"), vec![8; 9_000_000])?;
    fs::File::open(mount.join("kept"))?.sync_all()?;
    cluster.cli(&["dev", "down"])?.ok()?;
    let (disk, older) = (data(&cluster, "target-0"), cluster.scratch()?.join("older"));
    copy(&disk, &older)?;
    cluster.up()?;
    let before = used(&cluster)?;
    fs::remove_file(mount.join("removed"))?;
    wait_for("the space", || (used(&cluster).ok()? + 12_000_000 <= before).then_some(()))?;
    check(&cluster, &[])?;
    cluster.cli(&["dev", "down"])?.ok()?;
    // The target comes back with what it has freed: nobody remembers that.
    put_back(&cluster, &older)?;
    cluster.cli(&["fsck", "trust"])?.ok()?;
    for daemon in ["metadata", "target-0"] {
        wait_for("a second look", || {
            drop(cluster.cli(&["fsck", "start"]));
            let state = cluster.json(&["fsck", "show"]).ok()?["state"].as_str()?.to_owned();
            (state == "waiting").then_some(())
        })?;
        cluster.crash(daemon)?;
    }
    wait_for("the check", || {
        let state = cluster.json(&["fsck", "show"]).ok()?["state"].as_str()?.to_owned();
        (!["listing", "waiting", "confirming"].contains(&state.as_str())).then_some(())
    })?;
    // The one before may have freed it already: its target was back in time.
    check(&cluster, &[])?;
    wait_for("the space", || (used(&cluster).ok()? + 12_000_000 <= before).then_some(()))?;
    assert_eq!(check(&cluster, &[])?["orphans"]["contents"], 0);
    assert_eq!(fs::read(mount.join("kept"))?, vec![8; 9_000_000]);
    Ok(())
}
