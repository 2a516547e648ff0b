//! What came from a bucket goes to the disk together.
//!
//! Small objects arrive one by one. To write each by itself costs a call and, on a virtual machine,
//! a message to the hypervisor, which take longer than the bytes do. Readers have their bytes
//! already, and jobs go on with other files. So a small fill for which no write waits is stored
//! with others that come a moment later; of those that lie next to each other on the disk the disk
//! engine makes one write.
//!
//! ```text
//!   fill ─▶ waits ─── 1 MiB, 16 fills, or 4 ms since the first ──▶ all are handed over ─▶ written
//! ```

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::disk::{AlignedBuffer, Answer, DiskError, DiskQueue, Piece};

/// How long a fill waits for others: a part of what the bucket took for its first byte.
const WAIT: Duration = Duration::from_millis(4);

/// With so many bytes nothing waits: as many as go to the disk as one write.
const BYTES_MAX: usize = 1 << 20;

/// Nor do so many fills: a quarter of what the disk may have outstanding.
const FILLS_MAX: usize = 16;

/// The fills of one target that wait for the disk.
#[derive(Debug)]
pub(super) struct Fills {
    disk: DiskQueue,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    writes: Vec<Write>,
    bytes: usize,
    /// Counts what was handed over, so that nobody does it too early for those behind it.
    batch: u64,
}

#[derive(Debug)]
struct Write {
    pieces: Vec<Piece>,
    buffer: Arc<AlignedBuffer>,
    begun: oneshot::Sender<Result<Answer, DiskError>>,
}

impl Waiting {
    fn take(&mut self) -> Vec<Write> {
        (self.bytes, self.batch) = (0, self.batch + 1);
        mem::take(&mut self.writes)
    }
}

impl Fills {
    pub(super) fn new(disk: DiskQueue) -> Arc<Self> {
        Arc::new(Self { disk, waiting: Mutex::default() })
    }

    /// Writes, with others if some come within [`WAIT`]. Dropping it gives up the answer, but those
    /// that came before it may wait for it to go on: it belongs into a task that is not dropped.
    ///
    /// # Errors
    /// As [`DiskQueue::write`].
    pub(super) async fn write(
        self: &Arc<Self>,
        pieces: Vec<Piece>,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<(), DiskError> {
        let bytes: usize = pieces.iter().map(|piece| piece.range.len()).sum();
        let (begun, answer) = oneshot::channel();
        let due = {
            let mut waiting = self.waiting();
            waiting.writes.push(Write { pieces, buffer, begun });
            waiting.bytes += bytes;
            if waiting.bytes >= BYTES_MAX || waiting.writes.len() >= FILLS_MAX {
                waiting.take()
            } else {
                if waiting.writes.len() == 1 {
                    self.hand_over_later(waiting.batch);
                }
                Vec::new()
            }
        };
        self.hand_over(due).await;
        let answer = answer.await.map_err(|_| DiskError::Stopped)?;
        answer?.complete().await.map(drop)
    }

    /// Hands a batch over when it has waited long enough, unless it has gone by then.
    fn hand_over_later(self: &Arc<Self>, batch: u64) {
        // A volume that is closed meanwhile leaves its disk at once.
        let fills = Arc::downgrade(self);
        drop(tokio::spawn(async move {
            tokio::time::sleep(WAIT).await;
            let Some(fills) = fills.upgrade() else { return };
            let due = {
                let mut waiting = fills.waiting();
                if waiting.batch == batch { waiting.take() } else { Vec::new() }
            };
            fills.hand_over(due).await;
        }));
    }

    /// One right after the other, so that the disk engine gets them with one call.
    async fn hand_over(&self, due: Vec<Write>) {
        for Write { pieces, buffer, begun } in due {
            let answer = self.disk.begin_write(pieces, buffer).await;
            // Who waited may have gone with its runtime.
            drop(begun.send(answer));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::time::Instant;

    use super::*;
    use crate::disk::{ALIGNMENT, BufferPool, Operation, simulated::SimulatedDisk};

    const LEN: usize = 32 * ALIGNMENT;

    struct World {
        disk: SimulatedDisk,
        fills: Arc<Fills>,
        pool: BufferPool,
    }

    impl World {
        fn new() -> Self {
            let disk = SimulatedDisk::new(64 << 20, 1);
            let fills = Fills::new(disk.queue());
            Self { disk, fills, pool: BufferPool::new(0) }
        }

        /// Writes so many bytes, and tells how long that took.
        async fn write(&self, offset: usize, len: usize) -> Result<Duration, DiskError> {
            let buffer = Arc::new(self.pool.acquire(len).await);
            let begun = Instant::now();
            let pieces = vec![Piece { offset: offset as u64, range: 0..len }];
            self.fills.write(pieces, buffer).await?;
            Ok(begun.elapsed())
        }

        async fn write_all(&self, count: usize, len: usize) -> Vec<Duration> {
            let writes = (0..count).map(|at| self.write(at * len, len));
            join_all(writes).await.into_iter().collect::<Result<_, _>>().expect("all is well")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_small_ones_wait_a_moment_and_many_or_large_ones_do_not() {
        let world = World::new();
        assert_eq!(world.write_all(3, LEN).await, [WAIT; 3]);
        assert_eq!(world.write_all(FILLS_MAX, ALIGNMENT).await, [Duration::ZERO; FILLS_MAX]);
        assert_eq!(world.write_all(BYTES_MAX / LEN, LEN).await, [Duration::ZERO; BYTES_MAX / LEN]);
        assert_eq!(world.write_all(1, BYTES_MAX).await, [Duration::ZERO]);
        // Those that came too late for a full batch have their own moment, and not what was left of
        // that one's.
        let late = async {
            tokio::time::sleep(WAIT / 2).await;
            world.write_all(FILLS_MAX + 1, ALIGNMENT).await
        };
        let (early, late) = tokio::join!(world.write(0, LEN), late);
        assert_eq!(early.expect("all is well"), WAIT / 2);
        let waited = late.iter().filter(|took| **took == WAIT).count();
        assert_eq!((waited, late.len()), (2, FILLS_MAX + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn each_hears_of_its_own_failure_and_of_a_disk_that_has_ended() {
        let world = World::new();
        world.disk.fail(Operation::Write, 0, libc::EIO);
        let (first, second) = tokio::join!(world.write(0, LEN), world.write(LEN, LEN));
        assert_eq!((first.is_err(), second.is_ok()), (true, true));
        let queue = world.fills.disk.clone();
        let (ended, ()) = tokio::join!(world.write(0, LEN), queue.end());
        assert!(matches!(ended, Err(DiskError::Stopped)), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_is_closed_leaves_its_disk_at_once() {
        let world = World::new();
        world.write_all(FILLS_MAX, ALIGNMENT).await;
        let left = Arc::downgrade(&world.fills);
        drop(world);
        assert!(left.upgrade().is_none());
    }
}
