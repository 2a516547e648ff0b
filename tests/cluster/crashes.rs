//! kill -9 of each daemon: what was fsynced stays, and work goes on after a restart.

use std::{
    fs::{self, File},
    io::Write,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
};

#[test]
fn synced_files_survive_a_crash_of_every_daemon_at_once() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = cluster.mount();
    for index in 0..40_u8 {
        let mut file = File::create_new(mount.join(format!("file-{index}")))?;
        file.write_all(&vec![index; 50_000 * (1 + usize::from(index))])?;
        file.sync_all()?;
    }
    for daemon in cluster.daemons() {
        daemon.kill()?;
    }
    cluster.up()?;
    for index in 0..40_u8 {
        let expected = vec![index; 50_000 * (1 + usize::from(index))];
        assert!(fs::read(mount.join(format!("file-{index}")))? == expected, "file-{index}");
    }
    Ok(())
}

#[test]
fn names_and_contents_survive_a_crash_of_the_servers_without_fsync() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = cluster.mount();
    for index in 0..100 {
        fs::write(mount.join(format!("file-{index}")), format!("content {index}"))?;
    }
    for name in ["metadata", "target-0", "target-1"] {
        cluster.crash(name)?;
    }
    for index in 0..100 {
        let text = fs::read_to_string(mount.join(format!("file-{index}")))?;
        assert_eq!(text, format!("content {index}"));
    }
    Ok(())
}

#[test]
fn a_writer_goes_on_while_servers_crash_under_it() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("log");
    // A process of its own: this one must have no file open on the mount while it starts others,
    // because the copy of the descriptor that a new process closes makes it wait for the servers.
    let mut writer = Command::new("python3").args(["-c", WRITER]).arg(&path).spawn()?;
    for name in ["target-0", "metadata", "target-1"] {
        cluster.crash(name)?;
    }
    let status = wait_for("the writer's end", || writer.try_wait().ok().flatten())?;
    assert!(status.success(), "{status}");
    let expected = (0..60_u8).flat_map(|round| (0..200_000).map(move |_| round));
    assert!(fs::read(&path)?.into_iter().eq(expected));
    Ok(())
}

/// Writes 60 pieces and syncs each.
const WRITER: &str = "import os, sys
with open(sys.argv[1], 'xb', buffering=0) as file:
    for number in range(60):
        assert file.write(bytes([number]) * 200000) == 200000
        os.fsync(file.fileno())
";

#[test]
fn a_request_goes_on_soon_after_the_metadata_servers_return() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    fs::write(&path, "here")?;
    cluster.daemon("metadata")?.kill()?;
    let reader = thread::spawn(move || {
        let read = fs::read(path);
        (read, Instant::now())
    });
    cluster.up()?;
    let returned = Instant::now();
    let (read, answered) = reader.join().expect("the reader does not panic");
    assert_eq!(read?, b"here");
    let late = answered.saturating_duration_since(returned);
    // A second where nothing else runs.
    assert!(late < Duration::from_secs(10), "{late:?} after the server was back");
    let log = cluster.log("metadata");
    assert!(!log.contains("came back without its data"), "the targets were there all the time");
    Ok(())
}

#[test]
fn a_client_that_crashes_can_be_mounted_again() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    fs::write(&path, "before")?;
    cluster.crash("mount-0")?;
    assert_eq!(fs::read(&path)?, b"before");
    fs::write(&path, "after")?;
    assert_eq!(fs::read(&path)?, b"after");
    Ok(())
}

#[test]
fn a_cluster_that_was_taken_down_comes_back_with_its_data() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = cluster.mount();
    fs::write(mount.join("kept"), vec![9; 10_000_000])?;
    cluster.cli(&["dev", "down"])?.ok()?;
    wait_for("the daemons' end", || cluster.daemons().is_empty().then_some(()))?;
    assert!(!mount.join("kept").exists(), "the mount is gone");
    cluster.up()?;
    assert!(fs::read(mount.join("kept"))? == vec![9; 10_000_000]);
    let before = cluster.daemons();
    cluster.up()?;
    assert_eq!(cluster.daemons(), before, "`dev up` leaves what runs");
    Ok(())
}
