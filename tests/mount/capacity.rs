//! What `df` shows follows what is written and removed, on every mount alike.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{run, wait_for},
};
use rustix::fs::statvfs;

/// Of each target, of which a part is for itself.
const CAPACITY: u64 = 256 << 20;
const FILES: u64 = 40;
const LEN: u64 = 1 << 20;
/// What may stay for the targets' own: indexes, and what they write meanwhile.
const REST: u64 = 16 << 20;

/// Bytes in all, of these used, and inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shown {
    bytes: u64,
    used: u64,
    inodes: u64,
}

fn shown(mount: &Path) -> Result<Shown> {
    let told = statvfs(mount)?;
    ensure!(told.f_bavail == told.f_bfree && told.f_favail == told.f_ffree, "nothing is reserved");
    let used = told.f_blocks.checked_sub(told.f_bfree).context("more is free than there is")?;
    let inodes = told.f_files.checked_sub(told.f_ffree).context("more is free than there is")?;
    Ok(Shown { bytes: told.f_blocks * told.f_frsize, used: used * told.f_frsize, inodes })
}

/// Targets tell how much they hold with their heartbeats: what all mounts show in the end.
fn all_show(mounts: &[PathBuf], what: &str, is_so: impl Fn(Shown) -> bool) -> Result<()> {
    wait_for(what, || {
        let all: Vec<_> = mounts.iter().map(|mount| shown(mount)).collect::<Result<_>>().ok()?;
        (all.iter().all(|&one| is_so(one)) && all.iter().all(|one| *one == all[0])).then_some(())
    })
}

#[test]
fn room_and_files_go_with_what_is_written_and_come_back_with_what_is_removed() -> Result<()> {
    let wish = Wish { capacity: Some(format!("{}MiB", CAPACITY >> 20)), ..Wish::default() };
    let cluster = Cluster::start(wish)?;
    fs::create_dir(cluster.mount().join("folder"))?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    // One that shows a part of the tree shows the room of all of it.
    cluster.mount_as("part", &cluster.dir().join("client.pem"), "path=/folder")?.ok()?;
    let part = cluster.mount_named("part");
    let mounts = [cluster.mount(), second, part.clone()];
    let before = wait_for("the room of both targets", || {
        shown(&mounts[0]).ok().filter(|now| now.bytes > CAPACITY && now.bytes <= 2 * CAPACITY)
    })?;

    for number in 0..FILES {
        let file = File::create_new(part.join(number.to_string()))?;
        file.write_all_at(&vec![7; usize::try_from(LEN)?], 0)?;
        file.sync_all()?;
    }
    all_show(&mounts, "room that is taken", |now| {
        now.bytes == before.bytes
            && now.used + REST >= before.used + FILES * LEN
            && now.used <= before.used + FILES * LEN + REST
            && now.inodes == before.inodes + FILES
    })?;
    let told = run("df", &[&"--block-size=1", &"--output=size,used,iused", &mounts[1]])?.ok()?;
    let row = told.lines().nth(1).context("a row below the heads")?;
    let row: Vec<u64> =
        row.split_whitespace().map(|word| Ok(word.parse()?)).collect::<Result<_>>()?;
    ensure!(row[0] == before.bytes && row[1] + REST >= FILES * LEN, "{told}");
    ensure!(row[2] == before.inodes + FILES, "{told}");

    // Half of them are removed by another mount; the others lose their bytes and stay.
    let path = |number: u64| mounts[1].join("folder").join(number.to_string());
    for number in 0..FILES {
        if number % 2 == 0 {
            fs::remove_file(path(number))?;
        } else {
            File::options().write(true).open(path(number))?.set_len(0)?;
        }
    }
    all_show(&mounts, "room that has come back", |now| {
        now.bytes == before.bytes
            && now.used <= before.used + REST
            && now.inodes == before.inodes + FILES / 2
    })?;
    for number in (1..FILES).step_by(2) {
        fs::remove_file(path(number))?;
    }
    all_show(&mounts, "inodes that have come back", |now| now.inodes == before.inodes)
}
