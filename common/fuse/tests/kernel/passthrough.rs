//! What is passed through is not asked for.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read as _, Write as _},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use millrace_fuse_server::{
    BackingFile, Call, Channel, Data, Done, Errno, FileSystem, Payload, Reply, Terms,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr},
        data::{Read, Write, WriteReply},
        init::InitFlags,
        open::{Open, OpenReply, Release},
    },
};
use tempfile::TempDir;

use crate::mount;

/// Has one file, behind which is another. Reads and writes that come here fail.
struct Backed {
    below: File,
    backing: Mutex<Option<BackingFile>>,
    offered: Mutex<bool>,
}

impl FileSystem for Backed {
    fn init(&self, terms: &Terms) {
        let passes = terms.flags.contains(InitFlags::PASSTHROUGH);
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = passes;
    }

    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        reply.send(&AttrReply::new(self.attr(call.node), Duration::ZERO));
    }

    fn lookup(&self, _: Call<'_>, _: &OsStr, reply: Reply<EntryReply>) {
        reply.send(&EntryReply::new(2, self.attr(2), Duration::ZERO));
    }

    fn open(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        let mut backing = self.backing.lock().unwrap_or_else(PoisonError::into_inner);
        if backing.is_none() {
            match reply.backing_file(&self.below) {
                Ok(file) => *backing = Some(file),
                Err(error) => return reply.fail(error),
            }
        }
        reply.send(&backing.as_ref().expect("just made").opened(7));
    }

    fn read(&self, _: Call<'_>, _: Read, reply: Reply<Data>) {
        reply.fail(Errno::BADMSG);
    }

    fn write(&self, _: Call<'_>, _: Write, _: Payload<'_>, reply: Reply<WriteReply>) {
        reply.fail(Errno::BADMSG);
    }

    fn release(&self, _: Call<'_>, _: Release, reply: Reply<Done>) {
        reply.done();
    }
}

impl Backed {
    fn attr(&self, node: u64) -> Attr {
        let size = self.below.metadata().map_or(0, |found| found.len());
        let mode = if node == 1 { 0o040_755 } else { 0o100_644 };
        Attr { ino: node, size, mode, nlink: 1, ..Attr::default() }
    }
}

#[test]
fn reads_and_writes_go_to_the_backing_file_and_its_number_comes_back() {
    [Channel::Device, Channel::Uring].into_iter().for_each(pass_through);
}

fn pass_through(channel: Channel) {
    let (directory, below) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = below.path().join("below");
    fs::write(&path, b"below").unwrap();
    let mut options = crate::options(channel);
    options.wishes = options.wishes.with(InitFlags::PASSTHROUGH);
    let backed = Backed {
        below: File::open(&path).unwrap(),
        backing: Mutex::default(),
        offered: Mutex::default(),
    };
    let Some(session) = mount(backed, directory.path(), &options) else { return };
    if !*session.filesystem().offered.lock().unwrap() {
        tracing::warn!("the kernel passes nothing through: not tested");
        return;
    }
    let filesystem = session.filesystem().clone();
    let running = session.spawn().unwrap();
    let above = directory.path().join("file");
    let mut open = fs::OpenOptions::new().read(true).write(true).open(&above).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "below");
    open.write_all(b", and above").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"below, and above");
    assert_eq!(fs::read(&above).unwrap(), b"below, and above");
    // What is open keeps the file; what is opened later gets another number.
    drop(filesystem.backing.lock().unwrap().take());
    open.write_all(b"!").unwrap();
    drop(open);
    assert_eq!(fs::read(&above).unwrap(), b"below, and above!");
    running.mountpoint().unmount().unwrap();
    let counts = running.join().unwrap().counts;
    assert_eq!((counts.read, counts.waiting), (counts.answered, 0));
}
