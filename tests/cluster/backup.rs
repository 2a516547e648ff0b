//! A backup made under load, put back, and the whole cluster going on from it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
};
use serde_json::Value;

/// A cluster with short leases, for which checks wait.
fn cluster() -> Result<Cluster> {
    let short = vec![("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned())];
    Cluster::start(Wish { targets: 1, environment: short, ..Wish::default() })
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("our paths are UTF-8")
}

/// Status, also of a degraded cluster.
fn problems(cluster: &Cluster) -> Result<String> {
    let status: Value = serde_json::from_str(&cluster.cli(&["--json", "status"])?.stdout)?;
    Ok(status["problems"].to_string())
}

/// Runs a check to its end, once every target has shown what it saw of the log.
fn check(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let all = [&["--json", "fsck", "start", "--wait"], arguments].concat();
    wait_for("a check of every target", || {
        let report: Value = serde_json::from_str(&cluster.cli(&all).ok()?.stdout).ok()?;
        let whole = report["targets"].as_array()?.iter().all(|t| t["not_checked"].is_null());
        (whole && report["state"] == "done").then_some(report)
    })
}

#[test]
fn a_cluster_goes_on_from_a_backup_with_what_was_in_it_and_frees_the_rest_when_told() -> Result<()>
{
    let cluster = cluster()?;
    let mount = cluster.mount();
    let kept: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    fs::write(mount.join("kept"), &kept)?;
    fs::create_dir(mount.join("directory"))?;
    fs::write(mount.join("directory/small"), b"small")?;
    fs::File::open(mount.join("kept"))?.sync_all()?;
    let backup = cluster.scratch()?.join("backup");
    let said = cluster.json(&["metadata", "backup", text(&backup)?])?;
    assert_eq!(said["size_bytes"].as_u64(), Some(fs::metadata(&backup)?.len()));
    assert!(!cluster.cli(&["metadata", "backup", text(&backup)?])?.succeeded(), "it exists");
    cluster.cli(&["metadata", "backup", "--force", text(&backup)?])?.ok()?;
    assert_eq!(fs::read_dir(cluster.dir().join("metadata/data/snapshots"))?.count(), 0);

    fs::write(mount.join("later"), vec![2; 20_000_000])?;
    fs::File::open(mount.join("later"))?.sync_all()?;
    check(&cluster, &[])?;

    let data = cluster.dir().join("metadata/data");
    let refused = cluster.cli(&["metadata", "restore", text(&backup)?])?;
    ensure!(!refused.succeeded(), "the server runs, and the directory is not empty");
    cluster.cli(&["dev", "down"])?.ok()?;
    fs::rename(&data, data.with_file_name("data.old"))?;
    let said = cluster.json(&["metadata", "restore", text(&backup)?])?;
    assert_eq!(said["data"].as_str(), Some(text(&fs::canonicalize(&data)?)?), "where it is");
    let said = cluster.up_once().expect_err("until an operator has looked at it").to_string();
    ensure!(said.contains("degraded"), "{said}");

    assert_eq!(fs::read(mount.join("kept"))?, kept);
    assert_eq!(fs::read(mount.join("directory/small"))?, b"small");
    assert!(!mount.join("later").exists());
    ensure!(problems(&cluster)?.contains("a backup was put back"), "{}", problems(&cluster)?);
    let found = check(&cluster, &["--free-many"])?;
    assert!(found["orphans"]["size_bytes"].as_u64() >= Some(20_000_000), "{found}");
    assert_eq!(found["queued"]["contents"], 0, "nothing is freed before an operator says so");
    fs::write(mount.join("new"), vec![3; 1_000_000])?;
    fs::write(mount.join("kept"), b"emptied and written")?;

    cluster.cli(&["fsck", "trust"])?.ok()?;
    let freed = check(&cluster, &["--free-many"])?;
    assert!(freed["queued"]["size_bytes"].as_u64() >= Some(20_000_000), "{freed}");
    assert_eq!(fs::read(mount.join("kept"))?, b"emptied and written");
    assert_eq!(fs::read(mount.join("new"))?, vec![3; 1_000_000]);
    Ok(())
}

/// Small snapshots, many of them, and a server that is killed: the head of its log is gone.
#[test]
fn a_store_that_is_deleted_under_a_short_log_is_made_anew() -> Result<()> {
    let environment = vec![
        ("MILLRACE_COMMAND_LOG__SEGMENT".to_owned(), "1MiB".to_owned()),
        ("MILLRACE_COMMAND_LOG__SNAPSHOT".to_owned(), "1MiB".to_owned()),
    ];
    let cluster = Cluster::start(Wish { targets: 1, environment, ..Wish::default() })?;
    let (mount, data) = (cluster.mount(), cluster.dir().join("metadata/data"));
    let names = |sub: &str, ending: &str| -> Vec<String> {
        let entries = fs::read_dir(data.join(sub)).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(ending)).collect()
    };
    let first = format!("{:020}.log", 1);
    let mut made = 0;
    while names("log", ".log").contains(&first) {
        for _ in 0..500 {
            let target = format!("{made}-{}", "x".repeat(3_000));
            std::os::unix::fs::symlink(target, mount.join(format!("name-{made}")))?;
            made += 1;
        }
        ensure!(made < 20_000, "the log is never shortened");
    }
    // The oldest goes when the newest is safe.
    wait_for("two snapshots", || (names("snapshots", ".snapshot").len() == 2).then_some(()))?;
    cluster.crash("metadata")?;
    let removed = Command::new("rm").arg("--recursive").arg(data.join("store-lsm")).status()?;
    ensure!(removed.success(), "the store is gone");
    cluster.up()?;
    for number in 0..made {
        let target = fs::read_link(mount.join(format!("name-{number}")))?;
        assert!(text(&target)?.starts_with(&format!("{number}-x")), "{number}");
    }
    Ok(())
}
