//! Targets that are added to a cluster by `millrace target add`, and what they are there for.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{binaries, wait_for},
};

const CAPACITY: &str = "256MiB";

/// The ids of the targets that are online.
fn online(cluster: &Cluster) -> Result<Vec<String>> {
    let listed = cluster.json(&["target", "list"])?;
    let targets = listed.as_array().context("a list")?.iter();
    let online = targets.filter(|target| target["state"] == "online");
    online.map(|one| Ok(one["id"].as_str().context("each has an id")?.to_owned())).collect()
}

/// Waits until there is a further target, and until it has bytes of new files. Its id.
fn check_it_is_used(cluster: &Cluster, old: &str) -> Result<String> {
    let new = wait_for("the added target", || {
        let online = online(cluster).ok().filter(|online| online.len() == 2)?;
        online.into_iter().find(|id| id != old)
    })?;
    let mut files = 0;
    wait_for("the added target to take files", || {
        files += 1;
        fs::write(cluster.mount().join(format!("file-{files}")), vec![7; 200_000]).ok()?;
        let shown = cluster.json(&["target", "show", &new]).ok()?;
        shown["space"]["written_bytes"].as_u64().filter(|bytes| *bytes > 0)
    })?;
    Ok(new)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary path is text")
}

#[test]
fn a_directory_that_is_added_takes_new_files_after_a_restart_of_the_daemon() -> Result<()> {
    let wish = Wish { targets: 1, capacity: Some(CAPACITY.to_owned()), ..Wish::default() };
    let cluster = Cluster::start(wish)?;
    let config = cluster.dir().join("target-0/target.toml");
    let disk = cluster.scratch()?.join("disk");
    let before = fs::read_to_string(&config)?;
    let add = ["target", "add", text(&disk)?, "--config", text(&config)?, "--capacity", CAPACITY];

    let missing = cluster.cli(&add)?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("is not there"), "{missing}");
    fs::create_dir(&disk)?;
    fs::write(disk.join("somebody's"), "file")?;
    let foreign = cluster.cli(&add)?;
    ensure!(foreign.code == Some(1) && foreign.stderr.contains("not empty"), "{foreign}");
    fs::remove_file(disk.join("somebody's"))?;
    // What the daemon's own program would not take is not written.
    fs::write(&config, format!("nonsense = 1\n{before}"))?;
    let refused = cluster.cli(&add)?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("nonsense"), "{refused}");
    assert_eq!(fs::read_to_string(&config)?, format!("nonsense = 1\n{before}"));
    fs::write(&config, &before)?;
    let of_dev = cluster.cli(&["target", "add", text(&disk)?])?;
    ensure!(of_dev.code == Some(2) && of_dev.stderr.contains("--targets"), "{of_dev}");

    let unlike = cluster.cli(&[&add[..], &["--id", "0011223344556677"]].concat())?;
    ensure!(unlike.code == Some(1) && unlike.stderr.contains("has no target"), "{unlike}");
    let added = cluster.json(&add)?;
    ensure!(added["added"] == true && added["holds_target"] == false, "{added}");
    let after = fs::read_to_string(&config)?;
    ensure!(after.contains(text(&disk)?), "{after}");
    for line in before.lines() {
        ensure!(after.contains(line), "{line} is gone: {after}");
    }
    let again = cluster.json(&add)?;
    ensure!(again["added"] == false, "{again}");
    assert_eq!(fs::read_to_string(&config)?, after, "it was there already");

    let old = online(&cluster)?.pop().context("one target")?;
    cluster.daemon("target-0")?.kill()?;
    // As a service manager does it: `dev up` would write the settings anew.
    let mut daemon = Command::new(binaries().join("millrace-target"))
        .arg("--config")
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let used = check_it_is_used(&cluster, &old);
    daemon.kill()?;
    daemon.wait()?;
    let new = used?;

    // To settings that do not name it the directory is added with its own id alone.
    fs::write(&config, &before)?;
    let with = |id| [&add[..], &["--id", id]].concat();
    let wrong = cluster.cli(&with(old.as_str()))?;
    ensure!(wrong.code == Some(1) && wrong.stderr.contains(&new), "{wrong}");
    assert_eq!(fs::read_to_string(&config)?, before);
    let right = cluster.json(&with(new.as_str()))?;
    ensure!(right["added"] == true && right["holds_target"] == true, "{right}");
    Ok(())
}
