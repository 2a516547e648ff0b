//! Copies: writes whose bytes this daemon reads, so that the client moves none of them.
//!
//! They are on a target of this host, or come from the daemon that holds them, which lets targets
//! read with the capability of whichever session. Both capabilities are checked here against the
//! session that asks; once the bytes are here, they are written as if they had come with a write.
//!
//! # Nobody waits in a circle
//! Daemons copy from each other. What is copied has memory of its own, apart from that for bodies
//! of writes, and it is taken before anything is read; what is read is moved there out of the
//! disk's buffers before it is written. So a copy that waits for another daemon, or for its own
//! disk, holds nothing that a read or a write needs: those go on for other daemons however many
//! copies wait here, and so do the copies of these.
//!
//! Of the memory a session has a half at a time, and so has what is written to one target: a source
//! that is slow to come, or a disk that hangs, leaves the rest to others.

use std::sync::Arc;

use bytes::Bytes;
use millrace_protocol::{
    capability::Rights,
    storage::{CopyRange, Place, Read, TRANSFER_LEN_MAX, WriteReply},
};
use millrace_types::{Crc32c, ErrorKind, Failure, HostId, SessionId, TargetId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Caller, Daemon,
    data::{Access, Order, check_transfer},
};
use crate::{shares::Shares, view::ChunkView};

/// Bytes of copies in memory.
const BYTES_MAX: u32 = 32 * 1024 * 1024;

/// Memory for what is copied.
#[derive(Debug)]
pub(super) struct Copies {
    sessions: Shares<SessionId>,
    targets: Shares<TargetId>,
    /// A permit for each byte.
    room: Arc<Semaphore>,
}

/// Memory for one copy, until it is dropped.
#[derive(Debug)]
pub(super) struct CopyRoom {
    _of_session: OwnedSemaphorePermit,
    _of_target: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

/// Where bytes are read.
#[derive(Debug)]
enum Source {
    /// From a target of this host.
    Here(Box<Access>),
    /// From the daemon of another one, at these addresses.
    There(HostId, Vec<String>),
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            sessions: Shares::new(BYTES_MAX / 2),
            targets: Shares::new(BYTES_MAX / 2),
            room: Arc::new(Semaphore::new(BYTES_MAX as usize)),
        }
    }
}

impl Copies {
    /// Waits for memory for `len` bytes that a session copies to a target. May be dropped at its
    /// await.
    pub(super) async fn room(&self, target: TargetId, session: SessionId, len: u32) -> CopyRoom {
        // In this order: who waits for its own share stands before nobody else.
        let of_session = self.sessions.take(session, len).await;
        let of_target = self.targets.take(target, len).await;
        let room = Arc::clone(&self.room).acquire_many_owned(len).await;
        let room = room.expect("the room is never closed");
        CopyRoom { _of_session: of_session, _of_target: of_target, _room: room }
    }
}

impl Daemon {
    /// Copies. Before the bytes are here it ends with its caller; then it goes on, and a repetition
    /// waits for it.
    ///
    /// # Errors
    /// Those of reading and of writing; [`ErrorKind::NotSupported`] when the caller had better do
    /// both itself.
    pub(crate) async fn copy(
        &self,
        caller: &Caller,
        request: CopyRange,
    ) -> Result<WriteReply, Failure> {
        let CopyRange { place, source, number, lowest_pending, durable } = request;
        let order = Order { number, lowest_pending, durable };
        let access = self.authorise(caller, &place, Rights::ReadWrite).await?;
        check_transfer(place.len as usize)?;
        if source.len != place.len {
            let words = format!("{} bytes cannot become {}", source.len, place.len);
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        self.cluster.check_may_write()?;
        access.settled(number).await;
        if let Some(reply) = repeated(&access, order).await? {
            return Ok(reply);
        }
        let found = self.find_source(caller, &source).await?;
        let room = self.copies.room(place.target, access.session, place.len).await;
        let read = self.read_source(found, source).await?;
        let copied = self.store_body(caller, access, (&place, order), read, room).await?;
        self.counters.copied_bytes.inc_by(u64::from(place.len));
        Ok(copied)
    }

    /// Where the bytes of a place are, which the caller may read.
    async fn find_source(&self, caller: &Caller, place: &Place) -> Result<Source, Failure> {
        match self.store(place.target) {
            Ok(_) => {
                let access = self.authorise(caller, place, Rights::Read).await?;
                return Ok(Source::Here(Box::new(access)));
            }
            Err(failure) if failure.kind == ErrorKind::Busy => return Err(failure),
            Err(_) => {}
        }
        let (content, _) = self.permitted(caller, place, Rights::Read).await?;
        self.check_place(place, &content.layout).await?;
        ChunkView::new(&content, place.chunk).range(place.offset, place.len)?;
        let map = self.cluster.map();
        let host = map.host_of(place.target).ok_or_else(|| {
            let words = format!("it is not known here which host has target {}", place.target);
            Failure::new(ErrorKind::StaleGroup, words)
        })?;
        Ok(Source::There(host.id, host.addresses.clone()))
    }

    /// The bytes of a place, in memory of their own, and their checksum as their target has it:
    /// whoever writes them compares the two.
    async fn read_source(
        &self,
        found: Source,
        place: Place,
    ) -> Result<(Vec<Bytes>, Crc32c), Failure> {
        // A piece of that length is most likely part of something longer.
        let sequential = place.len == TRANSFER_LEN_MAX;
        match found {
            Source::Here(access) => {
                let (reply, body) = self.load(*access, sequential).await?;
                Ok((vec![Bytes::from(body.concat())], reply.checksum))
            }
            Source::There(host, addresses) => {
                let read = Read { place, sequential };
                let read = self.exporter.remote().try_read(host, &addresses, &read).await;
                let (checksum, body) = read.map_err(unreadable)?;
                Ok((body, checksum))
            }
        }
    }
}

/// The answer to a copy that has been applied: nothing is read for it again.
async fn repeated(access: &Access, order: Order) -> Result<Option<WriteReply>, Failure> {
    let volume = access.store.volume();
    // Of the time before, as with any write.
    let loss_count = volume.loss_count();
    let Some(version) = volume.applied(access.session, order.number).await else {
        return Ok(None);
    };
    if order.durable {
        volume.sync_version(version).await?;
    }
    Ok(Some(WriteReply { version, loss_count }))
}

/// What the caller is told of a failure to read from another daemon. One that refuses, though the
/// right to read has been checked here, is from before there were copies. One that this host cannot
/// reach the caller may, and waits for it with more patience.
fn unreadable(failure: Failure) -> Failure {
    match failure.kind {
        ErrorKind::Forbidden | ErrorKind::Unavailable => {
            let words = format!("the target of the source cannot be read from here: {failure}");
            Failure::new(ErrorKind::NotSupported, words)
        }
        _ => failure,
    }
}
