//! The files, served by this repository's own crate.

use std::{ffi::OsStr, time::Duration};

use anyhow::Result;
use millrace_fuse_server::{
    Call, Channel, Data, Done, Errno, FileSystem, MountOptions, Payload, Reply, Session,
    SessionOptions,
    protocol::{
        attr::{Attr, AttrReply, EntryReply, GetAttr, SetAttr, SetAttrFields},
        data::{Read, Write, WriteReply},
        init::InitFlags,
        open::{Create, CreateReply, Open, OpenFlags, OpenReply, Release},
    },
};

use super::{
    contestants::{Kind, Serving},
    store::{self, Attributes, ROOT, Store, VALID},
};

/// Serves until it is unmounted.
pub(crate) fn serve(files: Store, serving: &Serving, kind: Kind) -> Result<()> {
    let mut options =
        SessionOptions { readers: Some(serving.readers), ..SessionOptions::default() };
    match kind {
        Kind::Uring => options.channel = Channel::Uring,
        Kind::Asleep => options.polling = Some(Duration::ZERO),
        _ => {}
    }
    options.wishes = options.wishes.with(InitFlags::HANDLE_KILLPRIV_V2);
    let mount = MountOptions::new("fuse-servers");
    Session::mount(Served(files), &serving.mountpoint, &mount, &options)?.run()?;
    Ok(())
}

struct Served(Store);

fn attr(of: Attributes) -> Attr {
    let mode = if of.node == ROOT { 0o040_755 } else { 0o100_644 };
    let blocks = of.size.div_ceil(512);
    Attr { ino: of.node, size: of.size, blocks, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}

fn entry(of: Attributes) -> EntryReply {
    EntryReply::new(of.node, attr(of), VALID)
}

fn opened() -> OpenReply {
    OpenReply { flags: OpenFlags::KEEP_CACHE.with(OpenFlags::NOFLUSH), ..OpenReply::default() }
}

impl FileSystem for Served {
    fn lookup(&self, _: Call<'_>, name: &OsStr, reply: Reply<EntryReply>) {
        reply.result(self.0.find(name).map(entry).ok_or(Errno::NOENT));
    }

    fn getattr(&self, call: Call<'_>, _: GetAttr, reply: Reply<AttrReply>) {
        let found = self.0.attributes(call.node).ok_or(Errno::NOENT);
        reply.result(found.map(|found| AttrReply::new(attr(found), VALID)));
    }

    fn setattr(&self, call: Call<'_>, set: SetAttr, reply: Reply<AttrReply>) {
        if let Some(content) = self.0.content(call.node)
            && set.valid.contains(SetAttrFields::SIZE)
        {
            store::truncate(&content, set.size);
        }
        let found = self.0.attributes(call.node).ok_or(Errno::NOENT);
        reply.result(found.map(|found| AttrReply::new(attr(found), VALID)));
    }

    fn create(&self, _: Call<'_>, _: Create, name: &OsStr, reply: Reply<CreateReply>) {
        reply.send(&CreateReply { entry: entry(self.0.create(name)), open: opened() });
    }

    fn unlink(&self, _: Call<'_>, name: &OsStr, reply: Reply<Done>) {
        reply.result(if self.0.unlink(name) { Ok(()) } else { Err(Errno::NOENT) });
    }

    fn open(&self, _: Call<'_>, _: Open, reply: Reply<OpenReply>) {
        reply.send(&opened());
    }

    fn release(&self, _: Call<'_>, _: Release, reply: Reply<Done>) {
        reply.done();
    }

    fn read(&self, call: Call<'_>, read: Read, reply: Reply<Data>) {
        match self.0.content(call.node) {
            Some(found) => {
                store::read(&found, read.offset, read.size, |bytes| reply.send(bytes));
            }
            None => reply.fail(Errno::NOENT),
        }
    }

    fn write(&self, call: Call<'_>, write: Write, data: Payload<'_>, reply: Reply<WriteReply>) {
        match self.0.content(call.node) {
            Some(found) => {
                store::write(&found, write.offset, &data);
                reply.send(&WriteReply { size: write.size });
            }
            None => reply.fail(Errno::NOENT),
        }
    }
}
