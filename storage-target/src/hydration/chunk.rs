//! Who fetches which blocks of one chunk, and who waits for them. No I/O.

use std::{collections::BTreeMap, ops::Range};

use millrace_types::Failure;
use tokio::sync::{oneshot, watch};

use super::{AHEAD_BLOCKS, SEGMENT_BLOCKS, STREAM_BLOCKS, Segment, Wanted};

/// The fetches of one chunk.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    claims: Vec<Claim>,
    next_claim: u64,
    /// Arrived, but perhaps not yet in the volume.
    segments: BTreeMap<u16, Segment>,
    waiters: Vec<Waiter>,
    /// Who looks at what the volume has of the chunk, to register then, and who waits for a turn.
    looking: usize,
    /// How many segments have gone from memory to the volume.
    installs: u64,
    /// Tells who waits for a turn that something has come or ended.
    changes: watch::Sender<()>,
}

/// What the bucket backs of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backed {
    /// The first blocks, so many.
    pub(super) blocks: u16,
    /// Whether it is fetched whole, at most a segment, whatever is asked of it.
    pub(super) is_whole: bool,
}

/// The blocks that one stream still has to bring: it is at `next` and goes to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    pub(super) id: u64,
    pub(super) next: u16,
    pub(super) end: u16,
    /// The first segment ends here, so that who asked does not wait for more than it needs.
    pub(super) asked_end: u16,
    /// Whether it was begun by who reads on, or by nobody: then what comes may be stored later.
    pub(super) sequential: bool,
}

#[derive(Debug)]
struct Waiter {
    wanted: Wanted,
    arrived: Vec<Segment>,
    done: oneshot::Sender<Result<Vec<Segment>, Failure>>,
}

/// What registering for blocks led to.
pub(super) enum Registered {
    /// They are in the volume.
    Present,
    /// They are in memory.
    Arrived(Vec<Segment>),
    /// They would come in several segments, for which the caller has no turn. Nothing has changed;
    /// after the next change it may need none.
    NeedsTurn(watch::Receiver<()>),
    /// They will arrive; the streams are to be started.
    Waiting { arrived: oneshot::Receiver<Result<Vec<Segment>, Failure>>, streams: Vec<Claim> },
}

impl Chunk {
    /// Registers for blocks. `absent` says what the volume lacks of the blocks up to the reach of
    /// those wanted, and of all that are fetched whole.
    pub(super) fn register(
        &mut self,
        wanted: Wanted,
        backed: Backed,
        has_turn: bool,
        absent: impl Fn(u16) -> bool,
    ) -> Registered {
        let in_memory = |chunk: &Self, block: u16| chunk.segment_with(block).is_some();
        // What has been installed meanwhile is read from the disk, with the rest looked at anew.
        if (wanted.first..wanted.end).any(|block| !absent(block) && !in_memory(self, block)) {
            return Registered::Present;
        }
        if !has_turn && self.comes_in_pieces(wanted) {
            return Registered::NeedsTurn(self.changes.subscribe());
        }
        let mut arrived = Vec::new();
        let mut streams = Vec::new();
        let mut block = wanted.first;
        while block < wanted.end {
            if let Some(segment) = self.segment_with(block) {
                block = segment.end();
                arrived.push(segment.clone());
                continue;
            }
            let claim = match self.claims.iter().position(|claim| claim.covers(block)) {
                Some(at) if wanted.sequential || block - self.claims[at].next < AHEAD_BLOCKS => {
                    block = self.claims[at].end;
                    continue;
                }
                Some(at) => {
                    let end = std::mem::replace(&mut self.claims[at].end, block);
                    self.claim(block..end, wanted.end, wanted.sequential)
                }
                None => self.claim_free(block, wanted, backed, &absent),
            };
            block = claim.end;
            streams.push(claim);
        }
        if arrived.last().is_some() && streams.is_empty() && covers(&arrived, wanted) {
            return Registered::Arrived(arrived);
        }
        let (done, receiver) = oneshot::channel();
        self.waiters.push(Waiter { wanted, arrived, done });
        Registered::Waiting { arrived: receiver, streams }
    }

    /// Whether a waiter would hold some segments while it waits for others.
    fn comes_in_pieces(&self, wanted: Wanted) -> bool {
        let mut blocks = wanted.first..wanted.end;
        let arrived = blocks.clone().filter(|&block| self.segment_with(block).is_some()).count();
        let shared = blocks.any(|block| self.claims.iter().any(|claim| claim.covers(block)));
        let all = usize::from(wanted.end - wanted.first);
        let fresh = arrived == 0 && !shared && all <= usize::from(SEGMENT_BLOCKS);
        !fresh && arrived < all
    }

    /// Forgets waiters that have gone away, and the segments that they held.
    pub(super) fn forget_gone(&mut self) {
        self.waiters.retain(|waiter| !waiter.done.is_closed());
    }

    /// Claims a block that is on nobody's way, and what shall come with it.
    fn claim_free(
        &mut self,
        block: u16,
        wanted: Wanted,
        backed: Backed,
        absent: &impl Fn(u16) -> bool,
    ) -> Claim {
        let free = |at: &u16| {
            absent(*at)
                && self.segment_with(*at).is_none()
                && !self.claims.iter().any(|claim| claim.covers(*at))
        };
        // Its first bytes come in any case: so they are kept, too.
        if backed.is_whole && (0..backed.blocks).all(|at| free(&at)) {
            return self.claim(0..backed.blocks, backed.blocks, wanted.sequential);
        }
        let reach = match wanted.sequential {
            true => (block + 1).next_multiple_of(STREAM_BLOCKS).min(backed.blocks),
            // What a reader asks for is rounded up to what one transfer moves well.
            false => wanted.end.next_multiple_of(SEGMENT_BLOCKS).min(backed.blocks),
        };
        let end = (block..reach).take_while(free).last().unwrap_or(block) + 1;
        self.claim(block..end, wanted.end, wanted.sequential)
    }

    fn claim(&mut self, blocks: Range<u16>, asked_end: u16, sequential: bool) -> Claim {
        assert!(!blocks.is_empty(), "a stream brings at least one block");
        let Range { start: next, end } = blocks;
        let claim = Claim { id: self.next_claim, next, end, asked_end, sequential };
        self.next_claim += 1;
        self.claims.push(claim);
        claim
    }

    /// The blocks of a stream's next segment; `None` when nothing is left of its claim.
    pub(super) fn next_segment(&self, id: u64) -> Option<(u16, u16)> {
        let claim = self.claims.iter().find(|claim| claim.id == id)?;
        // The first segment serves who asked; later ones end at multiples of a segment.
        let due = match claim.next < claim.asked_end {
            true => claim.asked_end.min(claim.next + SEGMENT_BLOCKS),
            false => (claim.next + 1).next_multiple_of(SEGMENT_BLOCKS),
        };
        let end = due.min(claim.end);
        (claim.next < end).then_some((claim.next, end))
    }

    /// Takes a segment of a stream and hands it to who waits for it.
    pub(super) fn deliver(&mut self, id: u64, segment: &Segment) {
        if let Some(claim) = self.claims.iter_mut().find(|claim| claim.id == id) {
            claim.next = segment.end();
        }
        self.segments.insert(segment.first_block, segment.clone());
        self.changes.send_replace(());
        let mut at = 0;
        while at < self.waiters.len() {
            let waiter = &mut self.waiters[at];
            let overlaps =
                segment.first_block < waiter.wanted.end && waiter.wanted.first < segment.end();
            if overlaps {
                waiter.arrived.push(segment.clone());
            }
            if overlaps && covers(&waiter.arrived, waiter.wanted) {
                let mut waiter = self.waiters.swap_remove(at);
                waiter.arrived.sort_by_key(|segment| segment.first_block);
                // A reader that has gone away needs no answer.
                drop(waiter.done.send(Ok(waiter.arrived)));
            } else {
                at += 1;
            }
        }
    }

    /// The volume has a segment, or will never have it.
    pub(super) fn forget_segment(&mut self, first_block: u16) {
        self.segments.remove(&first_block);
        self.installs += 1;
        self.changes.send_replace(());
    }

    /// Changes whenever a segment has left the memory.
    pub(super) fn installs(&self) -> u64 {
        self.installs
    }

    /// Somebody looks at what the volume has: the entry stays until the end of that.
    pub(super) fn begin_look(&mut self) {
        self.looking += 1;
    }

    pub(super) fn end_look(&mut self) {
        self.looking -= 1;
    }

    /// Ends a stream. With a failure, whoever still waits for one of its blocks gets it.
    pub(super) fn end_stream(&mut self, id: u64, failure: Option<&Failure>) {
        let Some(at) = self.claims.iter().position(|claim| claim.id == id) else { return };
        let claim = self.claims.swap_remove(at);
        self.changes.send_replace(());
        let Some(failure) = failure else { return };
        let mut at = 0;
        while at < self.waiters.len() {
            let waiter = &self.waiters[at];
            let lost = (claim.next..claim.end)
                .filter(|block| (waiter.wanted.first..waiter.wanted.end).contains(block))
                .any(|block| !waiter.arrived.iter().any(|segment| segment.has(block)));
            if lost {
                let waiter = self.waiters.swap_remove(at);
                drop(waiter.done.send(Err(failure.clone())));
            } else {
                at += 1;
            }
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        let nothing_comes = self.claims.is_empty() && self.segments.is_empty();
        nothing_comes && self.waiters.is_empty() && self.looking == 0
    }

    fn segment_with(&self, block: u16) -> Option<&Segment> {
        let (_, segment) = self.segments.range(..=block).next_back()?;
        segment.has(block).then_some(segment)
    }
}

impl Claim {
    fn covers(&self, block: u16) -> bool {
        (self.next..self.end).contains(&block)
    }
}

impl Segment {
    fn has(&self, block: u16) -> bool {
        (self.first_block..self.end()).contains(&block)
    }
}

fn covers(segments: &[Segment], wanted: Wanted) -> bool {
    (wanted.first..wanted.end).all(|block| segments.iter().any(|segment| segment.has(block)))
}
