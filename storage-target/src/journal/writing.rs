//! Batches onto the disk, one after the other.
//!
//! Whoever writes a batch may be ended in the middle, with the runtime that it runs on. The disk
//! has the batch then all the same, and puts it where it belongs at some later time; another one at
//! the same place would be overwritten by it. So what the disk has is kept beside the turn, and who
//! has the next turn waits for its end first.

use std::sync::Arc;

use bytes::Bytes;
use millrace_types::Crc32c;

use super::{JournalError, Options, Ring, Shared, State, pages_of};
use crate::{
    disk::{Answer, Piece},
    format::{
        batch::{BATCH_LEN_MAX, BatchHeader, Position, batch_len, encode_batch},
        units::PAGE_SIZE,
    },
};

/// A batch that the disk has.
#[derive(Debug)]
pub(super) struct UnderWay {
    answer: Answer,
    position: Position,
    committed: u64,
    /// How many of the first pending records it holds.
    records: usize,
    /// Bytes of it, whole pages.
    len: usize,
    checksum: Crc32c,
}

impl Shared {
    pub(super) async fn write(&self, sequence: u64) -> Result<(), JournalError> {
        self.write_batches(sequence).await?;
        self.data_of(sequence).await
    }

    /// Writes batches until a record is on the device. May be dropped at its await.
    pub(super) async fn write_batches(&self, sequence: u64) -> Result<(), JournalError> {
        while self.state().batches_end()? <= sequence {
            let mut turn = self.writing.lock().await;
            if self.state().batches_end()? <= sequence {
                self.write_batch(&mut turn).await?;
            }
        }
        Ok(())
    }

    /// Writes what was appended, as far as it fits one batch; or waits for the end of the batch
    /// that somebody has begun who is not there any more.
    async fn write_batch(&self, turn: &mut Option<UnderWay>) -> Result<(), JournalError> {
        if turn.is_none() {
            *turn = Some(self.begin_batch().await?);
        }
        let under_way = turn.as_mut().expect("just begun");
        let written = under_way.answer.written().await;
        let done = turn.take().expect("still there");
        if let Some(meter) = self.meter.get() {
            meter.written(done.records, done.len);
        }
        let mut state = self.state();
        if let Err(error) = written {
            state.failed = true;
            return Err(error.into());
        }
        state.handle_written(&done, self.options.ring);
        Ok(())
    }

    /// Hands the next batch to the disk.
    async fn begin_batch(&self) -> Result<UnderWay, JournalError> {
        let Options { target, boot, disk, pool, ring } = &self.options;
        let (position, committed, records) = self.state().next_batch(*ring);
        let header = BatchHeader { target: *target, position, committed, boot: *boot };
        let (bytes, checksum) = encode_batch(&header, &records);
        let mut buffer = pool.acquire(bytes.len()).await;
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
        let offset = position.page * u64::from(PAGE_SIZE);
        let piece = Piece { offset, range: 0..bytes.len() };
        let begun = disk.begin_write(vec![piece], Arc::new(buffer)).await;
        let answer = begun.inspect_err(|_| self.state().failed = true)?;
        let (records, len) = (records.len(), bytes.len());
        Ok(UnderWay { answer, position, committed, records, len, checksum })
    }
}

impl State {
    /// Every record below is on the device, its data perhaps not.
    fn batches_end(&self) -> Result<u64, JournalError> {
        if self.failed { Err(JournalError::Failed) } else { Ok(self.head.sequence) }
    }

    /// Place, `committed` and records of the next batch.
    fn next_batch(&self, ring: Ring) -> (Position, u64, Vec<Bytes>) {
        let mut records: Vec<Bytes> = Vec::new();
        let mut len = batch_len([]);
        for record in &self.pending {
            len += record.len() + 4;
            if len > BATCH_LEN_MAX {
                break;
            }
            records.push(record.clone());
        }
        let pages = pages_of(records.iter().map(Bytes::len));
        let position = Position { page: ring.place(self.head.page, pages), ..self.head };
        (position, self.durable_end.saturating_sub(1), records)
    }

    fn handle_written(&mut self, done: &UnderWay, ring: Ring) {
        let written = self.pending.drain(..done.records);
        self.pending_pages -= written.map(|record| pages_of([record.len()])).sum::<u64>();
        let pages = done.len as u64 / u64::from(PAGE_SIZE);
        self.head = Position {
            page: ring.after(done.position.page, pages),
            sequence: done.position.sequence + done.records as u64,
            previous: done.checksum,
        };
        self.carried_end = done.committed + 1;
        self.used_pages = ring.distance(self.tail, self.head.page);
    }
}
