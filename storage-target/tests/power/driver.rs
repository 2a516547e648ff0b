//! One run: random operations on the engine and on the model, with every kind of end.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use millrace_runtime::Random;
use millrace_storage_target::disk::Operation as DiskOperation;

use super::{
    chance::{below, percent},
    model::{
        BLOCK, BLOCKS, CHUNK, CHUNKS, Change, Ending, FILES, Model, PAGE, Place, State, places,
    },
    operation::{Operation, Weights},
    subject::{Chunk, Refused, Shape, Subject},
};

/// The engine and what it must hold.
pub(crate) struct World {
    pub(crate) random: Random,
    pub(super) subject: Subject,
    pub(super) model: Model,
    /// What clients have heard last.
    pub(super) loss_count: u64,
    /// How the run ends when an end was ordered.
    pub(super) ordered: Option<Ending>,
    /// Whether a sync failed just before the end.
    pub(super) failed_sync: bool,
    weights: Weights,
    /// How often the target has been opened again.
    pub(super) starts: u64,
    /// Whether the offline check looks at what each recovery leaves.
    pub(super) verifies: bool,
    /// What has happened, for whoever reads of a failure.
    history: String,
}

/// Blocks of a section of the target.
const BLOCKS_OF_SECTION: usize = 8;

/// Of so many seeds one has the offline check look at what each recovery leaves.
const VERIFIED: u64 = 10;

/// Runs `length` operations from `seed`; the error says what the engine did wrong, and after what.
pub(crate) fn run(seed: u64, length: usize, weights: &Weights) -> Result<()> {
    let mut world = World::new(seed, weights, Subject::new);
    world.run(async |world| {
        for nth in 0..length {
            let operation = Operation::random(&world.random, weights);
            world.note(&format!("{nth}: {operation:?}"));
            world.apply(operation).await?;
        }
        Ok(())
    })
}

impl World {
    /// Makes the target, runs `work`, and gives everything up.
    pub(crate) fn run(&mut self, work: impl AsyncFnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(async {
            self.make().await?;
            work(self).await?;
            self.note("the end");
            self.finish().await
        });
        outcome.with_context(|| format!("{}\n", self.history))
    }

    pub(crate) fn new(
        seed: u64,
        weights: &Weights,
        subject: impl FnOnce(u64, Shape) -> Subject,
    ) -> Self {
        let random = Random::seeded(seed);
        let capacity = [1 << 20, 2 << 20, 6 << 20][below(&random, 3)];
        // The shortest ring holds two of the longest batches beside what is in it.
        let journal_pages = [200, 512][below(&random, 2)];
        let capacity = if weights.cuts { capacity } else { 6 << 20 };
        let shape = Shape { capacity, journal_pages };
        let backed = [(); FILES].map(|()| random_backed(&random));
        let mut subject = subject(random.number(), shape);
        // Either in one section, or the half of it in each of two.
        subject.first_block = [0, BLOCKS_OF_SECTION - BLOCKS / 2][below(&random, 2)];
        Self {
            random,
            subject,
            model: Model::new(backed),
            loss_count: 0,
            ordered: None,
            failed_sync: false,
            weights: *weights,
            starts: 0,
            verifies: seed.is_multiple_of(VERIFIED),
            history: String::new(),
        }
    }

    pub(crate) fn note(&mut self, text: &str) {
        let changes = self.subject.directory.data_disk().tally().changes;
        self.history.push_str(&format!("\nat change {changes}: {text}"));
    }

    /// Makes the target; sometimes it takes several attempts.
    async fn make(&mut self) -> Result<()> {
        let weights = self.weights;
        if weights.cuts && percent(&self.random, 20) {
            self.order();
        }
        match self.subject.open() {
            Ok(()) if !self.subject.directory.is_off() => self.subject.directory.resume(),
            Ok(()) => self.recover(None).await?,
            Err(_) if self.subject.directory.is_off() => self.recover(None).await?,
            Err(error) => bail!("the target cannot be made: {error}"),
        }
        self.ordered = None;
        self.loss_count = self.subject.loss_count();
        self.subject.lie(weights.data_flush, weights.file_flush);
        Ok(())
    }

    pub(crate) async fn apply(&mut self, operation: Operation) -> Result<()> {
        match operation {
            Operation::Write { file, chunk, range } => self.write(file, chunk, range).await?,
            Operation::Append { file, chunk, len } => {
                let start = self.model.end_of(file, chunk);
                let range = start..CHUNK.min(start + len);
                if !range.is_empty() {
                    self.write(file, chunk, range).await?;
                }
            }
            Operation::Zero { file, chunk, range } => self.zero(file, chunk, range).await?,
            Operation::Fill { file, chunk, block, blocks } => {
                self.fill(file, chunk, block, blocks).await?;
            }
            Operation::Release { file, chunk } => {
                let change = self.model.drop_clean(file, chunk, None);
                let done = self.subject.release(self.model.chunk(file, chunk)).await;
                self.conclude(change, done)?;
            }
            Operation::DropClean { file, chunk, block } => {
                let change = self.model.drop_clean(file, chunk, Some(block));
                let done = self.subject.drop_clean(self.model.chunk(file, chunk), block).await;
                self.conclude(change, done)?;
            }
            Operation::Export { file, chunk } => self.export(file, chunk).await?,
            Operation::Trim { file, size } => self.trim(file, size).await?,
            Operation::Reclaim { file } => self.reclaim(file).await?,
            Operation::Stale { file, chunk } => self.stale(file, chunk).await?,
            Operation::Beside(beside) => Box::pin(self.beside(beside)).await?,
            Operation::Sync => self.sync().await?,
            Operation::SyncBeside { file, chunk, pages } => {
                self.sync_beside(file, chunk, pages).await?;
            }
            Operation::FailSync => self.fail_sync().await?,
            Operation::FailWrite { file, chunk, os_error } => {
                self.fail_write(file, chunk, os_error).await?;
            }
            Operation::Look { file, chunk } => self.look(file, chunk).await?,
            Operation::Scrub => self.scrub()?,
            Operation::Flip { place, page, bit } => self.flip(place, page, bit).await?,
            Operation::Kill => self.recover(Some(Ending::Kill)).await?,
            Operation::Cut => self.recover(Some(Ending::Cut)).await?,
            Operation::Order => self.order(),
            Operation::Close => self.close().await?,
        }
        if self.subject.directory.is_off() {
            self.recover(None).await?;
        }
        Ok(())
    }

    /// Takes note of a change that was asked for. Returns whether it was made.
    pub(super) fn conclude(&mut self, change: Change, done: Result<(), Refused>) -> Result<bool> {
        match done {
            Ok(()) => {
                self.model.acknowledge(change);
                Ok(true)
            }
            Err(Refused::NoSpace) => Ok(false),
            Err(Refused::Failed(_)) if self.subject.directory.is_off() => {
                self.model.interrupt(change);
                Ok(false)
            }
            Err(refused) => bail!("refused: {refused:?}"),
        }
    }

    async fn write(&mut self, file: usize, chunk: usize, range: Range<usize>) -> Result<()> {
        let mut bytes = vec![0; range.len()];
        self.random.fill(&mut bytes);
        let durably = percent(&self.random, 20);
        for _ in 0..=BLOCKS {
            let terms = self.model.chunk(file, chunk);
            let change = self.model.write(file, chunk, range.start, &bytes);
            let done = match durably {
                true => self.subject.write_durably(terms, range.start, bytes.clone()).await,
                false => self.subject.write(terms, range.start, bytes.clone()).await,
            };
            match done {
                Err(Refused::NeedsFill(block)) => {
                    if !self.fill_for(file, chunk, block).await? {
                        return Ok(());
                    }
                }
                Err(Refused::Corrupt) => return self.heal(file, chunk, &range).await,
                done => {
                    if self.conclude(change, done)? && durably {
                        // With everything that was acknowledged before.
                        self.model.promise();
                    }
                    return Ok(());
                }
            }
        }
        bail!("a block that was filled must be filled again");
    }

    async fn zero(&mut self, file: usize, chunk: usize, range: Range<usize>) -> Result<()> {
        for _ in 0..=BLOCKS {
            let terms = self.model.chunk(file, chunk);
            let change = self.model.zero(file, chunk, &range);
            match self.subject.zero(terms, range.clone()).await {
                Err(Refused::NeedsFill(block)) => {
                    if !self.fill_for(file, chunk, block).await? {
                        return Ok(());
                    }
                }
                // A part of it may have been done, as the caller knows.
                Err(Refused::Corrupt) => {
                    self.look_again(file, chunk, &change).await?;
                    return self.heal(file, chunk, &range).await;
                }
                Err(Refused::NoSpace) => return self.look_again(file, chunk, &change).await,
                done => return self.conclude(change, done).map(drop),
            }
        }
        bail!("a block that was filled must be filled again");
    }

    /// After a zeroing that ended for want of space: each block is as it was, or zeroed.
    async fn look_again(&mut self, file: usize, chunk: usize, change: &Change) -> Result<()> {
        let found = self.subject.look(self.model.chunk(file, chunk)).await;
        let Ok(found) = found else {
            self.model.interrupt(change.clone());
            return self.expect_off(found.err());
        };
        self.model.acknowledge_in_part(change, &found)
    }

    /// Brings the block from the bucket, as a write to a part of it asks. Returns false when that
    /// is not possible now.
    async fn fill_for(&mut self, file: usize, chunk: usize, block: usize) -> Result<bool> {
        let place = Place { file, chunk, block };
        ensure!(self.model.now(place).state == State::Absent, "{place:?} is there already");
        ensure!(self.model.backed(place) > 0, "the bucket does not have {place:?}");
        self.fill(file, chunk, block, 1).await
    }

    async fn fill(
        &mut self,
        file: usize,
        chunk: usize,
        block: usize,
        blocks: usize,
    ) -> Result<bool> {
        let terms = self.model.chunk(file, chunk);
        let end = terms.backed.min((block + blocks) * BLOCK);
        if end <= block * BLOCK {
            return Ok(true);
        }
        // What the bucket has does not matter, as long as nobody else has it.
        let mut bytes = vec![0; end - block * BLOCK];
        self.random.fill(&mut bytes);
        let change = self.model.fill(file, chunk, block, &bytes);
        let done = self.subject.fill(terms, block, &bytes).await;
        self.conclude(change, done)
    }

    /// A block with a damaged page cannot be changed in part: it is written as a whole.
    async fn heal(&mut self, file: usize, chunk: usize, range: &Range<usize>) -> Result<()> {
        let mut rotten = false;
        for block in range.start / BLOCK..=(range.end - 1) / BLOCK {
            let place = Place { file, chunk, block };
            if self.model.now(place).rot != 0 {
                rotten = true;
                let whole = block * BLOCK..(block + 1) * BLOCK;
                Box::pin(self.write(file, chunk, whole)).await?;
                if self.subject.directory.is_off() {
                    break;
                }
            }
        }
        ensure!(rotten, "a sound block is refused as corrupt");
        Ok(())
    }

    async fn export(&mut self, file: usize, chunk: usize) -> Result<()> {
        let terms = self.model.chunk(file, chunk);
        let exported = self.subject.exportable(terms);
        let mut blocks: Vec<usize> = exported.keys().map(|&block| block.into()).collect();
        blocks.sort_unstable();
        let change = self.model.export(file, chunk, blocks.into_iter());
        let done = self.subject.mark_exported(terms, &exported).await;
        self.conclude(change, done).map(drop)
    }

    async fn trim(&mut self, file: usize, size: usize) -> Result<()> {
        self.model.begin_trim(file, size);
        // The metadata server asks until it is done.
        for attempt in 0..100 {
            let change = self.model.trim(file, size);
            match self.subject.trim(self.model.chunk(file, 0), size).await {
                Ok(()) => {
                    self.model.acknowledge(change);
                    self.model.promise();
                    return Ok(());
                }
                Err(Refused::NoSpace) => self.make_room(file).await?,
                Err(Refused::Failed(_)) if self.subject.directory.is_off() => {
                    self.model.interrupt(change);
                    self.recover(None).await?;
                }
                Err(refused) => bail!("attempt {attempt} to trim is refused: {refused:?}"),
            }
        }
        bail!("a trim is never done");
    }

    /// A full target is emptied by removing some other file.
    async fn make_room(&mut self, but: usize) -> Result<()> {
        let file = (but + 1 + below(&self.random, FILES - 1)) % FILES;
        Box::pin(self.reclaim(file)).await
    }

    pub(super) async fn reclaim(&mut self, file: usize) -> Result<()> {
        for attempt in 0..100 {
            let Chunk { inode, generation, .. } = self.model.chunk(file, 0);
            let change = self.model.reclaim(file);
            self.note(&format!("attempt {attempt} to reclaim file {file}"));
            match self.subject.reclaim(inode, generation).await {
                Ok(()) => {
                    self.model.acknowledge(change);
                    self.model.promise();
                    let backed = random_backed(&self.random);
                    self.model.begin_content(file, backed);
                    return match self.subject.holds_any(inode, generation).await {
                        Ok(true) => bail!("something is left"),
                        Ok(false) => Ok(()),
                        Err(refused) => self.expect_off(Some(refused)),
                    };
                }
                Err(Refused::Failed(_)) if self.subject.directory.is_off() => {
                    self.model.interrupt(change);
                    self.recover(None).await?;
                }
                Err(refused) => bail!("attempt {attempt} to reclaim is refused: {refused:?}"),
            }
        }
        bail!("a reclaim is never done");
    }

    /// Whoever has missed a trim or a reclaim is refused, also after any stop.
    async fn stale(&mut self, file: usize, chunk: usize) -> Result<()> {
        let mut terms = self.model.chunk(file, chunk);
        if terms.epoch > 0 {
            terms.epoch -= 1;
        } else if terms.generation > 1 {
            terms.generation -= 1;
        } else {
            return Ok(());
        }
        match self.subject.write(terms, 0, vec![1; PAGE]).await {
            Err(Refused::Stale) => Ok(()),
            other => bail!("a stale write gets {other:?}"),
        }
    }

    pub(super) async fn sync(&mut self) -> Result<()> {
        match self.subject.sync().await {
            Ok(count) if count == self.loss_count => self.model.promise(),
            // What else is under way has met the end, and its failure has been noted.
            Ok(_) if self.subject.directory.is_off() => {}
            Ok(count) => bail!("the loss count is {count}, and nobody was told"),
            Err(refused) => self.expect_off(Some(refused))?,
        }
        Ok(())
    }

    /// Writes while a sync is under way, which promises only what was acknowledged before it.
    async fn sync_beside(&mut self, file: usize, chunk: usize, pages: Vec<usize>) -> Result<()> {
        let (used, capacity) = self.subject.space();
        // A write that waited for room would wait for the sync that is held.
        if used > capacity / 3 {
            return self.sync().await;
        }
        // Something to sync.
        let before = self.model.newest();
        self.write(file, chunk, 0..BLOCK).await?;
        if self.model.newest() == before || self.subject.directory.is_off() {
            return Ok(());
        }
        let through = self.model.newest();
        let done = {
            let syncing = self.subject.begin_sync().await;
            for page in pages {
                let bytes = vec![u8::try_from(page).unwrap(); PAGE];
                let change = self.model.write(file, chunk, page * PAGE, &bytes);
                let terms = self.model.chunk(file, chunk);
                let done = self.subject.write(terms, page * PAGE, bytes).await;
                match done {
                    Ok(()) => self.model.acknowledge(change),
                    Err(Refused::Failed(_)) if self.subject.directory.is_off() => {
                        self.model.interrupt(change);
                        break;
                    }
                    // Nothing was changed; what it needs must wait until the sync is over.
                    Err(Refused::NeedsFill(_) | Refused::Corrupt | Refused::NoSpace) => break,
                    Err(refused) => bail!("beside a sync: {refused:?}"),
                }
            }
            self.subject.directory.release_sync();
            syncing.await
        };
        match done {
            Ok(count) if count == self.loss_count => self.model.promise_through(through),
            Ok(count) => bail!("the loss count is {count}, and nobody was told"),
            Err(refused) => self.expect_off(Some(refused))?,
        }
        Ok(())
    }

    /// Everything is looked at: bad blocks that the bucket has are dropped, the others are listed.
    fn scrub(&mut self) -> Result<()> {
        let change = self.model.scrub();
        if !self.conclude(change, self.subject.scrub())? {
            return Ok(());
        }
        let bad = places().filter(|&place| self.model.now(place).rot != 0).count();
        let listed = self.subject.findings();
        ensure!(listed == bad, "{bad} blocks are bad, and {listed} are listed after a scrub");
        Ok(())
    }

    /// The disk says that it cannot sync, once.
    async fn fail_sync(&mut self) -> Result<()> {
        let disk = self.subject.directory.data_disk().clone();
        disk.fail(DiskOperation::Sync, 0, libc_eio());
        let done = self.subject.sync().await;
        disk.fail(DiskOperation::Sync, u64::MAX, libc_eio());
        if self.subject.directory.is_off() {
            // Whether the failure was noted before the end, nobody has heard.
            self.model.doubt();
            self.failed_sync = true;
            return Ok(());
        }
        match done {
            // There was nothing to sync.
            Ok(_) => self.model.promise(),
            Err(_) => {
                self.model.doubt();
                let count = self.subject.loss_count();
                ensure!(count != self.loss_count, "a failed sync leaves the loss count");
                self.loss_count = count;
            }
        }
        Ok(())
    }

    /// The disk refuses a write: nothing is changed.
    async fn fail_write(&mut self, file: usize, chunk: usize, os_error: i32) -> Result<()> {
        let disk = self.subject.directory.data_disk().clone();
        disk.fail(DiskOperation::Write, 0, os_error);
        let bytes = vec![7; BLOCK];
        let change = self.model.write(file, chunk, 0, &bytes);
        let done = self.subject.write(self.model.chunk(file, chunk), 0, bytes).await;
        disk.fail(DiskOperation::Write, u64::MAX, os_error);
        // If it was a journal's write, everybody is told that something may be lost.
        if self.subject.directory.is_off() {
            self.failed_sync = true;
            return self.conclude(change, done).map(drop);
        }
        self.loss_count = self.subject.loss_count();
        ensure!(done.is_err(), "a write that failed is acknowledged");
        self.look(file, chunk).await
    }

    pub(super) async fn look(&self, file: usize, chunk: usize) -> Result<()> {
        let found = self.subject.look(self.model.chunk(file, chunk)).await;
        let Ok(found) = found else { return self.expect_off(found.err()) };
        for (block, found) in found.iter().enumerate() {
            self.model.check(Place { file, chunk, block }, found)?;
        }
        Ok(())
    }

    pub(super) fn expect_off(&self, refused: Option<Refused>) -> Result<()> {
        ensure!(self.subject.directory.is_off(), "refused: {refused:?}");
        Ok(())
    }

    /// A bit flips where everything is durable, and is found when it is read.
    async fn flip(&mut self, place: Place, page: usize, bit: usize) -> Result<()> {
        if percent(&self.random, 50) {
            self.sync().await?;
        }
        let sound = self.model.now(place).rot == 0;
        if self.subject.directory.is_off() || !self.model.is_certain(place) || !sound {
            return Ok(());
        }
        let terms = self.model.chunk(place.file, place.chunk);
        if self.subject.flip(terms, place.block, page, bit) {
            self.model.flip(place, page);
        }
        self.look(place.file, place.chunk).await
    }
}

fn random_backed(random: &Random) -> [usize; CHUNKS] {
    let end = match random.within(0..3) {
        0 => 0,
        1 => below(random, CHUNKS * CHUNK),
        _ => CHUNKS * CHUNK,
    };
    let mut backed = [0; CHUNKS];
    for (chunk, backed) in backed.iter_mut().enumerate() {
        *backed = end.saturating_sub(chunk * CHUNK).min(CHUNK);
    }
    backed
}

/// Input or output error, by its number on Linux.
fn libc_eio() -> i32 {
    5
}
