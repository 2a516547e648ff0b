//! Programs that open for writing what they only read, lock or touch, and those that write.

use std::{
    fs::{self, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    bucket::{Bucket, python},
    cluster::{Cluster, Wish},
    hostile::{Asked, Fault, Gate, HostileProxy, Rule},
    program::wait_for,
};

/// Makes the objects: databases as sqlite3 makes them, and files of 300,000 bytes.
const MAKE: &str = "
import os, sqlite3, sys, tempfile
for name in ['read.db', 'written.db']:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        made = sqlite3.connect(path)
        made.execute('create table samples (label)')
        made.executemany('insert into samples values (?)', [(n,) for n in range(10_000)])
        made.commit()
        made.close()
        client.put_object(Bucket='data', Key='set/' + name, Body=open(path, 'rb').read())
for name in sys.argv[1:]:
    client.put_object(Bucket='data', Key='set/' + name, Body=b'\\x07' * 300_000)
";

/// What reads, though it might write.
const READ: &str = "
import fcntl, mmap, os, sqlite3
def opened(name):
    return open(name, 'r+b')
with opened('locked') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX, 10)
    assert file.read() == b'\\x07' * 300_000
file = os.open('touched', os.O_WRONLY | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK, 0o666)
os.utime(file)
os.close(file)
with opened('mapped') as file, mmap.mmap(file.fileno(), 0) as whole:
    assert whole[200_000] == 7
database = sqlite3.connect('read.db')
assert database.execute('select count(*) from samples').fetchone() == (10_000,)
database.close()
";

/// What writes, each in another way.
const WRITE: &str = "
import mmap, os, sqlite3
def opened(name):
    return open(name, 'r+b')
with opened('mapped-written') as file:
    whole = mmap.mmap(file.fileno(), 0)
whole[200_000] = 8
whole.close()
with opened('overwritten') as file:
    file.write(b'\\x07')
with opened('cut') as file:
    file.truncate(100)
with opened('longer') as file:
    file.truncate(400_000)
with opened('emptied') as file:
    os.close(os.open('emptied', os.O_WRONLY | os.O_TRUNC))
with opened('renamed') as file:
    os.rename('renamed', 'moved')
    file.write(b'\\x08')
database = sqlite3.connect('written.db')
database.execute('insert into samples values (1)')
database.commit()
database.close()
";

/// Takes bytes out of a file that has holes already.
const PUNCH: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
with open('longer', 'r+b') as file:
    keep_size_and_punch, start, length = 3, ctypes.c_long(0), ctypes.c_long(4096)
    assert libc.fallocate(file.fileno(), keep_size_and_punch, start, length) == 0
";

const FILES: [&str; 10] = [
    "locked",
    "touched",
    "mapped",
    "shared",
    "mapped-written",
    "overwritten",
    "cut",
    "longer",
    "emptied",
    "renamed",
];

/// A cluster whose directory `set` has these files, all of them here.
fn hydrated(bucket: &Bucket, files: &[&str]) -> Result<Cluster> {
    bucket.script(MAKE, files)?;
    let cluster = Cluster::start(Wish::default().with_bucket(bucket))?;
    let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&add)?.ok()?;
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    Ok(cluster)
}

fn state(cluster: &Cluster, name: &str) -> Result<String> {
    let told = cluster.json(&["state", &format!("mr:/set/{name}")])?;
    told["state"].as_str().map(str::to_owned).with_context(|| told.to_string())
}

/// A close is told of a little later.
fn becomes(cluster: &Cluster, name: &str, expected: &str) -> Result<()> {
    wait_for("the state of a file that was closed", || {
        (state(cluster, name).ok()? == expected).then_some(())
    })
    .with_context(|| format!("{name} is {:?} and not {expected}", state(cluster, name)))
}

fn run(cluster: &Cluster, script: &str) -> Result<()> {
    let mut command = Command::new(python());
    let ran = command.arg("-c").arg(script).current_dir(cluster.mount().join("set")).output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Ok(())
}

#[test]
fn only_what_was_written_is_dirty_and_goes_to_the_bucket() -> Result<()> {
    let bucket = Bucket::start()?;
    let cluster = hydrated(&bucket, &FILES)?;
    let puts = || bucket.requests().map(|requests| requests.get("PUT").copied().unwrap_or(0));
    let before = puts()?;

    run(&cluster, READ)?;
    for name in ["locked", "touched", "mapped", "read.db"] {
        becomes(&cluster, name, "hydrated")?;
    }
    run(&cluster, WRITE)?;
    let written =
        ["mapped-written", "overwritten", "cut", "longer", "emptied", "moved", "written.db"];
    for name in written {
        ensure!(state(&cluster, name)? == "dirty", "{name} was written");
    }
    // Nobody hears of a job's files that are open.
    let export = cluster.cli(&["export", "mr:/set", "--wait"])?;
    ensure!(export.code == Some(0), "{export}");
    for name in written {
        // The hole that a file was lengthened by is the object's from now on, and absent here.
        let expected = if name == "longer" { "partial" } else { "exported" };
        ensure!(state(&cluster, name)? == expected, "{name} was sent");
    }
    assert_eq!(puts()? - before, u64::try_from(written.len())?, "nothing else was sent");
    ensure!(bucket.get("set/mapped-written")?[200_000] == 8, "what was written is there");

    // A hole where the object has bytes is a write, too.
    run(&cluster, PUNCH)?;
    cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
    assert_eq!(puts()? - before, u64::try_from(written.len())? + 1, "one more was sent");
    ensure!(bucket.get("set/longer")?[..8192] == [[0; 4096], [7; 4096]].concat(), "the hole");

    // What was exported is so again, too, and may be dropped to make room.
    run(&cluster, "open('cut', 'r+b').close(); open('locked', 'r+b').close()")?;
    becomes(&cluster, "cut", "exported")?;
    becomes(&cluster, "locked", "hydrated")?;
    cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
    for name in ["cut", "locked", "read.db"] {
        ensure!(state(&cluster, name)? == "released", "{name} is the bucket's");
    }
    ensure!(fs::read(cluster.mount().join("set/cut"))? == [7; 100], "and comes back");
    Ok(())
}

#[test]
fn a_file_is_clean_when_its_last_opener_on_any_host_has_not_written() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.script(MAKE, &["shared"])?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&[&add[..], &["--auto-export", "0"]].concat())?.ok()?;
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let open = |mount: &Path, name: &str| {
        OpenOptions::new().read(true).write(true).open(mount.join("set").join(name))
    };
    let held = open(&second, "shared")?;
    let other = open(&cluster.mount(), "shared")?;
    ensure!(state(&cluster, "shared")? == "dirty", "somebody may be writing it");
    drop(held);
    drop(other);
    becomes(&cluster, "shared", "hydrated")?;

    let held = open(&second, "shared")?;
    fs::write(cluster.mount().join("set/read.db"), b"something else")?;
    let sent = || Some(cluster.json(&["link", "list"]).ok()?[0]["auto_export"]["files"].clone());
    wait_for("the file that was written", || (sent()? == 1).then_some(()))?;
    ensure!(state(&cluster, "shared")? == "dirty", "it is still open");
    drop(held);
    becomes(&cluster, "shared", "hydrated")?;
    fs::write(cluster.mount().join("set/written.db"), b"something else")?;
    wait_for("the file that was written", || (sent()? == 2).then_some(()))?;
    ensure!(state(&cluster, "shared")? == "hydrated", "it was not sent");
    Ok(())
}

/// What is copied from, behind a link of its own.
const SOURCE: &str = "
client.put_object(Bucket='data', Key='slow/source', Body=b'\\x09' * 300_000)
";

/// Copies into a file, under a lock, from one whose bucket says nothing.
const COPY: &str = "
import fcntl, os
source, target = os.open('slow/source', os.O_RDONLY), os.open('set/target', os.O_RDWR)
fcntl.lockf(target, fcntl.LOCK_EX)
print('ready', flush=True)
os.copy_file_range(source, target, 200_000)
";

/// Takes the lock, and then writes; tells what it has found.
const NEXT: &str = "
import fcntl, os
with open('set/target', 'r+b') as file:
    print('ready', flush=True)
    fcntl.lockf(file, fcntl.LOCK_EX)
    print(file.read()[0], flush=True)
    file.seek(0)
    file.write(b'\\x05' * 100_000)
    file.flush()
    os.fsync(file.fileno())
";

fn begin(cluster: &Cluster, script: &str) -> Result<(Child, BufReader<ChildStdout>)> {
    let mut command = Command::new(python());
    command.arg("-c").arg(script).current_dir(cluster.mount()).stdout(Stdio::piped());
    let mut program = command.spawn()?;
    let mut said = BufReader::new(program.stdout.take().context("stdout is piped")?);
    said.read_line(&mut String::new())?;
    Ok((program, said))
}

/// Returns when a program waits for the mount, and not for a moment only, as for a name.
fn waits(program: &Child) -> Result<()> {
    let place = format!("/proc/{}/wchan", program.id());
    let mut looks = 0;
    wait_for("a program that waits", || {
        let waits = fs::read_to_string(&place).ok()?.contains("request_wait");
        looks = if waits { looks + 1 } else { 0 };
        (looks == 50).then_some(())
    })
}

/// A file to copy to, and one to copy from whose bucket says nothing while the gate is closed.
fn with_slow_source(bucket: &Bucket, proxy: &HostileProxy, gate: &Gate) -> Result<Cluster> {
    bucket.script(MAKE, &["target"])?;
    bucket.script(SOURCE, &[])?;
    proxy.add(Rule::always(Asked::Get, Fault::Gate(gate.clone())));
    let cluster = Cluster::start(Wish::default().with_bucket(bucket))?;
    let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&add)?.ok()?;
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    let add = ["link", "add", "s3://data/slow", "mr:/slow", "--endpoint", &proxy.endpoint()];
    cluster.cli(&add)?.ok()?;
    ensure!(cluster.mount().join("slow/source").metadata()?.len() == 300_000, "it is listed");
    Ok(cluster)
}

/// Kills a program in the middle of a copy. The gate stays closed.
fn kill_copy(cluster: &Cluster, gate: &Gate) -> Result<()> {
    gate.close_at(1);
    let (mut copy, _said) = begin(cluster, COPY)?;
    wait_for("a copy that waits", || gate.is_closed().then_some(()))?;
    copy.kill()?;
    copy.wait()?;
    Ok(())
}

/// Opens the gate for what was copied from, and sends the file then: it has `expected`.
fn export_as(cluster: &Cluster, bucket: &Bucket, gate: &Gate, expected: &[u8]) -> Result<()> {
    ensure!(gate.is_closed(), "nothing was there to be copied");
    gate.open();
    ensure!(fs::read(cluster.mount().join("slow/source"))? == [9; 300_000], "it is there now");
    // The file is open until the server has heard of its end.
    wait_for("the export of a file that was closed", || {
        let export = cluster.cli(&["export", "mr:/set/target", "--wait"]).ok()?;
        (export.code == Some(0)).then_some(())
    })?;
    ensure!(state(cluster, "target")? == "exported", "it was written");
    ensure!(fs::read(cluster.mount().join("set/target"))? == expected, "of the mount");
    ensure!(bucket.get("set/target")? == expected, "of the bucket");
    Ok(())
}

#[test]
fn a_copy_ends_with_its_program_and_gives_its_lock_to_the_next() -> Result<()> {
    let bucket = Bucket::start()?;
    let (proxy, gate) = (HostileProxy::for_endpoint(&bucket.endpoint())?, Gate::default());
    let cluster = with_slow_source(&bucket, &proxy, &gate)?;
    kill_copy(&cluster, &gate)?;
    ensure!(state(&cluster, "target")? == "dirty", "it may have been written");
    // The copy ends though its bytes do not come, and with it the lock under which it was made.
    let (mut next, mut said) = begin(&cluster, NEXT)?;
    let ended = wait_for("who is next to have the lock", || next.try_wait().ok()?)?;
    let mut found = String::new();
    said.read_line(&mut found)?;
    ensure!(ended.success() && found == "7\n", "nothing was copied under the lock: {found}");
    let written = [vec![5; 100_000], vec![7; 200_000]].concat();
    export_as(&cluster, &bucket, &gate, &written)
}

#[test]
fn a_copy_that_was_killed_does_not_follow_the_file_into_what_others_put_in_its_place() -> Result<()>
{
    let bucket = Bucket::start()?;
    let (proxy, gate) = (HostileProxy::for_endpoint(&bucket.endpoint())?, Gate::default());
    let cluster = with_slow_source(&bucket, &proxy, &gate)?;
    kill_copy(&cluster, &gate)?;
    let mut file = fs::File::create(cluster.mount().join("set/target"))?;
    file.write_all(&[6; 250_000])?;
    file.sync_all()?;
    drop(file);
    export_as(&cluster, &bucket, &gate, &[6; 250_000])
}

/// Writes under a lock what targets do not take.
const WRITE_LOCKED: &str = "
import fcntl, mmap, os
file = os.open('set/target', os.O_RDWR | os.O_DIRECT)
fcntl.lockf(file, fcntl.LOCK_EX)
written = mmap.mmap(-1, 196_608)
written.write(b'\\x09' * 196_608)
print('ready', flush=True)
os.pwritev(file, [written], 0)
";

#[test]
fn a_write_that_outlives_its_program_keeps_its_lock_and_the_file_open_until_it_ends() -> Result<()>
{
    let bucket = Bucket::start()?;
    let cluster = hydrated(&bucket, &["target"])?;
    let silent = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    let (mut program, _said) = begin(&cluster, WRITE_LOCKED)?;
    waits(&program)?;
    program.kill()?;
    program.wait()?;
    let export = cluster.cli(&["export", "mr:/set/target", "--wait"])?;
    ensure!(export.to_string().contains("open for writing"), "its end is not known: {export}");
    // The kernel may call this process as it has called the one that was killed.
    let (mut next, mut said) = begin(&cluster, NEXT)?;
    waits(&next)?;
    drop(silent);
    let mut found = String::new();
    said.read_line(&mut found)?;
    ensure!(next.wait()?.success() && found == "9\n", "written under the lock: {found}");
    wait_for("the export of a file that was closed", || {
        let export = cluster.cli(&["export", "mr:/set/target", "--wait"]).ok()?;
        (export.code == Some(0)).then_some(())
    })?;
    let expected = [vec![5; 100_000], vec![9; 96_608], vec![7; 103_392]].concat();
    ensure!(fs::read(cluster.mount().join("set/target"))? == expected, "of the mount");
    ensure!(bucket.get("set/target")? == expected, "of the bucket");
    Ok(())
}

/// Empties a file whose earlier bytes a target does not take.
const EMPTY: &str = "
import os
file = os.open('set/target', os.O_WRONLY)
os.pwrite(file, b'\\x08' * 300_000, 0)
print('ready', flush=True)
os.open('set/target', os.O_WRONLY | os.O_TRUNC)
";

#[test]
fn an_open_that_outlives_its_program_is_closed_when_it_has_emptied_the_file() -> Result<()> {
    let bucket = Bucket::start()?;
    let cluster = hydrated(&bucket, &["target"])?;
    let silent = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    let (mut program, _) = begin(&cluster, EMPTY)?;
    waits(&program)?;
    program.kill()?;
    program.wait()?;
    drop(silent);
    wait_for("the export of a file that was closed", || {
        let export = cluster.cli(&["export", "mr:/set/target", "--wait"]).ok()?;
        (export.code == Some(0)).then_some(())
    })?;
    let (of_bucket, of_mount) = (bucket.get("set/target")?, cluster.mount().join("set/target"));
    ensure!(of_bucket.is_empty(), "{} bytes of the bucket", of_bucket.len());
    ensure!(fs::read(of_mount)?.is_empty(), "of the mount");
    Ok(())
}
