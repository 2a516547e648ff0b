//! A target whose disk is full although its settings say that there is room.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
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
    wait_for("the target to be online", || {
        let status = cluster.json(&["status"]).ok()?;
        (status["targets"][0]["state"] == "online").then_some(())
    })?;
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
    let full = cluster.mount().join("full");
    fs::create_dir(&full)?;
    let targets_only = ["stripe", "set", "--inline", "0", full.to_str().context("text")?];
    cluster.cli(&targets_only)?.ok()?;
    let before = many_small(&cluster.mount().join("before"), 20, |files| {
        files.iter().try_for_each(|(path, body)| fs::write(path, body))?;
        let mut inline = Vec::new();
        for (path, body) in files {
            inline.extend(lives_inline(&cluster, &path)?.then_some((path, body)));
        }
        Ok(inline)
    })?;
    for len in [4_000_000, 200_000, 5_000] {
        let refused = (0..10_000)
            .find_map(|number| write(&full.join(format!("{len}-{number}")), &vec![1; len]).err());
        let refused = refused.context("it is never full")?;
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOSPC), "{refused}");
    }
    let refused: Vec<_> = before.iter().filter(|(path, _)| append(path).is_err()).collect();
    ensure!(refused.len() > 10, "{} of {} are refused", refused.len(), before.len());
    for (path, body) in &refused {
        let error = append(path).expect_err("there is no room");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}");
        assert!(fs::read(path)? == *body, "{} is as it was", path.display());
    }
    // What needs no target goes on. A file that the server is asked for has to lie at one.
    let made = many_small(&cluster.mount().join("made"), 10, |files| {
        let mut made = Vec::new();
        for (path, body) in files {
            match fs::write(&path, &body) {
                Ok(()) => made.push((path, body)),
                Err(error) => {
                    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC), "{error}");
                }
            }
        }
        Ok(made)
    })?;
    for (path, body) in &made {
        assert!(fs::read(path)? == *body, "{}", path.display());
    }
    File::create(&refused[0].0)?;
    fs::remove_file(&refused[1].0)?;
    fs::remove_dir_all(&full)?;
    for (path, body) in &refused[2..] {
        wait_for("room", || append(path).ok())?;
        assert!(fs::read(path)? == [&body[..], b"more"].concat(), "{}", path.display());
    }
    Ok(())
}

/// A path, and the bytes that are written there.
type Small = (PathBuf, Vec<u8>);

/// Which of 40 small files in a new directory `make` tells of, once these are more than `least`. A
/// mount makes files by itself where several were made within a second, and only the bytes of those
/// live in their inodes: a busy machine may need another try.
fn many_small(
    parent: &Path,
    least: usize,
    make: impl Fn(Vec<Small>) -> Result<Vec<Small>>,
) -> Result<Vec<Small>> {
    for round in 0..10 {
        let folder = parent.join(format!("round-{round}"));
        fs::create_dir_all(&folder)?;
        for number in 0..8 {
            File::create_new(folder.join(format!("empty-{number}")))?;
        }
        let files = (0..40_u8).map(|number| {
            let path = folder.join(format!("file-{number}"));
            (path, vec![number; 4000])
        });
        let made = make(files.collect())?;
        if made.len() > least {
            return Ok(made);
        }
    }
    bail!("never more than {least} of 40 small files")
}

fn lives_inline(cluster: &Cluster, path: &Path) -> Result<bool> {
    let shown = cluster.json(&["stripe", "show", path.to_str().context("a path of text")?])?;
    Ok(shown["inline_bytes"] == 4000)
}

fn append(path: &Path) -> io::Result<()> {
    File::options().append(true).open(path)?.write_all(b"more")
}

fn write(path: &Path, body: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(body)?;
    file.sync_all()
}
