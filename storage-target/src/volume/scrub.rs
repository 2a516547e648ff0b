//! The scrub: a pass over the whole target in the background, which reads every stored page and
//! every node of the index and checks it.
//!
//! # How it goes
//! A leaf at a time, in the order of the keys; of the sections in it one after the other, each with
//! one read. What is bad is looked at a second time (`inspect`) and noted (`findings`). Where it is
//! goes into the journal now and then, so that a stop of any kind costs at most that much again.
//!
//! # What it costs others
//! One transfer at a time, of half a megabyte at most, from memory of its own; and no more bytes a
//! second than it is allowed, on average over a moment. It holds nothing while it waits: no pages,
//! no locks, no buffer.
//!
//! # When
//! A pass begins an interval after the one before began, or when it is asked to. Of a target that
//! was never scrubbed the first pass begins an interval after it was first opened: its bytes are
//! new.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_runtime::Clock;
use millrace_types::Timestamp;
use tokio::{sync::watch, task::JoinHandle};

use super::{EngineError, Live, Shared, Volume};
use crate::{
    disk::DiskMeter,
    format::{
        change::Change,
        fact::{Fact, ScrubProgress},
        finding::{BlockKey, Fault},
        key::Key,
        section::{Section, SectionKey},
        table::{Entry, KeyRange, TableKey},
    },
    index::IndexError,
    journal::JournalMeter,
    page_checksum::PAGE,
};

/// The table of sections, which is the first.
const SECTIONS: u8 = 1;

/// Changes over a leaf that are looked at with it.
const CHANGES_PER_LEAF: usize = 256;

/// Progress is stored after this many bytes, or this long.
const SAVE_BYTES: u64 = 64 << 20;
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Time that was waited too long counts for what follows, up to this much: timers are coarse.
const SAVED_MS: u32 = 100;

const NANOS: i128 = 1_000_000_000;

/// After a failure of the disk or journal it tries again that much later.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// How the scrub works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubSettings {
    /// Bytes read a second at most; 0: off.
    pub bytes_per_second: u64,
    /// From the beginning of one pass to that of the next.
    pub interval: Duration,
}

impl Default for ScrubSettings {
    /// 32 MiB/s read 16 TiB in six days, within the week of the interval; a disk that turns gives a
    /// fifth of its rate to that, a flash drive a hundredth.
    fn default() -> Self {
        Self { bytes_per_second: 32 << 20, interval: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// What an operator can ask of the scrub. None of it outlives the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrubCommand {
    /// Begin a pass now, and go on if paused. A pass that is under way goes on.
    Start,
    /// Stop reading where it is.
    Pause,
    /// Go on.
    Resume,
    /// Read that many bytes a second at most; 0: off.
    SetRate(u64),
}

/// What the scrub is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrubActivity {
    /// The rate is 0, or the scrub was never started.
    Off,
    /// Somebody has paused it.
    Paused,
    /// A pass is under way.
    Running,
    /// The next pass is not due yet.
    Waiting,
}

/// Where the scrub stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubStatus {
    /// What it is doing.
    pub activity: ScrubActivity,
    /// The pass under way, or the last one.
    pub progress: ScrubProgress,
    /// Pages that a pass has to check, as of now: those of data and of the index.
    pub pages: u64,
    /// Bytes read a second at most.
    pub bytes_per_second: u64,
    /// When the next pass begins, unless one is under way.
    pub due: Timestamp,
    /// Clean blocks dropped because they were damaged, since the start.
    pub dropped_blocks: u64,
    /// Pages written anew to bring sections together, since the start.
    pub gathered_pages: u64,
    /// Bytes read since the start.
    pub read_bytes: u64,
}

/// What the scrub's task and its callers share.
#[derive(Debug)]
pub(super) struct Scrub {
    control: watch::Sender<Control>,
    progress: Mutex<ScrubProgress>,
    gathered_pages: AtomicU64,
    read_bytes: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Control {
    settings: ScrubSettings,
    paused: bool,
    /// Somebody wants a pass now.
    wanted: bool,
}

/// Dropping it ends the scrub.
#[derive(Debug)]
pub(super) struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Default for Scrub {
    fn default() -> Self {
        let settings = ScrubSettings { bytes_per_second: 0, ..ScrubSettings::default() };
        Self {
            control: watch::Sender::new(Control { settings, paused: false, wanted: false }),
            progress: Mutex::default(),
            gathered_pages: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        }
    }
}

impl Scrub {
    /// Takes over where an earlier run was.
    pub(super) fn restore(&self, progress: ScrubProgress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Does what another engine's was told to do: an operator's pause and rate hold for the target.
    pub(super) fn obey(&self, other: &Self) {
        self.control.send_replace(*other.control.borrow());
    }

    fn progress(&self) -> ScrubProgress {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut ScrubProgress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Live {
    /// Begins to scrub in the background, by that clock.
    pub(super) fn start_scrub(&mut self, clock: Clock) {
        let worker = Worker::new(Arc::clone(&self.shared), clock);
        self.scrub = Some(Task(tokio::spawn(worker.run())));
    }
}

impl Volume {
    /// Begins to scrub in the background, by that clock.
    pub fn start_scrub(&self, settings: ScrubSettings, clock: Clock) {
        self.shared().scrub.control.send_modify(|control| control.settings = settings);
        self.slot.live_mut().start_scrub(clock.clone());
        let wanted = &self.slot.wanted;
        wanted.lock().unwrap_or_else(PoisonError::into_inner).scrub = Some(clock);
    }

    /// Counts what disk and journal do on these figures from now on.
    pub fn measure(&self, disk: DiskMeter, journal: JournalMeter) {
        self.shared().measure(disk.clone(), journal.clone());
        let wanted = &self.slot.wanted;
        wanted.lock().unwrap_or_else(PoisonError::into_inner).meters = Some((disk, journal));
    }

    /// Does what an operator asks.
    pub fn control_scrub(&self, command: ScrubCommand) {
        let shared = self.shared();
        let under_way = shared.scrub.progress().is_under_way();
        shared.scrub.control.send_modify(|control| match command {
            ScrubCommand::Start => (control.wanted, control.paused) = (!under_way, false),
            ScrubCommand::Pause => control.paused = true,
            ScrubCommand::Resume => control.paused = false,
            ScrubCommand::SetRate(rate) => control.settings.bytes_per_second = rate,
        });
    }

    /// Where the scrub stands.
    #[must_use]
    pub fn scrub_status(&self) -> ScrubStatus {
        let shared = self.shared();
        let scrub = &shared.scrub;
        let Control { settings, paused, wanted } = *scrub.control.borrow();
        let progress = scrub.progress();
        let activity = match progress.is_under_way() || wanted {
            _ if settings.bytes_per_second == 0 => ScrubActivity::Off,
            _ if paused => ScrubActivity::Paused,
            true => ScrubActivity::Running,
            false => ScrubActivity::Waiting,
        };
        let totals = shared.space.totals();
        ScrubStatus {
            activity,
            progress,
            pages: totals.clean + totals.written + shared.index.statistics().nodes,
            bytes_per_second: settings.bytes_per_second,
            due: progress.begun.plus(settings.interval),
            dropped_blocks: shared.inspection.dropped_blocks.load(Ordering::Relaxed),
            gathered_pages: scrub.gathered_pages.load(Ordering::Relaxed),
            read_bytes: scrub.read_bytes.load(Ordering::Relaxed),
        }
    }
}

/// The scrub's task.
struct Worker {
    shared: Arc<Shared>,
    clock: Clock,
    control: watch::Receiver<Control>,
    pace: Pace,
    /// Bytes since progress was stored, and when that was.
    unsaved: u64,
    saved: Instant,
    /// Damaged nodes that this pass has met; `None` when it began before the process did.
    nodes: Option<BTreeSet<BlockKey>>,
}

/// Bytes that were read and not waited for yet.
#[derive(Debug)]
struct Pace {
    /// Below 0 when a wait took a little longer than it should.
    debt: i128,
    since: Instant,
    bytes_per_second: u64,
}

impl Pace {
    /// How long the debt still has to be waited for, at this rate from now on.
    fn settle(&mut self, now: Instant, bytes_per_second: u64) -> Duration {
        let rate = i128::from(self.bytes_per_second);
        let passed = now.saturating_duration_since(self.since).as_nanos();
        let paid = i128::try_from(passed).unwrap_or(i128::MAX).saturating_mul(rate) / NANOS;
        let least = -rate * i128::from(SAVED_MS) / 1000;
        self.debt = self.debt.saturating_sub(paid).max(least);
        (self.since, self.bytes_per_second) = (now, bytes_per_second);
        let left = self.debt.max(0) * NANOS / i128::from(bytes_per_second.max(1));
        Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

impl Worker {
    fn new(shared: Arc<Shared>, clock: Clock) -> Self {
        let (control, now) = (shared.scrub.control.subscribe(), clock.now());
        let pace = Pace { debt: 0, since: now, bytes_per_second: 0 };
        Self { shared, clock, control, pace, unsaved: 0, saved: now, nodes: None }
    }

    async fn run(mut self) {
        loop {
            if let Err(error) = self.pass().await {
                if matches!(error, EngineError::Stopped) {
                    return;
                }
                tracing::error!(target = %self.shared.target, %error, "the scrub waits");
                self.clock.sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }

    /// Waits for a pass to be due, or goes on with one, to its end.
    async fn pass(&mut self) -> Result<(), EngineError> {
        if self.shared.scrub.progress() == ScrubProgress::default() {
            let now = self.clock.timestamp();
            self.shared.scrub.update(|progress| (progress.begun, progress.ended) = (now, now));
            self.save().await?;
        }
        if !self.shared.scrub.progress().is_under_way() {
            self.await_turn().await;
            self.begin().await?;
        }
        let start = KeyRange::table(SECTIONS).from;
        let cursor = self.shared.scrub.progress().cursor;
        let mut at = Some(cursor.map_or(start, |section| TableKey::Section(section).encode()));
        while let Some(from) = at {
            at = self.leaf(from).await?;
            if let Some(next) = at.as_ref().and_then(section_of) {
                self.shared.scrub.update(|progress| progress.cursor = Some(next));
            }
            self.save_if_due().await?;
        }
        self.end().await
    }

    /// Waits until a pass is due or wanted.
    async fn await_turn(&mut self) {
        loop {
            let Control { settings, paused, wanted } = *self.control.borrow_and_update();
            let due = self.shared.scrub.progress().begun.plus(settings.interval);
            let now = self.clock.timestamp();
            let may = !paused && settings.bytes_per_second > 0;
            if may && (wanted || now >= due) {
                return;
            }
            // The time of day may be set: looked at again at least every hour.
            let left = due.since(now).min(Duration::from_secs(3600));
            let until = self.clock.now() + left.max(Duration::from_millis(1));
            tokio::select! {
                () = self.clock.sleep_until(until), if may => {}
                changed = self.control.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn begin(&mut self) -> Result<(), EngineError> {
        let now = self.clock.timestamp();
        self.shared.scrub.update(|progress| {
            *progress = ScrubProgress {
                pass: progress.pass + 1,
                // Past the end of the pass before, also when the clock was set back.
                begun: now.max(Timestamp(progress.ended.0.saturating_add(1))),
                ended: progress.ended,
                pages: 0,
                findings: 0,
                cursor: None,
            };
        });
        self.shared.scrub.control.send_modify(|control| control.wanted = false);
        self.nodes = Some(BTreeSet::new());
        let pass = self.shared.scrub.progress().pass;
        tracing::info!(target = %self.shared.target, pass, "the scrub begins a pass");
        self.save().await
    }

    /// Checks the leaf to which a key belongs and the sections in it; returns where to go on.
    async fn leaf(&mut self, from: Key) -> Result<Option<Key>, EngineError> {
        self.pace().await;
        let survey = self.shared.index.survey(from, CHANGES_PER_LEAF).await?;
        self.read(survey.nodes);
        if let Some(damage) = &survey.damage {
            let (shared, damage) = (Arc::clone(&self.shared), damage.clone());
            let note = async move { shared.note_node(&damage).await };
            let name = Arc::clone(&self.shared).inspecting(note).await?;
            self.shared.scrub.update(|progress| progress.findings += 1);
            if let Some(nodes) = &mut self.nodes {
                nodes.insert(name);
            }
        }
        let end = KeyRange::table(SECTIONS).until;
        for (key, value) in survey.entries.iter().take_while(|(key, _)| *key < end) {
            match Entry::decode(key.as_slice(), value) {
                Ok(Entry::Section(key, section)) => self.section(key, &section).await?,
                Ok(_) => {}
                Err(error) => tracing::error!(
                    target = %self.shared.target, %error, "a sound leaf holds an impossible record"
                ),
            }
        }
        Ok(survey.next)
    }

    async fn section(&mut self, key: SectionKey, section: &Section) -> Result<(), EngineError> {
        // It waits before it reads, so that it holds nothing while it waits.
        self.pace().await;
        self.shared.scrub.update(|progress| progress.cursor = Some(key));
        let (shared, section) = (Arc::clone(&self.shared), section.clone());
        // In a task of its own: a change must not be dropped in the middle.
        let checked =
            shared.clone().inspecting(async move { shared.check(key, &section).await }).await?;
        self.read(checked.pages);
        self.pace.debt += i128::from((checked.again + checked.gathered) * PAGE as u64);
        let gathered = &self.shared.scrub.gathered_pages;
        gathered.fetch_add(checked.gathered, Ordering::Relaxed);
        self.shared.scrub.update(|progress| progress.findings += checked.bad);
        self.save_if_due().await
    }

    /// Notes what was read.
    fn read(&mut self, pages: u64) {
        let bytes = pages * PAGE as u64;
        self.pace.debt += i128::from(bytes);
        self.unsaved += bytes;
        self.shared.scrub.update(|progress| progress.pages += pages);
        self.shared.scrub.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits as long as the rate and an operator want it.
    async fn pace(&mut self) {
        loop {
            let Control { settings, paused, .. } = *self.control.borrow_and_update();
            let stopped = paused || settings.bytes_per_second == 0;
            let now = self.clock.now();
            let left = self.pace.settle(now, settings.bytes_per_second);
            if left.is_zero() && !stopped {
                return;
            }
            tokio::select! {
                () = self.clock.sleep_until(now + left), if !stopped => {}
                changed = self.control.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn save_if_due(&mut self) -> Result<(), EngineError> {
        let late = self.clock.now().saturating_duration_since(self.saved) >= SAVE_INTERVAL;
        if self.unsaved >= SAVE_BYTES || (late && self.unsaved > 0) {
            self.save().await?;
        }
        Ok(())
    }

    /// Stores the progress; a kill cannot undo it on return.
    async fn save(&mut self) -> Result<(), EngineError> {
        (self.unsaved, self.saved) = (0, self.clock.now());
        let shared = Arc::clone(&self.shared);
        let progress = shared.scrub.progress();
        shared
            .clone()
            .inspecting(async move {
                let committed = shared.commit(|_| Ok(Change::Fact(Fact::Scrub(progress)))).await?;
                shared.written(committed.sequence).await
            })
            .await
    }

    async fn end(&mut self) -> Result<(), EngineError> {
        if let Some(met) = self.nodes.take() {
            let shared = Arc::clone(&self.shared);
            shared.clone().inspecting(async move { shared.mend_nodes_but(&met).await }).await?;
        }
        let now = self.clock.timestamp();
        self.shared.scrub.update(|progress| {
            progress.ended = now.max(progress.begun);
            progress.cursor = None;
        });
        self.save().await?;
        let ScrubProgress { pass, pages, findings, .. } = self.shared.scrub.progress();
        let target = self.shared.target;
        tracing::info!(%target, pass, pages, findings, "the scrub has ended a pass");
        Ok(())
    }
}

/// What was found of a section.
#[derive(Clone, Copy, Debug)]
struct Checked {
    pages: u64,
    /// Pages read a second time.
    again: u64,
    bad: u64,
    /// Pages written anew.
    gathered: u64,
}

impl Shared {
    async fn check(
        self: &Arc<Self>,
        key: SectionKey,
        section: &Section,
    ) -> Result<Checked, EngineError> {
        let stored = self.read_stored(section).await?;
        let pages = stored.pages as u64;
        if !stored.bad.is_empty() || !self.findings_of(key).is_empty() {
            drop(stored);
            let bad = match self.inspect(key).await {
                // The leaf is bad by now, and is listed itself.
                Err(EngineError::Index(error)) if matches!(*error, IndexError::Damaged { .. }) => 0,
                other => other?,
            };
            return Ok(Checked { pages, again: pages, bad, gathered: 0 });
        }
        let gathered = match self.gather(key, section, stored).await {
            Err(error @ (EngineError::Disk(_) | EngineError::NoSpace)) if !self.has_failed() => {
                tracing::warn!(target = %self.target, %error, "a section cannot be gathered");
                0
            }
            other => other?,
        };
        Ok(Checked { pages, again: 0, bad: 0, gathered })
    }

    /// Ends the findings of nodes that a whole pass has not met again.
    async fn mend_nodes_but(&self, met: &BTreeSet<BlockKey>) -> Result<(), EngineError> {
        let gone: Vec<BlockKey> = {
            let state = self.state();
            let nodes = state.bad.iter().filter(|(_, finding)| finding.fault == Fault::Index);
            nodes.map(|(key, _)| *key).filter(|key| !met.contains(key)).collect()
        };
        for key in gone {
            self.mend(key).await?;
        }
        Ok(())
    }
}

fn section_of(key: &Key) -> Option<SectionKey> {
    match TableKey::decode(key.as_slice()) {
        Ok(TableKey::Section(section)) => Some(section),
        _ => None,
    }
}
