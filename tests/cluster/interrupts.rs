//! Ctrl-C (SIGINT) while a bucket is slow: programs end at once, and jobs go on. Progress of jobs,
//! on a terminal and elsewhere.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::{PATIENCE, binaries, finish, wait_for},
    proxy::{Proxy, Weather},
};
use rustix::process::{Pid, Signal, kill_process};

/// So slow that no answer comes while a test runs.
const STANDSTILL: Weather = Weather::Slow(Duration::from_secs(600));

/// A program that is interrupted ends within this time, on a machine that is busy as well.
const PROMPT: Duration = Duration::from_secs(20);

struct World {
    cluster: Cluster,
    proxy: Proxy,
    // Serves what the proxy passes on.
    _bucket: Bucket,
}

/// A linked directory `set` with five files, whose bucket can be slow.
fn world() -> Result<World> {
    let bucket = Bucket::start()?;
    let put = "for i in range(5): client.put_object(Bucket='data', Key=f'set/{i}', \
               Body=b'\\x09' * 100000)";
    bucket.script(put, &[])?;
    let proxy = Proxy::for_endpoint(&bucket.endpoint())?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let endpoint = proxy.endpoint();
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--endpoint", &endpoint])?.ok()?;
    assert_eq!(fs::read_dir(cluster.mount().join("set"))?.count(), 5);
    Ok(World { cluster, proxy, _bucket: bucket })
}

impl World {
    /// Ends a standstill: connections that wait are cut, and those after them are fast.
    fn wake(&self) {
        self.proxy.set(Weather::Down);
        self.proxy.set(Weather::Fair);
    }

    fn millrace(&self) -> Command {
        let mut command = Command::new(binaries().join("millrace"));
        command.arg("--dir").arg(self.cluster.dir());
        command
    }
}

/// One world for all of it, because an S3 server takes longer to start than everything here.
#[test]
fn with_a_slow_bucket_ctrl_c_works_at_once_and_progress_is_shown() -> Result<()> {
    let world = world()?;
    a_reader_of_a_cold_file_ends_at_ctrl_c(&world).context("a reader")?;
    progress_is_a_bar_on_a_terminal(&world).context("the bar")?;
    ctrl_c_ends_the_wait_for_a_job_and_the_job_goes_on(&world).context("a job")
}

fn a_reader_of_a_cold_file_ends_at_ctrl_c(world: &World) -> Result<()> {
    world.proxy.set(STANDSTILL);
    let path = world.cluster.mount().join("set/0");
    let mut reader = Command::new("cat").arg(&path).stdout(Stdio::null()).spawn()?;
    // Waits in the kernel for a page; should it still be starting, it ends at the signal as well.
    wait_for("a reader that waits", || is_waiting_for_disk(reader.id()).then_some(()))?;
    let status = interrupt(&mut reader)?;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{status}");
    world.wake();
    assert!(fs::read(&path)? == [9; 100_000], "the next reader gets the whole file");
    Ok(())
}

fn progress_is_a_bar_on_a_terminal(world: &World) -> Result<()> {
    // An answer takes longer than the bar needs to appear, on a machine that is busy as well.
    world.proxy.set(Weather::Slow(Duration::from_secs(5)));
    let mut millrace = world.millrace();
    millrace.args(["hydrate", "mr:/set/1", "--wait"]);
    let mut terminal = Command::new("python3");
    terminal.args(["-c", TERMINAL]).arg(millrace.get_program()).args(millrace.get_args());
    let shown = finish(terminal.env("TERM", "xterm"), PATIENCE)?.ok()?;
    assert!(shown.contains("hydrate 1 [") && shown.contains("B/"), "{shown}");
    assert!(shown.contains("\x1b["), "the bar is drawn over and taken away: {shown:?}");
    assert!(shown.contains("job 1 succeeded: 1 of 1 file,"), "{shown}");
    Ok(())
}

fn ctrl_c_ends_the_wait_for_a_job_and_the_job_goes_on(world: &World) -> Result<()> {
    world.proxy.set(STANDSTILL);
    let mut command = world.millrace();
    command.args(["hydrate", "mr:/set", "--wait"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut waiting = command.spawn()?;
    let mut said = BufReader::new(waiting.stderr.take().context("stderr is piped")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    // Where a look at the tree takes long, as on a busy machine, it is not waited for.
    let is_counted = line.starts_with("fetches up to ");
    let is_told = is_counted || line.starts_with("fetches what is not here");
    assert!(is_told && line.contains(" from s3://data/set/ to 2 targets"), "{line}");
    // Without a terminal progress comes in lines.
    line.clear();
    said.read_line(&mut line)?;
    assert!(line.starts_with("hydrate 2: ") && line.contains(" files, 0 errors, "), "{line}");
    let status = interrupt(&mut waiting)?;
    assert_eq!(status.code(), Some(130), "{status}");
    let mut rest = String::new();
    said.read_to_string(&mut rest)?;
    assert!(rest.contains("job 2 goes on") && rest.contains("job show 2"), "{rest}");

    assert_eq!(world.cluster.json(&["job", "show", "2"])?["state"], "running");
    world.wake();
    let ended = world.cluster.json(&["job", "show", "2", "--wait"])?;
    assert_eq!((&ended["state"], &ended["errors"]), (&"succeeded".into(), &0.into()), "{ended}");
    assert_eq!(world.cluster.json(&["state", "mr:/set"])?["state"], "hydrated");
    Ok(())
}

/// Runs its arguments with a terminal of 100 columns and passes on what they show and their end.
const TERMINAL: &str = "import fcntl, os, pty, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 100, 0, 0))
while True:
    try:
        shown = os.read(terminal, 65536)
    except OSError:
        break
    sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// Sends SIGINT and returns how the program ends, which it must do promptly.
fn interrupt(child: &mut Child) -> Result<std::process::ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such id")?;
    let begun = Instant::now();
    kill_process(pid, Signal::INT)?;
    let ended = wait_for("the end of an interrupted program", || child.try_wait().ok().flatten())?;
    let took = begun.elapsed();
    assert!(took < PROMPT, "it took {took:?}");
    Ok(ended)
}

/// Whether a process sleeps in a way that only a fatal signal ends: proc(5), field 3 of `stat`.
fn is_waiting_for_disk(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('D')))
}
