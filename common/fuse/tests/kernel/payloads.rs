//! Data that was taken along stays what it was, whatever the channel does with its memory.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    sync::Mutex,
    thread,
    time::Duration,
};

use millrace_fuse_server::{
    Call, Channel, FileSystem, OwnedPayload, Payload, Reply,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr},
        data::{Write, WriteReply},
        open::{Open, OpenFlags, OpenReply},
    },
};

use crate::Mounted;

/// Keeps what is written, and answers before it has looked at it.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<(u64, OwnedPayload)>>,
}

impl FileSystem for Keeper {
    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        reply.send(&AttrReply::new(attr(call.node), Duration::ZERO));
    }

    fn lookup(&self, _: Call<'_>, _: &OsStr, reply: Reply<EntryReply>) {
        reply.send(&EntryReply::new(2, attr(2), Duration::ZERO));
    }

    fn open(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.send(&OpenReply { flags: OpenFlags::DIRECT_IO, ..OpenReply::default() });
    }

    fn write(&self, _: Call<'_>, write: Write, data: Payload<'_>, reply: Reply<WriteReply>) {
        let answer = WriteReply { size: write.size };
        if (write.offset / BLOCK).is_multiple_of(2) {
            reply.send(&answer);
        } else {
            // The caller may write again before this one is looked at.
            let other = thread::spawn(move || reply.send(&answer));
            other.join().unwrap();
        }
        let first = data[0];
        assert!(data.iter().all(|byte| *byte == first));
        self.kept.lock().unwrap().push((write.offset, data.into_owned()));
    }
}

fn attr(node: u64) -> Attr {
    let mode = if node == 1 { 0o040_755 } else { 0o100_644 };
    Attr { ino: node, mode, nlink: 1, ..Attr::default() }
}

fn what_was_taken_along_is_not_written_over(channel: Channel) {
    let Some(mut mounted) = Mounted::new(Keeper::default(), channel) else { return };
    let direct = libc::O_DIRECT;
    let file = fs::OpenOptions::new().write(true).custom_flags(direct).open(mounted.path("file"));
    let file = file.unwrap();
    // On both sides of what is copied at once and what is read where it is; and more blocks than
    // buffers that are kept.
    let lens = [1, 4096, 16_384, 16_385, 100_000, 1_000_000];
    let mut written: u32 = 0;
    for round in 0..5_u8 {
        for (place, len) in (0_u8..).zip(lens) {
            let block = vec![round * 10 + place; len];
            file.write_all_at(&block, u64::from(written) * BLOCK).unwrap();
            written += 1;
        }
    }
    let filesystem = mounted.running().filesystem().clone();
    drop(file);
    // The last one is answered before it is kept.
    mounted.running().mountpoint().unmount().unwrap();
    mounted.running.take().unwrap().join().unwrap();
    let mut kept = filesystem.kept.lock().unwrap();
    kept.sort_by_key(|(offset, _)| *offset);
    assert_eq!(kept.len(), usize::try_from(written).unwrap());
    for (number, (offset, data)) in (0_u32..).zip(kept.iter()) {
        let (round, place) = (number / 6, number % 6);
        assert_eq!(*offset, u64::from(number) * BLOCK);
        assert_eq!(data.len(), lens[usize::try_from(place).unwrap()]);
        let byte = u8::try_from(round * 10 + place).unwrap();
        assert!(data.iter().all(|found| *found == byte), "block {number}");
    }
}

over_both!(what_was_taken_along_is_not_written_over);

/// Distance between blocks, which do not touch one another.
const BLOCK: u64 = 2 << 20;
