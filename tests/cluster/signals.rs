//! Signals to programs that wait for servers which are there and say nothing.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    delegated::delegated,
    program::wait_for,
};
use rustix::process::{Pid, Signal, kill_process};

/// A program that is killed ends within a second; this is for a machine that is busy as well.
const PROMPT: Duration = Duration::from_secs(20);

/// The patience of a mount under test.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Longer than the mount needs to see a signal that it may not act on.
const UNMOVED: Duration = Duration::from_millis(500);

#[test]
fn whoever_waits_for_silent_servers_can_be_killed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let at = |name: &str| cluster.mount().join(name);
    // Made by another mount: this one knows nothing of them.
    let other = cluster.mount_named("other");
    cluster.mount_also(&other)?;
    fs::create_dir(other.join("directory"))?;
    for name in ["file", "cut", "moved", "removed"] {
        fs::write(other.join(name), b"content")?;
    }

    let names = [
        "os.stat(path + '/file')",
        "os.listdir(path + '/directory')",
        "os.open(path + '/file', os.O_RDONLY)",
        "os.open(path + '/cut', os.O_WRONLY | os.O_TRUNC)",
        "os.open(path + '/new', os.O_WRONLY | os.O_CREAT)",
        "os.mkdir(path + '/made')",
        "os.rename(path + '/moved', path + '/renamed')",
        "os.unlink(path + '/removed')",
        "os.truncate(path + '/cut', 1)",
        "os.statvfs(path)",
    ];
    let ready: Result<Vec<_>> =
        names.iter().map(|call| Program::start(&cluster, "pass", call)).collect();
    let paused = cluster.daemon("metadata")?.pause()?;
    kill_all(ready?)?;
    drop(paused);

    let calls = [
        "os.pread(file, 1000000, 0)",
        "mmap.mmap(file, 3000000, prot=mmap.PROT_READ)[2000000]",
        "[os.pwrite(file, b'x' * 1000000, at * 1000000) for at in range(400)]",
        "os.pwrite(file, b'x', 0), os.fsync(file)",
        "os.pwrite(file, b'x', 0), os.close(file)",
        "os.sendfile(1, file, 0, 100000)",
    ];
    let mut ready = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        fs::write(at(&format!("file-{number}")), vec![7; 3_000_000])?;
        let open = format!("file = os.open(path + '/file-{number}', os.O_RDWR)");
        ready.push(Program::start(&cluster, &open, call)?);
    }
    // The kernel reads ahead for the dead: whoever opens the file later waits for that.
    for flags in ["os.O_RDWR", "os.O_WRONLY", "os.O_WRONLY | os.O_TRUNC"] {
        let call = format!("os.open(path + '/file-0', {flags})");
        ready.push(Program::start(&cluster, "pass", &call)?);
    }
    let paused = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    kill_all(ready)?;
    drop(paused);
    fs::write(at("file"), b"the mount goes on")?;
    assert_eq!(fs::read(at("file"))?, b"the mount goes on");
    Ok(())
}

#[test]
fn a_handled_signal_interrupts_what_only_looks_and_nothing_else() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    fs::write(&path, b"content")?;
    let handling = "for number in (signal.SIGINT, signal.SIGALRM):
    signal.signal(number, lambda *_: None)
libc = ctypes.CDLL(None, use_errno=True)
call = lambda name, *more: print(getattr(libc, name)(*more), ctypes.get_errno(), flush=True)
file = os.open(path + '/file', os.O_RDWR)";
    let start = |call: &str| Program::start(&cluster, handling, call);
    // A name is looked up before it is opened or made: nothing has happened by then.
    let mut open = start("call('open', (path + '/file').encode(), 0)")?;
    let mut mkdir = start("call('mkdir', (path + '/made').encode(), 0o755)")?;
    let mut truncate = start("call('ftruncate', file, 3)")?;
    let paused = cluster.daemon("metadata")?.pause()?;
    for program in [&mut open, &mut mkdir, &mut truncate] {
        program.call()?;
    }
    for program in [&mut open, &mut mkdir, &mut truncate] {
        program.signal(Signal::ALARM)?;
        program.is_unmoved()?;
    }
    for program in [&mut open, &mut mkdir, &mut truncate] {
        program.signal(Signal::INT)?;
    }
    assert_eq!((open.ends()?, mkdir.ends()?), ("-1 4\n".into(), "-1 4\n".into()));
    truncate.is_unmoved()?;
    drop(paused);
    assert_eq!(truncate.ends()?, "0 0\n");
    assert!(!cluster.mount().join("made").exists());
    assert_eq!(fs::read(&path)?, b"con");
    Ok(())
}

#[test]
fn a_sync_that_is_repeated_after_a_signal_tells_of_what_was_lost() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let options = format!("timeout={}", TIMEOUT.as_secs());
    cluster.mount_as("patient", &cluster.dir().join("client.pem"), &options)?.ok()?;
    let handling = "signal.signal(signal.SIGINT, lambda *_: None)
libc = ctypes.CDLL(None, use_errno=True)
call = lambda name, *more: print(getattr(libc, name)(*more), ctypes.get_errno(), flush=True)
file = os.open(path + '/file', os.O_RDWR | os.O_CREAT)";
    let mount = cluster.mount_named("patient");
    let call = "os.pwrite(file, b'x' * 1000000, 0)
print('written', flush=True)
sys.stdin.readline()
call('fsync', file); call('fsync', file); call('fsync', file)";
    let mut program = Program::start_at(&mount, handling, call)?;
    // Before it writes: the mount stores every two seconds what was written, and what a target has
    // taken is asked for again at each sync.
    let paused = [cluster.daemon("target-0")?.pause()?, cluster.daemon("target-1")?.pause()?];
    program.tell()?;
    assert_eq!(program.says()?, "written\n");
    program.call()?;
    program.signal(Signal::INT)?;
    assert_eq!(program.ends_within(TIMEOUT + PROMPT)?, "-1 4\n-1 5\n0 5\n");
    drop(paused);
    Ok(())
}

#[test]
fn a_close_of_a_new_file_lets_its_program_go_while_the_server_is_silent() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    cluster.mount_as("making", &cluster.dir().join("client.pem"), "delegations")?.ok()?;
    let mount = cluster.mount_named("making");
    let handling = "signal.signal(signal.SIGINT, lambda *_: None)
libc = ctypes.CDLL(None, use_errno=True)
call = lambda name, *more: print(getattr(libc, name)(*more), ctypes.get_errno(), flush=True)";
    let names = ["first", "killed", "asked", "patient", "last"];
    // Each in a directory of its own, which is open: once a file was made there, its attributes are
    // to be asked for.
    let close = |name: &&str| {
        delegated(&mount, name)?;
        let ready = format!("{handling}\ndirectory = os.open(path + '/{name}', os.O_RDONLY)");
        let call = "flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
file = os.open('new', flags, dir_fd=directory)
print('made', flush=True)
call('close', file)";
        Program::start_at(&mount, &ready, call)
    };
    let mut programs: Vec<Program> = names.iter().map(close).collect::<Result<_>>()?;
    let paused = cluster.daemon("metadata")?.pause()?;
    // All at once: most wait behind the message of the first.
    programs.iter_mut().try_for_each(Program::tell)?;
    for program in &mut programs {
        assert_eq!(program.says()?, "made\n", "nobody was asked");
        program.waits()?;
    }
    let [first, killed, asked, patient, last] = &mut programs[..] else { panic!("five") };
    killed.signal(Signal::KILL)?;
    killed.ends()?;
    for program in [first, asked] {
        program.signal(Signal::INT)?;
        assert_eq!(program.ends()?, "-1 4\n");
    }
    patient.is_unmoved()?;
    drop(paused);
    assert_eq!((patient.ends()?, last.ends()?), ("0 0\n".into(), "0 0\n".into()));
    // Nobody waits for those any more, and they are told of all the same.
    for name in names {
        let (here, there) = (mount.join(name).join("new"), cluster.mount().join(name).join("new"));
        wait_for(&format!("{name} on another mount"), || there.exists().then_some(()))?;
        fs::write(here, name)?;
        assert_eq!(fs::read_to_string(there)?, name);
    }
    Ok(())
}

/// Has each program wait, kills it, and sees it go.
fn kill_all(programs: Vec<Program>) -> Result<()> {
    for mut program in programs {
        program.call()?;
        program.signal(Signal::KILL)?;
        program.ends().with_context(|| program.what.clone())?;
    }
    Ok(())
}

/// A program that makes one call when it is told to. It is killed when this is dropped.
struct Program {
    what: String,
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Program {
    /// Runs lines of Python, which get it ready, and has it wait with another one, the call. `path`
    /// is the mount.
    fn start(cluster: &Cluster, ready: &str, call: &str) -> Result<Self> {
        Self::start_at(&cluster.mount(), ready, call)
    }

    /// The same on another mount.
    fn start_at(mount: &Path, ready: &str, call: &str) -> Result<Self> {
        let text = format!(
            "import ctypes, mmap, os, signal, sys\npath = sys.argv[1]\n{ready}\n\
             print('ready', flush=True)\nsys.stdin.readline()\n{call}\n"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &text]).arg(mount).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("stdout is piped")?);
        let mut program = Self { what: call.to_owned(), child, said };
        assert_eq!(program.says()?, "ready\n", "{call}");
        Ok(program)
    }

    /// The next line that it says.
    fn says(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line)
    }

    /// Has it go on from where it waits to be told so.
    fn tell(&mut self) -> Result<()> {
        Ok(self.child.stdin.as_mut().context("its input is open")?.write_all(b"\n")?)
    }

    /// Has it make the call, and sees it wait in the kernel.
    fn call(&mut self) -> Result<()> {
        self.tell()?;
        drop(self.child.stdin.take());
        self.waits()
    }

    /// Sees it wait in the kernel.
    fn waits(&self) -> Result<()> {
        let path = format!("/proc/{}/wchan", self.child.id());
        wait_for(&format!("a program that waits in {}", self.what), || {
            let wchan = fs::read_to_string(&path).ok()?;
            ["request_wait", "folio"].iter().any(|part| wchan.contains(part)).then_some(())
        })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("no such id")?, signal)?)
    }

    /// Gives a signal time to have an effect that it must not have.
    fn is_unmoved(&mut self) -> Result<()> {
        thread::sleep(UNMOVED);
        assert_eq!(self.child.try_wait()?, None, "it waits on");
        Ok(())
    }

    /// What it has said when it has ended, which it must do promptly.
    fn ends(&mut self) -> Result<String> {
        self.ends_within(PROMPT)
    }

    /// What it has said when it has ended, which it must do within this time.
    fn ends_within(&mut self, most: Duration) -> Result<String> {
        let begun = Instant::now();
        let ended = wait_for("the end of a program", || self.child.try_wait().ok().flatten())?;
        let took = begun.elapsed();
        assert!(took < most, "it took {took:?}: {ended}");
        let mut said = String::new();
        self.said.read_to_string(&mut said)?;
        Ok(said)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
