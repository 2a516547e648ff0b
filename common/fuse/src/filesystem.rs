//! What a file system is to this crate: an operation for each request.

use std::ffi::OsStr;

use rustix::io::Errno;

use crate::{
    channel::buffer::Payload,
    protocol::{
        attr::{Access, AttrReply, EntryReply, GetAttr, SetAttr},
        data::{
            BMap, BMapReply, CopyFileRange, CopyFileRangeReply, FAllocate, LSeek, LSeekReply, Read,
            Write, WriteReply,
        },
        directory::DirectoryPage,
        extension::Extensions,
        ioctl::{IoCtl, IoCtlReply, Poll, PollReply},
        lock::{Lock, LockReply},
        node::{Link, MkDir, MkNod, Rename},
        open::{Create, CreateReply, FSync, Flush, Open, OpenReply, Release},
        statfs::StatFsReply,
        statx::{StatX, StatXReply},
        xattr::{GetXAttr, SetXAttr},
    },
    reply::{Data, Done, Reply, XAttr},
    session::Terms,
};

/// Who asks, about what.
#[derive(Clone, Copy, Debug)]
pub struct Call<'bytes> {
    /// Names the request, in logs.
    pub unique: u64,
    /// The inode that it is about; of those that name an entry, the directory.
    pub node: u64,
    /// The caller's file system user id.
    pub uid: u32,
    /// The caller's file system group id.
    pub gid: u32,
    /// The caller's process; 0 where the kernel asks for itself, or it is not in our namespace.
    pub pid: u32,
    /// Of what makes an inode: what it is to have besides.
    pub extensions: Extensions<'bytes>,
}

impl Call<'_> {
    /// The same, not borrowed: to be kept until the request is answered.
    #[must_use]
    pub fn without_extensions(self) -> Call<'static> {
        let Self { unique, node, uid, gid, pid, extensions: _ } = self;
        Call { unique, node, uid, gid, pid, extensions: Extensions::default() }
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// A file system: answers requests, on any number of threads at once.
        ///
        /// A method answers through its [`Reply`], before it returns or at any time later; what it
        /// is lent (names, data) it copies, or takes along, if it answers later. What is not
        /// implemented is answered ENOSYS; most of those the kernel does not ask again, and what
        /// it then does is in the method's description.
        ///
        /// Errors are numbers of errno(3). A method that panics has its request answered EIO.
        #[expect(unused_variables, reason = "the names of arguments are their description")]
        pub trait FileSystem: Send + Sync + 'static {
            /// The session begins, on these terms. Nothing was asked yet.
            fn init(&self, terms: &Terms) {}

            /// The session is over; nothing will be asked any more.
            fn destroy(&self) {}

            /// `lookups` references of `node` are given back. At 0 the kernel does not name it any
            /// more. At unmounting not all are given back.
            fn forget(&self, node: u64, lookups: u64) {}

            /// Answers [`Notifier::retrieve`](crate::Notifier::retrieve).
            fn retrieved(&self, number: u64, node: u64, offset: u64, data: Payload<'_>) {}

            $(
                $(#[$doc])*
                fn $name(&self, call: Call<'_>, $($argument: $type,)* reply: Reply<$answer>) {
                    reply.fail(Errno::NOSYS);
                }
            )*
        }
    };
}

operations! {
    /// Finds a name, and takes a reference to what it finds.
    fn lookup(name: &OsStr) -> EntryReply;
    /// Reads attributes.
    fn getattr(getattr: GetAttr) -> AttrReply;
    /// Reads attributes that stat(2) does not have. ENOSYS: the kernel uses `getattr`.
    fn statx(statx: StatX) -> StatXReply;
    /// Changes the attributes that `setattr.valid` names.
    fn setattr(setattr: SetAttr) -> AttrReply;
    /// Reads a symbolic link.
    fn readlink() -> Data;
    /// Makes a symbolic link.
    fn symlink(name: &OsStr, target: &OsStr) -> EntryReply;
    /// Makes a file, FIFO, socket or device.
    fn mknod(mknod: MkNod, name: &OsStr) -> EntryReply;
    /// Makes a directory.
    fn mkdir(mkdir: MkDir, name: &OsStr) -> EntryReply;
    /// Removes a name that is not a directory's.
    fn unlink(name: &OsStr) -> Done;
    /// Removes an empty directory.
    fn rmdir(name: &OsStr) -> Done;
    /// Moves a name. ENOSYS to one with flags: the caller gets EINVAL.
    fn rename(rename: Rename, name: &OsStr, new_name: &OsStr) -> Done;
    /// Gives an inode another name, and takes a reference.
    fn link(link: Link, name: &OsStr) -> EntryReply;
    /// Opens a file. ENOSYS with `NO_OPEN_SUPPORT`: opens succeed without asking.
    fn open(open: Open) -> OpenReply;
    /// Reads a file.
    fn read(read: Read) -> Data;
    /// Writes a file.
    fn write(write: Write, data: Payload<'_>) -> WriteReply;
    /// Says how large the file system is.
    fn statfs() -> StatFsReply;
    /// An open file ends. Nobody waits for it.
    fn release(release: Release) -> Done;
    /// A descriptor is closed; an error is what close(2) returns. ENOSYS: it is not asked again.
    fn flush(flush: Flush) -> Done;
    /// Makes a file durable. ENOSYS: fsync(2) succeeds without asking.
    fn fsync(fsync: FSync) -> Done;
    /// Sets an extended attribute. ENOSYS: callers get EOPNOTSUPP.
    fn setxattr(set: SetXAttr, name: &OsStr, value: &[u8]) -> Done;
    /// Reads an extended attribute. ENOSYS: callers get EOPNOTSUPP.
    fn getxattr(get: GetXAttr, name: &OsStr) -> XAttr;
    /// Lists extended attributes, a NUL behind each. ENOSYS: callers get EOPNOTSUPP.
    fn listxattr(get: GetXAttr) -> XAttr;
    /// Removes an extended attribute. ENOSYS: callers get EOPNOTSUPP.
    fn removexattr(name: &OsStr) -> Done;
    /// Opens a directory. ENOSYS with `NO_OPENDIR_SUPPORT`: succeeds without asking.
    fn opendir(open: Open) -> OpenReply;
    /// Reads a directory.
    fn readdir(read: Read) -> DirectoryPage;
    /// Reads a directory, and takes a reference to everything in it but `.` and `..`.
    fn readdirplus(read: Read) -> DirectoryPage;
    /// An open directory ends. Nobody waits for it.
    fn releasedir(release: Release) -> Done;
    /// Makes a directory durable. ENOSYS: succeeds without asking.
    fn fsyncdir(fsync: FSync) -> Done;
    /// Says which lock is in the way. ENOSYS: locks stay in the kernel.
    fn getlk(lock: Lock) -> LockReply;
    /// Takes or gives back a lock, or says EAGAIN. ENOSYS: locks stay in the kernel.
    fn setlk(lock: Lock) -> Done;
    /// Takes a lock, and waits for it: see [`Reply::cancellation`].
    fn setlkw(lock: Lock) -> Done;
    /// Checks permission, without `default_permissions`. ENOSYS: everything is permitted.
    fn access(access: Access) -> Done;
    /// Makes and opens a file. ENOSYS: the kernel uses `mknod` and `open`.
    fn create(create: Create, name: &OsStr) -> CreateReply;
    /// Makes and opens a file without a name. ENOSYS: callers get EOPNOTSUPP.
    fn tmpfile(create: Create) -> CreateReply;
    /// Maps a block to the device (fuseblk only).
    fn bmap(bmap: BMap) -> BMapReply;
    /// An ioctl. ENOSYS: callers get ENOTTY.
    fn ioctl(ioctl: IoCtl, data: &[u8]) -> IoCtlReply;
    /// Says which events there are. ENOSYS: files are always ready.
    fn poll(poll: Poll) -> PollReply;
    /// Allocates or frees a range. ENOSYS: callers get EOPNOTSUPP.
    fn fallocate(fallocate: FAllocate) -> Done;
    /// Finds data or a hole. ENOSYS: files have no holes.
    fn lseek(lseek: LSeek) -> LSeekReply;
    /// Copies a range. ENOSYS: the kernel reads and writes.
    fn copy_file_range(copy: CopyFileRange) -> CopyFileRangeReply;
    /// Makes everything durable (only for servers that the kernel trusts).
    fn syncfs() -> Done;
}
