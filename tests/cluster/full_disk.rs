//! A target whose disk is full although its settings say that there is room.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    disk::SmallDisk,
    program::wait_for,
};
use rustix::io::Errno;

#[test]
fn a_disk_that_is_really_full_gives_enospc_and_harms_nothing() -> Result<()> {
    let wish = Wish { targets: 1, capacity: Some("1GiB".to_owned()), ..Wish::default() };
    let cluster = Cluster::prepare(wish)?;
    let disk = SmallDisk::mount(cluster.dir().join("target-0/data"), "128m")?;
    cluster.up()?;
    let mount = cluster.mount();
    let body: Vec<u8> = (0..10_000_000_u32).map(|index| index.to_be_bytes()[3]).collect();
    write(&mount.join("before"), &body)?;

    let filled = disk.fill();
    assert_eq!(Errno::from_io_error(&filled), Some(Errno::NOSPC), "{filled}");
    // The target's settings have room for a hundred of these; its file does not get longer.
    let error = (0..3)
        .find_map(|index| write(&mount.join(format!("more-{index}")), &body).err())
        .context("30 MB went onto a full disk")?;
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}");
    assert!(fs::read(mount.join("before"))? == body, "what was stored is there");
    cluster.wait_for_log("target-0", &["refused for lack of space"])?;
    assert_eq!(cluster.json(&["status"])?["targets"][0]["state"], "online");
    for daemon in ["metadata", "target-0", "mount-0"] {
        assert!(cluster.daemon(daemon)?.is_alive(), "{daemon}");
    }
    // Started again, twice, because the first start takes what the one before had put by.
    for _ in 0..2 {
        assert_eq!(Errno::from_io_error(&disk.fill()), Some(Errno::NOSPC));
        cluster.crash("target-0")?;
        assert!(fs::read(mount.join("before"))? == body, "what was stored is served");
    }
    // Removing files needs room in the journal, and gets it.
    fs::remove_file(mount.join("more-0"))?;

    disk.clear()?;
    wait_for("room", || write(&mount.join("after"), &body).ok())?;
    assert!(fs::read(mount.join("after"))? == body);
    cluster.crash("target-0")?;
    assert!(fs::read(mount.join("before"))? == body, "also after a restart");
    assert!(fs::read(mount.join("after"))? == body);
    Ok(())
}

fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(body)?;
    file.sync_all()
}
