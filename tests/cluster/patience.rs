//! Servers that are there and say nothing: how long programs on a mount wait, and what they get.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    daemon::Daemon,
    program::{PATIENCE, Said, binaries, run, wait_for},
};
use rustix::{
    fs::{FallocateFlags, FlockOperation, fallocate, flock},
    io::Errno,
    process::Signal,
};

/// The patience of the mount under test.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A mount ends within this time: what it may wait for answers, and much more for a busy machine.
const END_MAX: Duration = Duration::from_secs(25);

/// Longer than a mount that ends waits for requests that store nothing.
const QUIET_MAX: Duration = Duration::from_secs(5);

/// A reader's one call may cost the kernel two requests, and machines under test are busy.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Longer than a session of the cluster below lives without a word: lease and clock error.
const STALL: Duration = Duration::from_secs(19);

#[test]
fn a_metadata_server_that_stands_still_for_longer_than_a_lease_takes_nothing_away() -> Result<()> {
    let lease = ("MILLRACE_SESSIONS__LEASE".to_owned(), "15s".to_owned());
    let cluster = Cluster::start(Wish { environment: vec![lease], ..Wish::default() })?;
    let at = |name: &str| cluster.mount().join(name);
    let mut locked = File::create(at("locked"))?;
    flock(&locked, FlockOperation::LockExclusive)?;
    let open = || OpenOptions::new().read(true).write(true).create_new(true).open(at("unnamed"));
    let unnamed = open()?;
    unnamed.write_all_at(&[7; 100_000], 0)?;
    unnamed.sync_all()?;
    fs::remove_file(at("unnamed"))?;
    // As while its disk says nothing, or its machine is moved to another one.
    let paused = cluster.daemon("metadata")?.pause()?;
    thread::sleep(STALL);
    drop(paused);
    cluster.wait_for_log("metadata", &["stood still"])?;

    locked.write_all(b"still mine")?;
    locked.sync_all()?;
    let mut read = vec![0; 100_000];
    unnamed.read_exact_at(&mut read, 0)?;
    assert!(read == [7; 100_000], "nobody else has it");
    let other = cluster.mount_named("other");
    cluster.mount_also(&other)?;
    let second = File::open(other.join("locked"))?;
    let refused = flock(&second, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK), "the lock is held");
    let log = cluster.log("metadata");
    assert!(!log.contains("its lease ran out") && !log.contains("state=Offline"), "{log}");
    Ok(())
}

#[test]
fn a_mount_with_a_timeout_gives_eio_in_time_and_a_hard_one_waits() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let body = vec![7; 3_000_000];
    fs::write(cluster.mount().join("file"), &body)?;
    let identity = cluster.dir().join("client.pem");
    cluster.mount_as("soft", &identity, "timeout=1s")?.ok()?;
    cluster.mount_as("hard", &identity, "hard")?.ok()?;
    let (soft, hard) = (cluster.mount_named("soft"), cluster.mount_named("hard"));

    let paused = cluster.daemon("metadata")?.pause()?;
    let names = hard.clone();
    let waiting = aside(move || fs::metadata(names.join("file")).map(|found| found.len()));
    gives_eio(|| fs::metadata(soft.join("file")))?;
    gives_eio(|| fs::create_dir(soft.join("new")))?;
    assert!(waiting.try_recv().is_err(), "a hard mount waits");
    drop(paused);
    assert_eq!(waiting.recv_timeout(PATIENCE)??, 3_000_000, "and goes on by itself");
    assert_eq!(fs::metadata(soft.join("file"))?.len(), 3_000_000, "so does the other");

    let read = File::open(soft.join("file"))?;
    let written = File::create(soft.join("written"))?;
    let source = cluster.scratch()?.join("source");
    fs::write(&source, &body)?;
    let paused = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    let names = hard.join("file");
    let waiting = aside(move || fs::read(names));
    gives_eio(|| read.read_exact_at(&mut [0; 1_000_000], 0))?;
    gives_eio(|| written.write_all_at(&body, 0).and_then(|()| written.sync_all()))?;
    // It never syncs, so that only its close can tell.
    let copied = run("cp", &[&source, &soft.join("copied")])?;
    assert!(!copied.succeeded() && copied.stderr.contains("Input/output error"), "{copied}");
    assert!(waiting.try_recv().is_err(), "a hard mount waits");
    drop(paused);
    assert!(waiting.recv_timeout(PATIENCE)?? == body, "and goes on by itself");
    assert!(fs::read(soft.join("file"))? == body, "so does the other");
    Ok(())
}

#[test]
fn a_mount_whose_servers_are_silent_can_be_ended() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    // Beyond the first megabytes, which the reader may get before the pause is felt.
    fs::write(cluster.mount().join("file"), vec![7; 64_000_000])?;
    cluster.cli(&["umount", &cluster.mount().display().to_string()])?.ok()?;
    cluster.up()?;
    let file = File::open(cluster.mount().join("file"))?;
    let paused = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    let mut reader = Command::new("cat").stdin(file).stdout(Stdio::null()).spawn()?;
    wait_for("a reader that waits", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", reader.id())).ok()?;
        stat.contains(" (cat) D ").then_some(())
    })?;
    reader.kill()?;
    reader.wait()?;
    let begun = Instant::now();
    cluster.cli(&["umount", &cluster.mount().display().to_string()])?.ok()?;
    assert!(begun.elapsed() < END_MAX, "{:?}", begun.elapsed());
    assert!(cluster.daemon("mount-0").is_err(), "its daemon has ended");
    drop(paused);
    Ok(())
}

#[test]
fn a_mount_that_is_in_use_ends_at_the_second_signal_and_stores_what_it_holds() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    let mut file = File::create(&path)?;
    file.write_all(b"before, ")?;
    let daemon = cluster.daemon("mount-0")?;
    let device = fs::metadata(cluster.mount())?.dev();
    daemon.signal(Signal::TERM)?;
    wait_for("the mount to be out of sight", || {
        let seen = fs::metadata(cluster.mount()).ok()?;
        (seen.dev() != device).then_some(())
    })?;
    file.write_all(b"after").context("it serves whoever still uses it")?;
    let begun = Instant::now();
    daemon.signal(Signal::TERM)?;
    wait_for("the end of the mount's daemon", || (!daemon.is_alive()).then_some(()))?;
    assert!(begun.elapsed() < END_MAX, "{:?}", begun.elapsed());
    cluster.wait_for_log("mount-0", &["stopped before everything was drained"])?;
    wait_for("the end of the connection", || {
        let error = file.write_all(b"too late").err()?;
        (Errno::from_io_error(&error) == Some(Errno::NOTCONN)).then_some(())
    })?;
    drop(file);
    cluster.up()?;
    assert_eq!(fs::read(&path)?, b"before, after");
    Ok(())
}

#[test]
fn a_mount_that_waits_for_the_silent_daemon_of_the_one_below_it_ends_at_the_first_signal()
-> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let paused = cluster.daemon("mount-0")?.pause()?;
    let settings = cluster.dir().join("mount-0/mount.toml");
    let mut above = Command::new(binaries().join("millrace-fuse"));
    above.arg("--config").arg(settings).stdout(Stdio::null()).stderr(Stdio::null());
    let mut above = above.spawn()?;
    let daemon = Daemon { name: "above".to_owned(), pid: above.id() };
    wait_for("a mount that waits in the kernel", || {
        let wchan = fs::read_to_string(format!("/proc/{}/wchan", daemon.pid)).ok()?;
        wchan.contains("request_wait").then_some(())
    })?;
    daemon.signal(Signal::TERM)?;
    wait_for("the end of its daemon", || (!daemon.is_alive()).then_some(()))?;
    above.wait()?;
    drop(paused);
    Ok(())
}

#[test]
fn what_was_written_through_a_mapping_is_stored_however_long_the_targets_are_silent() -> Result<()>
{
    let cluster = Cluster::start(Wish::default())?;
    let file = cluster.mount().join("file");
    fs::write(&file, vec![7; 1_000_000])?;
    let mut program = Command::new("python3")
        .args(["-c", WRITES_THROUGH_A_MAPPING])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    program.stdout.take().context("its output")?.read_exact(&mut [0; 6])?;
    let paused = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    // It ends without a close that could wait: only the mount knows these bytes now.
    program.stdin.take().context("its input")?.write_all(b"\n")?;
    assert!(program.wait()?.success());
    let mountpoint = cluster.mount().display().to_string();
    let (told, ended) = mpsc::channel();
    thread::scope(|scope| -> Result<()> {
        scope.spawn(|| drop(told.send(cluster.cli(&["umount", &mountpoint]).and_then(Said::ok))));
        let early = ended.recv_timeout(QUIET_MAX);
        drop(paused);
        assert!(early.is_err(), "the mount ended before the bytes were stored: {early:?}");
        ended.recv_timeout(PATIENCE)??;
        Ok(())
    })?;
    cluster.up()?;
    assert!(fs::read(&file)? == vec![9; 1_000_000], "what was written is there");
    Ok(())
}

#[test]
fn what_could_not_be_stored_is_shown_to_nobody() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let body = vec![7; 1_000_000];
    let path = cluster.mount().join("file");
    let mut file = File::create(&path)?;
    file.write_all(&body)?;
    file.sync_all()?;
    drop(file);
    cluster.mount_as("soft", &cluster.dir().join("client.pem"), "timeout=1s")?.ok()?;
    let soft = cluster.mount_named("soft").join("file");
    let written = OpenOptions::new().read(true).write(true).open(&soft)?;
    // Gone, so that it does not take it later.
    cluster.daemon("target-0")?.kill()?;
    written.write_all_at(&[9; 4096], 0)?;
    let error = written.sync_all().err().context("it went well without the target")?;
    assert_eq!(Errno::from_io_error(&error), Some(Errno::IO), "{error}");
    drop(written);
    cluster.up()?;
    let read = wait_for("the target to be back", || fs::read(&soft).ok())?;
    assert!(read == body, "the page that was written, or another: {:?}", read.first());
    assert!(fs::read(&path)? == body);
    Ok(())
}

#[test]
fn an_append_goes_to_the_end_that_a_file_had_before_what_could_not_be_stored() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let body = vec![7; 1_000_000];
    let path = cluster.mount().join("file");
    fs::write(&path, &body)?;
    cluster.mount_as("soft", &cluster.dir().join("client.pem"), "timeout=3s")?.ok()?;
    let soft = cluster.mount_named("soft").join("file");
    let mut log = OpenOptions::new().append(true).open(&soft)?;
    // Gone, so that it does not take it later.
    cluster.daemon("target-0")?.kill()?;
    log.write_all(&[9; 4096])?;
    let error = log.sync_all().err().context("it went well without the target")?;
    assert_eq!(Errno::from_io_error(&error), Some(Errno::IO), "{error}");
    assert_eq!(log.metadata()?.len(), 1_000_000);
    cluster.up()?;
    let read = wait_for("the target to be back", || fs::read(&soft).ok())?;
    assert!(read == body, "{} bytes", read.len());

    log.write_all(b"more")?;
    log.sync_all()?;
    let expected = [&body[..], b"more"].concat();
    for name in [&soft, &path] {
        let read = fs::read(name)?;
        assert!(read == expected, "{} bytes in {}", read.len(), name.display());
    }
    Ok(())
}

#[test]
fn a_hole_that_fails_midway_shows_every_mount_what_is_there_by_then() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let set = ["stripe", "set", "--chunk-size", "64KiB", "--count", "-1", "mr:/"];
    cluster.cli(&set)?.ok()?;
    let path = cluster.mount().join("file");
    let body = vec![7; 1 << 20];
    fs::write(&path, &body)?;
    let shown = cluster.json(&["stripe", "show", path.to_str().context("a path of text")?])?;
    let target_of = |chunk: usize| shown["chunks"][chunk]["targets"][0].as_str();
    let first = target_of(0).context("a target")?;
    let other = (1..16).filter_map(target_of).find(|target| *target != first);
    cluster.mount_as("soft", &cluster.dir().join("client.pem"), "timeout=3s")?.ok()?;
    let soft = cluster.mount_named("soft").join("file");
    let punched = OpenOptions::new().read(true).write(true).open(soft)?;
    let page = |file: &File| -> io::Result<Vec<u8>> {
        let mut page = vec![0; 4096];
        file.read_exact_at(&mut page, 0)?;
        Ok(page)
    };
    assert!(page(&punched)? == body[..4096]);

    let gone = daemon_of(&cluster, other.context("chunks on both targets")?)?;
    cluster.daemon(gone)?.kill()?;
    let cut = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&punched, cut, 0, body.len() as u64), Err(Errno::IO));
    let read = wait_for("the target that is there", || page(&punched).ok())?;
    assert!(read == page(&File::open(&path)?)?, "not as others see it: {:?}", read.first());
    Ok(())
}

#[test]
fn a_target_that_says_nothing_stops_nobody_who_needs_another_one() -> Result<()> {
    // More than a mount has on its way at a time.
    const WRITTEN_LEN: usize = 80 << 20;
    let cluster = Cluster::start(Wish::default())?;
    let (silent, other, daemon) = one_on_each_target(&cluster)?;
    let writer = OpenOptions::new().write(true).open(&silent)?;
    let paused = cluster.daemon(daemon)?.pause()?;
    let written = aside(move || {
        writer.write_all_at(&vec![8; WRITTEN_LEN], FILE_LEN as u64)?;
        writer.sync_all()
    });
    wait_for("a writer that is far ahead of the target", || {
        let found = fs::metadata(&silent).ok()?;
        (found.len() > 64 << 20).then_some(())
    })?;
    let (read_from, silent_too) = (other.clone(), silent.clone());
    let reading = aside(move || fs::read(silent_too));
    let beside = aside(move || {
        let read = fs::read(&read_from)?;
        let file = OpenOptions::new().write(true).open(&read_from)?;
        file.write_all_at(&vec![9; FILE_LEN], 0)?;
        file.sync_all()?;
        Ok(read)
    });
    assert!(beside.recv_timeout(PATIENCE)?? == vec![7; FILE_LEN]);
    assert!(fs::read(&other)? == vec![9; FILE_LEN]);
    assert!(written.try_recv().is_err() && reading.try_recv().is_err(), "they wait");
    drop(paused);
    written.recv_timeout(PATIENCE)??;
    reading.recv_timeout(PATIENCE)??;
    Ok(())
}

const FILE_LEN: usize = 3_000_000;

/// A file on each of two targets, and which daemon serves the first one.
fn one_on_each_target(cluster: &Cluster) -> Result<(PathBuf, PathBuf, &'static str)> {
    cluster.cli(&["stripe", "set", "mr:/", "--count", "1"])?.ok()?;
    let mut found = BTreeMap::new();
    for number in 0..32 {
        let path = cluster.mount().join(format!("file-{number}"));
        fs::write(&path, vec![7; FILE_LEN])?;
        let shown = cluster.json(&["stripe", "show", path.to_str().context("a path of text")?])?;
        let target = shown["chunks"][0]["targets"][0].as_str().context("a target")?;
        found.entry(target.to_owned()).or_insert(path);
        if found.len() == 2 {
            break;
        }
    }
    let mut found = found.into_iter();
    let first_and_other = found.next().zip(found.next());
    let ((target, first), (_, other)) = first_and_other.context("both targets have files")?;
    Ok((first, other, daemon_of(cluster, &target)?))
}

/// Which of two daemons serves a target.
fn daemon_of(cluster: &Cluster, target: &str) -> Result<&'static str> {
    let serves = |name: &&str| cluster.log(name).contains(target);
    ["target-0", "target-1"].into_iter().find(serves).context("a daemon serves it")
}

/// Maps a file, closes it, reads it (a page is read before it is written), waits for a line, writes
/// the whole of it and ends without a word. (A map of Python's own keeps the file open, and its
/// close would wait until the bytes are stored.)
const WRITES_THROUGH_A_MAPPING: &str = "\
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(file).st_size
view = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
os.close(file)
ctypes.string_at(view, size)
print('ready', flush=True)
sys.stdin.readline()
ctypes.memset(view, 9, size)
os._exit(0)
";

/// Does something in a thread of its own, which a test that fails leaves behind.
fn aside<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> mpsc::Receiver<io::Result<T>> {
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || drop(answer.send(work())));
    answered
}

fn gives_eio<T>(operation: impl FnOnce() -> io::Result<T>) -> Result<()> {
    let begun = Instant::now();
    let error = operation().err().context("it went well without servers")?;
    let took = begun.elapsed();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::IO), "{error}");
    assert!(took >= TIMEOUT && took < TIMEOUT_MAX, "{took:?}");
    Ok(())
}
