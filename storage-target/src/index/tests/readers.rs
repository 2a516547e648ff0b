//! Readers beside checkpoints, on a real file with both engines' threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_types::TargetId;

use crate::{
    disk::{self, BufferPool, DataFile, DiskEngine},
    format::root::Segment,
    index::{Index, Key, Options},
};

const KEYS: u64 = 4000;
/// Rounds of checkpoints, and reads of each reader beside them, at least.
const ROUNDS: u64 = 39;
const READS: u64 = 101;

fn key(number: u64) -> Key {
    Key::new(&number.to_be_bytes()).unwrap()
}

/// Says which key and which round, so that a reader can tell what it has got.
fn value(number: u64, round: u64) -> Bytes {
    let mut bytes = vec![0; 80];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&round.to_le_bytes());
    Bytes::from(bytes)
}

fn round_of(number: u64, bytes: &[u8]) -> u64 {
    assert_eq!(bytes[..8], number.to_le_bytes(), "the value belongs to the key");
    u64::from_le_bytes(bytes[8..16].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_see_every_key_at_its_newest_while_checkpoints_are_written() {
    for engine in [DiskEngine::Auto, DiskEngine::Blocking] {
        let dir = tempfile::tempdir().unwrap();
        let file = DataFile::open(&dir.path().join("index")).unwrap();
        file.grow(0, 16 << 20).unwrap();
        let options = Options {
            target: TargetId([7; 8]),
            disk: disk::start(engine, &file).unwrap(),
            pool: BufferPool::new(16 << 20),
            first_root_page: 0,
            cache_bytes: 128 * 1024,
        };
        let segment = Segment { first: 8, pages: 4000 };
        let index = Arc::new(Index::create(options, &[segment]).await.unwrap());
        (0..KEYS).for_each(|number| index.put(key(number), value(number, 0)));
        // The round that every key has at least reached.
        let reached = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let counts = [(); 3].map(|()| Arc::<AtomicU64>::default());
        let readers: Vec<_> = (0_u64..)
            .zip(&counts)
            .map(|(reader, count)| {
                let (index, reached) = (Arc::clone(&index), Arc::clone(&reached));
                let (stop, count) = (Arc::clone(&stop), Arc::clone(count));
                tokio::spawn(async move {
                    let mut at = reader * 997;
                    while !stop.load(Ordering::Acquire) {
                        let least = reached.load(Ordering::Acquire);
                        at = (at * 31 + 7) % KEYS;
                        let found = index.get(&key(at)).await.unwrap();
                        assert!(round_of(at, &found.unwrap()) >= least);
                        if count.fetch_add(1, Ordering::Relaxed) % 50 == 0 {
                            let scan = index.scan(key(at), None, 100).await.unwrap();
                            assert!(scan.next.is_some() || at + 100 >= KEYS);
                            for ((found, value), number) in scan.entries.iter().zip(at..) {
                                assert_eq!(*found, key(number), "no key is missing");
                                assert!(round_of(number, value) >= least);
                            }
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let (begun, mut round) = (Instant::now(), 0);
        // Longer when the readers hardly get their turns.
        while round < ROUNDS || counts.iter().any(|count| count.load(Ordering::Relaxed) < READS) {
            let is_late = round >= ROUNDS && begun.elapsed() > Duration::from_secs(120);
            let is_over = is_late || readers.iter().any(|reader| reader.is_finished());
            assert!(!is_over, "readers do not go on: {counts:?}");
            round += 1;
            (0..KEYS).for_each(|number| index.put(key(number), value(number, round)));
            reached.store(round, Ordering::Release);
            assert!(index.freeze(round));
            index.checkpoint().await.unwrap();
        }
        stop.store(true, Ordering::Release);
        for reader in readers {
            reader.await.unwrap();
        }
        assert!(index.freeze(round + 1));
        index.checkpoint().await.unwrap();
        assert!(index.check().await.unwrap().damages.is_empty());
        let statistics = index.statistics();
        assert_eq!(statistics.nodes + statistics.free_nodes, 4000, "no reader keeps pages back");
    }
}
