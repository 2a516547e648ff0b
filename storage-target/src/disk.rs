//! Reading and writing the data file of one target at aligned offsets.
//!
//! # Contract
//! - Offsets, positions within the buffer and lengths are multiples of [`ALIGNMENT`].
//! - **The engine owns the buffer until the completion.** A buffer travels with its request and
//!   comes back in the [`Completion`]; dropping the future that waits for it frees nothing that the
//!   kernel may still touch.
//! - A read or write is complete or an error: short transfers, `EINTR` and `EAGAIN` are continued
//!   by the engine, and a read past the end of the file is an error.
//! - Requests may be executed in any order. A sync covers exactly the writes whose completion had
//!   been delivered before the sync was submitted.
//! - **After a sync that failed no other one counts**: every later [`DiskQueue::sync`] of the same
//!   queue fails, whoever asked for the first. The disk must be opened again.
//!
//! # Cancellation
//! A submitted request is always executed. Who drops the future only gives up the answer; pages
//! that are being written must therefore not be reused before the completion, which is why the
//! engine's writes run in tasks of their own.
//!
//! # Bounds
//! At most [`QUEUE_DEPTH`] requests are outstanding for each disk; more wait for their turn in
//! [`DiskQueue`].
//!
//! Modules: [`buffer`] (the aligned pool), [`place`] (where a target lies: directory, device or
//! image), `attachment` (which time its disk is attached), [`backing`] (how it grows), [`mod@file`]
//! (opening and growing the data file), `lock`, `syncs`, [`blocking`] and [`uring`] (the two
//! engines), [`simulated`] (a disk for tests, which loses power), [`faulty`] (faults on request,
//! before any disk), [`cuts`] (a kernel that does less than it was asked for); `conformance` is the
//! suite that all disks pass.

use std::{
    fmt, io,
    ops::Range,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_types::{ErrorKind, Failure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

mod attachment;
pub mod backing;
pub mod blocking;
pub mod buffer;
#[cfg(test)]
mod conformance;
pub mod cuts;
pub mod faulty;
pub mod file;
mod lock;
pub mod meter;
pub mod place;
pub mod simulated;
mod syncs;
pub mod uring;

pub(crate) use attachment::attachment_of;
pub use backing::Backing;
pub use buffer::{AlignedBuffer, BufferPool};
pub(crate) use buffer::{Charge, SegmentRoom};
pub use file::DataFile;
pub use meter::DiskMeter;
pub use place::{Place, PlaceError};

use meter::Metered;
use syncs::{SyncUnderWay, Syncs};

/// Direct I/O wants offsets, lengths and memory aligned to the device's logical block; 4 KiB is the
/// largest in use, and the size of the pages that carry checksums.
pub const ALIGNMENT: usize = 4096;

/// Requests outstanding for each disk. NVMe drives reach their full rate at 32 to 64 requests.
pub const QUEUE_DEPTH: usize = 64;

/// An engine that executes requests. See the module's contract.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Hands a request over. Never blocks as long as at most [`QUEUE_DEPTH`] are outstanding.
    fn submit(&self, request: Request);

    /// Says that buffers of a pool will come, so that what can be done once for all of them is
    /// done now.
    fn expect_buffers(&self, _pool: &BufferPool) {}

    /// Which engine it is, for logs and metrics.
    fn name(&self) -> &'static str;
}

/// What shall be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Fill parts of the buffer from the file.
    Read,
    /// Put parts of the buffer into the file.
    Write,
    /// Make completed writes durable (`fdatasync`).
    Sync,
}

impl Operation {
    fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

/// One contiguous part of a transfer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First byte in the file.
    pub offset: u64,
    /// The bytes of the buffer.
    pub range: Range<usize>,
}

/// A request with everything that must live until it is complete.
#[derive(Debug)]
pub struct Request {
    operation: Operation,
    pieces: Vec<Piece>,
    buffer: Held,
    reply: oneshot::Sender<Completion>,
    /// Of a sync alone.
    sync: Option<SyncUnderWay>,
    /// `None` for a part of another request.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Request {
    /// What it is for.
    #[cfg(test)]
    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    fn complete(self, result: Result<(), DiskError>) {
        let buffer = match self.buffer {
            Held::Exclusive(buffer) => Some(buffer),
            Held::Nothing | Held::Shared(_) => None,
        };
        if let Some(sync) = self.sync {
            sync.end(&result);
        }
        let completion = Completion { buffer, result };
        // Nobody waiting is no error: the buffer goes back to its pool here.
        drop(self.reply.send(completion));
    }
}

/// The memory of a request. A read needs its buffer alone; a write only looks at it, so that others
/// may look too.
#[derive(Debug)]
enum Held {
    Nothing,
    Exclusive(AlignedBuffer),
    Shared(Arc<AlignedBuffer>),
}

impl Held {
    fn buffer(&self) -> Option<&AlignedBuffer> {
        match self {
            Self::Nothing => None,
            Self::Exclusive(buffer) => Some(buffer),
            Self::Shared(buffer) => Some(buffer),
        }
    }
}

/// The end of a request: its buffer, and whether it succeeded.
#[derive(Debug)]
pub struct Completion {
    /// The buffer that a read was handed.
    pub buffer: Option<AlignedBuffer>,
    /// Whether everything was transferred.
    pub result: Result<(), DiskError>,
}

/// Why a disk operation failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file system below has no room. Free some, then retry.
    #[error("the file system under the target is full")]
    NoSpace,
    /// The device or file system failed. A person must look.
    #[error("{operation} of {len} bytes at offset {offset} failed: {source}")]
    Io {
        /// `read`, `write`, `sync` or `grow`.
        operation: &'static str,
        /// First byte of the transfer.
        offset: u64,
        /// Bytes of the transfer.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A sync has failed before, perhaps somebody else's. Open the disk again.
    #[error("an earlier sync of the disk failed: what was written before it may be gone")]
    SyncFailed,
    /// The engine has ended, or takes no changes any more.
    #[error("the disk engine has stopped")]
    Stopped,
    /// The disk has failed, and could not be opened again when that was last tried.
    #[error("the disk has failed and cannot be opened again")]
    Away,
}

impl DiskError {
    fn from_io(operation: Operation, offset: u64, len: usize, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace,
            _ => Self::Io { operation: operation.verb(), offset, len, source },
        }
    }

    fn growing(offset: u64, len: usize, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Self::NoSpace,
            _ => Self::Io { operation: "grow", offset, len, source },
        }
    }

    /// Whether the device or file system failed to read. What lies there may be as it was, and
    /// readable again in a moment: a path fails over, a controller is reset.
    #[must_use]
    pub fn is_failed_read(&self) -> bool {
        matches!(self, Self::Io { operation, .. } if *operation == Operation::Read.verb())
    }

    /// The kind that peers see.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSpace => ErrorKind::NoSpace,
            Self::Io { .. } | Self::SyncFailed | Self::Away => ErrorKind::Disk,
            Self::Stopped => ErrorKind::Unavailable,
        }
    }
}

impl From<DiskError> for Failure {
    fn from(error: DiskError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

/// A disk and its bound on outstanding requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DiskQueue {
    /// `None` when it has ended.
    disk: Arc<RwLock<Option<Arc<dyn Disk>>>>,
    name: &'static str,
    depth: Arc<Semaphore>,
    syncs: Arc<Syncs>,
    meter: Arc<OnceLock<DiskMeter>>,
    /// It has ended, and nothing takes its place for now.
    is_away: Arc<AtomicBool>,
    /// Only what reads is still done.
    only_reads: Arc<AtomicBool>,
}

impl DiskQueue {
    /// Bounds the requests of `disk`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        let depth = Arc::new(Semaphore::new(QUEUE_DEPTH));
        let name = disk.name();
        let (disk, meter) = (Arc::new(RwLock::new(Some(disk))), Arc::default());
        let (is_away, only_reads) = (Arc::default(), Arc::default());
        Self { disk, name, depth, syncs: Arc::default(), meter, is_away, only_reads }
    }

    /// Waits until everything is over that is under way, also what nobody waits for any more; what
    /// is asked meanwhile is done after that.
    pub async fn drain(&self) {
        let all = u32::try_from(QUEUE_DEPTH).expect("a few");
        // Refused when it has ended: nothing is under way then.
        drop(self.depth.acquire_many(all).await);
    }

    /// Ends all changes, for everybody who has a clone: waits until everything under way is over,
    /// also what nobody waits for any more. Writes and syncs that are asked for from then on fail
    /// with [`DiskError::Stopped`], so that somebody else may change what lies there; reads go on.
    pub async fn end_changes(&self) {
        let all = u32::try_from(QUEUE_DEPTH).expect("a few");
        // Refused when it has ended: nothing is under way then.
        let everything = self.depth.acquire_many(all).await;
        self.only_reads.store(true, Ordering::Release);
        drop(everything);
    }

    /// Whether writes and syncs are still done.
    #[must_use]
    pub fn takes_changes(&self) -> bool {
        !self.only_reads.load(Ordering::Acquire)
    }

    /// Ends it, for everybody who has a clone: waits until everything under way is over, and lets
    /// go of the disk. Whatever is asked from then on fails with [`DiskError::Stopped`], so that
    /// nothing of who has used it so far comes in the way of who uses the disk next.
    pub async fn end(&self) {
        let all = u32::try_from(QUEUE_DEPTH).expect("a few");
        // Refused when somebody else has been faster.
        if let Ok(everything) = self.depth.acquire_many(all).await {
            self.depth.close();
            everything.forget();
        }
        let ended = self.disk.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(ended);
    }

    /// Nothing takes its place for now: whatever is asked from now on of a disk that has ended
    /// fails with [`DiskError::Away`], for which nobody waits.
    pub fn give_up(&self) {
        self.is_away.store(true, Ordering::Relaxed);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.depth.is_closed()
    }

    fn disk(&self) -> Result<Arc<dyn Disk>, DiskError> {
        let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner);
        disk.clone().ok_or_else(|| self.gone())
    }

    fn gone(&self) -> DiskError {
        if self.is_away.load(Ordering::Relaxed) { DiskError::Away } else { DiskError::Stopped }
    }

    /// Which engine it is, for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Says that buffers of a pool will come. Not needed, but the first request waits less.
    pub fn expect_buffers(&self, pool: &BufferPool) {
        if let Ok(disk) = self.disk() {
            disk.expect_buffers(pool);
        }
    }

    /// Counts on these figures from now on; later calls change nothing.
    pub fn measure(&self, meter: DiskMeter) {
        self.meter.get_or_init(|| meter);
    }

    /// Fills the pieces of `buffer` from the file.
    ///
    /// # Errors
    /// [`DiskError`]; the buffer is then lost to the caller (it goes back to its pool).
    pub async fn read(
        &self,
        pieces: Vec<Piece>,
        buffer: AlignedBuffer,
    ) -> Result<AlignedBuffer, DiskError> {
        let done = self.transfer(Operation::Read, pieces, Held::Exclusive(buffer)).await?;
        Ok(done.expect("a read brings its buffer back"))
    }

    /// Puts the pieces of `buffer` into the file.
    ///
    /// # Durability
    /// Complete means that the kernel or device has the bytes; [`Self::sync`] makes them
    /// durable.
    ///
    /// # Errors
    /// [`DiskError`]; the pages written to then hold anything.
    pub async fn write(
        &self,
        pieces: Vec<Piece>,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<(), DiskError> {
        self.transfer(Operation::Write, pieces, Held::Shared(buffer)).await.map(drop)
    }

    /// Hands a write over; what comes back is waited for. Dropping it gives up the answer only.
    ///
    /// # Errors
    /// [`DiskError::Stopped`] when the engine has ended.
    pub(crate) async fn begin_write(
        &self,
        pieces: Vec<Piece>,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<Answer, DiskError> {
        self.begin(Operation::Write, pieces, Held::Shared(buffer)).await
    }

    /// Makes every write durable whose completion was delivered before this call. Takes a turn
    /// among the transfers. May be dropped at its await.
    ///
    /// # Errors
    /// [`DiskError`]; nothing may then be taken for durable. The kernel reports a failed write or
    /// flush only once, to one of those who ask, so that a later success would prove nothing about
    /// the writes before: from then on it is [`DiskError::SyncFailed`] for everybody.
    pub async fn sync(&self) -> Result<(), DiskError> {
        self.sync_after_failure().await?;
        self.syncs.settle().await;
        if self.has_failed_sync() { Err(DiskError::SyncFailed) } else { Ok(()) }
    }

    /// The same for what was written after a sync had failed, whose failure does not matter to it;
    /// it says nothing of what was written before. May be dropped at its await.
    ///
    /// # Errors
    /// [`DiskError`].
    pub async fn sync_after_failure(&self) -> Result<(), DiskError> {
        self.submit(Operation::Sync, Vec::new(), Held::Nothing).await?.complete().await.map(drop)
    }

    /// Whether a sync has failed, of whoever has a clone: unsynced writes may be gone.
    #[must_use]
    pub fn has_failed_sync(&self) -> bool {
        self.syncs.has_failed()
    }

    async fn transfer(
        &self,
        operation: Operation,
        pieces: Vec<Piece>,
        buffer: Held,
    ) -> Result<Option<AlignedBuffer>, DiskError> {
        self.begin(operation, pieces, buffer).await?.complete().await
    }

    async fn begin(
        &self,
        operation: Operation,
        pieces: Vec<Piece>,
        buffer: Held,
    ) -> Result<Answer, DiskError> {
        assert!(!pieces.is_empty(), "a transfer moves something");
        let len = buffer.buffer().map_or(0, AlignedBuffer::len);
        for piece in &pieces {
            let offset_aligned = piece.offset.is_multiple_of(ALIGNMENT as u64);
            assert!(offset_aligned, "the offset in the file is aligned");
            assert!(piece.range.start.is_multiple_of(ALIGNMENT), "the position is aligned");
            assert!(piece.range.len().is_multiple_of(ALIGNMENT), "the length is aligned");
            assert!(!piece.range.is_empty(), "a piece has bytes");
            assert!(piece.range.end <= len, "a piece lies in its buffer");
        }
        self.submit(operation, pieces, buffer).await
    }

    async fn submit(
        &self,
        operation: Operation,
        pieces: Vec<Piece>,
        buffer: Held,
    ) -> Result<Answer, DiskError> {
        let mut metered = Metered::new(self.meter.get(), operation);
        let bytes = pieces.iter().map(|piece| piece.range.len()).sum();
        let depth = Arc::clone(&self.depth);
        let permit = depth.acquire_owned().await.map_err(|_| self.gone())?;
        if operation != Operation::Read && !self.takes_changes() {
            return Err(DiskError::Stopped);
        }
        let (reply, answer) = oneshot::channel();
        metered.hand_over();
        let disk = self.disk()?;
        let sync = (operation == Operation::Sync).then(|| self.syncs.begin());
        disk.submit(Request { operation, pieces, buffer, reply, sync, _permit: Some(permit) });
        Ok(Answer { completion: answer, metered, bytes })
    }
}

/// The answer to a request that the disk has.
#[derive(Debug)]
pub(crate) struct Answer {
    completion: oneshot::Receiver<Completion>,
    metered: Metered,
    bytes: usize,
}

impl Answer {
    /// Waits until the request is complete; brings the buffer of a read back. May be dropped at its
    /// await.
    ///
    /// # Errors
    /// [`DiskError`].
    pub(crate) async fn complete(mut self) -> Result<Option<AlignedBuffer>, DiskError> {
        let completion = self.completion.await.map_err(|_| DiskError::Stopped)?;
        self.metered.complete(self.bytes);
        completion.result?;
        Ok(completion.buffer)
    }

    /// Waits until a write is complete. May be dropped at its await, and called again until it has
    /// returned.
    ///
    /// # Errors
    /// [`DiskError`].
    pub(crate) async fn written(&mut self) -> Result<(), DiskError> {
        let completion = (&mut self.completion).await.map_err(|_| DiskError::Stopped)?;
        self.metered.complete(self.bytes);
        completion.result
    }
}

/// Which engine the settings ask for.
#[derive(serde::Serialize, serde::Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub enum DiskEngine {
    /// io_uring where the kernel allows it, else blocking.
    #[default]
    Auto,
    /// io_uring, or refuse to start.
    IoUring,
    /// A small pool of threads with `pread` and `pwrite`.
    Blocking,
}

/// Starts an engine on a data file.
///
/// # Errors
/// When [`DiskEngine::IoUring`] is asked for and the kernel refuses it, or no thread can be made.
pub fn start(engine: DiskEngine, file: &DataFile) -> io::Result<DiskQueue> {
    let blocking = || -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(blocking::BlockingDisk::start(file.clone())?))
    };
    let disk: Arc<dyn Disk> = match engine {
        DiskEngine::Blocking => blocking()?,
        DiskEngine::IoUring => Arc::new(uring::UringDisk::start(file.clone())?),
        DiskEngine::Auto => match uring::UringDisk::start(file.clone()) {
            Ok(disk) => Arc::new(disk),
            Err(error) => {
                tracing::info!(%error, "io_uring is not available here; using blocking threads");
                blocking()?
            }
        },
    };
    Ok(DiskQueue::new(disk))
}
