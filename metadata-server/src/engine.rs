//! The engine: the log, the store and everything that is kept beside them, for one at a time.
//!
//! Others hold a [`Handle`] and send it *turns*: closures that run one after another, read the
//! namespace, and execute commands. A turn never waits for the network or for a sync; who needs
//! durability waits for the log's synced index after the turn, outside of the loop. Work outside
//! (listing a bucket, trimming at targets) sends turns as often as it needs.
//!
//! ```text
//!  handler ──▶ bounded queue ──▶ turn: check ▶ apply ▶ append to the log ▶ commit to the store
//!     │ ▲      when nobody else is there, on the handler's own thread  │
//!     └─┴──── reply, at once or when the index is synced ◀─────────────┘
//! ```
//!
//! A turn that nobody is before runs where it was made (`seat`): two switches between threads are
//! more than most turns take. The others run on a thread of the engine's own.
//!
//! Modules: [`core`] (what a turn gets), `seat` (who has it), [`clock`] (server time), [`ids`]
//! (blocks of ids), [`names`] (answers that wait for a content's name), [`startup`] and `rebuild`
//! (recovery), [`restore`] (of a backup), [`snapshots`] (the thread that writes them), `pressure`
//! (who waits for them), `lock` (one server at a time), [`marker`] (clean shutdown), `room` (a
//! disk that fills up), `opens` (the end of many).

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::sync_channel,
    },
    thread,
};

use millrace_types::{ErrorKind, Failure, LogIndex, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::{
    capability::Keyring,
    log::{LogError, SyncState, Syncer},
    written::Written,
};
use clock::ServerClock;
use pressure::Patience;
use seat::Seat;
use snapshots::SnapshotMetrics;

pub mod clock;
pub mod core;
pub mod ids;
mod lock;
pub mod marker;
pub mod names;
mod opens;
mod pressure;
mod rebuild;
pub mod restore;
mod room;
mod seat;
pub mod snapshots;
pub mod startup;

pub use self::core::Core;
pub use startup::{EngineSettings, StartError, StoreKind};

/// One turn of the engine.
type Turn = Box<dyn FnOnce(&mut Core) + Send>;

/// Turns that wait. Each belongs to a request, whose number the server bounds below this.
const QUEUE_LEN: usize = 4096;

/// Sends turns to the engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    queue: mpsc::Sender<Message>,
    seat: Arc<Seat>,
    syncer: Arc<Syncer>,
    keyring: Arc<Keyring>,
    clock: ServerClock,
    written: Arc<Written>,
    patience: Patience,
}

/// A [`Handle`] that does not keep the engine alive.
#[derive(Debug, Clone)]
struct WeakHandle {
    queue: mpsc::WeakSender<Message>,
    seat: Arc<Seat>,
    syncer: Arc<Syncer>,
    keyring: Arc<Keyring>,
    clock: ServerClock,
    written: Arc<Written>,
    patience: Patience,
}

enum Message {
    Turn(Turn),
    Stop,
}

/// The engine's thread. Dropped without [`Self::stop`] it ends as after a kill, without loss.
#[derive(Debug)]
pub struct Engine {
    handle: Handle,
    threads: Mutex<Option<Threads>>,
    snapshots: SnapshotMetrics,
    stopping: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Threads {
    engine: thread::JoinHandle<Result<(), StartError>>,
    snapshots: thread::JoinHandle<()>,
}

impl Engine {
    /// Recovers what is on disk and starts the thread.
    ///
    /// # Errors
    /// When the log is damaged, belongs to another cluster, or the disk fails.
    pub fn start(settings: EngineSettings) -> Result<Self, StartError> {
        let place = snapshots::Place::of(&settings);
        let mut core = startup::open(settings)?;
        let (sender, receiver) = mpsc::channel(QUEUE_LEN);
        let (tasks, waiting) = sync_channel(snapshots::TASKS_MAX);
        core.set_snapshot_tasks(tasks);
        let (syncer, keyring) = (Arc::clone(core.syncer()), Arc::clone(core.keyring()));
        let (clock, written) = (core.clock().clone(), Arc::clone(core.written()));
        let patience = core.patience();
        let seat = Arc::new(Seat::new(core));
        let (queue, of_handle) = (sender, Arc::clone(&seat));
        let handle = Handle { queue, seat: of_handle, syncer, keyring, clock, written, patience };
        let (stopping, metrics) = (Arc::<AtomicBool>::default(), SnapshotMetrics::default());
        let taker = snapshots::Taker {
            engine: handle.downgrade(),
            place,
            metrics: metrics.clone(),
            stopping: Arc::clone(&stopping),
        };
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        // It ends with the engine, whose core has the other end of its queue.
        let of_snapshots =
            named("snapshots").spawn(move || taker.run(&waiting)).map_err(StartError::Thread)?;
        let engine =
            named("engine").spawn(move || run(&seat, receiver)).map_err(StartError::Thread)?;
        let threads = Threads { engine, snapshots: of_snapshots };
        Ok(Self { handle, threads: Mutex::new(Some(threads)), snapshots: metrics, stopping })
    }

    /// Registers what is counted of log and snapshots.
    pub fn register_metrics(&self, metrics: &mut millrace_service::metrics::Metrics) {
        self.snapshots.register(metrics);
    }

    /// For sending turns.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Finishes the turns that wait, syncs log and store, and marks the shutdown as clean. Blocks.
    /// A snapshot that is being written is given up.
    ///
    /// # Errors
    /// When the disk fails; what was acknowledged is in the log all the same.
    pub fn stop(&self) -> Result<(), StartError> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(threads) = threads else {
            return Ok(());
        };
        self.stopping.store(true, Ordering::Relaxed);
        // A closed queue means that the thread is gone already; joining tells why.
        drop(self.handle.queue.blocking_send(Message::Stop));
        let ended = threads.engine.join().unwrap_or(Err(StartError::Panicked));
        // A panic there has been reported by the panic hook, and costs no more than a snapshot.
        drop(threads.snapshots.join());
        ended
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

impl WeakHandle {
    /// The handle, unless the engine has ended.
    fn upgrade(&self) -> Option<Handle> {
        Some(Handle {
            queue: self.queue.upgrade()?,
            seat: Arc::clone(&self.seat),
            syncer: Arc::clone(&self.syncer),
            keyring: Arc::clone(&self.keyring),
            clock: self.clock.clone(),
            written: Arc::clone(&self.written),
            patience: self.patience.clone(),
        })
    }
}

impl Handle {
    fn downgrade(&self) -> WeakHandle {
        WeakHandle {
            queue: self.queue.downgrade(),
            seat: Arc::clone(&self.seat),
            syncer: Arc::clone(&self.syncer),
            keyring: Arc::clone(&self.keyring),
            clock: self.clock.clone(),
            written: Arc::clone(&self.written),
            patience: self.patience.clone(),
        }
    }

    /// Runs `work` when it is its turn and returns what it returns; where that names a content
    /// whose name is not on stable storage ([`Core::note_name`]), once it is. It runs on this
    /// thread where nobody else has or waits for a turn, otherwise on the engine's.
    ///
    /// May be dropped: work that has been sent runs all the same, and its result is lost.
    ///
    /// # Errors
    /// What `work` returns; [`ErrorKind::Unavailable`] when the engine has stopped;
    /// [`ErrorKind::Disk`] when a name never will be on stable storage.
    pub async fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let is_first = self.queue.capacity() == QUEUE_LEN;
        let (result, hold) = match self.seat.run_at_once(is_first, work) {
            Ok(ended) => ended,
            Err(work) => {
                let (turn, receiver) = turn(work);
                self.queue.send(turn).await.map_err(|_| stopped())?;
                receiver.await.map_err(|_| stopped())?
            }
        };
        let result = result?;
        if let Some(index) = hold {
            self.synced(index).await?;
        }
        Ok(result)
    }

    /// [`Self::turn`] for a thread that may wait, and for work that names no content.
    ///
    /// # Errors
    /// As [`Self::turn`].
    ///
    /// # Panics
    /// In the middle of something asynchronous.
    pub fn blocking_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (turn, receiver) = turn(work);
        self.queue.blocking_send(turn).map_err(|_| stopped())?;
        let (result, hold) = receiver.blocking_recv().map_err(|_| stopped())?;
        assert!(hold.is_none(), "the answer would have to wait for a name");
        result
    }

    /// As [`Self::turn`]; returns only when every command of the turn, and all before it, are on
    /// stable storage.
    ///
    /// # Errors
    /// As [`Self::turn`]; [`ErrorKind::Disk`] when the log cannot be synced.
    pub async fn durable_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (result, index) = self
            .turn(move |core| {
                let result = work(core)?;
                Ok((result, core.last_index()))
            })
            .await?;
        self.synced(index).await?;
        Ok(result)
    }

    /// [`Self::synced`] for a thread that may wait.
    ///
    /// # Errors
    /// As [`Self::synced`].
    pub fn blocking_synced(&self, index: LogIndex) -> Result<(), Failure> {
        let (sender, receiver) = sync_channel(1);
        self.syncer.when_synced(index, move |result| {
            // The receiver waits below; it cannot be gone.
            drop(sender.send(result));
        });
        let result = receiver.recv().unwrap_or(Err(LogError::Stopped));
        result.map_err(|error| Failure::new(ErrorKind::Disk, error.to_string()))
    }

    /// Waits until `index` is on stable storage. May be dropped at any time.
    ///
    /// # Errors
    /// [`ErrorKind::Disk`] when it never will be.
    pub async fn synced(&self, index: LogIndex) -> Result<(), Failure> {
        let (sender, receiver) = oneshot::channel();
        self.syncer.when_synced(index, move |result| {
            // The caller may have gone away.
            drop(sender.send(result));
        });
        let failed = |text: String| Failure::new(ErrorKind::Disk, text);
        match receiver.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("the command log has stopped".to_owned())),
        }
    }

    /// Whether a snapshot that is under way runs short of memory: see [`Self::give_way`].
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.patience.is_asked()
    }

    /// Waits while a snapshot that is under way runs short of memory: for whoever changes much and
    /// has time, before each command. For a minute at most, and not for a snapshot that gets no
    /// further. May be dropped at any time.
    pub async fn give_way(&self) {
        self.patience.wait().await;
    }

    /// What is written and synced.
    #[must_use]
    pub fn log_state(&self) -> SyncState {
        self.syncer.state()
    }

    /// Signs capabilities and tickets.
    #[must_use]
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    /// What clients write, make and rename.
    #[must_use]
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// The server's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// What a turn gives, and what must be synced before anybody hears of it.
type Ended<T> = (Result<T, Failure>, Option<LogIndex>);

fn turn<T: Send + 'static>(
    work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
) -> (Message, oneshot::Receiver<Ended<T>>) {
    let (sender, receiver) = oneshot::channel();
    let turn: Turn = Box::new(move |core| {
        // The caller may have gone away; the work is done then all the same.
        drop(sender.send(run_turn(core, work)));
    });
    (Message::Turn(turn), receiver)
}

fn run_turn<T>(core: &mut Core, work: impl FnOnce(&mut Core) -> Result<T, Failure>) -> Ended<T> {
    let result = work(core);
    (result, core.poll_hold())
}

fn stopped() -> Failure {
    Failure::new(ErrorKind::Unavailable, "the metadata server is stopping")
}

fn run(seat: &Seat, mut queue: mpsc::Receiver<Message>) -> Result<(), StartError> {
    // Whatever ends this thread, nobody gets another turn.
    let closing = seat.close_at_end();
    while let Some(message) = queue.blocking_recv() {
        match message {
            Message::Turn(turn) => seat.run(turn)?,
            Message::Stop => {
                queue.close();
                while let Some(message) = queue.blocking_recv() {
                    if let Message::Turn(turn) = message {
                        seat.run(turn)?;
                    }
                }
                return closing.take()?.close();
            }
        }
    }
    Ok(())
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Turn(_) => "Turn",
            Self::Stop => "Stop",
        })
    }
}
