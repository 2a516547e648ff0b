//! Locks over two mounts: who excludes whom, how waits end, and what survives what.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{PATIENCE, finish, wait_for},
};
use rustix::process::{Pid, Signal, kill_process};

/// Who is let go from a wait is gone within this time, on a machine that is busy as well.
const PROMPT: Duration = Duration::from_secs(20);

/// A program that does what it is told, an expression a line, and answers each with a line.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const PROGRAM: &str = "
import errno, fcntl, os, struct, sys, threading
from fcntl import F_RDLCK as R, F_WRLCK as W, F_UNLCK as U, LOCK_EX, LOCK_SH, LOCK_UN, LOCK_NB
OFD, POSIX = (36, 37, 38), (fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW)
FORM = '@hhqqi0q'
def open_file(path, flags=os.O_RDWR):
    return os.open(path, flags)
def lock(fd, kind, start=0, length=0, wait=False, of=POSIX):
    wanted = struct.pack(FORM, kind, 0, start, length, 0)
    fcntl.fcntl(fd, of[2 if wait else 1], wanted)
    return 'ok'
def test(fd, kind, start=0, length=0, of=POSIX):
    found = fcntl.fcntl(fd, of[0], struct.pack(FORM, kind, 0, start, length, 0))
    kind, _, start, length, pid = struct.unpack(FORM, found)
    return 'free' if kind == U else ('RW'[kind], start, length, pid)
def flock(fd, kind):
    fcntl.flock(fd, kind)
    return 'ok'
def lockf(fd, kind):
    fcntl.lockf(fd, kind)
    return 'ok'
for line in sys.stdin:
    try:
        answer = eval(line)
    except OSError as error:
        # One number of two names.
        answer = errno.errorcode[error.errno].replace('EDEADLOCK', 'EDEADLK')
    except KeyboardInterrupt:
        answer = 'interrupted'
    print(answer, flush=True)
";

impl Program {
    fn start() -> Result<Self> {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("its input is piped")?;
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        Ok(Self { child, input, output })
    }

    /// Starts one that has opened `path` as descriptor `file`.
    fn with_file(path: &Path) -> Result<Self> {
        let mut program = Self::start()?;
        program.open("file", path, "os.O_RDWR")?;
        Ok(program)
    }

    fn open(&mut self, name: &str, path: &Path, flags: &str) -> Result<()> {
        let line = format!("globals().update({name}=open_file({:?}, {flags}))", path.display());
        assert_eq!(self.ask(&line)?, "None");
        Ok(())
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        self.tell(line)?;
        self.answer()
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}")?)
    }

    fn answer(&mut self) -> Result<String> {
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    /// Tells it to wait for a lock, and returns when it does.
    fn wait(&mut self, line: &str) -> Result<()> {
        self.tell(line)?;
        self.waits()
    }

    /// Returns when one of its threads waits for a lock.
    fn waits(&self) -> Result<()> {
        wait_for("a program that waits for a lock", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
            let mut calls = threads
                .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("syscall")).ok());
            let waits = |call: String| WAITING_CALLS.iter().any(|number| call.starts_with(number));
            calls.any(waits).then_some(())
        })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no id")?;
        Ok(kill_process(pid, signal)?)
    }

    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Numbers of fcntl(2) and flock(2), as /proc shows them.
#[cfg(target_arch = "x86_64")]
const WAITING_CALLS: [&str; 2] = ["72 ", "73 "];
#[cfg(target_arch = "aarch64")]
const WAITING_CALLS: [&str; 2] = ["25 ", "32 "];

struct World {
    cluster: Cluster,
    one: Program,
    two: Program,
}

/// For tests that wait until a session has run out.
fn short_lease() -> Vec<(String, String)> {
    vec![("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned())]
}

/// A program on each of two mounts, with the same file open.
fn world() -> Result<World> {
    world_of(Wish::default())
}

fn world_of(wish: Wish) -> Result<World> {
    let cluster = Cluster::start(wish)?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    fs::write(cluster.mount().join("file"), "0")?;
    let one = Program::with_file(&cluster.mount().join("file"))?;
    let two = Program::with_file(&second.join("file"))?;
    Ok(World { cluster, one, two })
}

#[test]
fn locks_exclude_programs_of_two_hosts_whatever_they_are_taken_with() -> Result<()> {
    let World { cluster, mut one, mut two } = world()?;
    // Each way to lock and to unlock; then the same without waiting where somebody has it.
    for (take, try_it, give) in [
        ("flock(file, LOCK_EX)", "flock(file, LOCK_SH | LOCK_NB)", "flock(file, LOCK_UN)"),
        ("lockf(file, LOCK_EX)", "lockf(file, LOCK_SH | LOCK_NB)", "lockf(file, LOCK_UN)"),
        ("lock(file, W, wait=True)", "lock(file, R)", "lock(file, U)"),
        ("lock(file, W, of=OFD)", "lock(file, W, of=OFD)", "lock(file, U, of=OFD)"),
        ("lock(file, W, of=OFD)", "lock(file, R)", "lock(file, U, of=OFD)"),
    ] {
        assert_eq!(one.ask(take)?, "ok", "{take}");
        assert_eq!(two.ask(try_it)?, "EAGAIN", "{try_it} beside {take}");
        assert_eq!(one.ask(give)?, "ok", "{give}");
        assert_eq!(two.ask(try_it)?, "ok", "{try_it} after {give}");
        for give in ["flock(file, LOCK_UN)", "lock(file, U)", "lock(file, U, of=OFD)"] {
            assert_eq!(two.ask(give)?, "ok");
        }
    }
    // Both read; flock and fcntl do not meet; ranges that do not overlap neither.
    assert_eq!(one.ask("flock(file, LOCK_SH)")?, "ok");
    assert_eq!(two.ask("flock(file, LOCK_SH)")?, "ok");
    assert_eq!(one.ask("lock(file, W, 100, 50)")?, "ok");
    assert_eq!(two.ask("lock(file, W, 150)")?, "ok");
    assert_eq!(one.ask("lock(file, W, 9223372036854775807, 1)")?, "EAGAIN");
    assert_eq!(two.ask("test(file, R, 0, 200)")?, "('W', 100, 50, 0)", "of another host");
    assert_eq!(two.ask("test(file, R, 0, 100)")?, "free");
    let mut here = Program::with_file(&cluster.mount().join("file"))?;
    let expected = format!("('W', 100, 50, {})", one.child.id());
    assert_eq!(here.ask("test(file, R, 0, 200)")?, expected, "a process of this host");
    assert_eq!(here.ask("test(file, R, 0, 200, of=OFD)")?, "('W', 100, 50, -1)");

    // What POSIX says: a process loses its locks on a file with any descriptor of it.
    one.open("again", &cluster.mount().join("file"), "os.O_RDONLY")?;
    assert_eq!(two.ask("lock(file, R, 100, 10)")?, "EAGAIN");
    assert_eq!(one.ask("os.close(again)")?, "None");
    assert_eq!(two.ask("lock(file, R, 100, 10)")?, "ok");
    // A flock ends with the last copy of its descriptor.
    one.open("third", &cluster.mount().join("file"), "os.O_RDONLY")?;
    assert_eq!(one.ask("flock(file, LOCK_UN)")?, "ok");
    assert_eq!(one.ask("flock(third, LOCK_SH)")?, "ok");
    assert_eq!(one.ask("globals().update(copy=os.dup(third)) or os.close(third)")?, "None");
    assert_eq!(two.ask("flock(file, LOCK_EX | LOCK_NB)")?, "EAGAIN");
    assert_eq!(one.ask("os.close(copy)")?, "None");
    assert_eq!(two.ask("flock(file, LOCK_EX)")?, "ok");
    Ok(())
}

#[test]
fn a_wait_ends_with_the_lock_of_the_other_host_however_that_ends() -> Result<()> {
    let World { cluster, mut one, mut two } = world()?;
    let path = cluster.mount().join("file");
    for (take, give) in [
        ("flock(file, LOCK_EX)", "flock(file, LOCK_UN)"),
        ("lockf(file, LOCK_EX)", "lock(file, U)"),
    ] {
        assert_eq!(one.ask(take)?, "ok");
        two.wait(take)?;
        assert_eq!(one.ask(give)?, "ok");
        assert_eq!(two.answer()?, "ok", "unlocked");
        assert_eq!(two.ask(give)?, "ok");

        for end in ["os.close(file)", "os.kill(os.getpid(), 9)"] {
            let mut other = Program::with_file(&path)?;
            assert_eq!(other.ask(take)?, "ok");
            two.wait(take)?;
            other.tell(end)?;
            assert_eq!(two.answer()?, "ok", "{end}");
            assert_eq!(two.ask(give)?, "ok");
        }
    }
    Ok(())
}

#[test]
fn who_waits_can_be_interrupted_and_leaves_nothing_behind() -> Result<()> {
    let World { cluster, mut one, mut two } = world()?;
    for (take, give) in [
        ("flock(file, LOCK_EX)", "flock(file, LOCK_UN)"),
        ("lock(file, W, wait=True)", "lock(file, U)"),
        ("lock(file, W, wait=True, of=OFD)", "lock(file, U, of=OFD)"),
    ] {
        assert_eq!(one.ask(take)?, "ok");
        two.wait(take)?;
        let begun = Instant::now();
        two.signal(Signal::INT)?;
        assert_eq!(two.answer()?, "interrupted");
        assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
        let mut killed = Program::with_file(&cluster.mount_named("second").join("file"))?;
        killed.wait(take)?;
        killed.kill()?;
        assert_eq!(one.ask(give)?, "ok");
        // Nobody has it: neither of those who wanted it.
        let mut third = Program::with_file(&cluster.mount().join("file"))?;
        let again = take.replace("wait=True", "wait=False").replace("EX", "EX | LOCK_NB");
        wait_for("the lock", || third.ask(&again).ok().filter(|answer| answer == "ok"))?;
    }

    // The same while the server says nothing.
    assert_eq!(one.ask("lock(file, W)")?, "ok");
    let mut waiting = Program::with_file(&cluster.mount_named("second").join("file"))?;
    let mut killed = Program::with_file(&cluster.mount_named("second").join("file"))?;
    waiting.wait("lock(file, W, wait=True)")?;
    let paused = cluster.daemon("metadata")?.pause()?;
    killed.wait("lock(file, W, wait=True)")?;
    let begun = Instant::now();
    waiting.signal(Signal::INT)?;
    assert_eq!(waiting.answer()?, "interrupted");
    killed.kill()?;
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    drop(paused);
    assert_eq!(one.ask("lock(file, U)")?, "ok");
    wait_for("the lock", || two.ask("lock(file, W)").ok().filter(|answer| answer == "ok"))?;
    Ok(())
}

#[test]
fn a_deadlock_over_two_hosts_is_refused() -> Result<()> {
    let World { cluster: _cluster, mut one, mut two } = world()?;
    assert_eq!(one.ask("lock(file, W, 0, 10)")?, "ok");
    assert_eq!(two.ask("lock(file, W, 10, 10)")?, "ok");
    one.wait("lock(file, W, 10, 10, wait=True)")?;
    two.tell("lock(file, W, 0, 10, wait=True)")?;
    assert_eq!(ends_of_a_circle([(&mut one, "file"), (&mut two, "file")])?, ["EDEADLK", "ok"]);
    Ok(())
}

#[test]
fn a_deadlock_over_two_files_is_refused() -> Result<()> {
    let World { cluster, mut one, mut two } = world()?;
    one.open("other", &cluster.mount().join("other"), "os.O_RDWR | os.O_CREAT")?;
    two.open("other", &cluster.mount_named("second").join("other"), "os.O_RDWR")?;
    assert_eq!(one.ask("lock(file, W)")?, "ok");
    assert_eq!(two.ask("lock(other, W)")?, "ok");
    one.wait("lock(other, W, wait=True)")?;
    two.tell("lock(file, W, wait=True)")?;
    assert_eq!(ends_of_a_circle([(&mut one, "file"), (&mut two, "other")])?, ["EDEADLK", "ok"]);
    Ok(())
}

/// What programs are answered that wait for each other, each of which gives back what it has then.
/// Whoever closes the circle is told, and the other one goes on.
fn ends_of_a_circle(programs: [(&mut Program, &str); 2]) -> Result<Vec<String>> {
    let ends = thread::scope(|scope| {
        let ends = programs.map(|(program, held)| {
            scope.spawn(move || {
                let answer = program.answer()?;
                program.ask(&format!("lock({held}, U)")).map(|_| answer)
            })
        });
        ends.map(|end| end.join().expect("no panic"))
    });
    let mut ends = ends.into_iter().collect::<Result<Vec<_>>>()?;
    ends.sort();
    Ok(ends)
}

#[test]
fn who_waits_while_another_thread_closes_the_file_has_what_it_gets_and_gives_it_back() -> Result<()>
{
    let World { cluster, mut one, mut two } = world()?;
    assert_eq!(one.ask("lock(file, W)")?, "ok");
    let thread = "threading.Thread(target=lock, args=(file, W), kwargs={'wait': True})";
    assert_eq!(two.ask(&format!("globals().update(waiter={thread})"))?, "None");
    assert_eq!(two.ask("waiter.start()")?, "None");
    two.waits()?;
    two.open("again", &cluster.mount_named("second").join("file"), "os.O_RDWR")?;
    assert_eq!(two.ask("os.close(again)")?, "None");
    assert_eq!(one.ask("lock(file, U)")?, "ok");
    assert_eq!(two.ask("waiter.join()")?, "None");
    assert_eq!(one.ask("lock(file, W)")?, "EAGAIN");
    assert_eq!(two.ask("lock(file, U)")?, "ok");
    assert_eq!(one.ask("lock(file, W)")?, "ok");
    Ok(())
}

#[test]
fn what_is_written_under_a_lock_is_read_under_the_next_one() -> Result<()> {
    let World { cluster: _cluster, mut one, mut two } = world()?;
    let bytes = 300_000;
    // Pages of both are cached, and their descriptors stay open.
    assert_eq!(one.ask(&format!("os.pwrite(file, b'0' * {bytes}, 0)"))?, bytes.to_string());
    assert_eq!(one.ask("os.fsync(file)")?, "None");
    for (turn, digit) in (1..=6).zip(1_u32..) {
        let (writer, reader) =
            if turn % 2 == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
        let take = if turn % 3 == 0 { "flock(file, LOCK_EX)" } else { "lock(file, W, wait=True)" };
        let look = if turn % 3 == 0 { "flock(file, LOCK_SH)" } else { "lock(file, R, wait=True)" };
        let give = if turn % 3 == 0 { "flock(file, LOCK_UN)" } else { "lock(file, U)" };
        assert_eq!(writer.ask(take)?, "ok");
        let size = bytes + 1000 * digit;
        let write = format!("os.pwrite(file, b'{digit}' * {size}, 0)");
        assert_eq!(writer.ask(&write)?, size.to_string());
        assert_eq!(writer.ask(give)?, "ok");
        assert_eq!(reader.ask(look)?, "ok");
        let read = format!("set(os.pread(file, {bytes}, 0)), os.fstat(file).st_size");
        let expected = format!("({{{}}}, {size})", u32::from(b'0') + digit);
        assert_eq!(reader.ask(&read)?, expected, "turn {turn}");
        assert_eq!(reader.ask(give)?, "ok");
    }
    assert_eq!(one.ask("lock(file, W)")?, "ok");
    assert_eq!(one.ask("os.ftruncate(file, 3)")?, "None");
    assert_eq!(one.ask("lock(file, U)")?, "ok");
    assert_eq!(two.ask("lock(file, R)")?, "ok");
    assert_eq!(two.ask("os.pread(file, 100, 0)")?, "b'666'");
    Ok(())
}

#[test]
fn locks_are_held_still_when_the_metadata_server_was_killed() -> Result<()> {
    let World { cluster, mut one, mut two } = world()?;
    for take in ["lock(file, W, 0, 10)", "lock(file, R, 20, 10)", "flock(file, LOCK_EX)"] {
        assert_eq!(one.ask(take)?, "ok");
    }
    let mut waiting = Program::with_file(&cluster.mount_named("second").join("file"))?;
    waiting.wait("lock(file, W, 0, 10, wait=True)")?;
    cluster.crash("metadata")?;
    for refused in ["lock(file, R, 9, 1)", "lock(file, W, 29, 1)", "flock(file, LOCK_SH | LOCK_NB)"]
    {
        assert_eq!(two.ask(refused)?, "EAGAIN", "{refused}");
    }
    assert_eq!(two.ask("lock(file, R, 20, 10)")?, "ok");
    assert_eq!(two.ask("lock(file, W, 10, 10)")?, "ok");
    assert_eq!(one.ask("lock(file, U, 0, 10)")?, "ok");
    assert_eq!(waiting.answer()?, "ok", "who waited asks again");
    assert_eq!(one.ask("flock(file, LOCK_UN)")?, "ok");
    assert_eq!(two.ask("flock(file, LOCK_SH)")?, "ok");
    Ok(())
}

#[test]
fn locks_of_a_mount_that_died_or_was_cut_off_go_with_its_session_and_it_is_told() -> Result<()> {
    let World { cluster, mut one, mut two } =
        world_of(Wish { environment: short_lease(), ..Wish::default() })?;
    let identity = cluster.dir().join("client.pem");
    cluster.mount_as("cut", &identity, "")?.ok()?;
    let path = cluster.mount_named("cut").join("file");
    let mut cut = Program::with_file(&path)?;
    cut.open("other", &path, "os.O_RDWR")?;
    assert_eq!(one.ask("lock(file, W, 0, 10)")?, "ok");
    assert_eq!(cut.ask("lock(file, W, 10, 10, of=OFD)")?, "ok");
    assert_eq!(cut.ask("os.pread(file, 1, 0)")?, "b'0'", "a page is cached");
    cluster.daemon("mount-0")?.kill()?;
    let paused = cluster.daemon("cut")?.pause()?;
    let mut waiting = Program::with_file(&cluster.mount_named("second").join("file"))?;
    waiting.wait("lock(file, W, 0, 10, wait=True)")?;
    two.tell("lock(file, W, 10, 10, wait=True)")?;
    assert_eq!(waiting.answer()?, "ok", "the session of the killed mount has run out");
    assert_eq!(two.answer()?, "ok", "and that of the one that fell silent");
    drop(paused);
    let lost = ["os.pread(file, 1, 0)", "os.pwrite(file, b'x', 0)", "lock(file, R, 99, 1)"];
    wait_for("a program that is told", || cut.ask(lost[0]).ok().filter(|answer| answer == "EIO"))?;
    for use_of_it in lost {
        assert_eq!(cut.ask(use_of_it)?, "EIO", "{use_of_it}");
    }
    assert_eq!(cut.ask("os.pread(other, 1, 0)")?, "b'0'", "it held none through this one");
    assert_eq!(cut.ask("lock(other, W, 10, 10, of=OFD)")?, "EAGAIN");
    assert_eq!(cut.ask("os.close(file)")?, "None");
    assert_eq!(two.ask("lock(file, U)")?, "ok");
    cut.open("file", &path, "os.O_RDWR")?;
    assert_eq!(cut.ask("lock(file, W, 10, 10, wait=True)")?, "ok", "closed and begun anew");
    Ok(())
}

#[test]
fn what_a_mount_that_was_cut_off_had_on_its_way_is_not_stored_over_what_came_after() -> Result<()> {
    const LEN: usize = 1 << 20;
    let cluster = Cluster::start(Wish { environment: short_lease(), ..Wish::default() })?;
    let path = cluster.mount().join("file");
    fs::write(&path, vec![b'0'; LEN])?;
    cluster.mount_as("cut", &cluster.dir().join("client.pem"), "")?.ok()?;
    let on_cut = cluster.mount_named("cut").join("file");
    let (mut cut, mut next) = (Program::start()?, Program::with_file(&path)?);
    cut.open("file", &on_cut, "os.O_WRONLY")?;
    assert_eq!(cut.ask("lock(file, W)")?, "ok");
    let write = |digit: u8| format!("os.pwrite(file, b'{digit}' * {LEN}, 0)");
    // It is sent at once, and nobody takes it.
    let targets = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    assert_eq!(cut.ask(&write(1))?, LEN.to_string());
    let paused = cluster.daemon("cut")?.pause()?;
    assert_eq!(next.ask("lock(file, W, wait=True)")?, "ok", "the session has run out");
    drop(targets);
    assert_eq!(next.ask(&write(2))?, LEN.to_string());
    assert_eq!(next.ask("os.fsync(file)")?, "None");
    assert_eq!(next.ask("os.close(file)")?, "None");
    drop(paused);
    wait_for("a program that is told", || {
        cut.ask("test(file, W)").ok().filter(|answer| answer == "EIO")
    })?;
    assert_eq!(cut.ask("os.close(file)")?, "EIO", "what it wrote is lost");
    for path in [&path, &on_cut] {
        let read = fs::read(path)?;
        assert!(read == vec![b'2'; LEN], "{:?} in {}", read.first(), path.display());
    }
    Ok(())
}

#[test]
fn local_locks_stay_within_a_host() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    fs::write(cluster.mount().join("file"), "0")?;
    cluster.mount_as("local", &cluster.dir().join("client.pem"), "local_locks")?.ok()?;
    let local = cluster.mount_named("local").join("file");
    let mut one = Program::with_file(&cluster.mount().join("file"))?;
    let (mut two, mut three) = (Program::with_file(&local)?, Program::with_file(&local)?);
    for (take, try_it) in [
        ("lock(file, W)", "lock(file, R)"),
        ("flock(file, LOCK_EX)", "flock(file, LOCK_SH | LOCK_NB)"),
    ] {
        assert_eq!(one.ask(take)?, "ok");
        assert_eq!(two.ask(take)?, "ok", "another host's does not count");
        assert_eq!(three.ask(try_it)?, "EAGAIN", "this host's does");
    }
    Ok(())
}

#[test]
fn a_lock_is_gone_when_the_last_close_has_returned() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("closed");
    fs::write(&path, "bytes")?;
    let mut close = Command::new("python3");
    let held = finish(close.args(["-c", CLOSE]).arg(&path), PATIENCE)?.ok()?;
    assert_eq!(held, "flock 0\nopen file description 0\n");
    Ok(())
}

/// Locks and closes 150 times, and counts how often the lock is there still for another open file.
const CLOSE: &str = "
import fcntl, os, struct, sys
def flock(file):
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
def ofd(file):
    fcntl.fcntl(file, 37, struct.pack('@hhqqi0q', fcntl.F_WRLCK, 0, 0, 0, 0))
for name, lock in (('flock', flock), ('open file description', ofd)):
    held = 0
    for _ in range(150):
        other = os.open(sys.argv[1], os.O_RDWR)
        file = os.open(sys.argv[1], os.O_RDWR)
        lock(file)
        copy = os.dup(file)
        os.close(file)
        os.close(copy)
        try:
            lock(other)
        except BlockingIOError:
            held += 1
        os.close(other)
    print(name, held)
";

#[test]
fn a_counter_that_four_processes_on_two_hosts_raise_is_right_at_the_end() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    fs::write(cluster.mount().join("counter"), "0")?;
    let mut counting = Vec::new();
    for mount in [&cluster.mount(), &second, &cluster.mount(), &second] {
        let mut count = Command::new("python3");
        count.args(["-c", COUNT]).arg(mount.join("counter"));
        counting.push(count.spawn()?);
    }
    for mut child in counting {
        assert!(child.wait()?.success());
    }
    assert_eq!(fs::read_to_string(second.join("counter"))?, "1000");
    Ok(())
}

/// Raises the number in a file 250 times, through one descriptor.
const COUNT: &str = "
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
for _ in range(250):
    fcntl.lockf(file, fcntl.LOCK_EX)
    count = int(os.pread(file, 100, 0))
    os.pwrite(file, str(count + 1).encode(), 0)
    fcntl.lockf(file, fcntl.LOCK_UN)
";

#[test]
fn sqlite_is_shared_by_processes_of_two_hosts() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let make = "import sqlite3, sys\n\
        base = sqlite3.connect(sys.argv[1])\n\
        assert base.execute('pragma journal_mode=delete').fetchone() == ('delete',)\n\
        base.execute('create table line (host, number)')\n";
    let database = |mount: &Path| mount.join("base.sqlite");
    let mut command = Command::new("python3");
    finish(command.args(["-c", make]).arg(database(&cluster.mount())), PATIENCE)?.ok()?;
    let mut writing = Vec::new();
    for mount in [&cluster.mount(), &second] {
        let mut write = Command::new("python3");
        writing.push(write.args(["-c", SQLITE]).arg(database(mount)).spawn()?);
    }
    for mut child in writing {
        assert!(child.wait()?.success());
    }
    let look = "import sqlite3, sys\n\
        base = sqlite3.connect(sys.argv[1])\n\
        print(base.execute('pragma integrity_check').fetchone()[0],\n\
        \x20   base.execute('select count(*), count(distinct host) from line').fetchone())\n";
    for mount in [&cluster.mount(), &second] {
        let mut command = Command::new("python3");
        let seen = finish(command.args(["-c", look]).arg(database(mount)), PATIENCE)?.ok()?;
        assert_eq!(seen, "ok (100, 2)\n");
    }
    Ok(())
}

/// Writes 50 lines, a transaction each, and reads all of them after each.
const SQLITE: &str = "
import os, sqlite3, sys
base = sqlite3.connect(sys.argv[1], timeout=100, isolation_level=None)
for number in range(50):
    base.execute('begin immediate')
    before = base.execute('select count(*) from line').fetchone()[0]
    base.execute('insert into line values (?, ?)', (os.getpid(), number))
    assert base.execute('select count(*) from line').fetchone()[0] == before + 1
    base.execute('commit')
    own = base.execute('select count(*) from line where host = ?', (os.getpid(),)).fetchone()
    assert own == (number + 1,), own
";
