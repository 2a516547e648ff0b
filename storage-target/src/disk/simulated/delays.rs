//! Requests that take their time: each is executed some turns of the runtime after it was made, so
//! that later ones overtake it and everything else goes on meanwhile. How many turns follows from
//! the disk's seed.

use std::collections::BTreeMap;

use super::{Held, Media, Operation, SECTOR, SimulatedDisk};
use crate::disk::{DiskError, Request};

/// Turns that a request waits at most: usually a few, and now and then so many that a checkpoint
/// goes by.
const TURNS_MAX: u64 = 4;
const TURNS_MAX_RARELY: u64 = 60;

/// What has been made and not executed.
#[derive(Debug, Default)]
pub(super) struct Delays {
    is_on: bool,
    requests: BTreeMap<u64, Delayed>,
    next: u64,
}

#[derive(Debug)]
pub(super) struct Delayed {
    request: Request,
    /// Writes that a sync covers: those before this one.
    covers: u64,
}

impl SimulatedDisk {
    /// Lets requests take their time from now on, or no more. Who submits needs a tokio runtime
    /// around it, which goes on until the answer is there; on a runtime with one thread the order
    /// of everything follows from the seed.
    ///
    /// What has not been executed when the power goes or the process ends may have been done as a
    /// whole, in part or not at all. A sync covers what was complete when it was made, and no more.
    pub fn set_delays(&self, delays: bool) {
        self.media().delays.is_on = delays;
    }

    /// Takes a request that is executed later. It comes back if requests do not take their time.
    pub(super) fn delay(&self, request: Request) -> Option<Request> {
        let (number, turns) = {
            let mut media = self.media();
            // Of a process that is gone nothing is executed any more, not later either.
            if !media.delays.is_on || media.power.is_off() || media.life != self.life {
                return Some(request);
            }
            let most = match media.random.within(0..16) {
                0 => TURNS_MAX_RARELY,
                _ => TURNS_MAX,
            };
            let turns = media.random.within(0..most);
            let covers = media.next_write;
            let number = media.delays.next;
            media.delays.next += 1;
            media.delays.requests.insert(number, Delayed { request, covers });
            (number, turns)
        };
        let disk = self.clone();
        drop(tokio::spawn(async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            disk.execute_delayed(number);
        }));
        None
    }

    fn execute_delayed(&self, number: u64) {
        let executed = {
            let mut media = self.media();
            // It is gone when the process that made it is.
            media.delays.requests.remove(&number).map(|mut delayed| {
                let result = media.execute(&mut delayed.request, delayed.covers, self.life);
                (delayed.request, result)
            })
        };
        if let Some((request, result)) = executed {
            request.complete(result);
        }
    }
}

impl Media {
    /// Decides what became of requests that were not executed when their process, or the power,
    /// went. Who waits for them hears that the disk has stopped.
    pub(super) fn abandon_delayed(&mut self) {
        for (_, Delayed { request, .. }) in std::mem::take(&mut self.delays.requests) {
            if request.operation == Operation::Write
                && let Held::Shared(buffer) = &request.buffer
            {
                let kind = self.random.within(0..3);
                for piece in &request.pieces {
                    let bytes = &buffer.as_slice()[piece.range.clone()];
                    let sectors = (bytes.len() / SECTOR) as u64;
                    let written = match kind {
                        0 => 0,
                        1 => self.random.within(0..sectors + 1),
                        _ => sectors,
                    };
                    let len = usize::try_from(written).expect("at most what there is") * SECTOR;
                    if piece.offset + bytes.len() as u64 <= self.len {
                        self.put(piece.offset, &bytes[..len]);
                    }
                }
            }
            request.complete(Err(DiskError::Stopped));
        }
    }
}
