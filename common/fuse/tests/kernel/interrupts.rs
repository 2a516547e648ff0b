//! Who does not want to wait any more does not have to.

use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use millrace_fuse_server::{
    Call, Channel, Data, Done, Errno, FileSystem, Reply, SessionOptions,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr},
        data::Read,
        init::InitFlags,
        lock::Lock,
        open::{Open, OpenFlags, OpenReply},
    },
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags},
};
use tempfile::TempDir;

/// Answers some things only when nobody waits any more.
struct Stuck {
    begun: SyncSender<&'static str>,
}

impl Stuck {
    fn wait<A: 'static>(&self, what: &'static str, reply: Reply<A>) {
        let cancellation = reply.cancellation();
        cancellation.on_cancel(move || reply.fail(Errno::INTR));
        self.begun.send(what).expect("the test listens");
    }
}

impl FileSystem for Stuck {
    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        reply.send(&AttrReply::new(attr(call.node), Duration::ZERO));
    }

    fn lookup(&self, _: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        if name.as_bytes().starts_with(b"stuck") {
            return self.wait("lookup", reply);
        }
        reply.send(&EntryReply::new(2, attr(2), Duration::ZERO));
    }

    fn open(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.send(&OpenReply { flags: OpenFlags::DIRECT_IO, ..OpenReply::default() });
    }

    fn read(&self, _: Call<'_>, _: Read, reply: Reply<Data>) {
        self.wait("read", reply);
    }

    fn setlkw(&self, _: Call<'_>, _: Lock, reply: Reply<Done>) {
        self.wait("lock", reply);
    }
}

fn attr(node: u64) -> Attr {
    let mode = if node == 1 { 0o040_755 } else { 0o100_644 };
    Attr { ino: node, size: 100, mode, nlink: 1, ..Attr::default() }
}

fn spawn(program: &str, arguments: &[&OsStr]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Kills a program that waits. It takes milliseconds; without INTERRUPT it would take for ever.
fn kill(mut child: Child, begun: &Receiver<&'static str>, expected: &str) {
    assert_eq!(begun.recv_timeout(PATIENCE), Ok(expected));
    assert!(child.try_wait().unwrap().is_none(), "{expected}: it waits");
    let pid = Pid::from_child(&child);
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
    child.kill().unwrap();
    assert!(ends(&process), "{expected}: it cannot be killed");
    child.wait().unwrap();
}

/// Waits for the end of a process, but not for ever.
fn ends(process: &OwnedFd) -> bool {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let patience = Timespec::try_from(PATIENCE).unwrap();
    poll(&mut ends, Some(&patience)) == Ok(1)
}

fn sigkill_ends_whatever_waits(channel: Channel) {
    let directory = TempDir::new().unwrap();
    let mut options: SessionOptions = crate::options(channel);
    options.wishes = options.wishes.with(InitFlags::FLOCK_LOCKS);
    let (begun, listens) = sync_channel(8);
    let Some(session) = crate::mount(Stuck { begun }, directory.path(), &options) else { return };
    let running = session.spawn().unwrap();
    let path = |name: &str| directory.path().join(name).into_os_string();
    for _ in 0..5 {
        kill(spawn("stat", &[&path("stuck")]), &listens, "lookup");
        kill(spawn("cat", &[&path("file")]), &listens, "read");
        let locker = spawn("flock", &[&path("file"), OsStr::new("true")]);
        kill(locker, &listens, "lock");
    }
    running.mountpoint().detach().unwrap();
    // Only now is every answer counted. A program that dies may wait in a second request, such as
    // one of the kernel's own read-ahead, and interrupts that too.
    let counts = running.join().unwrap().counts;
    assert_eq!(counts.waiting, 0, "{counts:?}");
    assert!(counts.interrupts >= 15, "{counts:?}");
}

/// Also between two moments: when its request is made, and when that is read.
fn programs_can_be_killed_at_any_moment(channel: Channel) {
    let directory = TempDir::new().unwrap();
    let (begun, _listens) = sync_channel(PROGRAMS);
    let options = crate::options(channel);
    let Some(session) = crate::mount(Stuck { begun }, directory.path(), &options) else { return };
    let running = session.spawn().unwrap();
    let children: Vec<_> = (0..PROGRAMS)
        .map(|number| {
            let path = directory.path().join(format!("stuck-{number}")).into_os_string();
            let mut child = spawn("stat", &[&path]);
            let process = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
            for _ in 0..(number * 37) % 500 {
                thread::yield_now();
            }
            child.kill().unwrap();
            (child, process.unwrap())
        })
        .collect();
    for (mut child, process) in children {
        assert!(ends(&process), "it cannot be killed");
        child.wait().unwrap();
    }
    running.mountpoint().detach().unwrap();
    let counts = running.join().unwrap().counts;
    assert_eq!((counts.waiting, counts.forgotten), (0, 0), "{counts:?}");
}

fn an_aborted_session_ends_with_requests_that_nobody_answers(channel: Channel) {
    let directory = TempDir::new().unwrap();
    let (begun, listens) = sync_channel(8);
    let options = crate::options(channel);
    let Some(session) = crate::mount(Stuck { begun }, directory.path(), &options) else { return };
    let running = session.spawn().unwrap();
    let path = directory.path().join("stuck").into_os_string();
    let mut waiting = spawn("stat", &[&path]);
    assert_eq!(listens.recv_timeout(PATIENCE), Ok("lookup"));
    running.mountpoint().abort().unwrap();
    assert!(!waiting.wait().unwrap().success());
    let ended = running.join().unwrap();
    assert_eq!((ended.counts.waiting, ended.counts.forgotten), (1, 0));
}

const PROGRAMS: usize = 100;
/// A busy machine gets this long.
const PATIENCE: Duration = Duration::from_secs(120);

over_both!(
    sigkill_ends_whatever_waits,
    programs_can_be_killed_at_any_moment,
    an_aborted_session_ends_with_requests_that_nobody_answers,
);
