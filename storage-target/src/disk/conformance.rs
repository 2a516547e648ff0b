//! What every disk engine must do, run on each of them.

use std::sync::Arc;

use super::{
    AlignedBuffer, BufferPool, DataFile, DiskError, DiskQueue, Piece, blocking::BlockingDisk,
    simulated::SimulatedDisk, uring::UringDisk,
};

const PAGE: usize = 4096;

struct Bench {
    queue: DiskQueue,
    pool: BufferPool,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn all() -> Vec<Self> {
        let mut benches =
            vec![Self::new(|file| DiskQueue::new(Arc::new(BlockingDisk::start(file).unwrap())))];
        // A container may forbid io_uring; the daemon falls back then, and so does the suite.
        if UringDisk::start(Self::file(&tempfile::tempdir().unwrap())).is_ok() {
            benches
                .push(Self::new(|file| DiskQueue::new(Arc::new(UringDisk::start(file).unwrap()))));
        }
        benches.push(Self::new(|_| SimulatedDisk::new(8 << 20, 1).queue()));
        benches
    }

    fn file(dir: &tempfile::TempDir) -> DataFile {
        let file = DataFile::open(&dir.path().join("data")).unwrap();
        file.grow(0, 8 << 20).unwrap();
        file
    }

    fn new(start: impl Fn(DataFile) -> DiskQueue) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let queue = start(Self::file(&dir));
        Self { queue, pool: BufferPool::new(64 << 20), _dir: dir }
    }

    async fn filled(&self, len: usize, seed: u8) -> AlignedBuffer {
        let mut buffer = self.pool.acquire(len).await;
        for (at, byte) in buffer.as_mut_slice().iter_mut().enumerate() {
            *byte = pattern(seed, at);
        }
        buffer
    }
}

fn pattern(seed: u8, at: usize) -> u8 {
    u8::try_from((at / 7 + at) % 251).unwrap() ^ seed
}

fn piece(offset: usize, range: std::ops::Range<usize>) -> Piece {
    Piece { offset: offset as u64, range }
}

#[tokio::test]
async fn what_was_written_is_read_back_in_pieces_too() {
    for bench in Bench::all() {
        let len = 1 << 20;
        let buffer = bench.filled(len, 3).await;
        let split = vec![piece(0, 0..len / 2), piece(4 << 20, len / 2..len)];
        bench.queue.write(split.clone(), Arc::new(buffer)).await.unwrap();
        let buffer = bench.pool.acquire(len).await;
        let buffer = bench.queue.read(split, buffer).await.unwrap();
        assert!(buffer.as_slice().iter().enumerate().all(|(at, &byte)| byte == pattern(3, at)));

        let one = bench.pool.acquire(PAGE).await;
        let one = bench.queue.read(vec![piece(PAGE, 0..PAGE)], one).await.unwrap();
        assert_eq!(one.as_slice()[0], pattern(3, PAGE), "{}", bench.queue.name());
    }
}

#[tokio::test]
async fn a_read_past_the_end_is_an_error_and_not_short() {
    for bench in Bench::all() {
        let buffer = bench.pool.acquire(2 * PAGE).await;
        let pieces = vec![piece((8 << 20) - PAGE, 0..2 * PAGE)];
        let error = bench.queue.read(pieces, buffer).await.unwrap_err();
        assert!(matches!(error, DiskError::Io { operation: "read", .. }), "{error}");
        assert_eq!(bench.pool.used_bytes(), 0, "the buffer of a failed read goes back");
    }
}

#[tokio::test]
async fn a_dropped_future_leaves_the_buffer_with_the_engine_and_the_write_done() {
    for bench in Bench::all() {
        for round in 0..50_u8 {
            let buffer = bench.filled(256 * 1024, round).await;
            let mut write =
                Box::pin(bench.queue.write(vec![piece(0, 0..256 * 1024)], Arc::new(buffer)));
            drop(futures::poll!(&mut write));
            drop(write);
        }
        bench.queue.sync().await.unwrap();
        // Taking the whole budget proves that every buffer came back.
        let all = bench.pool.acquire(1 << 20).await;
        let all = bench.queue.read(vec![piece(0, 0..256 * 1024)], all).await.unwrap();
        let seed = all.as_slice()[0] ^ pattern(0, 0);
        assert!(seed < 50);
    }
}

#[tokio::test]
async fn many_requests_at_once_all_complete_and_none_is_mixed_up() {
    for bench in Bench::all() {
        let writes = (0..500_usize).map(|at| {
            let bench = &bench;
            async move {
                let buffer = bench.filled(PAGE, u8::try_from(at % 256).unwrap()).await;
                bench.queue.write(vec![piece(at * PAGE, 0..PAGE)], Arc::new(buffer)).await.unwrap();
            }
        });
        futures::future::join_all(writes).await;
        let reads = (0..500_usize).map(|at| {
            let bench = &bench;
            async move {
                let buffer = bench.pool.acquire(PAGE).await;
                let buffer =
                    bench.queue.read(vec![piece(at * PAGE, 0..PAGE)], buffer).await.unwrap();
                assert_eq!(buffer.as_slice()[9], pattern(u8::try_from(at % 256).unwrap(), 9));
            }
        });
        futures::future::join_all(reads).await;
    }
}

#[tokio::test]
async fn syncs_return_while_other_requests_are_out() {
    for bench in Bench::all() {
        let syncs = async {
            for _ in 0..5 {
                bench.queue.sync().await.unwrap();
            }
        };
        let writes = async {
            for at in 0..32_usize {
                let buffer = bench.filled(PAGE, 1).await;
                bench.queue.write(vec![piece(at * PAGE, 0..PAGE)], Arc::new(buffer)).await.unwrap();
            }
        };
        futures::future::join(syncs, writes).await;
    }
}

/// Reads and writes on runtimes that come and go, two of them at a time.
#[test]
fn any_runtime_may_use_a_disk_and_end_before_it() {
    for bench in Bench::all() {
        let worker = |seed: u8| {
            let (queue, pool) = (bench.queue.clone(), bench.pool.clone());
            move || {
                for round in 0..20_u8 {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.unwrap().block_on(async {
                        let at = usize::from(seed) * PAGE;
                        let mut buffer = pool.acquire(PAGE).await;
                        buffer.as_mut_slice().fill(seed ^ round);
                        queue.write(vec![piece(at, 0..PAGE)], Arc::new(buffer)).await.unwrap();
                        let buffer = pool.acquire(PAGE).await;
                        let read = queue.read(vec![piece(at, 0..PAGE)], buffer).await.unwrap();
                        assert!(read.as_slice().iter().all(|&byte| byte == seed ^ round));
                        // Its future goes, and the runtime after it, while the read is under way.
                        let buffer = pool.acquire(PAGE).await;
                        let mut left = Box::pin(queue.read(vec![piece(at, 0..PAGE)], buffer));
                        drop(futures::poll!(&mut left));
                    });
                }
            }
        };
        let others = std::thread::spawn(worker(1));
        worker(2)();
        others.join().unwrap();
        let Bench { queue, pool, _dir } = bench;
        let name = queue.name();
        // What was left is finished by then.
        drop(queue);
        assert_eq!(pool.used_bytes(), 0, "every buffer came back: {name}");
    }
}
