//! Opening a target again in place, after its journal has failed: the process goes on, and so do
//! its connections.
//!
//! # What happens
//! 1. Changes are refused from the failure on, and the loss count is another one (`commit`).
//!    Reading goes on.
//! 2. After a pause the disk is asked whether it takes writes again; a disk that still reads and
//!    does not write is left as it is, for its readers.
//! 3. What is left of the failed engine *ends*: everything that it has under way on the disk is
//!    waited for, and whatever it asks from then on fails. Only then does anybody else write there.
//!    Requests that were still waiting get errors.
//! 4. The place is let go of and opened like by a new process, through the same recovery; a disk
//!    that was away may have another device behind the same path. Another target there, or none, is
//!    refused.
//! 5. What was not synced may be gone, whatever the boot says: records that were not known to be
//!    durable are held against their data, and the loss count is raised once more, because the
//!    failed engine may have answered with the one before.
//! 6. The new engine takes the place of the old one; scrub and figures go on. Writes that the old
//!    one has admitted and that waited for the bucket or for space are not applied by the new one,
//!    which does not know of them: their clients send them again.
//!
//! When any of it fails there is a longer pause, in which whatever is asked of the target fails at
//! once, and then the next attempt, for ever: 1 s, 2 s, and so on up to a minute. An engine that
//! fails again within a minute counts as a failed attempt, so that a disk that reads and fails to
//! write at one place does not recover all the time.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use millrace_runtime::Clock;
use tokio::sync::watch;

use super::{
    OpenError, Options, Shared, Upkeep, Volume, findings::Finder, open::Predecessor, scrub,
};
use crate::{
    disk::{BufferPool, DiskMeter, Piece},
    journal::JournalMeter,
    page_checksum::PAGE,
};

/// How long it waits before an attempt: each time twice as long as before, within these bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    pub(super) min: Duration,
    pub(super) max: Duration,
}

/// A disk that was away for a moment is taken up again at once; one that is broken costs its log a
/// line a minute.
pub(super) const PAUSES: Pauses =
    Pauses { min: Duration::from_secs(1), max: Duration::from_secs(60) };

impl Pauses {
    /// The pause after an engine has failed that lived so long, and that was opened after the
    /// `last` one.
    pub(super) fn first(self, last: Option<Duration>, lived: Duration) -> Duration {
        match last {
            Some(last) if lived < self.max => self.longer(last),
            _ => self.min,
        }
    }

    pub(super) fn longer(self, pause: Duration) -> Duration {
        self.max.min(pause * 2)
    }
}

/// Where a target's disk comes from, each time that it is opened.
pub trait Origin: Send + Sync + fmt::Debug {
    /// Opens the disk as it is now. It is given back when the engine on it has failed.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is then open.
    fn open(&self) -> BoxFuture<'_, Result<Options, OpenError>>;
}

/// The place of the engine that is in use.
#[derive(Debug)]
pub(super) struct Slot {
    live: RwLock<Live>,
    /// What every engine here is to do.
    pub(super) wanted: Mutex<Wanted>,
    /// How often that was.
    pub(super) reopened: watch::Sender<u64>,
}

/// What was asked for once and holds for every engine.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) scrub: Option<Clock>,
    pub(super) meters: Option<(DiskMeter, JournalMeter)>,
}

/// An engine, and what runs beside the requests.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) shared: Arc<Shared>,
    pub(super) upkeep: Upkeep,
    pub(super) preparer: Upkeep,
    pub(super) finder: Option<Finder>,
    pub(super) scrub: Option<scrub::Task>,
}

/// Why a target has not been opened again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReopenError {
    /// Its readers keep it.
    #[error("its disk reads and does not write")]
    ReadsOnly,
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl Volume {
    /// An engine that nobody opens again.
    pub(super) fn of(live: Live, pool: BufferPool) -> Self {
        let target = live.shared.target;
        let slot = Slot {
            live: RwLock::new(live),
            wanted: Mutex::default(),
            reopened: watch::Sender::new(0),
        };
        Self { target, pool, slot: Arc::new(slot), reopening: None }
    }

    /// Opens the target on a disk, as [`Volume::open`] does, and opens it again in place whenever
    /// its journal has failed.
    ///
    /// # Errors
    /// [`OpenError`] of the first time; what was durable is then as it was.
    pub async fn open_lastingly(origin: Arc<dyn Origin>) -> Result<Self, OpenError> {
        let options = origin.open().await?;
        let volume = Self::open(&options).await?;
        Ok(volume.lasting(origin, PAUSES))
    }

    /// Has the engine opened again after a failure.
    pub(super) fn lasting(mut self, origin: Arc<dyn Origin>, pauses: Pauses) -> Self {
        let slot = Arc::clone(&self.slot);
        self.reopening = Some(Upkeep(tokio::spawn(slot.keep_open(origin, pauses))));
        self
    }

    /// How often the target has been opened again in place.
    #[must_use]
    pub fn reopened(&self) -> u64 {
        *self.slot.reopened.borrow()
    }

    /// The engine that is in use now.
    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.slot.live().shared)
    }

    pub(super) fn end_reopening(&self) {
        if let Some(task) = &self.reopening {
            task.0.abort();
        }
    }
}

impl Slot {
    /// A panic elsewhere leaves it whole: it is replaced in one step.
    fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn live_mut(&self) -> RwLockWriteGuard<'_, Live> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep_open(self: Arc<Self>, origin: Arc<dyn Origin>, pauses: Pauses) {
        let mut last = None;
        loop {
            let opened = Instant::now();
            let shared = Arc::clone(&self.live().shared);
            shared.failure.notified().await;
            drop(shared);
            let first = pauses.first(last, opened.elapsed());
            last = Some(self.open_again(&*origin, pauses, first).await);
        }
    }

    /// Attempts until one succeeds; returns the pause before that one.
    async fn open_again(&self, origin: &dyn Origin, pauses: Pauses, first: Duration) -> Duration {
        let mut pause = first;
        loop {
            let target = self.live().shared.target;
            tracing::warn!(%target, ?pause, "the target is opened again after a pause");
            tokio::time::sleep(pause).await;
            match self.attempt(origin).await {
                Ok(()) => return pause,
                Err(error) => {
                    tracing::error!(%target, %error, "the target cannot be opened again yet");
                    // Whoever came during the attempt waits for it, and for no other. A disk that
                    // reads goes on, and its readers wait while the next engine takes its place.
                    if !matches!(error, ReopenError::ReadsOnly) {
                        self.live().shared.disk.give_up();
                    }
                }
            }
            pause = pauses.longer(pause);
        }
    }

    pub(super) async fn attempt(&self, origin: &dyn Origin) -> Result<(), ReopenError> {
        let old = Arc::clone(&self.live().shared);
        if !old.disk.has_ended() {
            // The loss is recorded by that, if it was not.
            let takes_writes = old.count_loss_in_superblocks().await.is_ok();
            if !takes_writes && old.can_read().await {
                return Err(ReopenError::ReadsOnly);
            }
            self.live_mut().end_upkeep();
            old.end().await;
        }
        let before = Predecessor {
            target: old.target,
            loss_count: old.loss_count.load(Ordering::Acquire),
            checksum_failures: old.checksum_failures.load(Ordering::Relaxed),
            blank: old.blank,
            drops: Arc::clone(&old.drops),
            judging: Arc::clone(&old.judging),
        };
        drop(old);
        let options = origin.open().await?;
        let mut live = match Live::open(&options, Some(before)).await {
            Ok(live) => live,
            Err(error) => {
                options.end().await;
                return Err(error.into());
            }
        };
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((disk, journal)) = wanted.meters.clone() {
            live.shared.measure(disk, journal);
        }
        // As it is by now: the engine that failed is told what an operator asks for meanwhile.
        live.shared.scrub.obey(&self.live().shared.scrub);
        if let Some(clock) = wanted.scrub.clone() {
            live.start_scrub(clock);
        }
        drop(wanted);
        let loss_count = live.shared.loss_count.load(Ordering::Acquire);
        let target = live.shared.target;
        // What was admitted there and waits for something is not known here, and may be sent again.
        self.live().shared.applied.end();
        *self.live_mut() = live;
        self.reopened.send_modify(|times| *times += 1);
        tracing::warn!(%target, loss_count, "the target was opened again and takes changes");
        Ok(())
    }
}

impl Live {
    /// Ends what runs beside the requests.
    pub(super) fn end_upkeep(&mut self) {
        self.upkeep.0.abort();
        self.preparer.0.abort();
        self.finder = None;
        self.scrub = None;
    }
}

impl Shared {
    /// Whether the disk still reads.
    pub(super) async fn can_read(&self) -> bool {
        let buffer = self.pool.acquire(PAGE).await;
        let first_page = Piece { offset: 0, range: 0..PAGE };
        self.disk.read(vec![first_page], buffer).await.is_ok()
    }

    /// Waits until nothing of this engine is under way on the disk, and nothing will be.
    async fn end(&self) {
        // A growth goes on when who asked for it has gone.
        let _turn = self.growth_turn.lock().await;
        self.disk.end().await;
        if let Some(growth) = &self.growth {
            growth.backing.release();
        }
    }
}

impl Options {
    /// Gives a disk back on which no engine could be opened.
    async fn end(&self) {
        self.disk.end().await;
        if let Some(growth) = &self.growth {
            growth.backing.release();
        }
    }
}
