//! Space comes back, also what nobody remembers; and what a target lacks is told by its path.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
};
use serde_json::Value;

/// A cluster of one target, so that it has part of every file, with short leases, for which checks
/// wait.
fn cluster() -> Result<Cluster> {
    let environment = vec![("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned())];
    Cluster::start(Wish { targets: 1, environment, ..Wish::default() })
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
    let status = cluster.json(&["status"])?;
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
    cluster.up()?;
    let held_back = check(&cluster, &[])?;
    assert_eq!(held_back["orphans"]["size_bytes"], 20_000_000, "{held_back}");
    assert_eq!(held_back["queued"]["contents"], 0, "{held_back}");
    let why = held_back["distrust"].as_str().context("a doubt")?;
    assert!(why.contains("older copy"), "{why}");
    let before = used(&cluster)?;
    cluster.cli(&["fsck", "trust"])?.ok()?;
    let freed = check(&cluster, &[])?;
    assert_eq!(freed["queued"], freed["orphans"], "{freed}");
    assert_eq!(freed["queued"]["size_bytes"], 20_000_000, "{freed}");
    wait_for("the space", || (used(&cluster).ok()? + 20_000_000 <= before).then_some(()))?;
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
    cluster.cli(&["dev", "down"])?.ok()?;
    // The target comes back as it was before the file.
    restore(&older, &disk)?;
    cluster.up()?;
    let report = check(&cluster, &[])?;
    assert_eq!(report["missing"]["contents"], 1, "{report}");
    assert_eq!(report["missing"]["size_bytes"], 10_000_000, "{report}");
    assert_eq!(report["findings"][0]["path"], "/run7/model.pt", "{report}");
    let status = cluster.cli(&["status"])?;
    assert!(status.stdout.contains("/run7/model.pt"), "{}", status.stdout);
    Ok(())
}
