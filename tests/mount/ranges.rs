//! Parts of files: holes and where they are, fallocate, copies within the file system.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
};

use anyhow::Result;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{run, wait_for},
};
use rustix::{
    fs::{Advice, FallocateFlags, SeekFrom, copy_file_range, fadvise, fallocate, seek},
    io::Errno,
};

use crate::unnamed::inodes;

const MIB: u64 = 1 << 20;

/// The number of the system call.
#[cfg(target_arch = "x86_64")]
const FALLOCATE: &str = "285";
#[cfg(not(target_arch = "x86_64"))]
const FALLOCATE: &str = "47";

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Where `SEEK_DATA` and `SEEK_HOLE` say that data is, from the start to the end of the file.
fn data_of(file: &File) -> Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(found),
            start => start?,
        };
        at = seek(file, SeekFrom::Hole(start))?;
        anyhow::ensure!(start < at, "a stretch of data from {start} to {at}");
        found.push((start, at));
    }
}

#[test]
fn holes_are_found_where_nothing_was_stored_and_nowhere_else() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("sparse");
    let file = open(&path)?;
    // Chunks have 8 MiB: data in the first and the third, at the edges of pages and blocks.
    file.write_all_at(&vec![1; 1_000_000], 0)?;
    file.write_all_at(&[2; 5_000], 20 * MIB)?;
    file.set_len(64 * MIB)?;
    file.write_all_at(b"not stored yet", 40 * MIB)?;
    let page_end = |end: u64| end.next_multiple_of(4096);
    let expected = [
        (0, page_end(1_000_000)),
        (20 * MIB, page_end(20 * MIB + 5_000)),
        (40 * MIB, 40 * MIB + 4096),
    ];
    assert_eq!(data_of(&file)?, expected);
    assert_eq!(seek(&file, SeekFrom::Hole(30 * MIB))?, 30 * MIB);
    assert_eq!(seek(&file, SeekFrom::Data(20 * MIB + 7))?, 20 * MIB + 7);
    assert_eq!(seek(&file, SeekFrom::Hole(64 * MIB - 1))?, 64 * MIB - 1);
    for outside in [64 * MIB, 65 * MIB] {
        assert_eq!(seek(&file, SeekFrom::Data(outside)), Err(Errno::NXIO));
        assert_eq!(seek(&file, SeekFrom::Hole(outside)), Err(Errno::NXIO));
    }
    let cut = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, cut, 20 * MIB, MIB)?;
    fallocate(&file, cut, 131_072, 65_536)?;
    let expected = [(0, 131_072), (196_608, page_end(1_000_000)), (40 * MIB, 40 * MIB + 4096)];
    assert_eq!(data_of(&file)?, expected);

    // A program that copies from stretch to stretch of data.
    let copy = cluster.scratch()?.join("copy");
    let copied = File::create_new(&copy)?;
    for (start, end) in data_of(&file)? {
        let mut bytes = vec![0; usize::try_from(end - start)?];
        file.read_exact_at(&mut bytes, start)?;
        copied.write_all_at(&bytes, start)?;
    }
    copied.set_len(64 * MIB)?;
    run("cmp", &[&path, &copy])?.ok()?;
    Ok(())
}

#[test]
fn a_file_without_holes_is_data_to_its_end_also_where_only_the_bucket_has_it() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("whole");
    fs::write(&path, vec![0; 3_000_000])?;
    assert_eq!(data_of(&File::open(&path)?)?, [(0, 3_000_000)], "zeros that were written");
    fs::write(cluster.mount().join("empty"), "")?;
    assert_eq!(data_of(&File::open(cluster.mount().join("empty"))?)?, []);

    let objects = cluster.scratch()?.join("objects");
    fs::create_dir_all(&objects)?;
    fs::write(objects.join("object"), vec![0; 9_000_000])?;
    let url = format!("file://{}", objects.display());
    cluster.cli(&["link", "add", "--mode", "import", &url, "mr:/set"])?.ok()?;
    let path = cluster.mount().join("set/object");
    assert_eq!(data_of(&File::open(&path)?)?, [(0, 9_000_000)]);
    let file = open(&path)?;
    file.set_len(20_000_000)?;
    assert_eq!(data_of(&file)?, [(0, 9_043_968)], "what nobody has fetched, to the block's end");
    assert_eq!(seek(&file, SeekFrom::Hole(10_000_000))?, 10_000_000);
    Ok(())
}

#[test]
fn ranges_become_zeros_with_and_without_a_new_size_and_other_modes_are_refused() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    let file = open(&path)?;
    let mut expected = vec![7; 3_000_000];
    file.write_all_at(&expected, 0)?;
    let (zero, keep) = (FallocateFlags::ZERO_RANGE, FallocateFlags::KEEP_SIZE);
    fallocate(&file, zero | keep, 2_999_000, 50_000)?;
    expected[2_999_000..].fill(0);
    assert!(fs::read(&path)? == expected, "the size is kept");
    fallocate(&file, zero, 100_000, 70_001)?;
    expected[100_000..170_001].fill(0);
    fallocate(&file, zero, 2_000_000, 2_000_000)?;
    expected.resize(4_000_000, 0);
    expected[2_000_000..].fill(0);
    assert!(fs::read(&path)? == expected, "the size is what the range asks for");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 3_999_999, 500_000)?;
    assert_eq!(file.metadata()?.len(), 4_000_000);

    let refused = [
        FallocateFlags::empty(),
        keep,
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
    ];
    for mode in refused {
        assert_eq!(fallocate(&file, mode, 0, 65_536), Err(Errno::OPNOTSUPP), "{mode:?}");
    }
    assert!(fs::read(&path)? == expected, "and nothing has changed");
    Ok(())
}

#[test]
fn what_a_file_gains_costs_nothing_and_whoever_zeroes_much_can_be_killed() -> Result<()> {
    const LEN: u64 = 1 << 50;
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let path = cluster.mount().join("vast");
    let before = inodes(&cluster)?;
    let file = open(&path)?;
    // Chunk by chunk it would take a day.
    fallocate(&file, FallocateFlags::ZERO_RANGE, 0, LEN)?;
    assert_eq!(file.metadata()?.len(), LEN);
    let mut last = [1; 5];
    file.read_exact_at(&mut last, LEN - 5)?;
    assert_eq!(last, [0; 5]);
    drop(file);

    let len = LEN.to_string();
    let mut program = Command::new("fallocate");
    let mut program = program.args(["--punch-hole", "--length", &len]).arg(&path).spawn()?;
    let calls = Path::new("/proc").join(program.id().to_string()).join("syscall");
    let is_called = || {
        let call = fs::read_to_string(&calls).ok()?;
        (call.split(' ').next() == Some(FALLOCATE)).then_some(())
    };
    wait_for("the program to punch", is_called)?;
    program.kill()?;
    program.wait()?;
    // As long as it goes on, the file is open and stays.
    fs::remove_file(&path)?;
    wait_for("the end of the file", || (inodes(&cluster).ok()? == before).then_some(()))
}

#[test]
fn a_range_is_copied_without_passing_through_the_program() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount().join("one"), cluster.mount().join("two"));
    let whole: Vec<u8> = (0_u32..5_000_000).flat_map(u32::to_le_bytes).collect();
    let source = open(&one)?;
    source.write_all_at(&whole, 0)?;
    let target = open(&two)?;
    target.write_all_at(&[9; 100], 0)?;
    source.sync_all()?;
    fadvise(&source, 0, None, Advice::DontNeed)?;
    let copy = |from: &File, at: u64, to: &File, into: u64, len: usize| -> Result<u64, Errno> {
        let (mut at, mut into, mut left) = (at, into, len);
        while left > 0 {
            match copy_file_range(from, Some(&mut at), to, Some(&mut into), left)? {
                0 => break,
                bytes => left -= bytes,
            }
        }
        Ok((len - left) as u64)
    };
    assert_eq!(copy(&source, 1_234_567, &target, 50, 15_000_000)?, 15_000_000);
    let cached = run("fincore", &[&"--noheadings", &"--output", &"PAGES", &one])?.ok()?;
    assert_eq!(cached.trim(), "0", "the kernel has not read the source to copy it by itself");
    let mut expected = vec![9; 50];
    expected.extend_from_slice(&whole[1_234_567..16_234_567]);
    assert!(fs::read(&two)? == expected);

    // To the end of the source and past the end of the target, which leaves a hole there.
    assert_eq!(copy(&source, 19_000_000, &target, 30_000_000, usize::MAX >> 31)?, 1_000_000);
    expected.resize(30_000_000, 0);
    expected.extend_from_slice(&whole[19_000_000..]);
    assert!(fs::read(&two)? == expected);
    assert_eq!(copy(&source, 20_000_000, &target, 0, 1)?, 0, "nothing is behind the end");

    // Within one file: apart from each other, and over each other.
    assert_eq!(copy(&source, 0, &source, 10_000_000, 1_000_000)?, 1_000_000);
    assert_eq!(copy(&source, 0, &source, 999_999, 1_000_000), Err(Errno::INVAL));
    let read = fs::read(&one)?;
    assert!(read[..10_000_000] == whole[..10_000_000] && read[11_000_000..] == whole[11_000_000..]);
    assert!(read[10_000_000..11_000_000] == whole[..1_000_000]);
    Ok(())
}

#[test]
fn who_has_no_right_to_setuid_takes_it_away_by_changing_the_file() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("program");
    // The way to the mount is for root alone: whoever stands in it needs no way.
    let by = |user: &str, change: &str| -> Result<()> {
        let script = format!("cd {} && exec {user} sh -euc '{change}'", cluster.mount().display());
        run("sh", &[&"-c", &script])?.ok().map(drop)
    };
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let python = |action: &str| {
        format!("python3 -c \"import os; f = os.open(\\\"program\\\", os.O_RDWR); {action}\"")
    };
    let changes = [
        "echo more >>program".to_owned(),
        "truncate -s 3 program".to_owned(),
        ": >program".to_owned(),
        python("os.ftruncate(f, 5)"),
        python("os.copy_file_range(f, f, 2, 0, 10)"),
        "fallocate --zero-range --offset 0 --length 2 program".to_owned(),
    ];
    for change in changes {
        fs::write(&path, "0123456789")?;
        run("chmod", &[&"6777", &path])?.ok()?;
        by(nobody, &change)?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o777, "{change}");
        run("chmod", &[&"6767", &path])?.ok()?;
        by(nobody, &change)?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o2767, "{change}");
        run("chmod", &[&"6777", &path])?.ok()?;
        by("", &change)?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o6777, "by root: {change}");
    }
    Ok(())
}
