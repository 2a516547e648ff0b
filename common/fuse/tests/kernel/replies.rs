//! An answer may be late and come from anywhere, but it comes.

use std::{
    ffi::OsStr,
    fs,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use millrace_fuse_server::{
    Call, Channel, Errno, FileSystem, Reply,
    protocol::attr::{Attr, AttrReply, EntryReply, GetAttr},
};

use crate::Mounted;

/// Treats names as they say.
struct Treatments {
    later: SyncSender<Reply<EntryReply>>,
}

impl FileSystem for Treatments {
    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        reply.send(&AttrReply::new(attr(call.node), Duration::ZERO));
    }

    fn lookup(&self, _: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        match name.to_str() {
            Some("dropped") => drop(reply),
            Some("panics") => panic!("as it should"),
            Some("later") => self.later.send(reply).expect("somebody waits for it"),
            Some("odd") => reply.fail(Errno::from_raw_os_error(4000)),
            _ => reply.send(&EntryReply::new(2, attr(2), Duration::ZERO)),
        }
    }
}

fn attr(node: u64) -> Attr {
    let mode = if node == 1 { 0o040_755 } else { 0o100_644 };
    Attr { ino: node, mode, nlink: 1, ..Attr::default() }
}

fn mounted(channel: Channel) -> Option<(Mounted<Treatments>, Receiver<Reply<EntryReply>>)> {
    let (later, replies) = sync_channel(8);
    Some((Mounted::new(Treatments { later }, channel)?, replies))
}

fn a_reply_that_is_dropped_answers_eio(channel: Channel) {
    let Some((mounted, _)) = mounted(channel) else { return };
    for name in ["dropped", "panics", "odd"] {
        let error = fs::metadata(mounted.path(name)).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::IO), "{name}");
    }
    assert!(fs::metadata(mounted.path("anything")).is_ok(), "and it goes on");
    assert_eq!(mounted.running().counts().forgotten, 2);
}

fn a_reply_can_be_given_later_and_by_another_thread(channel: Channel) {
    let Some((mounted, replies)) = mounted(channel) else { return };
    let path = mounted.path("later");
    let reader = thread::spawn(move || fs::metadata(path));
    let reply = replies.recv().unwrap();
    assert!(fs::metadata(mounted.path("another")).is_ok(), "others do not wait for it");
    assert!(!reader.is_finished());
    reply.send(&EntryReply::new(9, attr(9), Duration::ZERO));
    assert!(reader.join().unwrap().is_ok());
}

fn what_is_not_implemented_is_enosys(channel: Channel) {
    let Some((mounted, _)) = mounted(channel) else { return };
    let error = fs::remove_file(mounted.path("file")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSYS));
}

over_both!(
    a_reply_that_is_dropped_answers_eio,
    a_reply_can_be_given_later_and_by_another_thread,
    what_is_not_implemented_is_enosys,
);
