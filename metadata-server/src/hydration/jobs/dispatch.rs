//! Batches work for targets: many small files in one request, large ones in runs, a bounded number
//! of requests under way.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use millrace_protocol::{
    capability::Content,
    cluster::Map,
    target::{Hydrate, ITEMS_MAX, Item, ItemResults, MarkExportedAt, Release},
};
use millrace_types::{ByteLen, ChunkIndex, ErrorKind, Failure, InodeId, MIB};

use tokio::time::Instant;

use super::{
    Context, Environment,
    fetch::{self, Wanted},
    pace::{Pace, Turn},
    release,
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

/// How long a batch waits for more at the most, while a filter passes over the rest of a tree.
const LINGER: Duration = Duration::from_secs(1);

/// Requests under way for each target that is used.
const REQUESTS_PER_TARGET: usize = 2;

/// Requests under way in all.
const REQUESTS_MAX: usize = 128;

/// How long a target may take for one request. Fetching 64 MiB from a slow bucket takes a minute.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The same to drop what was found to be saved a moment before, which nobody looks at again while
/// the request is on its way: a target that is given up drops nothing more. In this time it also
/// syncs what it has dropped, beside all that others write.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a request is sent when a target is busy or away, and the pauses between. What waits
/// for less is sent more often, so that a daemon that is started again is waited for.
const ATTEMPTS: u32 = 6;
pub(super) const RELEASE_ATTEMPTS: u32 = 12;
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(8);

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
    /// Older than what is known of the files in `batches`, and has all of their groups.
    map: Arc<Map>,
    batches: BTreeMap<Place, Batch>,
    requests: FuturesUnordered<BoxFuture<'a, Sent>>,
    /// Files whose object is another version by now, or that were exported since they were found,
    /// with the bytes that they were found with; counted as failed only without it.
    changed: Option<Vec<(InodeId, u64)>>,
}

/// Files that are tried again for it; the others are counted as failed.
const CHANGED_MAX: usize = 10_000;

struct Batch {
    pieces: Vec<Piece>,
    bytes: u64,
    begun: Instant,
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
    /// Bytes of finished pieces, as the job counts them.
    moved: AtomicU64,
    /// Bytes that no target was asked for after all.
    kept: AtomicU64,
}

struct Sent {
    pieces: Vec<Piece>,
    /// Of a job that is held to a rate.
    turn: Option<Turn>,
    /// Of each piece.
    answers: Vec<Result<Answer, Failure>>,
}

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The target has done it; so many bytes were moved or dropped.
    Moved(ByteLen),
    /// No target was asked: it was to be dropped, and may not go any more.
    Kept,
}

impl<'a, E: Environment> Dispatcher<'a, E> {
    pub(super) fn new(context: &'a Context<'a, E>, task: Task, map: Map) -> Self {
        let batches = BTreeMap::new();
        let map = Arc::new(map);
        Self { context, task, map, batches, requests: FuturesUnordered::new(), changed: None }
    }

    /// Sets files whose object changed, or that were exported since, aside from now on, for
    /// [`Self::take_changed`].
    pub(super) fn set_changed_aside(&mut self) {
        self.changed = Some(Vec::new());
    }

    /// The files that were set aside, with the bytes that they were found with. From now on, such a
    /// file has failed.
    pub(super) fn take_changed(&mut self) -> Vec<(InodeId, u64)> {
        self.changed.take().unwrap_or_default()
    }

    /// The map, if it is another one by now. To be used, it has to be older than what is known of
    /// the files that come from then on.
    pub(super) async fn newer_map(&mut self) -> Option<Map> {
        let context = self.context;
        match self.beside(context.environment.map()).await {
            Ok(now) => Some(now).filter(|now| now.epoch != self.map.epoch),
            Err(failure) => {
                // The one from before will do, but for files in groups that came since.
                tracing::debug!(%failure, "a job goes on with the map that it has");
                None
            }
        }
    }

    /// Goes by another map from now on. What waits goes out by the one that it was found with.
    pub(super) async fn use_map(&mut self, map: Map) {
        self.send_all().await;
        self.map = Arc::new(map);
    }

    /// Takes the first `size` bytes of one file. Waits while too much is under way.
    pub(super) async fn file(&mut self, inode: InodeId, content: &Content, size: u64) {
        // The file itself is one piece, so that it does not end before its last slice is taken.
        let (pieces, failed) = (AtomicU32::new(1), AtomicU32::new(0));
        let (moved, kept) = (AtomicU64::new(0), AtomicU64::new(0));
        let file = Arc::new(File { inode, size, pieces, failed, moved, kept });
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

    /// Does `work`, and meanwhile sends what has waited long enough for more, and takes answers.
    /// Nothing is sent that would have to wait: `work` may have turns that others wait for, and
    /// goes on.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let due = self.due();
            let at = due.unwrap_or_else(Instant::now);
            let sent = tokio::select! {
                // Work that never waits must not hold the others up.
                biased;
                () = tokio::time::sleep_until(at), if due.is_some() => None,
                Some(sent) = self.requests.next(), if !self.requests.is_empty() => Some(sent),
                done = &mut work => return done,
            };
            match sent {
                Some(sent) => self.take(sent).await,
                None => self.send_due().await,
            }
        }
    }

    /// When the next batch has waited long enough and is sent at once; `None`: an answer must come
    /// first, or there is none.
    fn due(&self) -> Option<Instant> {
        if self.requests.len() >= self.requests_max() {
            return None;
        }
        let begun = self.batches.values().map(|batch| batch.begun).min()?;
        let lingered = begun + LINGER;
        Some(self.context.pace.map_or(lingered, |pace| lingered.max(pace.next())))
    }

    /// Sends the batch that has waited longest, when it is due.
    async fn send_due(&mut self) {
        let oldest = self.batches.iter().min_by_key(|(_, batch)| batch.begun);
        let oldest = oldest.map(|(place, _)| *place);
        if let Some((place, batch)) = oldest.and_then(|place| self.batches.remove_entry(&place)) {
            self.send(place, batch).await;
        }
    }

    /// Sends what is left and waits for all answers.
    pub(super) async fn finish(&mut self) {
        self.send_all().await;
        while let Some(sent) = self.requests.next().await {
            self.take(sent).await;
        }
    }

    async fn send_all(&mut self) {
        for (place, batch) in std::mem::take(&mut self.batches) {
            self.send(place, batch).await;
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
        let begin = || Batch { pieces: Vec::new(), bytes: 0, begun: Instant::now() };
        let batch = self.batches.entry(place).or_insert_with(begin);
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

    /// Requests that may be under way.
    fn requests_max(&self) -> usize {
        (self.map.targets.len() * REQUESTS_PER_TARGET).clamp(1, REQUESTS_MAX)
    }

    async fn send(&mut self, place: Place, batch: Batch) {
        while self.requests.len() >= self.requests_max() {
            let Some(sent) = self.requests.next().await else { break };
            self.take(sent).await;
        }
        let turn = self.await_turn(batch.bytes).await;
        let (context, task, known) = (self.context, self.task, Arc::clone(&self.map));
        self.requests.push(Box::pin(async move {
            let answers = carry_out(context, &known, place, task, &batch.pieces).await;
            Sent { pieces: batch.pieces, turn, answers }
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
        let Sent { pieces, turn, answers } = sent;
        let mut unmoved: u64 = 0;
        for (piece, answer) in pieces.into_iter().zip(answers) {
            match answer {
                Ok(Answer::Moved(moved)) => {
                    self.count(&piece);
                    unmoved += piece.bytes.saturating_sub(moved.0);
                }
                Ok(Answer::Kept) => {
                    unmoved += piece.bytes;
                    piece.file.kept.fetch_add(piece.bytes, Ordering::Relaxed);
                    self.context.progress.kept(piece.file.inode, piece.bytes);
                }
                Err(failure) => self.fail(&piece.file, failure).await,
            }
            piece_done(self.context, &piece.file).await;
        }
        if let (Some(pace), Some(turn)) = (self.context.pace, turn) {
            // What was here already did not come from the bucket, and what stays was not moved.
            pace.refund(turn, unmoved, Instant::now());
        }
    }

    /// Counts a piece that is done. Of a file that has failed nothing counts.
    fn count(&self, piece: &Piece) {
        if piece.file.failed.load(Ordering::Relaxed) == 0 {
            piece.file.moved.fetch_add(piece.bytes, Ordering::Relaxed);
            self.context.progress.moved(piece.file.inode, piece.bytes);
        }
    }

    /// Counts a file as failed, once, and none of its bytes.
    async fn fail(&mut self, file: &File, failure: Failure) {
        if file.failed.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        self.context.progress.unmoved(file.inode, file.moved.swap(0, Ordering::Relaxed));
        match &mut self.changed {
            Some(changed)
                if matches!(failure.kind, ErrorKind::ObjectChanged | ErrorKind::StaleEpoch)
                    && changed.len() < CHANGED_MAX =>
            {
                changed.push((file.inode, file.size));
            }
            _ if self.context.is_removed(file.inode).await => {
                self.context.progress.gone(file.inode);
            }
            _ => self.context.fail_id(file.inode, failure).await,
        }
    }
}

async fn piece_done<E: Environment>(context: &Context<'_, E>, file: &File) {
    let last = file.pieces.fetch_sub(1, Ordering::Relaxed) == 1;
    if last && file.failed.load(Ordering::Relaxed) == 0 {
        let kept = file.kept.load(Ordering::Relaxed);
        context.done_id(file.inode, file.size.saturating_sub(kept)).await;
    }
}

/// Has a target do its part, and says what became of each piece.
async fn carry_out<E: Environment>(
    context: &Context<'_, E>,
    known: &Map,
    place: Place,
    task: Task,
    pieces: &[Piece],
) -> Vec<Result<Answer, Failure>> {
    if task != Task::Release {
        let wanted = |piece: &Piece| Wanted {
            inode: piece.file.inode,
            item: piece.item.clone(),
            bytes: piece.bytes,
        };
        let items = pieces.iter().map(wanted).collect();
        let fetched = fetch::run(context, known, place, items).await;
        return fetched.into_iter().map(|result| result.map(Answer::Moved)).collect();
    }
    let environment = &**context.environment;
    let items: Vec<Item> = pieces.iter().map(|piece| piece.item.clone()).collect();
    match check_places(environment, known, &items).await {
        Ok(()) => release::ask(environment, place, &items).await,
        Err(failure) => vec![Err(failure); items.len()],
    }
}

/// Refuses to ask a target for what lies elsewhere by now.
///
/// # Errors
/// [`ErrorKind::StaleGroup`]; that the server is busy or shutting down.
pub(super) async fn check_places<E: Environment>(
    environment: &E,
    known: &Map,
    items: &[Item],
) -> Result<(), Failure> {
    let now = environment.map().await?;
    match items.iter().all(|item| lies_the_same(known, &now, item)) {
        true => Ok(()),
        false => {
            let words = "a target was given up meanwhile: run the job again";
            Err(Failure::new(ErrorKind::StaleGroup, words))
        }
    }
}

pub(super) fn passes(failure: &&Failure) -> bool {
    failure.kind.is_transient()
}

/// How often something is tried, with pauses that double.
pub(super) struct Attempts {
    left: u32,
    pause: Duration,
}

impl Attempts {
    /// The first of so many is made at once.
    pub(super) fn new(count: u32) -> Self {
        Self { left: count.saturating_sub(1), pause: PAUSE }
    }

    /// Waits for the next attempt after one that failed so; `false`: there is none.
    pub(super) async fn wait(&mut self, failure: &Failure) -> bool {
        if self.left == 0 {
            return false;
        }
        let hint = Duration::from_millis(failure.retry_after_ms.into());
        tokio::time::sleep(self.pause.max(hint)).await;
        self.left -= 1;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

/// Sends one request, again while the target is busy or away, or is so for one of the items:
/// everything here may be repeated. For what is to be dropped there is [`release::ask`].
pub(super) async fn ask<E: Environment>(
    environment: &E,
    place: Place,
    task: Task,
    items: Vec<Item>,
) -> Result<ItemResults, Failure> {
    environment.named(items.iter().map(|item| item.content.inode).collect()).await?;
    let mut attempts = Attempts::new(ATTEMPTS);
    loop {
        let asked = once(environment, place, task, items.clone()).await;
        // What was done of the others costs nothing when it is asked for again.
        let passing = match &asked {
            Ok(reply) => reply.results.iter().filter_map(|one| one.as_ref().err()).find(passes),
            Err(failure) => Some(failure).filter(passes),
        };
        let Some(failure) = passing.cloned() else { return asked };
        if !attempts.wait(&failure).await {
            return asked;
        }
    }
}

/// Sends one request, whose contents have been named for good.
pub(super) async fn once<E: Environment>(
    environment: &E,
    place: Place,
    task: Task,
    items: Vec<Item>,
) -> Result<ItemResults, Failure> {
    let Place { host, target } = place;
    match task {
        Task::Hydrate => environment.ask(host, Hydrate { target, items }, TIMEOUT).await,
        Task::Release => environment.ask(host, Release { target, items }, RELEASE_TIMEOUT).await,
        Task::MarkExported => {
            environment.ask(host, MarkExportedAt { target, items }, TIMEOUT).await
        }
    }
}
