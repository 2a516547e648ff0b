//! The same files, served by fuser with its best settings: a descriptor and a thread for each
//! reader, and the flags that the others take.

use std::{ffi::OsStr, io, time::SystemTime};

use anyhow::Result;
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    TimeOrNow, WriteFlags,
};

use super::{
    contestants::Serving,
    store::{self, Attributes, ROOT, Store, VALID},
};

/// Serves until it is unmounted.
pub(crate) fn serve(files: Store, serving: &Serving) -> Result<()> {
    let mut config = Config::default();
    config.n_threads = Some(serving.readers.get());
    config.clone_fd = true;
    config.mount_options =
        vec![MountOption::FSName("fuse-servers".into()), MountOption::DefaultPermissions];
    Session::new(Served(files), &serving.mountpoint, &config)?.run()?;
    Ok(())
}

struct Served(Store);

fn attr(of: Attributes) -> FileAttr {
    let directory = of.node == ROOT;
    FileAttr {
        ino: INodeNo(of.node),
        size: of.size,
        blocks: of.size.div_ceil(512),
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: if directory { FileType::Directory } else { FileType::RegularFile },
        perm: if directory { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

const OPENED: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_NOFLUSH);

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wished = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        for flag in wished {
            config.add_capabilities(flag).map_err(|_| io::Error::other("not offered"))?;
        }
        config.set_max_background(256).map_err(|_| io::Error::other("refused"))?;
        config.set_max_write(1 << 20).map_err(|_| io::Error::other("refused"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.0.find(name) {
            Some(found) => reply.entry(&VALID, &attr(found), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.attributes(node.0) {
            Some(found) => reply.attr(&VALID, &attr(found)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(content), Some(size)) = (self.0.content(node.0), size) {
            store::truncate(&content, size);
        }
        match self.0.attributes(node.0) {
            Some(found) => reply.attr(&VALID, &attr(found)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let made = attr(self.0.create(name));
        reply.created(&VALID, &made, Generation(0), FileHandle(0), OPENED);
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if self.0.unlink(name) { reply.ok() } else { reply.error(Errno::ENOENT) }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), OPENED);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.content(node.0) {
            Some(found) => store::read(&found, offset, size, |bytes| reply.data(bytes)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = u32::try_from(data.len()).expect("no more than a request");
        match self.0.content(node.0) {
            Some(found) => {
                store::write(&found, offset, data);
                reply.written(written);
            }
            None => reply.error(Errno::ENOENT),
        }
    }
}
