//! From bytes to the methods of a file system.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    channel::{Origin, buffer::Incoming},
    connection::Connection,
    filesystem::{Call, FileSystem},
    live::Current,
    protocol::{
        header::{Opcode, RequestHeader},
        notification::Retrieve,
        operation::{DecodeError, Layout, Operation, Request},
    },
    reply::{Owed, Reply},
    wire::Wire as _,
};

/// Brings requests to a file system.
pub(crate) struct Dispatch<F> {
    pub(crate) filesystem: Arc<F>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) layout: Layout,
}

impl<F: FileSystem> Dispatch<F> {
    /// Deals with a request: when this returns it is answered, or somebody has its reply.
    pub(crate) fn request(&self, incoming: Incoming<'_>) {
        let origin = incoming.origin;
        let request = match Request::decode_parts(incoming.parts(), self.layout) {
            Ok(request) => request,
            Err(error) => return self.refuse(origin, incoming.parts(), error),
        };
        let header = request.header;
        let call = Call {
            unique: header.unique,
            node: header.node,
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            extensions: request.extensions,
        };
        match request.operation {
            Operation::Forget { lookups } => self.filesystem.forget(header.node, lookups),
            Operation::BatchForget(forgets) => {
                for forgotten in forgets.iter() {
                    self.filesystem.forget(forgotten.node, forgotten.lookups);
                }
            }
            Operation::Interrupt { unique } => {
                self.connection.interrupt(unique);
            }
            Operation::NotifyReply { retrieved, data } => {
                let len = data.len();
                let data = incoming.into_payload(len);
                let number = Retrieve::number(header.unique);
                self.filesystem.retrieved(number, header.node, retrieved.offset, data);
                self.connection.release(origin, header.unique);
            }
            Operation::Write { write, data } => {
                let ((owed, _current), len) = (self.owed(origin, &header), data.len());
                let call = call.without_extensions();
                let data = incoming.into_payload(len);
                self.filesystem.write(call, write, data, Reply::new(owed));
            }
            operation => {
                let (owed, _current) = self.owed(origin, &header);
                self.entries(call, operation, owed);
            }
        }
    }

    fn owed(&self, origin: Origin, header: &RequestHeader) -> (Owed, Current<'_>) {
        let (debt, current) = self.connection.begin(origin, header.unique, header.pid);
        let opcode = Opcode::from_number(header.opcode).expect("it was decoded");
        (Owed::new(Arc::clone(&self.connection), debt, opcode), current)
    }

    /// Answers what is no request.
    fn refuse(&self, origin: Origin, [head, rest]: [&[u8]; 2], error: DecodeError) {
        tracing::warn!(len = head.len() + rest.len(), %error, "a request cannot be read");
        let Some(header) = RequestHeader::get(head) else { return };
        let errno = match error {
            DecodeError::Unknown(_) => Errno::NOSYS,
            DecodeError::Header | DecodeError::Body(..) => Errno::IO,
        };
        if Opcode::from_number(header.opcode).is_none_or(Opcode::is_answered) {
            let (debt, _current) = self.connection.begin(origin, header.unique, header.pid);
            self.connection.fail(debt, errno);
        } else {
            self.connection.release(origin, header.unique);
        }
    }

    /// Operations on names and inodes.
    fn entries(&self, call: Call<'_>, operation: Operation<'_>, owed: Owed) {
        let fs = &*self.filesystem;
        match operation {
            Operation::Lookup { name } => fs.lookup(call, name, Reply::new(owed)),
            Operation::GetAttr(getattr) => fs.getattr(call, getattr, Reply::new(owed)),
            Operation::StatX(statx) => fs.statx(call, statx, Reply::new(owed)),
            Operation::SetAttr(setattr) => fs.setattr(call, setattr, Reply::new(owed)),
            Operation::ReadLink => fs.readlink(call, Reply::new(owed)),
            Operation::SymLink { name, target } => {
                fs.symlink(call, name, target, Reply::new(owed));
            }
            Operation::MkNod { mknod, name } => fs.mknod(call, mknod, name, Reply::new(owed)),
            Operation::MkDir { mkdir, name } => fs.mkdir(call, mkdir, name, Reply::new(owed)),
            Operation::Unlink { name } => fs.unlink(call, name, Reply::new(owed)),
            Operation::RmDir { name } => fs.rmdir(call, name, Reply::new(owed)),
            Operation::Rename { rename, name, new_name } => {
                fs.rename(call, rename, name, new_name, Reply::new(owed));
            }
            Operation::Link { link, name } => fs.link(call, link, name, Reply::new(owed)),
            Operation::SetXAttr { set, name, value } => {
                fs.setxattr(call, set, name, value, Reply::new(owed));
            }
            Operation::GetXAttr { get, name } => fs.getxattr(call, get, name, Reply::new(owed)),
            Operation::ListXAttr(get) => fs.listxattr(call, get, Reply::new(owed)),
            Operation::RemoveXAttr { name } => fs.removexattr(call, name, Reply::new(owed)),
            Operation::Access(access) => fs.access(call, access, Reply::new(owed)),
            Operation::Create { create, name } => {
                fs.create(call, create, name, Reply::new(owed));
            }
            Operation::TmpFile(create) => fs.tmpfile(call, create, Reply::new(owed)),
            Operation::StatFs => fs.statfs(call, Reply::new(owed)),
            Operation::SyncFs => fs.syncfs(call, Reply::new(owed)),
            operation => self.handles(call, operation, owed),
        }
    }

    /// Operations on open files.
    fn handles(&self, call: Call<'_>, operation: Operation<'_>, owed: Owed) {
        let fs = &*self.filesystem;
        match operation {
            Operation::Open(open) => fs.open(call, open, Reply::new(owed)),
            Operation::Read(read) => fs.read(call, read, Reply::new(owed)),
            Operation::Release(release) => fs.release(call, release, Reply::new(owed)),
            Operation::Flush(flush) => fs.flush(call, flush, Reply::new(owed)),
            Operation::FSync(fsync) => fs.fsync(call, fsync, Reply::new(owed)),
            Operation::OpenDir(open) => fs.opendir(call, open, Reply::new(owed)),
            Operation::ReadDir(read) => fs.readdir(call, read, Reply::new(owed)),
            Operation::ReadDirPlus(read) => fs.readdirplus(call, read, Reply::new(owed)),
            Operation::ReleaseDir(release) => fs.releasedir(call, release, Reply::new(owed)),
            Operation::FSyncDir(fsync) => fs.fsyncdir(call, fsync, Reply::new(owed)),
            Operation::GetLk(lock) => fs.getlk(call, lock, Reply::new(owed)),
            Operation::SetLk(lock) => fs.setlk(call, lock, Reply::new(owed)),
            Operation::SetLkW(lock) => fs.setlkw(call, lock, Reply::new(owed)),
            Operation::BMap(bmap) => fs.bmap(call, bmap, Reply::new(owed)),
            Operation::IoCtl { ioctl, data } => fs.ioctl(call, ioctl, data, Reply::new(owed)),
            Operation::Poll(poll) => fs.poll(call, poll, Reply::new(owed)),
            Operation::FAllocate(fallocate) => {
                fs.fallocate(call, fallocate, Reply::new(owed));
            }
            Operation::LSeek(lseek) => fs.lseek(call, lseek, Reply::new(owed)),
            Operation::CopyFileRange(copy) | Operation::CopyFileRange64(copy) => {
                fs.copy_file_range(call, copy, Reply::new(owed));
            }
            // `destroy` is called when the last thread has ended.
            Operation::Destroy => owed.answer(&[]),
            // INIT comes once, before the session begins; the others are dealt with before.
            _ => owed.fail(Errno::IO),
        }
    }
}

#[cfg(all(test, target_endian = "little"))]
mod tests;
