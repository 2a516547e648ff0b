//! The threads of the channel: one for each queue, and one for the device.

use std::sync::Arc;

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_setaffinity},
};

use super::{
    memory::{Entry, Spares},
    queue::{Answered, Queue},
    ring::{Event, Ring},
};
use crate::{
    channel::{
        End, Origin, Received, Receiver,
        buffer::{Buffer, COPIED_MAX, GivenAway, Incoming, Lent, Pool},
        device::DeviceReceiver,
    },
    protocol::{
        header::{Opcode, ReplyHeader, RequestHeader},
        ring::{FRONT_OFFSET, RingRequest},
    },
    wire::Wire as _,
};

/// What comes through one queue.
#[derive(Debug)]
pub(super) struct QueueReceiver {
    // The ring before the queue, whose bell it watches.
    ring: Ring,
    queue: Arc<Queue>,
    number: u16,
    /// The data that is being read where it is.
    lent: Option<LentPayload>,
    spares: Arc<Spares>,
    /// Requests, or what is in front of the data of one that is read where it is.
    buffer: Buffer,
    pool: Arc<Pool>,
    answered: Vec<Answered>,
}

impl QueueReceiver {
    pub(super) fn new(ring: Ring, queue: Arc<Queue>, spares: Arc<Spares>, pool: Arc<Pool>) -> Self {
        let (number, buffer) = (ring.queue(), pool.take());
        Self { ring, queue, number, lent: None, spares, buffer, pool, answered: Vec::new() }
    }

    /// The next entry with a request; or the end.
    fn next(&mut self) -> Result<Result<Entry, End>, Errno> {
        loop {
            if let Some(end) = self.queue.collect(&mut self.answered) {
                return Ok(Err(end));
            }
            for answered in self.answered.drain(..) {
                self.ring.commit(answered);
            }
            match self.ring.next() {
                Some(Event::Request(entry)) => {
                    // The next operation may take its time, or need what the answered one's caller
                    // will do.
                    if self.ring.has_unsubmitted() {
                        self.ring.submit()?;
                    }
                    return Ok(Ok(entry));
                }
                Some(Event::Woken) => {}
                // The connection ends; the device will say so.
                Some(Event::Lost(_, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)) => {}
                Some(Event::Lost(entry, error)) => {
                    tracing::error!(queue = self.number, entry, %error, "the kernel drops it");
                }
                None if self.queue.fall_asleep() => self.ring.wait()?,
                None => {}
            }
        }
    }

    /// Reads the request in `entry` into the buffer; a large one only up to its data.
    fn read(&mut self, entry: &Entry) -> Option<RingRequest> {
        let request = RingRequest::of(entry.head())?;
        let room = self.buffer.room();
        let mut len = 0;
        let front = &entry.head()[FRONT_OFFSET..][..request.front_len];
        let payload = if is_lent(&request) { &[] } else { entry.payload(request.payload_len) };
        for part in [&entry.head()[..RequestHeader::LEN], front, payload] {
            room.get_mut(len..)?.get_mut(..part.len())?.copy_from_slice(part);
            len += part.len();
        }
        self.buffer.set_len(len);
        Some(request)
    }

    /// Answers what cannot be read.
    fn refuse(&mut self, mut entry: Entry) {
        let request = RequestHeader::get(entry.head()).unwrap_or_default();
        tracing::error!(queue = self.number, ?request, "what is in an entry is no request");
        let len = u32::try_from(ReplyHeader::LEN).expect("16");
        let error = -Errno::IO.raw_os_error();
        let header = ReplyHeader { len, error, unique: request.unique }.encode();
        entry.put_answer(&header, &[]).expect("it has no body");
        self.ring.commit(Answered { entry, unique: request.unique });
    }
}

impl Receiver for QueueReceiver {
    fn begin(&mut self) -> Result<(), Errno> {
        let mut cpus = CpuSet::new();
        let number = usize::from(self.number);
        if number < CpuSet::MAX_CPU {
            cpus.set(number);
            // Not every CPU that may be is there, or for us.
            if let Err(error) = sched_setaffinity(None, &cpus) {
                tracing::debug!(queue = number, %error, "a queue is not bound to its CPU");
            }
        }
        self.ring.begin()
    }

    fn receive(&mut self) -> Result<Received<'_>, Errno> {
        if let Some(lent) = self.lent.take() {
            self.queue.give_back(lent.entry);
        }
        let (entry, request) = loop {
            match self.next()? {
                Err(end) => return Ok(Received::End(end)),
                Ok(entry) => match self.read(&entry) {
                    Some(request) => break (entry, request),
                    None => self.refuse(entry),
                },
            }
        };
        let origin = Origin::Entry { queue: self.number, entry: entry.index() };
        let lent = if is_lent(&request) {
            self.queue.lend(request.commit_id, entry.index());
            let (len, spares) = (request.payload_len, Arc::clone(&self.spares));
            let lent: &mut dyn Lent = self.lent.insert(LentPayload { entry, len, spares });
            Some(lent)
        } else {
            self.queue.wait_for_answer(request.commit_id, entry);
            None
        };
        Ok(Received::Request(Incoming::new(origin, &mut self.buffer, lent, &self.pool)))
    }
}

/// Whether the payload is data that is read where it is, and not copied.
fn is_lent(request: &RingRequest) -> bool {
    let is_data = |opcode| matches!(opcode, Opcode::Write | Opcode::NotifyReply);
    request.payload_len > COPIED_MAX && Opcode::from_number(request.opcode).is_some_and(is_data)
}

/// The payload of an entry whose operation runs.
#[derive(Debug)]
struct LentPayload {
    entry: Entry,
    len: usize,
    spares: Arc<Spares>,
}

impl Lent for LentPayload {
    fn bytes(&self) -> &[u8] {
        self.entry.payload(self.len)
    }

    fn give_away(&mut self) -> Option<Box<dyn GivenAway>> {
        if self.len < EXCHANGED_MIN {
            return None;
        }
        match self.entry.give_payload_away(self.len, &self.spares) {
            Ok(taken) => {
                self.len = 0;
                Some(Box::new(taken))
            }
            Err(error) => {
                tracing::debug!(%error, "a payload is copied and not exchanged");
                None
            }
        }
    }
}

/// What comes through the device: INTERRUPT, FORGET, and the end.
#[derive(Debug)]
pub(super) struct ClassicReceiver {
    device: DeviceReceiver,
    queues: Arc<[Arc<Queue>]>,
}

impl ClassicReceiver {
    pub(super) fn new(device: DeviceReceiver, queues: Arc<[Arc<Queue>]>) -> Self {
        Self { device, queues }
    }
}

impl Receiver for ClassicReceiver {
    fn receive(&mut self) -> Result<Received<'_>, Errno> {
        let received = self.device.receive();
        if let Ok(Received::End(end)) = received {
            self.queues.iter().for_each(|queue| queue.end(end));
        }
        received
    }
}

impl Drop for ClassicReceiver {
    /// However its thread ends, the others must not wait for ever.
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.end(End::Unmounted));
    }
}

/// Exchanging memory costs as much as copying this.
const EXCHANGED_MIN: usize = 128 * 1024;
