//! What the kernel is told, it believes.

use std::{
    ffi::OsStr,
    fs,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_fuse_server::{
    Call, Channel, Data, Done, Errno, FileSystem, Payload, Reply,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr},
        data::Read,
        header::ROOT_NODE,
        open::{Flush, Open, OpenFlags, OpenReply, Release},
    },
};

use crate::Mounted;

/// One file, which the kernel may believe for an hour.
#[derive(Default)]
struct Believed {
    size: AtomicU64,
    lookups: AtomicU64,
    reads: AtomicU64,
    retrieved: Mutex<Option<(u64, u64, Vec<u8>)>>,
}

impl Believed {
    fn attr(&self, node: u64) -> Attr {
        let mode = if node == ROOT_NODE { 0o040_755 } else { 0o100_644 };
        let size = self.size.load(Ordering::Relaxed);
        Attr { ino: node, size, mode, nlink: 1, ..Attr::default() }
    }
}

impl FileSystem for Believed {
    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        reply.send(&AttrReply::new(self.attr(call.node), HOUR));
    }

    fn lookup(&self, _: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        if name != "file" {
            return reply.fail(Errno::NOENT);
        }
        self.lookups.fetch_add(1, Ordering::Relaxed);
        reply.send(&EntryReply::new(FILE, self.attr(FILE), HOUR));
    }

    fn open(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.send(&OpenReply { flags: OpenFlags::KEEP_CACHE, ..OpenReply::default() });
    }

    fn read(&self, _: Call<'_>, read: Read, reply: Reply<Data>) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let size = self.size.load(Ordering::Relaxed).saturating_sub(read.offset);
        reply.send(&vec![b'r'; usize::try_from(size.min(u64::from(read.size))).unwrap()]);
    }

    fn flush(&self, _: Call<'_>, _: Flush, reply: Reply<Done>) {
        reply.done();
    }

    fn release(&self, _: Call<'_>, _: Release, reply: Reply<Done>) {
        reply.done();
    }

    fn retrieved(&self, unique: u64, _: u64, offset: u64, data: Payload<'_>) {
        *self.retrieved.lock().unwrap() = Some((unique, offset, data.to_vec()));
    }
}

fn believed(size: u64, channel: Channel) -> Option<Mounted<Believed>> {
    Mounted::new(Believed { size: size.into(), ..Believed::default() }, channel)
}

fn attributes_and_names_are_asked_again(channel: Channel) {
    let Some(mounted) = believed(1, channel) else { return };
    let path = mounted.path("file");
    let size = || fs::metadata(&path).unwrap().len();
    let running = mounted.running();
    let (filesystem, notifier) = (running.filesystem().clone(), running.notifier());
    let lookups = || filesystem.lookups.load(Ordering::Relaxed);
    assert_eq!((size(), lookups()), (1, 1));
    filesystem.size.store(2, Ordering::Relaxed);
    assert_eq!((size(), lookups()), (1, 1));
    notifier.inval_attributes(FILE).unwrap();
    assert_eq!((size(), lookups()), (2, 1));
    notifier.inval_entry(ROOT_NODE, OsStr::new("file")).unwrap();
    assert_eq!((size(), lookups()), (2, 2));
    notifier.expire_entry(ROOT_NODE, OsStr::new("file")).unwrap();
    assert_eq!((size(), lookups()), (2, 3));
    match notifier.increment_epoch() {
        Ok(()) => assert_eq!((size(), lookups()), (2, 4)),
        // Before Linux 6.16.
        Err(error) => assert_eq!(error, Errno::INVAL),
    }
    let unknown = notifier.inval_entry(ROOT_NODE, OsStr::new("other"));
    assert_eq!(unknown, Err(Errno::NOENT));
    assert_eq!(notifier.inval_attributes(77), Err(Errno::NOENT));
}

fn pages_are_stored_dropped_and_retrieved(channel: Channel) {
    let Some(mounted) = believed(6, channel) else { return };
    let path = mounted.path("file");
    let running = mounted.running();
    let (filesystem, notifier) = (running.filesystem().clone(), running.notifier());
    assert_eq!(fs::read(&path).unwrap(), b"rrrrrr");
    notifier.store(FILE, 0, b"stored").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"stored");
    notifier.retrieve(5, FILE, 0, 6).unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    let retrieved = loop {
        if let Some(retrieved) = filesystem.retrieved.lock().unwrap().take() {
            break retrieved;
        }
        assert!(Instant::now() < until, "it is answered");
        std::thread::yield_now();
    };
    assert_eq!(retrieved, (5, 0, b"stored".to_vec()));
    assert_eq!(notifier.retrieve(1 << 61, FILE, 0, 6), Err(Errno::INVAL));
    let reads = filesystem.reads.load(Ordering::Relaxed);
    notifier.inval_data(FILE, 0..u64::MAX >> 1).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"rrrrrr");
    assert!(filesystem.reads.load(Ordering::Relaxed) > reads);
    let backwards = std::ops::Range { start: 5, end: 1 };
    assert_eq!(notifier.inval_data(FILE, backwards), Err(Errno::INVAL));
}

fn requests_are_sent_again_and_their_callers_see_nothing_of_it(channel: Channel) {
    let Some(mounted) = believed(6, channel) else { return };
    let path = mounted.path("file");
    assert_eq!(fs::metadata(&path).unwrap().len(), 6);
    match mounted.running().notifier().resend() {
        Ok(()) => assert_eq!(fs::read(&path).unwrap(), b"rrrrrr"),
        // Before Linux 6.9.
        Err(error) => assert_eq!(error, Errno::INVAL),
    }
}

const FILE: u64 = 2;
const HOUR: Duration = Duration::from_secs(3600);

over_both!(
    attributes_and_names_are_asked_again,
    pages_are_stored_dropped_and_retrieved,
    requests_are_sent_again_and_their_callers_see_nothing_of_it,
);
