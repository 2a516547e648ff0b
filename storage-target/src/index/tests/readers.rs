//! Readers beside checkpoints, on a real file with both engines' threads.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use millrace_types::TargetId;

use crate::{
    disk::{self, BufferPool, DataFile, DiskEngine},
    format::root::Segment,
    index::{Index, Key, Options},
};

const KEYS: u64 = 4000;

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
        let readers: Vec<_> = (0..3_u64)
            .map(|reader| {
                let (index, reached) = (Arc::clone(&index), Arc::clone(&reached));
                let stop = Arc::clone(&stop);
                tokio::spawn(async move {
                    let mut at = reader * 997;
                    let mut reads = 0;
                    while !stop.load(Ordering::Acquire) {
                        let least = reached.load(Ordering::Acquire);
                        at = (at * 31 + 7) % KEYS;
                        let found = index.get(&key(at)).await.unwrap();
                        assert!(round_of(at, &found.unwrap()) >= least);
                        if reads % 50 == 0 {
                            let scan = index.scan(key(at), None, 100).await.unwrap();
                            assert!(scan.next.is_some() || at + 100 >= KEYS);
                            for ((found, value), number) in scan.entries.iter().zip(at..) {
                                assert_eq!(*found, key(number), "no key is missing");
                                assert!(round_of(number, value) >= least);
                            }
                        }
                        reads += 1;
                        tokio::task::yield_now().await;
                    }
                    reads
                })
            })
            .collect();
        for round in 1..40 {
            (0..KEYS).for_each(|number| index.put(key(number), value(number, round)));
            reached.store(round, Ordering::Release);
            assert!(index.freeze(round));
            index.checkpoint().await.unwrap();
        }
        stop.store(true, Ordering::Release);
        for reader in readers {
            assert!(reader.await.unwrap() > 100);
        }
        assert!(index.freeze(40));
        index.checkpoint().await.unwrap();
        assert!(index.check().await.unwrap().damages.is_empty());
        let statistics = index.statistics();
        assert_eq!(statistics.nodes + statistics.free_nodes, 4000, "no reader keeps pages back");
    }
}
