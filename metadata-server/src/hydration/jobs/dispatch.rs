//! Batches work for targets: many small files in one request, large ones in runs, a bounded number
//! of requests under way.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use millrace_protocol::{
    capability::Content,
    cluster::Map,
    target::{Hydrate, ITEMS_MAX, Item, ItemResults, MarkExported, Release},
};
use millrace_types::{ByteLen, ChunkIndex, ErrorKind, Failure, InodeId, MIB};

use tokio::time::Instant;

use super::{
    Context, Environment,
    pace::{Pace, Turn},
    slices::slices,
};
use crate::hydration::spread::{Place, places_of};

/// What targets are asked to do with items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Hydrate,
    Release,
    MarkExported,
}

/// Items are collected up to this many bytes for a target: about a second of work.
const BATCH_BYTES_MAX: u64 = 64 * MIB;

/// Items of one request: beyond it nothing is gained, and an answer would come late.
const BATCH_ITEMS_MAX: usize = 64;
const _: () = assert!(BATCH_ITEMS_MAX <= ITEMS_MAX);

/// Requests under way for each target that is used.
const REQUESTS_PER_TARGET: usize = 2;

/// Requests under way in all.
const REQUESTS_MAX: usize = 128;

/// How long a target may take for one request. Fetching 64 MiB from a slow bucket takes a minute.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How often a request is repeated when a target is busy or away, and the first pause between.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(250);

/// Whether the chunks of a run are where they were: what an item says of a file may be older than
/// the loss of a target, and whoever has its groups now must not take that for the truth.
fn lies_the_same(known: &Map, now: &Map, item: &Item) -> bool {
    let layout = &item.content.layout;
    let indexes = (0..item.count.min(layout.width())).map(|at| item.first.0.saturating_add(at));
    indexes.map(ChunkIndex).all(|index| {
        let group = layout.group(index);
        known.group(layout.pool(), group) == now.group(layout.pool(), group)
    })
}

/// Sends items to targets and counts what comes back.
pub(super) struct Dispatcher<'a, E> {
    context: &'a Context<'a, E>,
    task: Task,
    /// As it was when the job began.
    map: Arc<Map>,
    batches: BTreeMap<Place, Batch>,
    requests: FuturesUnordered<BoxFuture<'a, Sent>>,
    /// Files whose object is another version by now; counted as failed only without it.
    changed: Option<Vec<InodeId>>,
}

/// Files with a changed object that are tried again; the others are counted as failed.
const CHANGED_MAX: usize = 10_000;

#[derive(Default)]
struct Batch {
    pieces: Vec<Piece>,
    bytes: u64,
}

/// A run of a file on one target.
struct Piece {
    item: Item,
    bytes: u64,
    file: Arc<File>,
}

/// A file under way. Done when nobody holds it back any more.
struct File {
    inode: InodeId,
    size: u64,
    pieces: AtomicU32,
    failed: AtomicU32,
}

struct Sent {
    pieces: Vec<Piece>,
    /// Of a job that is held to a rate.
    turn: Option<Turn>,
    result: Result<ItemResults, Failure>,
}

impl<'a, E: Environment> Dispatcher<'a, E> {
    pub(super) fn new(context: &'a Context<'a, E>, task: Task, map: Map) -> Self {
        let batches = BTreeMap::new();
        let map = Arc::new(map);
        Self { context, task, map, batches, requests: FuturesUnordered::new(), changed: None }
    }

    /// Sets files whose object changed aside from now on, for [`Self::take_changed`].
    pub(super) fn set_changed_aside(&mut self) {
        self.changed = Some(Vec::new());
    }

    /// The files that were set aside. From now on, such a file has failed.
    pub(super) fn take_changed(&mut self) -> Vec<InodeId> {
        self.changed.take().unwrap_or_default()
    }

    /// Takes the first `size` bytes of one file. Waits while too much is under way.
    pub(super) async fn file(&mut self, inode: InodeId, content: &Content, size: u64) {
        // The file itself is one piece, so that it does not end before its last slice is taken.
        let (pieces, failed) = (AtomicU32::new(1), AtomicU32::new(0));
        let file = Arc::new(File { inode, size, pieces, failed });
        for slice in slices(content, size, self.portion().unwrap_or(u64::MAX)) {
            // Each would wait for its turn, to fail like the one before.
            if self.context.pace.is_some() && file.failed.load(Ordering::Relaxed) > 0 {
                break;
            }
            let places = match places_of(&self.map, &slice.item, slice.end) {
                Ok(places) => places,
                Err(failure) => {
                    self.fail(&file, failure).await;
                    break;
                }
            };
            for (place, bytes) in places {
                file.pieces.fetch_add(1, Ordering::Relaxed);
                let bytes = bytes.saturating_sub(slice.skipped);
                let piece = Piece { item: slice.item.clone(), bytes, file: Arc::clone(&file) };
                self.add(place, piece).await;
            }
        }
        piece_done(self.context, &file).await;
    }

    /// Sends what is left and waits for all answers.
    pub(super) async fn finish(&mut self) {
        for (place, batch) in std::mem::take(&mut self.batches) {
            self.send(place, batch).await;
        }
        while let Some(sent) = self.requests.next().await {
            self.take(sent).await;
        }
    }

    async fn add(&mut self, place: Place, piece: Piece) {
        let portion = self.portion();
        let is_over = |batch: &Batch| portion.is_some_and(|most| batch.bytes + piece.bytes > most);
        if self.batches.get(&place).is_some_and(is_over)
            && let Some(batch) = self.batches.remove(&place)
        {
            self.send(place, batch).await;
        }
        let batch = self.batches.entry(place).or_default();
        batch.bytes += piece.bytes;
        batch.pieces.push(piece);
        let bytes_max = BATCH_BYTES_MAX.min(portion.unwrap_or(u64::MAX));
        let full = batch.pieces.len() >= BATCH_ITEMS_MAX || batch.bytes >= bytes_max;
        if full && let Some(batch) = self.batches.remove(&place) {
            self.send(place, batch).await;
        }
    }

    /// The most that one request asks for, if the job is held to a rate.
    fn portion(&self) -> Option<u64> {
        self.context.pace.map(Pace::portion)
    }

    async fn send(&mut self, place: Place, batch: Batch) {
        let allowed = (self.map.targets.len() * REQUESTS_PER_TARGET).clamp(1, REQUESTS_MAX);
        while self.requests.len() >= allowed {
            let Some(sent) = self.requests.next().await else { break };
            self.take(sent).await;
        }
        let turn = self.await_turn(batch.bytes).await;
        let (environment, task) = (Arc::clone(self.context.environment), self.task);
        let known = Arc::clone(&self.map);
        self.requests.push(Box::pin(async move {
            let items: Vec<Item> = batch.pieces.iter().map(|piece| piece.item.clone()).collect();
            let result = match environment.map().await {
                Ok(now) if items.iter().all(|item| lies_the_same(&known, &now, item)) => {
                    ask(&*environment, place, task, items).await
                }
                Ok(_) => Err(Failure::new(
                    ErrorKind::StaleGroup,
                    "a target was given up meanwhile: run the job again",
                )),
                Err(failure) => Err(failure),
            };
            Sent { pieces: batch.pieces, turn, result }
        }));
    }

    /// Waits until bytes may move, if the job is held to a rate. What comes back meanwhile may say
    /// that less was moved than it was charged for.
    async fn await_turn(&mut self, bytes: u64) -> Option<Turn> {
        let pace = self.context.pace?;
        while pace.next() > Instant::now() {
            tokio::select! {
                () = tokio::time::sleep_until(pace.next()) => {}
                Some(sent) = self.requests.next(), if !self.requests.is_empty() => {
                    self.take(sent).await;
                }
            }
        }
        Some(pace.charge(bytes, Instant::now()))
    }

    async fn take(&mut self, sent: Sent) {
        let Sent { pieces, turn, result } = sent;
        let results: Vec<Result<ByteLen, Failure>> = match result {
            Ok(reply) if reply.results.len() == pieces.len() => reply.results,
            Ok(_) => vec![Err(ErrorKind::Protocol.into()); pieces.len()],
            Err(failure) => vec![Err(failure); pieces.len()],
        };
        let mut here: u64 = 0;
        for (piece, result) in pieces.into_iter().zip(results) {
            match result {
                Ok(moved) => {
                    self.context.progress.moved(piece.bytes);
                    here += piece.bytes.saturating_sub(moved.0);
                }
                Err(failure) => self.fail(&piece.file, failure).await,
            }
            piece_done(self.context, &piece.file).await;
        }
        if let (Some(pace), Some(turn)) = (self.context.pace, turn) {
            // What was here already did not come from the bucket.
            pace.refund(turn, here, Instant::now());
        }
    }

    /// Counts a file as failed, once.
    async fn fail(&mut self, file: &File, failure: Failure) {
        if file.failed.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        match &mut self.changed {
            Some(changed)
                if failure.kind == ErrorKind::ObjectChanged && changed.len() < CHANGED_MAX =>
            {
                changed.push(file.inode);
            }
            _ => self.context.fail_id(file.inode, failure).await,
        }
    }
}

async fn piece_done<E: Environment>(context: &Context<'_, E>, file: &File) {
    let last = file.pieces.fetch_sub(1, Ordering::Relaxed) == 1;
    if last && file.failed.load(Ordering::Relaxed) == 0 {
        context.done_id(file.inode, file.size).await;
    }
}

fn passes(failure: &&Failure) -> bool {
    failure.kind.is_transient()
}

/// Sends one request, again while the target is busy or away, or is so for one of the items:
/// everything here may be repeated.
pub(super) async fn ask<E: Environment>(
    environment: &E,
    place: Place,
    task: Task,
    items: Vec<Item>,
) -> Result<ItemResults, Failure> {
    environment.named(items.iter().map(|item| item.content.inode).collect()).await?;
    let target = place.target;
    let mut pause = PAUSE;
    let mut attempt = 1;
    loop {
        let items = items.clone();
        let asked = match task {
            Task::Hydrate => environment.ask(place.host, Hydrate { target, items }, TIMEOUT).await,
            Task::Release => environment.ask(place.host, Release { target, items }, TIMEOUT).await,
            Task::MarkExported => {
                environment.ask(place.host, MarkExported { target, items }, TIMEOUT).await
            }
        };
        // What was done of the others costs nothing when it is asked for again.
        let passing = match &asked {
            Ok(reply) => reply.results.iter().filter_map(|one| one.as_ref().err()).find(passes),
            Err(failure) => Some(failure).filter(passes),
        };
        match passing.filter(|_| attempt < ATTEMPTS) {
            Some(failure) => {
                let hint = Duration::from_millis(failure.retry_after_ms.into());
                tokio::time::sleep(pause.max(hint)).await;
                pause *= 2;
                attempt += 1;
            }
            None => return asked,
        }
    }
}
