//! Requests that are waited for, and how their callers stop waiting.
//!
//! When a caller gets a signal the kernel sends INTERRUPT with the unique of its request, at once
//! and through whichever descriptor is read next. So it may overtake its request between two
//! threads: read after it, and handled before it. Then it is answered EAGAIN, and the kernel sends
//! it again for as long as the request waits. It is never answered ENOSYS, after which no INTERRUPT
//! would come any more and a killed program would stay until it is answered.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

/// Every request that was read and not answered, by its unique.
#[derive(Debug)]
pub(crate) struct LiveRequests {
    shards: [Mutex<HashMap<u64, Waiting>>; SHARDS],
}

/// What is known of a request that is waited for.
#[derive(Debug)]
enum Waiting {
    /// Its operation has not asked for its cancellation.
    Unwatched {
        interrupted: bool,
    },
    Watched(Arc<Shared>),
}

/// What became of an INTERRUPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// Its operation knows, or will when it asks.
    Told,
    /// There is no such request, or not yet.
    Unknown,
}

impl LiveRequests {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    pub(crate) fn begin(&self, unique: u64) {
        self.shard(unique).insert(unique, Waiting::Unwatched { interrupted: false });
    }

    pub(crate) fn end(&self, unique: u64) {
        self.shard(unique).remove(&unique);
    }

    /// Lets go of everything that watches, at the end of a session. What was to be called may own
    /// the reply that it was to give, and with it the connection.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            // Dropped without the lock.
            let waiting = std::mem::take(&mut *locked(shard));
            for (_, waiting) in waiting {
                if let Waiting::Watched(shared) = waiting {
                    drop(std::mem::take(&mut *locked(&shared.watchers)));
                }
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        let lens = self.shards.iter().map(|shard| locked(shard).len());
        lens.sum()
    }

    /// Passes an INTERRUPT on.
    pub(crate) fn interrupt(&self, unique: u64) -> Interrupted {
        let watched = match self.shard(unique).get_mut(&unique) {
            None => return Interrupted::Unknown,
            Some(Waiting::Unwatched { interrupted }) => {
                *interrupted = true;
                return Interrupted::Told;
            }
            Some(Waiting::Watched(shared)) => Arc::clone(shared),
        };
        // Without the lock: what is called here may answer the request.
        watched.cancel();
        Interrupted::Told
    }

    pub(crate) fn cancellation(&self, unique: u64) -> Cancellation {
        let mut shard = self.shard(unique);
        let shared = match shard.get(&unique) {
            Some(Waiting::Watched(shared)) => Arc::clone(shared),
            Some(Waiting::Unwatched { interrupted }) => Arc::new(Shared::new(*interrupted)),
            None => return Cancellation(Arc::new(Shared::new(false))),
        };
        shard.insert(unique, Waiting::Watched(Arc::clone(&shared)));
        Cancellation(shared)
    }

    fn shard(&self, unique: u64) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        // Uniques are even, and follow one another.
        let shard = usize::try_from((unique >> 1) % SHARDS_U64).expect("small");
        locked(&self.shards[shard])
    }
}

/// Whether the caller of a request still waits. Copies watch the same request.
///
/// An operation that may take long looks at it, waits for it, or gives it something to call; then
/// it answers EINTR. A caller that is being killed stays until its request is answered. POSIX lets
/// reads of files, and whatever changes something, go on to their end: a signal that does not kill
/// is no reason to give them up.
#[derive(Clone, Debug)]
pub struct Cancellation(Arc<Shared>);

impl Cancellation {
    /// Whether nobody waits any more.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Calls `action` when nobody waits any more, on the thread that learns of it; at once, if that
    /// is so already. It must not block.
    pub fn on_cancel(&self, action: impl FnOnce() + Send + 'static) {
        let mut watchers = locked(&self.0.watchers);
        if self.is_cancelled() {
            drop(watchers);
            action();
        } else {
            watchers.actions.push(Box::new(action));
        }
    }

    /// Waits until nobody waits any more.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        Cancelled(Arc::clone(&self.0))
    }
}

struct Cancelled(Arc<Shared>);

impl Future for Cancelled {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut watchers = locked(&self.0.watchers);
        if self.0.cancelled.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if !watchers.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            watchers.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[derive(Debug)]
struct Shared {
    /// Set under the lock of `watchers`, read without it.
    cancelled: AtomicBool,
    watchers: Mutex<Watchers>,
}

#[derive(Default)]
struct Watchers {
    actions: Vec<Box<dyn FnOnce() + Send>>,
    wakers: Vec<Waker>,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} actions, {} wakers", self.actions.len(), self.wakers.len())
    }
}

impl Shared {
    fn new(cancelled: bool) -> Self {
        Self { cancelled: AtomicBool::new(cancelled), watchers: Mutex::default() }
    }

    fn cancel(&self) {
        let watchers = {
            let mut watchers = locked(&self.watchers);
            self.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *watchers)
        };
        watchers.wakers.into_iter().for_each(Waker::wake);
        watchers.actions.into_iter().for_each(|action| action());
    }
}

/// What is behind the locks is whole between any two of its statements.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many that threads seldom meet at one.
const SHARDS: usize = 16;
const SHARDS_U64: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_before_its_request_is_unknown_and_told_when_it_comes_again() {
        let live = LiveRequests::new();
        assert_eq!(live.interrupt(8), Interrupted::Unknown);
        live.begin(8);
        assert_eq!(live.interrupt(8), Interrupted::Told);
        assert!(live.cancellation(8).is_cancelled());
        live.end(8);
        assert_eq!(live.interrupt(8), Interrupted::Unknown);
        assert_eq!(live.len(), 0);
    }

    #[test]
    fn an_interrupt_calls_and_wakes_whoever_watches() {
        let live = Arc::new(LiveRequests::new());
        live.begin(8);
        let cancellation = live.cancellation(8);
        let told = Arc::new(AtomicBool::new(false));
        let (seen, inside) = (Arc::clone(&told), Arc::clone(&live));
        cancellation.on_cancel(move || {
            inside.end(8);
            seen.store(true, Ordering::Relaxed);
        });
        let mut future = Box::pin(cancellation.cancelled());
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!(live.interrupt(8), Interrupted::Told);
        assert!(told.load(Ordering::Relaxed) && cancellation.is_cancelled());
        assert!(future.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn requests_do_not_see_the_interrupts_of_others() {
        let live = LiveRequests::new();
        live.begin(8);
        live.begin(8 + 2 * SHARDS_U64);
        let (first, copy) = (live.cancellation(8), live.cancellation(8));
        let second = live.cancellation(8 + 2 * SHARDS_U64);
        live.interrupt(8);
        assert!(first.is_cancelled() && copy.is_cancelled() && !second.is_cancelled());
    }
}
