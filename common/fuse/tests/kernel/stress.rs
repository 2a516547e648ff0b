//! Many threads, signals, and programs that are killed: every request is answered once.
//!
//! `MILLRACE_TEST_LENGTH=400` makes it last about a minute on two CPUs. The sequence of operations
//! follows from the seed, which is that of the thread; what is interrupted does not.

use std::{
    env, fs,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex,
        mpsc::{Receiver, sync_channel},
    },
    thread,
    time::Duration,
};

use millrace_fuse_server::{Channel, End};
use rustix::thread::{Pid, gettid};

use crate::{Mounted, scattered::Scattered, signals};

fn every_request_is_answered_once_whoever_interrupts_it(channel: Channel) {
    let length: usize = env::var("MILLRACE_TEST_LENGTH").map_or(1, |text| text.parse().unwrap());
    signals::interrupt_calls();
    let (stuck, begun) = sync_channel(64);
    let Some(mut mounted) = Mounted::new(Scattered::new(stuck), channel) else { return };
    let threads = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for seed in 0..WORKERS {
            let (folder, threads) = (mounted.path(&format!("thread-{seed}")), &threads);
            scope.spawn(move || work(&folder, threads, seed, ROUNDS * length));
        }
        kill_readers(&mounted.path("stuck"), &begun, KILLS * length);
    });
    mounted.running().mountpoint().unmount().unwrap();
    let ended = mounted.running.take().unwrap().join().unwrap();
    tracing::info!(?ended, "stressed");
    let counts = ended.counts;
    assert_eq!(ended.end, End::Unmounted);
    assert_eq!(counts.read, counts.answered, "{counts:?}");
    assert_eq!((counts.waiting, counts.forgotten), (0, 0), "{counts:?}");
    let kills = u64::try_from(KILLS * length).unwrap();
    assert!(counts.interrupts >= kills, "{counts:?}");
}

/// Makes files, and finds in them what it has written. Signals another thread now and then.
fn work(folder: &Path, threads: &Mutex<Vec<Pid>>, seed: u64, rounds: usize) {
    threads.lock().unwrap().push(gettid());
    let mut random = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % u64::try_from(below).unwrap()).unwrap()
    };
    again(|| fs::create_dir(folder));
    for round in 0..rounds {
        let (path, moved) = (folder.join("file"), folder.join("moved"));
        let len = if next(8) == 0 { next(300_000) } else { next(5000) };
        let byte = u8::try_from((round + next(100)) % 256).unwrap();
        let bytes = vec![byte; len];
        again(|| fs::write(&path, &bytes));
        {
            let threads = threads.lock().unwrap();
            signals::interrupt(threads[next(threads.len())]);
        }
        again(|| fs::rename(&path, &moved));
        assert!(again(|| read(&moved)) == bytes, "{}: round {round}", moved.display());
        assert_eq!(again(|| fs::metadata(&moved)).len(), u64::try_from(len).unwrap());
        let names = again(|| fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect());
        let names: Vec<_> = names;
        assert_eq!(names, ["moved"]);
        again(|| fs::remove_file(&moved));
    }
    again(|| fs::remove_dir(folder));
}

/// Reads a file, and asks the server for all of it.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Does it until no signal interrupts it.
fn again<T>(mut what: impl FnMut() -> io::Result<T>) -> T {
    loop {
        match what() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result.unwrap(),
        }
    }
}

/// Starts programs that wait, and kills them. It takes milliseconds; without INTERRUPT it would
/// take for ever.
fn kill_readers(path: &Path, begun: &Receiver<()>, kills: usize) {
    for _ in 0..kills {
        let mut command = Command::new("cat");
        command.arg(path).stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        begun.recv_timeout(PATIENCE).unwrap();
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
    }
}

over_both!(every_request_is_answered_once_whoever_interrupts_it);

const WORKERS: u64 = 63;
const ROUNDS: usize = 10;
const KILLS: usize = 10;
/// A busy machine gets this long.
const PATIENCE: Duration = Duration::from_secs(120);
