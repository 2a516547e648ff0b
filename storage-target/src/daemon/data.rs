//! Requests of the data path: attach, read, write, zero, seek, sync.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use millrace_protocol::{
    capability::{Capability, Content, Purpose, Rights},
    session::Role,
    storage::{
        Attach, AttachReply, ChunkVersion, LossCount, Place, Read, ReadReply, Seek, SeekReply,
        Sync, SyncReply, TRANSFER_LEN_MAX, Write, WriteReply, Zero,
    },
};
use millrace_types::{Crc32c, ErrorKind, Failure, Layout, SessionId, WriteNumber};

use super::{Caller, Daemon, bodies::BodyRoom};
use crate::{
    sessions::{Attached, Cut, Holder},
    store::{ReadBytes, Reader, Store},
    view::ChunkView,
    volume::{
        Authority, WriteRequest, ZeroRequest,
        sessions::{Admission, AppliedWrites},
    },
};

/// What an authorised request is about.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) store: Store,
    view: ChunkView,
    layout: Layout,
    range: Range<u32>,
    pub(super) session: SessionId,
}

/// How a change of part of a chunk is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    /// Its own number.
    pub(super) number: WriteNumber,
    /// The lowest that its session still waits for.
    pub(super) lowest_pending: WriteNumber,
    /// On stable storage before it is answered.
    pub(super) durable: bool,
}

/// A write whose header was checked, and for whose body there is room.
#[derive(Debug)]
pub(crate) struct LetIn {
    access: Access,
    room: BodyRoom,
}

impl Daemon {
    /// Takes a session's ticket.
    pub(crate) async fn attach(
        &self,
        holder: Holder,
        connection: Arc<dyn Cut>,
        request: &Attach,
    ) -> Result<(Attached, AttachReply), Failure> {
        let attached = self.sessions.attach(
            &self.cluster,
            holder,
            &request.ticket,
            request.connection_number,
            connection,
        );
        let session = attached.await?;
        let loss_counts = self
            .stores
            .values()
            .map(|store| LossCount { target: store.id(), count: store.volume().loss_count() });
        let reply = AttachReply { session: session.id(), loss_counts: loss_counts.collect() };
        Ok((session, reply))
    }

    /// Reads.
    pub(crate) async fn read(
        &self,
        caller: &Caller,
        request: &Read,
    ) -> Result<(ReadReply, Vec<Bytes>), Failure> {
        let access = self.authorise(caller, &request.place, Rights::Read).await?;
        let read = self.load(access, request.sequential).await?;
        self.counters.read_bytes.inc_by(u64::from(request.place.len));
        Ok(read)
    }

    /// Reads what was authorised. The bytes are buffers of the disk's pool, and count for their
    /// session for as long as anybody has them.
    pub(super) async fn load(
        &self,
        access: Access,
        sequential: bool,
    ) -> Result<(ReadReply, Vec<Bytes>), Failure> {
        check_transfer(access.range.len())?;
        let reader = Reader::of(access.session, sequential);
        // Before any buffer: whoever does not take its answers waits for itself alone.
        let room = self.replies.room(access.session, &access.range, sequential).await;
        let charge = Some(room.charge());
        let read = access.store.read_charged(&access.view, access.range, reader, charge).await;
        self.changed.note(access.view.key, &read);
        let ReadBytes { body, checksum, fetched } = self.counters.note_failure(read)?;
        Ok((ReadReply { checksum, fetched }, room.hold(body)))
    }

    /// Checks all that the header of a write tells, and waits for room for its body: first for
    /// what has begun under the same number, which has room already. May be dropped at its await.
    pub(crate) async fn let_in(&self, caller: &Caller, request: &Write) -> Result<LetIn, Failure> {
        let place = &request.place;
        let access = self.authorise(caller, place, Rights::ReadWrite).await?;
        check_transfer(access.range.len())?;
        self.cluster.check_may_write()?;
        access.settled(request.number).await;
        self.store(place.target)?;
        let room = self.bodies.room(place.target, access.session, place.len).await?;
        Ok(LetIn { access, room })
    }

    /// Writes; what has begun goes on when the caller goes away, and a repetition waits for it.
    pub(crate) async fn write(
        &self,
        caller: &Caller,
        request: Write,
        let_in: LetIn,
        body: Vec<Bytes>,
    ) -> Result<WriteReply, Failure> {
        let LetIn { access, room } = let_in;
        let Write { place, checksum, number, lowest_pending, durable } = request;
        let order = Order { number, lowest_pending, durable };
        let written = self.store_body(caller, access, (&place, order), (body, checksum), room);
        let written = written.await?;
        self.counters.written_bytes.inc_by(u64::from(place.len));
        Ok(written)
    }

    /// Writes bytes that are here, for which there is room until they are stored.
    pub(super) async fn store_body<R: Send + 'static>(
        &self,
        caller: &Caller,
        access: Access,
        (place, order): (&Place, Order),
        (body, checksum): (Vec<Bytes>, Crc32c),
        room: R,
    ) -> Result<WriteReply, Failure> {
        // They may have taken their time.
        session(caller)?.check_live(&self.cluster)?;
        self.check_place(place, &access.layout).await?;
        let len: usize = body.iter().map(Bytes::len).sum();
        if len != access.range.len() {
            let words = format!("{len} bytes came for a write of {}", access.range.len());
            return Err(Failure::new(ErrorKind::Protocol, words));
        }
        let authority = self.check_writer(caller)?;
        let Access { store, view, range, session, .. } = access;
        let key = view.key;
        let write = WriteRequest {
            key: view.key,
            offset: range.start,
            body,
            checksum,
            group_epoch: place.group_epoch,
            write_epoch: view.write_epoch,
            chunk_size: view.chunk_size,
            backed: view.backed,
            session,
            number: order.number,
            authority,
        };
        let (numbers, durable) = ((order.number, order.lowest_pending), order.durable);
        let task = tokio::spawn(async move {
            let change = |applied: AppliedWrites| {
                let authority = write.authority.admitted_by(applied);
                store.write(&view, WriteRequest { authority, ..write }, durable)
            };
            let reply = apply_once(&store, session, numbers, change).await;
            // The body is gone by now, and was not when the caller went.
            drop(room);
            let reply = reply?;
            if durable {
                // At once, unless it was only repeated.
                store.volume().sync_version(reply.version).await?;
            }
            Ok(reply)
        });
        let written = task.await.unwrap_or_else(|_| stopped());
        self.changed.note(key, &written);
        self.counters.note_failure(written)
    }

    /// Zeroes, likewise.
    pub(crate) async fn zero(&self, caller: &Caller, request: Zero) -> Result<WriteReply, Failure> {
        let access = self.authorise(caller, &request.place, Rights::ReadWrite).await?;
        access.settled(request.number).await;
        let authority = self.check_writer(caller)?;
        let Access { store, view, range, session, .. } = access;
        let key = view.key;
        let zero = ZeroRequest {
            key: view.key,
            range,
            group_epoch: request.place.group_epoch,
            write_epoch: view.write_epoch,
            chunk_size: view.chunk_size,
            backed: view.backed,
            session,
            number: request.number,
            authority,
        };
        let (number, lowest) = (request.number, request.lowest_pending);
        let task = tokio::spawn(async move {
            let change = |applied: AppliedWrites| {
                let authority = zero.authority.admitted_by(applied);
                store.zero(&view, ZeroRequest { authority, ..zero })
            };
            apply_once(&store, session, (number, lowest), change).await
        });
        let zeroed = task.await.unwrap_or_else(|_| stopped());
        self.changed.note(key, &zeroed);
        self.counters.note_failure(zeroed)
    }

    /// Finds data or a hole.
    pub(crate) async fn seek(&self, caller: &Caller, request: Seek) -> Result<SeekReply, Failure> {
        let access = self.authorise(caller, &request.place, Rights::Read).await?;
        let found = access.store.seek(&access.view, access.range, request.hole).await;
        Ok(SeekReply { offset: self.counters.note_failure(found)? })
    }

    /// Makes everything acknowledged on a target durable.
    pub(crate) async fn sync(&self, caller: &Caller, request: &Sync) -> Result<SyncReply, Failure> {
        session(caller)?;
        // What was given up while nobody could tell this daemon must not be called durable.
        self.cluster.check_may_write()?;
        self.cluster.check_serves(request.target)?;
        let loss_count = self.store(request.target)?.volume().sync().await?;
        self.counters.syncs.inc();
        Ok(SyncReply { loss_count })
    }

    /// Checks capability, session, content and group of a request.
    pub(super) async fn authorise(
        &self,
        caller: &Caller,
        place: &Place,
        rights: Rights,
    ) -> Result<Access, Failure> {
        let (content, session) = self.permitted(caller, place, rights).await?;
        let store = self.store(place.target)?.clone();
        let layout = content.layout;
        self.check_place(place, &layout).await?;
        let view = ChunkView::new(&content, place.chunk);
        let range = view.range(place.offset, place.len)?;
        Ok(Access { store, view, layout, range, session })
    }

    /// Checks what a capability allows, and whom: its session, and targets to read, of which each
    /// has seen that the session lives for which it does.
    pub(super) async fn permitted(
        &self,
        caller: &Caller,
        place: &Place,
        rights: Rights,
    ) -> Result<(Content, SessionId), Failure> {
        let capability: Capability =
            self.cluster.verify(Purpose::Capability, &place.capability).await?;
        let is_allowed = match caller.role {
            Role::Target => rights == Rights::Read,
            _ => {
                let session = session(caller)?;
                session.check_live(&self.cluster)?;
                capability.session == session.id()
            }
        };
        if !is_allowed {
            let words = format!("the capability was given to {}", capability.session);
            return Err(Failure::new(ErrorKind::Forbidden, words));
        }
        if rights == Rights::ReadWrite && capability.rights != Rights::ReadWrite {
            return Err(Failure::new(ErrorKind::Forbidden, "the capability is for reading"));
        }
        Ok((capability.content.checked()?, capability.session))
    }

    /// Checks the group of a request's chunk.
    pub(super) async fn check_place(&self, place: &Place, layout: &Layout) -> Result<(), Failure> {
        let epoch = place.group_epoch;
        self.cluster.check_group(place.target, layout, place.chunk, epoch).await?;
        self.cluster.check_fresh(layout, place.chunk, place.capability.key)
    }

    /// Checks that this daemon may write, and gives what is asked again when the write is applied.
    fn check_writer(&self, caller: &Caller) -> Result<Authority, Failure> {
        self.cluster.check_may_write()?;
        let session = Arc::clone(session(caller)?);
        let cluster = self.cluster.clone();
        Ok(Authority::new(move || session.is_live(&cluster) && cluster.may_write()))
    }
}

impl Access {
    /// Waits while a change of this number is at work, so that what is sent again and again because
    /// the disk hangs is one task and one body there. May be dropped at its await.
    pub(super) async fn settled(&self, number: WriteNumber) {
        self.store.volume().applied_writes().settled(self.session, number).await;
    }
}

/// Applies a numbered change, unless it is a repetition of one that has been applied: then the
/// answer is that one's. `numbers` are its own and the lowest that its session still waits for. The
/// change is told what has admitted it.
async fn apply_once<F>(
    store: &Store,
    session: SessionId,
    numbers: (WriteNumber, WriteNumber),
    change: impl FnOnce(AppliedWrites) -> F,
) -> Result<WriteReply, Failure>
where
    F: Future<Output = Result<ChunkVersion, Failure>>,
{
    let (number, lowest_pending) = numbers;
    // Of the time before: a write that the journal outlived by a moment only must not carry the
    // count that tells of its loss.
    let loss_count = store.volume().loss_count();
    let applied = store.volume().applied_writes();
    let version = match applied.admit(session, number, lowest_pending).await {
        Admission::Repeated(version) => version,
        Admission::New(running) => {
            let version = change(applied).await?;
            running.applied(version);
            version
        }
        Admission::Late => {
            let words = "later writes of the session were sent when nobody waited for this one";
            return Err(Failure::new(ErrorKind::Cancelled, words));
        }
    };
    Ok(WriteReply { version, loss_count })
}

fn session(caller: &Caller) -> Result<&Arc<Attached>, Failure> {
    caller.session.as_ref().ok_or_else(|| {
        let words = "no session ticket was shown on this connection";
        Failure::new(ErrorKind::TicketExpired, words)
    })
}

pub(super) fn check_transfer(len: usize) -> Result<(), Failure> {
    if len <= TRANSFER_LEN_MAX as usize {
        return Ok(());
    }
    let words = format!("{len} bytes are more than one request moves");
    Err(Failure::new(ErrorKind::InvalidArgument, words))
}

fn stopped<T>() -> Result<T, Failure> {
    Err(Failure::new(ErrorKind::Unavailable, "the target stops"))
}
