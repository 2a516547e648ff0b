//! What becomes of requests that a predecessor has read and not answered.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::net::UnixStream,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use millrace_fuse_server::{
    Call, Channel, Errno, FileSystem, Legacy, Reply, Session,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr},
        header::UNIQUE_RESENT,
        init::InitFlags,
    },
};
use tempfile::TempDir;

use crate::{mount, options};

/// Passes each lookup to somebody else.
struct Passing(SyncSender<(u64, Reply<EntryReply>)>);

impl FileSystem for Passing {
    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        reply.send(&AttrReply::new(attr(call.node), Duration::ZERO));
    }

    fn lookup(&self, call: Call<'_>, _: &OsStr, reply: Reply<EntryReply>) {
        self.0.send((call.unique, reply)).expect("somebody listens");
    }
}

fn attr(node: u64) -> Attr {
    let mode = if node == 1 { 0o040_755 } else { 0o100_644 };
    Attr { ino: node, mode, nlink: 1, ..Attr::default() }
}

fn answer(reply: Reply<EntryReply>, node: u64) {
    reply.send(&EntryReply::new(node, attr(node), Duration::ZERO));
}

#[test]
fn what_was_not_answered_is_asked_of_the_successor_and_only_its_answer_counts() {
    let directory = TempDir::new().unwrap();
    let (passed, first) = sync_channel(8);
    let options = options(Channel::Device);
    let Some(session) = mount(Passing(passed), directory.path(), &options) else { return };
    if !session.terms().flags.contains(InitFlags::HAS_RESEND) {
        tracing::warn!("the kernel sends nothing again: not tested");
        return;
    }
    let terms = *session.terms();
    let running = session.spawn().unwrap();
    let path = directory.path().join("file");
    let program = thread::spawn(move || fs::metadata(path));
    let (unique, late) = first.recv().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (passed, second) = sync_channel(8);
    let successor = thread::spawn(move || {
        Session::take_over(&theirs, &options, |legacy, _| {
            assert_eq!((legacy.state, legacy.descriptors.len()), (b"left".to_vec(), 1));
            Ok(Passing(passed))
        })
    });
    let left = || {
        let descriptor = fs::File::open("/dev/null")?.into();
        Ok(Legacy { state: b"left".to_vec(), descriptors: vec![descriptor] })
    };
    let counts = running.hand_over(&ours, Duration::ZERO, |_| left()).unwrap();
    assert_eq!((counts.waiting, counts.forgotten), (0, 0));
    let successor = successor.join().unwrap().unwrap();
    assert_eq!(*successor.terms(), terms);
    // Nobody has asked for it: the kernel has taken the request back.
    answer(late, 77);
    let successor = successor.spawn().unwrap();
    let (again, reply) = second.recv().unwrap();
    assert_eq!(again, unique | UNIQUE_RESENT);
    answer(reply, 78);
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(program.join().unwrap().unwrap().ino(), 78);
    successor.mountpoint().unmount().unwrap();
    let counts = successor.join().unwrap().counts;
    assert_eq!((counts.read, counts.too_late), (counts.answered, 0));
}

#[test]
fn a_session_that_nobody_takes_over_goes_on() {
    let directory = TempDir::new().unwrap();
    let (passed, lookups) = sync_channel(8);
    let options = options(Channel::Device);
    let Some(session) = mount(Passing(passed), directory.path(), &options) else { return };
    let mut running = session.spawn().unwrap();
    let path = directory.path().join("file");
    let program = thread::spawn(move || fs::metadata(path));
    let (_, late) = lookups.recv().unwrap();
    // One dies before it has anything, one has nothing to serve, one is not there any more when it
    // is told to go on.
    for kind in 0..3 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let successor = thread::spawn(move || match kind {
            0 => drop(theirs),
            1 => drop(Session::<Passing>::take_over(&theirs, &options, |_, _| {
                Err(io::ErrorKind::InvalidData.into())
            })),
            _ => {
                theirs.shutdown(std::net::Shutdown::Write).unwrap();
                let taken = Session::<Passing>::take_over(&theirs, &options, |_, _| {
                    Ok(Passing(sync_channel(1).0))
                });
                assert!(taken.is_err(), "it may not serve what the other one serves");
            }
        });
        let refused = running.hand_over(&ours, Duration::ZERO, |_| Ok(Legacy::default()));
        drop(ours);
        successor.join().unwrap();
        running = refused.unwrap_err().session.spawn().unwrap();
    }
    answer(late, 77);
    // It was sent back, and comes again, maybe after each of them: the last answer counts.
    let begun = Instant::now();
    while !program.is_finished() {
        assert!(begun.elapsed() < PATIENCE, "what was sent back does not come again");
        if let Ok((_, reply)) = lookups.recv_timeout(Duration::from_millis(10)) {
            answer(reply, 78);
        }
    }
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(program.join().unwrap().unwrap().ino(), 78);
    running.mountpoint().unmount().unwrap();
    running.join().unwrap();
}

#[test]
fn a_session_over_a_ring_has_no_successor() {
    let directory = TempDir::new().unwrap();
    let (passed, _lookups) = sync_channel(8);
    let Some(session) = mount(Passing(passed), directory.path(), &options(Channel::Uring)) else {
        return;
    };
    let running = session.spawn().unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let refused = running.hand_over(&ours, Duration::ZERO, |_| Ok(Legacy::default())).unwrap_err();
    assert_eq!(refused.error.kind(), io::ErrorKind::Unsupported);
    assert_eq!(Errno::from_io_error(&refused.error), None);
}

/// A machine may be busy; a program that is never answered would wait for ever.
const PATIENCE: Duration = Duration::from_secs(60);
