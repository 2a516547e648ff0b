//! A target whose disk is full although its settings say that there is room.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
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

#[test]
fn small_files_are_made_beside_a_full_target_and_written_again_when_it_has_room() -> Result<()> {
    let wish = Wish { targets: 1, capacity: Some("128MiB".to_owned()), ..Wish::default() };
    let cluster = Cluster::start(wish)?;
    let (folder, full) = (cluster.mount().join("small"), cluster.mount().join("full"));
    fs::create_dir(&folder)?;
    fs::create_dir(&full)?;
    let targets_only = ["stripe", "set", "--inline", "0", full.to_str().context("text")?];
    cluster.cli(&targets_only)?.ok()?;
    let path = |number: usize| folder.join(format!("file-{number}"));
    let body = |number: usize| vec![number.to_le_bytes()[0]; 4000];
    let lives_inline = |number: usize| -> Result<bool> {
        let path = path(number);
        let shown = cluster.json(&["stripe", "show", path.to_str().context("a path of text")?])?;
        Ok(shown["inline_bytes"] == 4000)
    };
    let mut before = Vec::new();
    for number in 0..40 {
        fs::write(path(number), body(number))?;
    }
    for number in 0..40 {
        before.extend(lives_inline(number)?.then_some(number));
    }
    ensure!(before.len() > 20, "{} of 40 live in their inodes", before.len());
    for len in [4_000_000, 200_000, 5_000] {
        let refused = (0..10_000)
            .find_map(|number| write(&full.join(format!("{len}-{number}")), &vec![1; len]).err());
        let refused = refused.context("it is never full")?;
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOSPC), "{refused}");
    }
    let append = |number: usize| -> io::Result<()> {
        File::options().append(true).open(path(number))?.write_all(b"more")
    };
    let refused: Vec<_> = before.iter().filter(|number| append(**number).is_err()).collect();
    ensure!(refused.len() > 10, "{} of {} are refused", refused.len(), before.len());
    for &&number in &refused {
        let error = append(number).expect_err("there is no room");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}");
        assert!(fs::read(path(number))? == body(number), "{number} is as it was");
    }
    // What needs no target goes on. A file that the server is asked for has to lie at one.
    let mut made = Vec::new();
    for number in 100..140 {
        match fs::write(path(number), body(number)) {
            Ok(()) => made.push(number),
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}"),
        }
    }
    ensure!(made.len() > 10, "{} of 40 are made", made.len());
    for number in made {
        assert!(fs::read(path(number))? == body(number), "{number}");
    }
    File::create(path(*refused[0]))?;
    fs::remove_file(path(*refused[1]))?;
    fs::remove_dir_all(&full)?;
    for &&number in &refused[2..] {
        wait_for("room", || append(number).ok())?;
        assert!(fs::read(path(number))? == [body(number), b"more".to_vec()].concat(), "{number}");
    }
    Ok(())
}

fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(body)?;
    file.sync_all()
}
