//! Files that stand behind others, which the kernel reads and writes without asking.
//!
//! With `PASSTHROUGH` (kernel 6.9, `CAP_SYS_ADMIN`, not together with `WRITEBACK_CACHE`) an open
//! file can be answered with a file of another file system. Reads, writes, mappings and splices of
//! it go there; everything else still comes as a request, attributes too. While a file is open in
//! this way, all that open it must be answered with the same backing file, or with `DIRECT_IO`;
//! otherwise they get EBUSY or EIO.

use std::{os::fd::AsFd, sync::Arc};

use rustix::io::Errno;

use crate::{
    channel::ioctl,
    connection::Connection,
    protocol::open::{CreateReply, OpenFlags, OpenReply},
    reply::Reply,
};

/// A file that the kernel knows by a number. It forgets the number when this is dropped; files that
/// were opened with it keep their backing file.
#[derive(Debug)]
pub struct BackingFile {
    connection: Arc<Connection>,
    number: i32,
}

impl BackingFile {
    fn new(connection: &Arc<Connection>, file: impl AsFd) -> Result<Self, Errno> {
        let number = ioctl::open_backing(connection.device(), file)?;
        Ok(Self { connection: Arc::clone(connection), number })
    }

    /// Answers OPEN so that this file is read and written instead.
    #[must_use]
    pub fn opened(&self, handle: u64) -> OpenReply {
        OpenReply { handle, flags: OpenFlags::PASSTHROUGH, backing: self.number }
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        // With the connection all numbers are gone.
        if let Err(error) = ioctl::close_backing(self.connection.device(), self.number) {
            tracing::debug!(%error, "a backing file is forgotten already");
        }
    }
}

macro_rules! replies_with_backing_files {
    ($($answer:ty),*) => {$(
        impl Reply<$answer> {
            /// Makes `file` one that can stand behind others of this mount. It must be a regular
            /// file; how it was opened does not matter, since the kernel opens it again with the
            /// flags of each caller and the rights of this process.
            ///
            /// # Errors
            /// EPERM without `CAP_SYS_ADMIN` or where `PASSTHROUGH` was not agreed on, ELOOP where
            /// its own file system is stacked deeper than `max_stack_depth`, EOPNOTSUPP when it is
            /// no regular file.
            pub fn backing_file(&self, file: impl AsFd) -> Result<BackingFile, Errno> {
                BackingFile::new(self.connection(), file)
            }
        }
    )*};
}

replies_with_backing_files!(OpenReply, CreateReply);
