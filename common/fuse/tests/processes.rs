//! The example `memory` as processes of its own: they hand over to each other, and are killed.
//! Needs root, `/dev/fuse` and a kernel that offers FUSE over io_uring. Without them a test fails,
//! unless `MILLRACE_TEST_WITHOUT_MOUNTS` or `MILLRACE_TEST_WITHOUT_URING` is set: then it passes.
//! `MILLRACE_TEST_LENGTH` multiplies how often.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::{
    env,
    fs::{self, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use rustix::{io::Errno, mount::UnmountFlags};
use tempfile::TempDir;

/// A server. When it is dropped its process is gone, and so is its mount.
struct Server {
    process: Child,
    mountpoint: PathBuf,
}

impl Server {
    /// Starts it with these arguments and waits until it serves.
    fn start(mountpoint: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(example("memory"));
        command.args(arguments).env("RUST_BACKTRACE", "1").env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap());
        let server = Self { process, mountpoint: mountpoint.to_owned() };
        let mut all = String::new();
        while !all.contains(" serves ") {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "{arguments:?}: {all}");
            all.push_str(&line);
        }
        // What it says later is for whoever reads the output of a test that has failed.
        thread::spawn(move || io::copy(&mut said, &mut io::stderr()));
        server
    }

    /// Waits until it ends by itself.
    fn join(mut self) {
        assert!(self.process.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        // The mount stays: that is what the next one finds.
        self.mountpoint = PathBuf::new();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH).ok();
            self.process.kill().unwrap();
            self.process.wait().unwrap();
        }
    }
}

/// A directory to mount on. Nothing stays mounted there.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes the mount out of sight. A process that another test starts may have a copy of a
    /// descriptor for a moment, and then it would be busy.
    fn unmount(&self) {
        rustix::mount::unmount(self.path(), UnmountFlags::DETACH).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while rustix::mount::unmount(self.path(), UnmountFlags::DETACH).is_ok() {}
    }
}

/// Programs that work on a mount, each in a folder of its own, until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    rounds: Receiver<()>,
    workers: Vec<JoinHandle<Vec<io::Error>>>,
}

impl Load {
    fn start(mountpoint: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (done, rounds) = sync_channel(64);
        let workers = (0..WORKERS)
            .map(|worker| {
                let (stop, done) = (Arc::clone(&stop), done.clone());
                let folder = mountpoint.join(format!("folder-{worker}"));
                thread::spawn(move || work(&folder, worker, &stop, &done))
            })
            .collect();
        Self { stop, rounds, workers }
    }

    /// Lets the workers do so many rounds.
    fn pass(&self, rounds: u64) {
        for _ in 0..rounds {
            self.rounds.recv().unwrap();
        }
    }

    /// What they have seen.
    fn finish(self) -> Vec<io::Error> {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.rounds);
        self.workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    }
}

fn work(folder: &Path, worker: u8, stop: &AtomicBool, done: &SyncSender<()>) -> Vec<io::Error> {
    let mut errors = Vec::new();
    let mut round = 0_u8;
    while !stop.load(Ordering::Relaxed) {
        round = round.wrapping_add(1);
        match one_round(folder, worker ^ round) {
            Ok(()) => {}
            Err(error) => errors.push(error),
        }
        // Nobody has to listen.
        if let Err(TrySendError::Full(())) = done.try_send(()) {
            thread::yield_now();
        }
    }
    errors
}

/// What programs do. Each of it can be done once: whatever is done twice, or not at all, shows.
fn one_round(folder: &Path, mark: u8) -> io::Result<()> {
    fs::create_dir(folder)?;
    let (path, moved) = (folder.join("file"), folder.join("moved"));
    let bytes = vec![mark; 10_000 + usize::from(mark)];
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    file.write_all(&bytes)?;
    fs::hard_link(&path, folder.join("link"))?;
    fs::rename(&path, &moved)?;
    if fs::read(&moved)? != bytes || fs::metadata(&moved)?.len() != bytes.len() as u64 {
        return Err(io::Error::other("other bytes than were written"));
    }
    file.set_len(5)?;
    let mut short = vec![0; 100];
    if file.read_at(&mut short, 0)? != 5 {
        return Err(io::Error::other("another length than was set"));
    }
    fs::remove_file(&moved)?;
    fs::remove_file(folder.join("link"))?;
    fs::remove_dir(folder)
}

fn example(name: &str) -> PathBuf {
    let own = env::current_exe().unwrap();
    let folder = own.parent().and_then(Path::parent).unwrap();
    let path = folder.join("examples").join(name);
    assert!(path.exists(), "{}: build the examples", path.display());
    path
}

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_MOUNTS").is_some();
        assert!(may_lack, "not root, or no /dev/fuse");
        tracing::warn!("not root, or no /dev/fuse: not tested");
    }
    can
}

/// Whether the kernel serves over io_uring. If not, that has to be allowed.
fn has_ring() -> bool {
    let parameter = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let has = parameter.is_ok_and(|text| text.trim() == "Y");
    let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_URING").is_some();
    assert!(has || may_lack, "the kernel does not offer FUSE over io_uring");
    has
}

fn times(once: u64) -> u64 {
    let length = env::var("MILLRACE_TEST_LENGTH").ok().and_then(|text| text.parse().ok());
    once * length.unwrap_or(1)
}

/// Numbers without a pattern.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *random >> 33
}

#[test]
fn programs_do_not_notice_that_another_process_goes_on() {
    if !can_mount() {
        return;
    }
    let (directory, elsewhere) = (Place::new(), TempDir::new().unwrap());
    let socket = elsewhere.path().join("socket");
    let (to, from) = (format!("to={}", socket.display()), format!("from={}", socket.display()));
    let mut server =
        Server::start(directory.path(), &[directory.path().to_str().unwrap(), "4", "dev", &to]);
    // Open all the time, and without a name.
    let kept = directory.path().join("kept");
    let mut open = OpenOptions::new().read(true).append(true).create(true).open(&kept).unwrap();
    fs::remove_file(&kept).unwrap();
    let load = Load::start(directory.path());
    let mut random = 7;
    let handovers = times(5);
    for number in 0..handovers {
        load.pass(20 + next(&mut random) % 50);
        open.write_all(&[u8::try_from(number % 256).unwrap()]).unwrap();
        let successor = Server::start(directory.path(), &[&from, "4"]);
        server.join();
        server = successor;
    }
    load.pass(20);
    let errors = load.finish();
    assert!(errors.is_empty(), "{errors:?}");
    let mut bytes = vec![0; 4096];
    let len = open.read_at(&mut bytes, 0).unwrap();
    assert_eq!(len as u64, handovers.min(4096));
    assert!(bytes[..len].iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 256));
    drop(open);
    directory.unmount();
    server.join();
}

#[test]
fn the_mount_of_a_killed_server_is_replaced_by_the_next() {
    if !can_mount() {
        return;
    }
    killed("dev");
    if has_ring() {
        killed("uring");
    }
}

fn killed(channel: &str) {
    let directory = Place::new();
    let arguments = [directory.path().to_str().unwrap(), "4", channel];
    let load = Load::start(directory.path());
    let mut random = 11;
    for _ in 0..times(5) {
        let server = Server::start(directory.path(), &arguments);
        load.pass(next(&mut random) % 60);
        server.kill();
        let error = fs::read_dir(directory.path()).unwrap_err();
        let errno = Errno::from_io_error(&error);
        let dead = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
        assert!(dead.map(Some).contains(&errno), "{error}");
    }
    let server = Server::start(directory.path(), &arguments);
    // Programs that met a dead server have ended, and work goes on.
    load.finish();
    one_round(&directory.path().join("another"), 1).unwrap();
    directory.unmount();
    server.join();
    one_round(&directory.path().join("another"), 1).unwrap();
}

/// At a time.
const WORKERS: u8 = 4;
