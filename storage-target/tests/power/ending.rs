//! The ends of a run, and what must be there when the target is opened again.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use millrace_storage_target::verify::report::{Kind, Remark, Severity};

use super::{
    chance::percent,
    driver::World,
    model::{CHUNK, CHUNKS, Ending, FILES, PAGE, Place, places},
    subject::{Chunk, Refused},
};

/// Changes on the disk until an end that was ordered comes, at most: a write is 2 of them, a sync
/// about 3, a start about 5.
const CHANGES_AHEAD: u64 = 24;

impl World {
    /// Orders a kill or a cut in the middle of what comes.
    pub(super) fn order(&mut self) {
        let nth = self.random.within(0..CHANGES_AHEAD);
        self.ordered = Some(if percent(&self.random, 30) {
            self.subject.directory.kill_in(nth);
            Ending::Kill
        } else {
            self.subject.directory.cut_power_in(nth);
            Ending::Cut
        });
    }

    pub(crate) async fn close(&mut self) -> Result<()> {
        match self.subject.close().await {
            Ok(()) => self.model.promise(),
            Err(refused) => return self.expect_off(Some(refused)),
        }
        let before = self.loss_count;
        let ending = if percent(&self.random, 50) { Ending::Cut } else { Ending::Kill };
        if self.subject.directory.is_off() {
            return self.recover(None).await;
        }
        // The machine may go off after an orderly end: nothing is lost by that.
        self.subject.directory.resume();
        self.recover_undisturbed(ending).await?;
        ensure!(self.loss_count == before, "an orderly end counts as a loss");
        Ok(())
    }

    async fn recover_undisturbed(&mut self, ending: Ending) -> Result<()> {
        self.end(ending);
        self.subject.open().context("after an orderly end")?;
        self.settle(ending).await
    }

    fn end(&mut self, ending: Ending) {
        self.starts += 1;
        self.subject.directory.set_delays(false);
        match ending {
            Ending::Kill => self.subject.kill(),
            Ending::Cut => self.subject.cut(),
        }
    }

    /// Ends the run, as was ordered if nothing else is said, and opens the target again, which may
    /// be ended too.
    pub(crate) async fn recover(&mut self, ending: Option<Ending>) -> Result<()> {
        let mut ending = ending.or(self.ordered).expect("an end was ordered");
        let mut worst = Ending::Kill;
        loop {
            self.note(&format!("end by {ending:?}"));
            if ending == Ending::Cut {
                worst = Ending::Cut;
            }
            self.end(ending);
            self.ordered = None;
            if percent(&self.random, 40) {
                self.order();
            }
            match self.subject.open() {
                Ok(()) if !self.subject.directory.is_off() => break,
                Err(error) if !self.subject.directory.is_off() => {
                    return Err(error).context("the target cannot be opened");
                }
                _ => ending = self.ordered.expect("an end was ordered"),
            }
        }
        self.subject.directory.resume();
        self.ordered = None;
        self.settle(worst).await
    }

    /// Looks at everything after a start.
    pub(super) async fn settle(&mut self, ending: Ending) -> Result<()> {
        let mut found = BTreeMap::new();
        let mut pages = 0;
        for file in 0..FILES {
            for chunk in 0..CHUNKS {
                let look = self.subject.look(self.model.chunk(file, chunk)).await;
                let look = look.map_err(|refused| anyhow!("cannot look: {refused:?}"))?;
                for (block, this) in look.into_iter().enumerate() {
                    pages += this.pages;
                    found.insert(Place { file, chunk, block }, this);
                }
            }
        }
        let lost = self.model.settle(ending, &found)?;
        let count = self.subject.loss_count();
        ensure!(!lost || count != self.loss_count, "writes were lost, and the loss count stays");
        let failed_sync = std::mem::take(&mut self.failed_sync);
        ensure!(
            failed_sync || ending == Ending::Cut || count == self.loss_count,
            "a kill changes the loss count from {} to {count}",
            self.loss_count
        );
        self.loss_count = count;
        let (used, _) = self.subject.space();
        ensure!(
            used == pages * PAGE as u64,
            "{used} bytes are used, and {pages} pages are in chunks"
        );
        self.verify(true)
    }

    /// What the offline check says, on a sample of seeds: nothing is wrong but where bits were
    /// flipped, and there something is.
    fn verify(&self, quick: bool) -> Result<()> {
        if !self.verifies || self.subject.directory.is_off() {
            return Ok(());
        }
        let Some(remarks) = self.subject.verify(quick) else { return Ok(()) };
        let rotten = places().any(|place| self.model.now(place).rot != 0);
        let is_data = |remark: &&Remark| matches!(remark.kind, Kind::Data | Kind::Finding);
        let damages = remarks.iter().filter(|remark| remark.severity == Severity::Damage);
        let (of_data, others): (Vec<_>, Vec<_>) = damages.partition(is_data);
        ensure!(others.is_empty(), "the offline check says: {others:#?}");
        ensure!(rotten || of_data.is_empty(), "no bit was flipped: {of_data:#?}");
        ensure!(quick || !rotten || !of_data.is_empty(), "a flipped bit is not found");
        Ok(())
    }

    /// Everything is given up, and then the target is as empty as when it was made.
    pub(super) async fn finish(&mut self) -> Result<()> {
        self.recover(Some(Ending::Kill)).await?;
        self.verify(false)?;
        for file in 0..FILES {
            self.reclaim(file).await?;
        }
        for file in 0..FILES {
            for chunk in 0..CHUNKS {
                self.look(file, chunk).await?;
            }
        }
        self.sync().await?;
        let (used, capacity) = self.subject.space();
        ensure!(used == 0, "{used} bytes are still in use when everything was given up");
        // Every page of it can be used.
        let mut room = capacity;
        for inode in 100.. {
            let len = usize::try_from(room.min(CHUNK as u64))?;
            if len == 0 {
                break;
            }
            let chunk = Chunk { inode, generation: 1, index: 0, epoch: 0, backed: 0 };
            let done = self.subject.write(chunk, 0, vec![3; len]).await;
            done.map_err(|refused| anyhow!("{room} bytes of room: {refused:?}"))?;
            room -= len as u64;
        }
        let chunk = Chunk { inode: 1000, generation: 1, index: 0, epoch: 0, backed: 0 };
        let full = self.subject.write(chunk, 0, vec![3; PAGE]).await;
        ensure!(matches!(full, Err(Refused::NoSpace)), "a full target says {full:?}");
        self.verify(false)
    }
}
