//! One call to the disk fails, whichever it is: nothing acknowledged may be lost by it, nothing
//! wrong served, no page lost for good; and the volume goes on, or says that it must be opened
//! again.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use millrace_storage_target::disk::faulty::Call;

use super::{
    driver::World,
    model::{BLOCK, CHUNK, CHUNKS, Change, Ending, FILES, PAGE},
    subject::Refused,
};

/// One step of the scenario.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize, Range<usize>),
    Zero(usize, usize, Range<usize>),
    /// So many blocks from the first on arrive from the bucket.
    Fill(usize, usize, usize),
    Release(usize, usize),
    Export(usize, usize),
    Trim(usize, usize),
    Reclaim(usize),
    Sync,
    Look,
    Close,
    Kill,
}

/// Everything that a volume does with its disk: it is made, grows, is full of small pieces, writes
/// checkpoints, and starts after a kill and after an orderly end.
fn scenario() -> Vec<Step> {
    let mut steps = vec![Step::Write(0, 0, 0..CHUNK), Step::Write(0, 0, 100..5000), Step::Sync];
    let chunks = (0..FILES).flat_map(|file| (0..CHUNKS).map(move |chunk| (file, chunk)));
    // More than is there before the disk grows.
    steps.extend(chunks.map(|(file, chunk)| Step::Write(file, chunk, 0..CHUNK)));
    steps.extend([
        Step::Sync,
        Step::Zero(1, 0, 3000..2 * BLOCK + 70),
        Step::Trim(1, CHUNK + BLOCK + 17),
        Step::Kill,
        Step::Look,
        Step::Export(0, 0),
        Step::Write(0, 0, BLOCK..BLOCK + 3 * PAGE),
        Step::Release(0, 0),
        Step::Reclaim(2),
        Step::Fill(2, 0, 2),
        Step::Look,
        Step::Close,
        Step::Write(2, 1, 5 * PAGE + 1..5 * PAGE + 9),
        Step::Sync,
        Step::Kill,
        Step::Write(1, 1, 0..BLOCK),
        Step::Look,
    ]);
    steps
}

/// Runs the scenario with the `nth` call failing; returns which one that was, if there are so many.
pub(crate) fn run(world: World, nth: u64, os_error: i32) -> Result<Option<Call>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    world.subject.directory.faults().fail_any(nth, os_error);
    let mut run = Run { world, excused: false, history: String::new() };
    let outcome = runtime.block_on(async {
        run.reopen().await?;
        for step in scenario() {
            run.take(&step).await.with_context(|| format!("{step:?}"))?;
        }
        run.give_everything_up().await
    });
    let fired = run.world.subject.directory.faults().fired();
    let history = run.history;
    outcome.with_context(|| format!("call {nth} fails with {os_error}: {fired:?}; {history}"))?;
    Ok(fired)
}

/// A run of the scenario.
struct Run {
    world: World,
    /// Whether a refusal has had its fault.
    excused: bool,
    history: String,
}

impl Run {
    /// Opens the target, a second time if the fault is in the way.
    async fn reopen(&mut self) -> Result<()> {
        if let Err(error) = self.world.subject.open() {
            self.excuse(&error.to_string())?;
            self.world.subject.kill();
            self.world.subject.open().context("opened again")?;
        }
        self.settle_as_killed().await
    }

    async fn settle_as_killed(&mut self) -> Result<()> {
        // What a failed sync has covered is in doubt only after a loss of power.
        self.world.failed_sync = true;
        if let Err(error) = self.world.settle(Ending::Kill).await {
            self.excuse(&format!("{error:#}"))?;
            self.world.failed_sync = true;
            self.world.settle(Ending::Kill).await.context("looked at again")?;
        }
        Ok(())
    }

    /// A refusal needs a fault, and has it once.
    fn excuse(&mut self, what: &str) -> Result<()> {
        let fired = self.world.subject.directory.faults().fired();
        self.history.push_str(what);
        ensure!(fired.is_some() && !self.excused, "refused without a fault: {what}");
        self.excused = true;
        Ok(())
    }

    async fn take(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Trim(file, size) => self.world.model.begin_trim(*file, *size),
            Step::Kill => {
                self.world.subject.kill();
                return self.reopen().await;
            }
            Step::Look => return self.look_at_all().await,
            _ => {}
        }
        for _ in 0..4 {
            let change = self.change_of(step);
            match self.ask(step).await {
                Ok(()) => return self.done(step, change).await,
                Err(Refused::NeedsFill(block)) => {
                    let &Step::Write(file, chunk, _) = step else { bail!("no write") };
                    ensure!(block == 0, "the blocks behind are written as a whole");
                    Box::pin(self.take(&Step::Fill(file, chunk, 1))).await?;
                }
                Err(refused) => {
                    self.excuse(&format!("{refused:?}"))?;
                    self.after_a_refusal(step, change).await?;
                }
            }
        }
        bail!("it is refused again and again")
    }

    /// Nothing is changed, or the volume has been opened again, and then the change is there or
    /// not.
    async fn after_a_refusal(&mut self, step: &Step, change: Option<Change>) -> Result<()> {
        let reopened = self.world.subject.take_reopened();
        let in_parts = matches!(step, Step::Zero(..) | Step::Trim(..) | Step::Reclaim(..));
        if let Some(change) = change.filter(|_| reopened || in_parts) {
            self.world.model.interrupt(change);
        }
        self.settle_as_killed().await
    }

    async fn done(&mut self, step: &Step, change: Option<Change>) -> Result<()> {
        if let Some(change) = change {
            self.world.model.acknowledge(change);
        }
        match step {
            Step::Reclaim(file) => self.world.model.begin_content(*file, [CHUNK; CHUNKS]),
            Step::Close => {
                self.world.subject.kill();
                return self.reopen().await;
            }
            _ => {}
        }
        Ok(())
    }

    fn change_of(&self, step: &Step) -> Option<Change> {
        let model = &self.world.model;
        Some(match step {
            Step::Write(file, chunk, range) => {
                model.write(*file, *chunk, range.start, &bytes_of(step, range.len()))
            }
            Step::Zero(file, chunk, range) => model.zero(*file, *chunk, range),
            Step::Fill(file, chunk, blocks) => {
                model.fill(*file, *chunk, 0, &bytes_of(step, blocks * BLOCK))
            }
            Step::Release(file, chunk) => model.drop_clean(*file, *chunk, None),
            Step::Export(file, chunk) => {
                let exported = self.world.subject.exportable(model.chunk(*file, *chunk));
                model.export(*file, *chunk, exported.keys().map(|&block| block.into()))
            }
            Step::Trim(file, size) => model.trim(*file, *size),
            Step::Reclaim(file) => model.reclaim(*file),
            Step::Sync | Step::Look | Step::Close | Step::Kill => return None,
        })
    }

    async fn ask(&self, step: &Step) -> Result<(), Refused> {
        let (subject, model) = (&self.world.subject, &self.world.model);
        match step {
            Step::Write(file, chunk, range) => {
                let bytes = bytes_of(step, range.len());
                subject.write(model.chunk(*file, *chunk), range.start, bytes).await
            }
            Step::Zero(file, chunk, range) => {
                subject.zero(model.chunk(*file, *chunk), range.clone()).await
            }
            Step::Fill(file, chunk, blocks) => {
                let bytes = bytes_of(step, blocks * BLOCK);
                subject.fill(model.chunk(*file, *chunk), 0, &bytes).await
            }
            Step::Release(file, chunk) => subject.release(model.chunk(*file, *chunk)).await,
            Step::Export(file, chunk) => {
                let terms = model.chunk(*file, *chunk);
                subject.mark_exported(terms, &subject.exportable(terms)).await
            }
            Step::Trim(file, size) => subject.trim(model.chunk(*file, 0), *size).await,
            Step::Reclaim(file) => {
                let chunk = model.chunk(*file, 0);
                subject.reclaim(chunk.inode, chunk.generation).await
            }
            Step::Sync => subject.sync().await.map(drop),
            Step::Close => subject.close().await,
            Step::Look | Step::Kill => unreachable!("done elsewhere"),
        }
    }

    async fn look_at_all(&mut self) -> Result<()> {
        for file in 0..FILES {
            for chunk in 0..CHUNKS {
                if let Err(error) = self.world.look(file, chunk).await {
                    self.excuse(&format!("{error:#}"))?;
                    self.world.look(file, chunk).await.context("looked at again")?;
                }
            }
        }
        Ok(())
    }

    async fn give_everything_up(&mut self) -> Result<()> {
        for file in 0..FILES {
            self.take(&Step::Reclaim(file)).await?;
        }
        self.take(&Step::Sync).await?;
        self.take(&Step::Kill).await?;
        let (used, _) = self.world.subject.space();
        ensure!(used == 0, "{used} bytes are still in use when everything was given up");
        let lost = self.world.subject.lost_pages();
        ensure!(lost == 0, "{lost} pages are in nobody's use and not free");
        Ok(())
    }
}

/// The same for each attempt, and others for each step.
fn bytes_of(step: &Step, len: usize) -> Vec<u8> {
    let seed = format!("{step:?}").bytes().fold(7_u8, |sum, byte| sum.wrapping_mul(31) ^ byte);
    (0..len).map(|at| seed ^ u8::try_from((at / 7 + at) % 251).expect("below 251")).collect()
}
