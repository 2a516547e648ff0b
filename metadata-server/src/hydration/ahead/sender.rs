//! Pieces on their way to targets: a few requests to each at a time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use millrace_protocol::{
    ahead::FetchAhead,
    cluster::Map,
    target::{ITEMS_MAX, Item, ItemResults},
};
use millrace_types::{ErrorKind, Failure, InodeId, LinkId, MapEpoch};
use tokio::time::Instant;

use crate::hydration::{
    environment::Environment,
    spread::{Place, places_of},
};

/// What is to be fetched: a small file, a chunk or a run of a large file.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) link: LinkId,
    /// Of which directory it is one of many files.
    pub(super) directory: Option<InodeId>,
    pub(super) item: Item,
    /// Bytes of the file that the bucket backs.
    pub(super) size: u64,
}

/// Pieces of one request: as many as a target fetches at a time, and more.
const BATCH_PIECES_MAX: usize = 64;
const _: () = assert!(BATCH_PIECES_MAX <= ITEMS_MAX);

/// Bytes of one request, beyond which no further piece is added: it is answered within a second
/// also at 10 MB/s.
const BATCH_BYTES_MAX: u64 = 8 << 20;

/// Requests to one target at a time, so that it never waits for the next.
const REQUESTS_MAX: usize = 3;

/// Pieces that may wait for one target before no more are looked for.
const WAITING_MAX: usize = 64;

/// How long a target may take for one request.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A target that has answered nothing for so long does not hold up what goes to others: what would
/// go there is left out.
const SLOW: Duration = Duration::from_secs(10);

/// How long a target is left alone that has no room, or does not know the request.
const PAUSE: Duration = Duration::from_secs(30);

/// What became of a request.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) place: Place,
    pub(super) pieces: Vec<Piece>,
    pub(super) result: Result<ItemResults, Failure>,
}

/// What waits for each target, and what is under way.
#[derive(Default)]
pub(super) struct Sender {
    /// The map under which everything that waits was looked up. What was read of a file before a
    /// target was given up may not reach who has its groups now.
    epoch: MapEpoch,
    places: BTreeMap<Place, Queue>,
    /// Targets that are left alone, and until when.
    alone: BTreeMap<Place, Instant>,
    requests: FuturesUnordered<BoxFuture<'static, Sent>>,
}

struct Queue {
    waiting: Vec<(Piece, u64)>,
    under_way: usize,
    /// When it answered last, or was asked for the first time since.
    answered: Instant,
}

impl Queue {
    fn is_slow(&self, now: Instant) -> bool {
        self.under_way > 0 && now.duration_since(self.answered) > SLOW
    }

    /// As much as goes into one request.
    fn batch(&mut self) -> Vec<Piece> {
        let (mut bytes, mut count) = (0, 0);
        for (_, each) in self.waiting.iter().take(BATCH_PIECES_MAX) {
            if count > 0 && bytes + each > BATCH_BYTES_MAX {
                break;
            }
            (bytes, count) = (bytes + each, count + 1);
        }
        self.waiting.drain(..count).map(|(piece, _)| piece).collect()
    }
}

impl Sender {
    /// Whether more shall be looked for.
    pub(super) fn has_room(&mut self, map: &Map, now: Instant) -> bool {
        self.alone.retain(|_, until| *until > now);
        let is_full = |queue: &Queue| queue.waiting.len() >= WAITING_MAX && !queue.is_slow(now);
        self.alone.len() < map.targets.len() && !self.places.values().any(is_full)
    }

    /// Sends a target nothing for a while. False when that was so already.
    pub(super) fn leave_alone(&mut self, place: Place, now: Instant) -> bool {
        if let Some(queue) = self.places.get_mut(&place) {
            queue.waiting.clear();
        }
        self.alone.insert(place, now + PAUSE).is_none()
    }

    /// Takes a piece for the targets that it lies on. The map must have been read before the file.
    ///
    /// # Errors
    /// When the map does not know them.
    pub(super) fn put(&mut self, map: &Map, piece: &Piece, now: Instant) -> Result<(), Failure> {
        if map.epoch != self.epoch {
            self.clear();
            self.epoch = map.epoch;
        }
        for (place, bytes) in places_of(map, &piece.item, piece.size)? {
            let fresh = || Queue { waiting: Vec::new(), under_way: 0, answered: now };
            let queue = self.places.entry(place).or_insert_with(fresh);
            if !queue.is_slow(now) && !self.alone.contains_key(&place) {
                queue.waiting.push((piece.clone(), bytes));
            }
        }
        Ok(())
    }

    /// Sends what may be sent.
    pub(super) fn send<E: Environment>(&mut self, environment: &Arc<E>, now: Instant) {
        let Self { epoch, places, requests, .. } = self;
        let epoch = *epoch;
        for (&place, queue) in places.iter_mut() {
            while queue.under_way < REQUESTS_MAX && !queue.waiting.is_empty() {
                if queue.under_way == 0 {
                    queue.answered = now;
                }
                queue.under_way += 1;
                let (environment, pieces) = (Arc::clone(environment), queue.batch());
                requests.push(Box::pin(async move {
                    let result = ask(&*environment, place, epoch, &pieces).await;
                    Sent { place, pieces, result }
                }));
            }
        }
    }

    /// The next request that ends; `None` when none is under way. May be dropped at its await.
    pub(super) async fn next(&mut self, now: impl Fn() -> Instant) -> Option<Sent> {
        let sent = self.requests.next().await?;
        if let Some(queue) = self.places.get_mut(&sent.place) {
            queue.under_way -= 1;
            queue.answered = now();
            if queue.under_way == 0 && queue.waiting.is_empty() {
                self.places.remove(&sent.place);
            }
        }
        Some(sent)
    }

    /// Whether anything is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Nothing of what waits is sent.
    fn clear(&mut self) {
        self.places.values_mut().for_each(|queue| queue.waiting.clear());
    }
}

async fn ask<E: Environment>(
    environment: &E,
    place: Place,
    epoch: MapEpoch,
    pieces: &[Piece],
) -> Result<ItemResults, Failure> {
    environment.named(pieces.iter().map(|piece| piece.item.content.inode).collect()).await?;
    if environment.map().await?.epoch != epoch {
        return Err(ErrorKind::StaleGroup.into());
    }
    let items = pieces.iter().map(|piece| piece.item.clone()).collect();
    let request = FetchAhead { target: place.target, items };
    let reply = environment.ask(place.host, request, TIMEOUT).await?;
    if reply.results.len() == pieces.len() { Ok(reply) } else { Err(ErrorKind::Protocol.into()) }
}
