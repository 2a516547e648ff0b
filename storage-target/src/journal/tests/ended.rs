//! Whoever writes a batch is ended in the middle.

use std::pin::pin;

use super::{waiting::Waiting, *};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_batch_whose_writer_was_ended_is_waited_for() {
    let disk = Waiting::new(Operation::Write);
    let journal = runtime().block_on(disk.open());
    journal.append(record(1, 100)).unwrap();
    // The task that writes ends with its runtime, the write does not.
    runtime().block_on(async {
        let mut first = pin!(journal.sync(1));
        while disk.count() == 0 {
            assert!(futures::poll!(&mut first).is_pending());
            tokio::task::yield_now().await;
        }
    });
    journal.append(record(2, 100)).unwrap();
    runtime().block_on(async {
        let mut second = pin!(journal.sync(2));
        while futures::poll!(&mut second).is_pending() {
            // Everything that can be under way at once is, before any of it is done.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            disk.release();
        }
    });
    let (_, replayed) = runtime().block_on(open(&disk.disk, RING.start())).unwrap();
    assert_eq!(replayed.records, [(1, record(1, 100)), (2, record(2, 100))]);
}
