//! Answers that cannot be forgotten.

use std::{marker::PhantomData, sync::Arc};

use rustix::io::Errno;

use crate::{
    connection::{Connection, Debt},
    live::Cancellation,
    protocol::{
        attr::{AttrReply, EntryReply},
        data::{BMapReply, CopyFileRangeReply, LSeekReply, WriteReply},
        directory::DirectoryPage,
        header::Opcode,
        ioctl::{IoCtlReply, PollReply},
        lock::LockReply,
        open::{CreateReply, OpenReply},
        statfs::StatFsReply,
        statx::StatXReply,
        xattr::XAttrSizeReply,
    },
};

/// The answer that is owed to a request, of kind `A`.
///
/// It can be given at once, on the thread that read the request, or kept and given by any thread at
/// any time: giving it is one system call. One that is dropped answers EIO and says so in the log,
/// because a request that is never answered leaves its caller waiting for ever.
#[derive(Debug)]
#[must_use = "the request is waiting; dropping its reply answers EIO"]
pub struct Reply<A> {
    owed: Owed,
    kind: PhantomData<fn(A)>,
}

/// [`Reply`] without its kind.
#[derive(Debug)]
pub(crate) struct Owed {
    connection: Arc<Connection>,
    debt: Debt,
    opcode: Opcode,
    open: bool,
}

impl Owed {
    /// The answer of a request that [`Connection::begin`] knows of.
    pub(crate) fn new(connection: Arc<Connection>, debt: Debt, opcode: Opcode) -> Self {
        Self { connection, debt, opcode, open: true }
    }

    pub(crate) fn fail(mut self, error: Errno) {
        self.open = false;
        self.connection.fail(self.debt, error);
    }

    pub(crate) fn answer(mut self, parts: &[&[u8]]) {
        self.open = false;
        self.connection.answer(self.debt, self.opcode, parts);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if self.open && !self.connection.is_over() {
            let (opcode, unique) = (self.opcode, self.debt.unique);
            tracing::error!(?opcode, unique, "a reply was dropped; the request is answered EIO");
            self.connection.count_forgotten();
            self.connection.fail(self.debt, Errno::IO);
        }
    }
}

impl<A> Reply<A> {
    pub(crate) fn new(owed: Owed) -> Self {
        Self { owed, kind: PhantomData }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.owed.connection
    }

    /// Names the request, in logs.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.owed.debt.unique
    }

    /// Answers that it has failed.
    pub fn fail(self, error: Errno) {
        self.owed.fail(error);
    }

    /// Whether the caller still waits.
    #[must_use]
    pub fn cancellation(&self) -> Cancellation {
        self.owed.connection.cancellation(self.owed.debt)
    }
}

/// Kind of an answer that is bytes: of READ, READLINK.
#[derive(Debug)]
pub struct Data(());

/// Kind of an answer that is an extended attribute, or a list of their names.
#[derive(Debug)]
pub struct XAttr(());

/// Kind of an answer that only says that it is done.
#[derive(Debug)]
pub struct Done(());

impl Reply<Done> {
    /// Answers that it is done.
    pub fn done(self) {
        self.owed.answer(&[]);
    }

    /// Answers with what came of it.
    pub fn result(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.done(),
            Err(error) => self.fail(error),
        }
    }
}

impl Reply<Data> {
    /// Answers with these bytes; no more than were asked for.
    pub fn send(self, bytes: &[u8]) {
        self.owed.answer(&[bytes]);
    }

    /// The same with bytes that lie apart, at most 1,000 parts of them. They are not copied here.
    pub fn send_parts(self, parts: &[&[u8]]) {
        self.owed.answer(parts);
    }
}

impl Reply<XAttr> {
    /// Answers a request that has room for `size` bytes with `value`: with its length where none
    /// are asked for, and with ERANGE where it is too long.
    pub fn send(self, size: u32, value: &[u8]) {
        let Ok(len) = u32::try_from(value.len()) else { return self.fail(Errno::TOOBIG) };
        match size {
            0 => self.owed.answer(&[&XAttrSizeReply { size: len }.encode()]),
            size if size < len => self.fail(Errno::RANGE),
            _ => self.owed.answer(&[value]),
        }
    }
}

impl Reply<DirectoryPage> {
    /// Answers with this page; an empty one is the end of the directory.
    pub fn send(self, page: &DirectoryPage) {
        self.owed.answer(&[page.as_bytes()]);
    }
}

impl Reply<IoCtlReply> {
    /// Answers with what ioctl(2) returns and the bytes that it writes.
    pub fn send(self, result: i32, out: &[u8]) {
        let reply = IoCtlReply { result, ..IoCtlReply::default() };
        self.owed.answer(&[&reply.encode(), out]);
    }
}

macro_rules! structure_replies {
    ($($answer:ty),* $(,)?) => {$(
        impl Reply<$answer> {
            /// Answers with this.
            pub fn send(self, answer: &$answer) {
                self.owed.answer(&[&answer.encode()]);
            }

            /// Answers with what came of it.
            pub fn result(self, result: Result<$answer, Errno>) {
                match result {
                    Ok(answer) => self.send(&answer),
                    Err(error) => self.fail(error),
                }
            }
        }
    )*};
}

structure_replies!(
    AttrReply,
    BMapReply,
    CreateReply,
    EntryReply,
    LSeekReply,
    LockReply,
    OpenReply,
    PollReply,
    StatFsReply,
    StatXReply,
    WriteReply,
);

impl Reply<CopyFileRangeReply> {
    /// Answers how many bytes were copied. What asks with the older opcode reads 32 bits.
    pub fn send(self, size: u64) {
        if self.owed.opcode == Opcode::CopyFileRange64 {
            return self.owed.answer(&[&CopyFileRangeReply { size }.encode()]);
        }
        // It asks for less than 4 GiB.
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.owed.answer(&[&WriteReply { size }.encode()]);
    }
}
