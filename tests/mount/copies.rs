//! Copies within the file system, which targets make among themselves.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt as _,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    hostile::{Asked, Fault, Gate, HostileProxy, Rule},
    program::{run, wait_for},
    requests::{counted, serving},
};
use rustix::fs::copy_file_range;

const MIB: usize = 1 << 20;

/// Copies from one file to another: from where, to where, how much.
const COPY: &str = "
import os, sys
source = os.open(sys.argv[1], os.O_RDONLY)
target = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
start, place, left = map(int, sys.argv[3:])
while left:
    count = os.copy_file_range(source, target, left, start, place)
    assert count > 0, 'the source ends'
    start, place, left = start + count, place + count, left - count
os.close(target)
";

/// An object of two chunks.
const SOURCE: &str = "
client.put_object(Bucket='data', Key='set/one', Body=b'\\x09' * (16 << 20))
";

/// A cluster whose daemons count.
fn counting() -> Result<Cluster> {
    Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })
}

/// Bytes that the mount has fetched and taken from programs, and those that targets have copied.
fn moved(cluster: &Cluster) -> Result<(u64, u64)> {
    let of_mount = |name| counted(cluster, "mount-0", name);
    let through = of_mount("mount_fetched_bytes_total")? + of_mount("mount_written_bytes_total")?;
    let copied = |daemon| counted(cluster, daemon, "target_copied_bytes_total");
    Ok((through, copied("target-0")? + copied("target-1")?))
}

fn bytes(len: usize) -> Vec<u8> {
    let words = (0_u32..).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes());
    words.take(len).collect()
}

fn open(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
}

fn copy(from: &File, mut at: u64, to: &File, mut into: u64, len: usize) -> Result<()> {
    let mut left = len;
    while left > 0 {
        let copied = copy_file_range(from, Some(&mut at), to, Some(&mut into), left)?;
        ensure!(copied > 0, "the source ends");
        left -= copied;
    }
    Ok(())
}

#[test]
fn targets_copy_by_themselves_and_the_mount_moves_none_of_the_bytes() -> Result<()> {
    let cluster = counting()?;
    let (one, two) = (cluster.mount().join("one"), cluster.mount().join("two"));
    let whole = bytes(32 * MIB);
    fs::write(&one, &whole)?;
    let before = moved(&cluster)?;
    let len = whole.len().to_string();
    run("python3", &[&"-c", &COPY, &one, &two, &"0", &"0", &len])?.ok()?;
    let after = moved(&cluster)?;
    assert_eq!((after.0 - before.0, after.1 - before.1), (0, 32 << 20));
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    ensure!(fs::read(&two)? == whole && fs::read(second.join("two"))? == whole);
    // Over what is there, between chunks and pages, and past the end.
    let (start, place, len) = (12_345_678, 777_777, 20_000_001);
    let text = [start, place, len].map(|number: usize| number.to_string());
    run("python3", &[&"-c", &COPY, &one, &two, &text[0], &text[1], &text[2]])?.ok()?;
    let mut expected = whole.clone();
    expected[place..place + len].copy_from_slice(&whole[start..start + len]);
    ensure!(fs::read(&two)? == expected && fs::read(second.join("two"))? == expected);
    let (start, place, len) = (7 * MIB + 1, 31 * MIB + 5, 3 * MIB);
    let text = [start, place, len].map(|number: usize| number.to_string());
    run("python3", &[&"-c", &COPY, &one, &two, &text[0], &text[1], &text[2]])?.ok()?;
    expected.resize(place + len, 0);
    expected[place..].copy_from_slice(&whole[start..start + len]);
    ensure!(fs::read(&two)? == expected && fs::read(second.join("two"))? == expected);

    // What is read and written as fast.
    let before = moved(&cluster)?.1;
    run("python3", &[&"-c", &COPY, &one, &two, &"5", &"5", &"10000"])?.ok()?;
    assert_eq!(moved(&cluster)?.1, before);
    Ok(())
}

#[test]
fn what_is_not_stored_yet_is_copied_and_copied_over_in_the_order_of_the_calls() -> Result<()> {
    let cluster = counting()?;
    let (one, two) = (cluster.mount().join("one"), cluster.mount().join("two"));
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let whole = bytes(24 * MIB);
    let (source, target) = (open(&one)?, open(&two)?);
    source.write_all_at(&whole, 0)?;
    target.write_all_at(&vec![9; 3 * MIB], 0)?;
    copy(&source, 1_234_567, &target, 777_777, 20_000_000)?;
    let mut expected = vec![9; 20_777_777];
    expected[777_777..].copy_from_slice(&whole[1_234_567..21_234_567]);
    let mut found = vec![0; expected.len()];
    target.read_exact_at(&mut found, 0)?;
    ensure!(found == expected, "by who has copied it");
    assert_eq!(moved(&cluster)?.1, 20_000_000);

    target.write_all_at(&[8; 100_000], 5_000_000)?;
    expected[5_000_000..5_100_000].fill(8);
    target.write_all_at(&[8; 100_000], 7_000_000)?;
    copy(&source, 0, &target, 7_050_000, 1_000_000)?;
    expected[7_000_000..7_050_000].fill(8);
    expected[7_050_000..8_050_000].copy_from_slice(&whole[..1_000_000]);
    // What was copied is copied on.
    copy(&target, 0, &source, 30_000_000, 10_000_000)?;
    target.sync_all()?;
    ensure!(fs::read(second.join("two"))? == expected, "on another mount");
    target.read_exact_at(&mut found, 0)?;
    ensure!(found == expected);
    drop((source, target));
    let mut rest = whole;
    rest.resize(30_000_000, 0);
    rest.extend_from_slice(&expected[..10_000_000]);
    ensure!(fs::read(second.join("one"))? == rest, "behind a hole");
    ensure!(fs::read(&one)? == rest);
    Ok(())
}

#[test]
fn holes_are_copied_as_zeros_and_left_before_what_is_copied_past_the_end() -> Result<()> {
    let cluster = counting()?;
    let (one, two) = (cluster.mount().join("one"), cluster.mount().join("two"));
    let source = open(&one)?;
    source.set_len(20 * MIB as u64)?;
    source.write_all_at(&bytes(100_000), 1_000_000)?;
    source.write_all_at(&bytes(100_000), 17_000_000)?;
    let whole = fs::read(&one)?;
    fs::write(&two, vec![9; MIB])?;
    let target = open(&two)?;
    copy(&source, 0, &target, 3_000_000, 20 * MIB)?;
    assert_eq!(moved(&cluster)?.1, 20 << 20);
    drop(target);
    let mut expected = vec![9; MIB];
    expected.resize(3_000_000, 0);
    expected.extend_from_slice(&whole);
    ensure!(fs::read(&two)? == expected);
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    ensure!(fs::read(second.join("two"))? == expected, "on another mount");
    Ok(())
}

#[test]
fn a_copy_whose_program_was_killed_is_seen_by_who_has_read_the_file_before() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.script(SOURCE, &[])?;
    let (proxy, gate) = (HostileProxy::for_endpoint(&bucket.endpoint())?, Gate::default());
    proxy.add(Rule::always(Asked::Get, Fault::Gate(gate.clone())));
    let wish = Wish { environment: vec![serving()], ..Wish::default() };
    let cluster = Cluster::start(wish.with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&[&add[..], &["--endpoint", &proxy.endpoint()]].concat())?.ok()?;
    // Of two chunks, one is here, and the other one does not come.
    let (one, two) = (cluster.mount().join("set/one"), cluster.mount().join("two"));
    let part = bytes(8 * MIB);
    let source = open(&one)?;
    source.write_all_at(&part, 0)?;
    source.sync_all()?;
    fs::write(&two, vec![7; 16 * MIB])?;
    let reader = File::open(&two)?;
    let mut found = vec![0; 16 * MIB];
    reader.read_exact_at(&mut found, 0)?;
    ensure!(found.iter().all(|&byte| byte == 7));

    gate.close_at(1);
    let mut program = Command::new("python3");
    program.args(["-c", COPY]).args([&one, &two]).args(["0", "0", "16777216"]);
    let mut program = program.spawn()?;
    wait_for("a copy of which a half waits", || {
        (gate.is_closed() && moved(&cluster).ok()?.1 == 8 << 20).then_some(())
    })?;
    program.kill()?;
    program.wait()?;
    wait_for("the end of a copy without a program", || {
        reader.read_exact_at(&mut found, 0).ok()?;
        (found[..8 * MIB] == part[..]).then_some(())
    })
    .context("the kernel shows what it has read before")?;
    ensure!(gate.is_closed(), "it has not waited for the rest");
    gate.open();
    ensure!(fs::read(&one)?[8 * MIB..].iter().all(|&byte| byte == 9), "that is there now");
    reader.read_exact_at(&mut found, 0)?;
    ensure!(found[8 * MIB..].iter().all(|&byte| byte == 7), "and nobody has copied it");
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    ensure!(fs::read(second.join("two"))? == found, "on another mount");
    assert_eq!(moved(&cluster)?.1, 8 << 20);
    Ok(())
}
