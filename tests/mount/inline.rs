//! Small files whose bytes live at the metadata server: read without the targets, and whole
//! whatever is done with them, by whom, and whoever dies meanwhile.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    delegated::delegated,
    program::wait_for,
    requests::{answered, serving},
    starter::Starter,
};
use rustix::fs::OFlags;

use crate::{
    access_times::mount,
    delegations::{mounts, soon},
};

/// As many bytes as the name says, each file with its own.
fn bytes_of(number: usize) -> Vec<u8> {
    (0..number * 37 % 4096 + 1).map(|at| ((at * 7 + number) % 251).to_le_bytes()[0]).collect()
}

/// How many bytes of a file live in its inode.
fn inline_bytes(cluster: &Cluster, path: &Path) -> Result<u64> {
    let path = path.to_str().context("a path of text")?;
    let shown = cluster.json(&["stripe", "show", path])?;
    shown["inline_bytes"].as_u64().with_context(|| format!("{shown}"))
}

/// A new directory with a file `f` that holds `text` in its inode, which nobody has open.
fn with_small(cluster: &Cluster, parent: &Path, name: &str, text: &[u8]) -> Result<()> {
    let directory = delegated(parent, name)?;
    let path = directory.join("f");
    for _ in 0..100 {
        fs::write(&path, text)?;
        if inline_bytes(cluster, &path)? == u64::try_from(text.len())? {
            return Ok(());
        }
        // The server was asked for this one: the right to make files had just ended.
        fs::remove_file(&path)?;
    }
    anyhow::bail!("no file of {} bytes lives in its inode", text.len())
}

fn check(cluster: &Cluster) -> Result<()> {
    let checked = cluster.cli(&["fsck", "start", "--wait"])?;
    ensure!(checked.succeeded(), "{checked:?}");
    Ok(())
}

#[test]
fn small_files_are_read_on_any_host_while_the_targets_are_silent() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    let here = delegated(&one, "d")?;
    for number in 0..200 {
        fs::write(here.join(number.to_string()), bytes_of(number))?;
    }
    let mut small = Vec::new();
    for number in 0..200 {
        let there = two.join("d").join(number.to_string());
        match inline_bytes(&cluster, &there)? {
            0 => {}
            len => {
                ensure!(len == u64::try_from(bytes_of(number).len())?, "{number}: {len}");
                small.push(number);
            }
        }
    }
    ensure!(small.len() > 50, "{} of 200 live in their inodes", small.len());
    let read = |mount: &Path, numbers: &[usize]| -> Result<()> {
        for &number in numbers {
            let path = mount.join("d").join(number.to_string());
            let found = soon(move || fs::read(path))??;
            ensure!(found == bytes_of(number), "{number}");
        }
        Ok(())
    };
    let mut silent = Vec::new();
    for daemon in cluster.daemons().into_iter().filter(|daemon| daemon.name.contains("target")) {
        silent.push(daemon.pause()?);
    }
    ensure!(!silent.is_empty());
    read(&two, &small)?;
    read(&one, &small)?;
    drop(silent);
    cluster.crash("metadata")?;
    read(&two, &(0..200).collect::<Vec<_>>())?;
    check(&cluster)
}

#[test]
fn what_opens_small_files_outlives_their_bytes() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let here = many_small(&cluster)?;
    // It keeps less than half a mebibyte of their 0.8.
    let reader = mount(&cluster, "reader", "", &[("MILLRACE_CACHE__NAMES", "1MiB")])?;
    let there = looked_at(&cluster, &reader.path)?;
    let jumping = || (0..FILES).map(|nth| nth * 37 % FILES);
    opened_quietly(&cluster, &there)?;
    // From the kernel's pages: who opens them again needs nobody.
    let paused = cluster.daemon("metadata")?.pause()?;
    jumping().try_for_each(|number| read_small(&there, number, OFlags::empty()))?;
    drop(paused);
    // Past these pages: from the server again, each with what is read next.
    let before = answered(&cluster)?;
    (0..FILES).try_for_each(|number| read_small(&there, number, OFlags::DIRECT))?;
    let more = answered(&cluster)?;
    let more = |kind| more.get(kind).unwrap_or(&0) - before.get(kind).unwrap_or(&0);
    let (asked, most) = (more("ShowContents") + more("GetInode"), u64::try_from(FILES / 2)?);
    ensure!((1..most).contains(&asked), "{asked} questions");
    check_changed(&here, &there)?;
    reader.end()?;
    check(&cluster)
}

#[test]
fn bytes_of_small_files_that_were_read_stay_where_there_is_room() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let here = many_small(&cluster)?;
    let reader = mount(&cluster, "reader", "", &[])?;
    let there = looked_at(&cluster, &reader.path)?;
    opened_quietly(&cluster, &there)?;
    // Past the kernel's pages, which a host may have needed for something else.
    let paused = cluster.daemon("metadata")?.pause()?;
    (0..FILES).try_for_each(|number| read_small(&there, number, OFlags::DIRECT))?;
    drop(paused);
    check_changed(&here, &there)?;
    reader.end()?;
    check(&cluster)
}

/// Prime to 37.
const FILES: usize = 400;

/// Makes so many files of [`bytes_of`] in a directory.
fn many_small(cluster: &Cluster) -> Result<PathBuf> {
    let here = delegated(&cluster.mount(), "d")?;
    for number in 0..FILES {
        fs::write(here.join(number.to_string()), bytes_of(number))?;
    }
    Ok(here)
}

/// The same directory on another mount, when its maker has given back that it may make files by
/// itself.
fn looked_at(cluster: &Cluster, mount: &Path) -> Result<PathBuf> {
    let there = mount.join("d");
    fs::create_dir(there.join("change"))?;
    for number in 150..170 {
        let len = u64::try_from(bytes_of(number).len())?;
        let found = inline_bytes(cluster, &there.join(number.to_string()))?;
        ensure!(found == len, "{number} is not in its inode");
    }
    Ok(there)
}

/// Reads all of them, in no order, until none has to be asked for: somebody has just changed their
/// directory.
fn opened_quietly(cluster: &Cluster, there: &Path) -> Result<()> {
    let jumping = || (0..FILES).map(|nth| nth * 37 % FILES);
    wait_for("files that are opened without a message", || {
        let before = answered(cluster).ok()?;
        jumping().try_for_each(|number| read_small(there, number, OFlags::empty())).ok()?;
        let after = answered(cluster).ok()?;
        let is_unasked = |kind: &&str| before.get(*kind) == after.get(*kind);
        ["FindName", "Open", "ShowContents"].iter().all(is_unasked).then_some(())
    })
}

fn read_small(directory: &Path, number: usize, flags: OFlags) -> Result<()> {
    let (path, flags) = (directory.join(number.to_string()), i32::try_from(flags.bits())?);
    let found = soon(move || -> Result<Vec<u8>> {
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let mut all = Vec::new();
        file.read_to_end(&mut all)?;
        Ok(all)
    })??;
    ensure!(found == bytes_of(number), "{number}");
    Ok(())
}

/// Files that are open here show what another host writes to them, whoever has their bytes.
fn check_changed(elsewhere: &Path, here: &Path) -> Result<()> {
    let open = (0..200).map(|number: usize| File::open(here.join(number.to_string())));
    let open = open.collect::<Result<Vec<_>, _>>()?;
    for number in 0..open.len() {
        let file = OpenOptions::new().write(true).open(elsewhere.join(number.to_string()))?;
        file.write_all_at(b"another", 0)?;
    }
    for (number, file) in open.iter().enumerate() {
        let mut found = [0; 7];
        file.read_exact_at(&mut found, 0)?;
        ensure!(found == *b"another", "{number}");
    }
    Ok(())
}

/// Does something with a small file of [`TEXT`]; `there` is how the other mount shows its
/// directory.
type Deed = fn(here: &Path) -> Result<()>;

const TEXT: &[u8] = b"0123456789";

fn open(here: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).write(true).open(here.join("f"))?)
}

const DEEDS: &[(&str, Deed, &[u8])] = &[
    ("byte", |here| Ok(open(here)?.write_all_at(b"x", 3)?), b"012x456789"),
    (
        "append",
        |here| Ok(OpenOptions::new().append(true).open(here.join("f"))?.write_all(b"+")?),
        b"0123456789+",
    ),
    ("hole", |here| Ok(open(here)?.write_all_at(b"e", 12)?), b"0123456789\0\0e"),
    ("shorter", |here| Ok(open(here)?.set_len(4)?), b"0123"),
    ("longer", |here| Ok(open(here)?.set_len(12)?), b"0123456789\0\0"),
    ("emptied", |here| Ok(open(here)?.set_len(0)?), b""),
    ("rewritten", |here| Ok(fs::write(here.join("f"), "new")?), b"new"),
    (
        "emptied and written",
        |here| {
            let mut file = open(here)?;
            file.set_len(0)?;
            Ok(file.write_all(b"ab")?)
        },
        b"ab",
    ),
    (
        "truncated by name",
        |here| {
            let path = here.join("f");
            rustix::fs::ftruncate(OpenOptions::new().write(true).open(path)?, 5)?;
            Ok(())
        },
        b"01234",
    ),
    (
        "punched",
        |here| {
            let flags =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(open(here)?, flags, 2, 3)?)
        },
        b"01\0\0\x0056789",
    ),
    (
        "copied from",
        |here| {
            let (source, target) = (open(here)?, File::create(here.join("g"))?);
            let copied = rustix::fs::copy_file_range(source, None, &target, None, 10)?;
            ensure!(copied == 10);
            Ok(fs::rename(here.join("g"), here.join("f"))?)
        },
        TEXT,
    ),
    (
        "copied into itself",
        |here| {
            let file = open(here)?;
            let (mut from, mut to) = (0, 10);
            rustix::fs::copy_file_range(&file, Some(&mut from), &file, Some(&mut to), 3)?;
            Ok(())
        },
        b"0123456789012",
    ),
    (
        "written between reads",
        |here| {
            let mut file = open(here)?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            ensure!(text.as_bytes() == TEXT);
            file.seek(SeekFrom::Start(1))?;
            file.write_all(b"__")?;
            file.seek(SeekFrom::Start(0))?;
            text.clear();
            file.read_to_string(&mut text)?;
            ensure!(text == "0__3456789", "{text}");
            Ok(())
        },
        b"0__3456789",
    ),
    (
        "linked and written by the other name",
        |here| {
            fs::hard_link(here.join("f"), here.join("g"))?;
            OpenOptions::new().append(true).open(here.join("g"))?.write_all(b"!")?;
            Ok(())
        },
        b"0123456789!",
    ),
    (
        "removed while it is open",
        |here| {
            let file = open(here)?;
            fs::remove_file(here.join("f"))?;
            file.write_all_at(b"y", 0)?;
            file.sync_all()?;
            let mut found = [0; 10];
            file.read_exact_at(&mut found, 0)?;
            ensure!(&found == b"y123456789");
            Ok(fs::write(here.join("f"), found)?)
        },
        b"y123456789",
    ),
];

#[test]
fn whatever_is_done_with_a_small_file_each_host_sees_the_same() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    for (number, (name, deed, expected)) in DEEDS.iter().enumerate() {
        // Of a directory that the doer made, or that another host did.
        for (maker, doer, suffix) in [(&one, &one, "own"), (&one, &two, "other")] {
            let name = format!("{number}-{suffix}");
            with_small(&cluster, maker, &name, TEXT)?;
            let words = || format!("{} ({name})", DEEDS[number].0);
            deed(&doer.join(&name)).with_context(words)?;
            for mount in [&one, &two] {
                let found = fs::read(mount.join(&name).join("f")).with_context(words)?;
                ensure!(found == *expected, "{}: {found:?} on {}", words(), mount.display());
                let len = fs::metadata(mount.join(&name).join("f"))?.len();
                ensure!(len == u64::try_from(expected.len())?, "{}: {len}", words());
            }
        }
        ensure!(!name.is_empty());
    }
    check(&cluster)
}

#[test]
fn its_maker_goes_on_writing_behind_a_close_of_a_copy() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    for round in 0..20 {
        let name = format!("d{round}");
        let here = delegated(&one, &name)?;
        let path = here.join("f");
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        file.write_all(b"first")?;
        // This is a close: what is written so far is at the server.
        drop(file.try_clone()?);
        file.write_all(b", second")?;
        let mut found = [0; 13];
        file.read_exact_at(&mut found, 0)?;
        ensure!(&found == b"first, second", "{found:?}");
        file.write_all_at(b"F", 0)?;
        if round % 2 == 0 {
            file.sync_all()?;
        }
        drop(file);
        for mount in [&two, &one] {
            let found = fs::read(mount.join(&name).join("f"))?;
            ensure!(found == b"First, second", "round {round}: {found:?}");
        }
    }
    check(&cluster)
}

#[test]
fn who_has_it_open_reads_what_is_written_elsewhere_after_opening_it_again() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    with_small(&cluster, &one, "d", TEXT)?;
    let reader = File::open(two.join("d/f"))?;
    let mut found = [0; 10];
    reader.read_exact_at(&mut found, 0)?;
    for round in 0..30_u8 {
        let digit = b'a' + round % 26;
        open(&one.join("d"))?.write_all_at(&[digit], 5)?;
        let again = fs::read(two.join("d/f"))?;
        ensure!(again[5] == digit && again[..5] == *b"01234", "round {round}: {again:?}");
        // The two share what the mount knows of the file.
        reader.read_exact_at(&mut found, 0)?;
        ensure!(found[..] == again[..], "round {round}: {found:?}");
    }
    Ok(())
}

#[test]
fn a_writer_waits_for_the_targets_and_finds_every_byte_though_the_server_is_killed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    let mut starter = Starter::new(&cluster)?;
    for round in 0..3 {
        let name = format!("d{round}");
        with_small(&cluster, &one, &name, TEXT)?;
        let mut silent = Vec::new();
        for daemon in cluster.daemons().into_iter().filter(|it| it.name.contains("target")) {
            silent.push(daemon.pause()?);
        }
        thread::scope(|scope| -> Result<()> {
            let path = two.join(&name).join("f");
            let writer = scope.spawn(move || -> Result<()> {
                OpenOptions::new().append(true).open(path)?.write_all(b"more")?;
                Ok(())
            });
            // Before or after the open has begun to wait for them.
            if round > 0 {
                cluster.daemon("metadata")?.kill()?;
                starter.begin()?;
            }
            silent.clear();
            ensure!(round == 0 || starter.finish()?, "the server does not start");
            writer.join().expect("no panic")
        })?;
        for mount in [&one, &two] {
            let found = fs::read(mount.join(&name).join("f"))?;
            ensure!(found == b"0123456789more", "round {round}: {found:?}");
        }
    }
    check(&cluster)
}

#[test]
fn a_directory_says_how_large_its_small_files_are() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, _) = mounts(&cluster)?;
    let root = one.to_str().context("a path of text")?;
    let shown = cluster.cli(&["stripe", "show", root])?.ok()?;
    ensure!(shown.contains("up to 16 KiB may live in their inodes"), "{shown}");
    cluster.cli(&["stripe", "set", "--inline", "16KiB", root])?.ok()?;
    with_small(&cluster, &one, "d", &[7; 16 * 1024])?;
    let refused = cluster.cli(&["stripe", "set", "--inline", "17KiB", root])?;
    ensure!(!refused.succeeded());
    cluster.cli(&["stripe", "set", "--inline", "0", root])?.ok()?;
    with_small(&cluster, &one, "none", TEXT).unwrap_err();
    Ok(())
}
