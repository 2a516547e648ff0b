//! Many files that are closed at the same time, of which the metadata server hears together.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    thread,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::cluster::{Cluster, Wish};
use rustix::io::Errno;

use crate::quiet_opens::{used, wait_for_used};

const THREADS: usize = 8;
const FILES: usize = 60;
const LEN: usize = 64 * 1024;

#[test]
fn what_was_removed_while_it_was_written_is_freed_when_it_is_closed() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let mount = cluster.mount();
    let before = used(&cluster)?;
    let mut open = Vec::new();
    for number in 0..THREADS * FILES {
        let path = mount.join(number.to_string());
        let mut file = File::create(&path)?;
        file.write_all(&[7; LEN])?;
        file.sync_data()?;
        fs::remove_file(&path)?;
        open.push(file);
    }
    let len = u64::try_from(THREADS * FILES * LEN)?;
    wait_for_used(&cluster, "all to be stored", |used| used >= before + len)?;
    thread::scope(|scope| {
        while !open.is_empty() {
            let some = open.split_off(open.len().saturating_sub(FILES));
            scope.spawn(move || drop(some));
        }
    });
    wait_for_used(&cluster, "what nobody has open to be freed", |used| used < before + len / 50)
}

#[test]
fn a_close_is_told_after_the_server_was_away_for_longer_than_the_mount_has_patience() -> Result<()>
{
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let identity = cluster.dir().join("client.pem");
    // Longer than any fsync takes, also on a busy machine.
    cluster.mount_as("soft", &identity, "timeout=5s")?.ok()?;
    let mount = cluster.mount_named("soft");
    let before = used(&cluster)?;
    let mut open = Vec::new();
    for number in 0..FILES * 4 {
        let path = mount.join(number.to_string());
        let mut file = File::create(&path)?;
        file.write_all(&[7; LEN])?;
        file.sync_all()?;
        fs::remove_file(&path)?;
        open.push(file);
    }
    let len = u64::try_from(FILES * 4 * LEN)?;
    wait_for_used(&cluster, "all to be stored", |used| used >= before + len)?;
    cluster.daemon("metadata")?.kill()?;
    drop(open);
    // The closes were to be told of before these are given up, each after five seconds.
    for name in ["one", "two", "three"] {
        let refused = fs::create_dir(mount.join(name)).expect_err("nobody answers");
        ensure!(Errno::from_io_error(&refused) == Some(Errno::IO), "{refused}");
    }
    cluster.up()?;
    wait_for_used(&cluster, "what nobody has open to be freed", |used| used < before + len / 50)
}

#[test]
fn an_open_that_is_answered_later_than_the_mount_has_patience_does_not_stay() -> Result<()> {
    // Longer than the two opens take to be given up, also on a busy machine.
    let lease = ("MILLRACE_SESSIONS__LEASE".to_owned(), "30s".to_owned());
    let wish = Wish { targets: 1, environment: vec![lease], ..Wish::default() };
    let cluster = Cluster::start(wish)?;
    let identity = cluster.dir().join("client.pem");
    cluster.mount_as("soft", &identity, "timeout=3s")?.ok()?;
    // Has all the patience that it needs.
    let other = cluster.mount_named("other");
    cluster.mount_also(&other)?;
    let (first, soft) = (cluster.mount(), cluster.mount_named("soft"));
    let before = used(&cluster)?;
    fs::create_dir(first.join("d"))?;
    ensure!(fs::read_dir(first.join("d"))?.count() == 0);
    let _open = File::create(first.join("written"))?;
    // The server has the lease of who holds the directory and the file end, before it answers.
    cluster.daemon("mount-0")?.kill()?;
    for refused in [File::create(soft.join("d/new")), File::create(soft.join("written"))] {
        let refused = refused.err().context("who has to hear of it is dead")?;
        ensure!(Errno::from_io_error(&refused) == Some(Errno::IO), "{refused}");
    }
    cluster.wait_for_log("metadata", &["its lease ran out"])?;
    ensure!(other.join("d/new").exists(), "it was made although nobody was told");
    for path in ["d/new", "written"] {
        fs::write(other.join(path), vec![7; 4 << 20])?;
    }
    wait_for_used(&cluster, "all to be stored", |used| used >= before + (8 << 20))?;
    for path in ["d/new", "written"] {
        fs::remove_file(other.join(path))?;
    }
    wait_for_used(&cluster, "what nobody has open to be freed", |used| used < before + (1 << 20))
}

#[test]
fn files_that_are_made_in_a_burst_are_whole_after_a_kill_of_the_server_that_hears_of_it()
-> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let (mount, before) = (cluster.mount(), used(&cluster)?);
    let make = |thread: usize| -> Result<()> {
        for number in 0..FILES {
            let path = mount.join(format!("{thread}.{number}"));
            fs::write(&path, path.as_os_str().as_encoded_bytes())?;
            // Opened and closed again at once: each close is of one open.
            OpenOptions::new().append(true).open(&path)?.write_all(b"+")?;
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> =
            (0..THREADS).map(|number| scope.spawn(move || make(number))).collect();
        cluster.crash("metadata")?;
        cluster.up()?;
        for thread in threads {
            thread.join().expect("no panic")?;
        }
        Ok(())
    })?;
    for (thread, number) in (0..THREADS).flat_map(|thread| (0..FILES).map(move |n| (thread, n))) {
        let path = mount.join(format!("{thread}.{number}"));
        let mut wanted = path.as_os_str().as_encoded_bytes().to_vec();
        wanted.push(b'+');
        ensure!(fs::read(&path).with_context(|| path.display().to_string())? == wanted);
        fs::remove_file(&path)?;
    }
    // Each open was closed once, however often the server was told.
    wait_for_used(&cluster, "all to be freed", |used| used < before + (1 << 16))
}
