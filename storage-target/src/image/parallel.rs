//! Several reads in flight.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Threads that read: what keeps a drive busy without its owner noticing.
const THREADS: usize = 8;

/// Does `work` for all items, several at a time; the results are in the order of the items.
///
/// # Panics
/// When `work` does.
pub(crate) fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() < THREADS {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take_turns = || {
        let mut done = Vec::new();
        while let Some((at, item)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            items.get(at).map(|item| (at, item))
        } {
            done.push((at, work(item)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take_turns)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("work does not panic"));
        joined.flatten().collect::<Vec<_>>()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..1000).collect();
        let doubled: Vec<u32> = items.iter().map(|item| 2 * item).collect();
        assert_eq!(in_parallel(&items, |item| 2 * item), doubled);
        assert_eq!(in_parallel(&items[..3], |item| 2 * item), doubled[..3]);
    }
}
