//! Requests that are waited for, and how their callers stop waiting.
//!
//! When a caller gets a signal the kernel sends INTERRUPT with the unique of its request, at once
//! and through whichever descriptor is read next. So it may overtake its request between two
//! threads: read after it, and handled before it. Then it is remembered for a while, and the
//! request begins as an interrupted one. Asking for it again, which is what the answer EAGAIN is
//! for, does not help: the kernel looks for the request among those that came the same way, and an
//! INTERRUPT of a ring's request never did. It is not answered at all, and never ENOSYS, after
//! which no INTERRUPT would come any more and a killed program would stay until it is answered.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    hash::{BuildHasherDefault, Hasher},
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
    shards: [Apart; SHARDS],
}

/// On cache lines of its own: threads that have different shards do not meet.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(Mutex<Shard>);

#[derive(Debug, Default)]
struct Shard {
    waiting: HashMap<u64, Request, BuildHasherDefault<ByUnique>>,
    /// Interrupted before they began, or after they had ended.
    early: VecDeque<u64>,
    begun: u64,
    ended: u64,
}

/// Numbers that the kernel gives one after the other need no more than being spread.
#[derive(Debug, Default)]
struct ByUnique(u64);

impl Hasher for ByUnique {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

/// A request that is waited for.
#[derive(Debug)]
struct Request {
    /// The thread that waits; 0 where it is none, or is not known.
    caller: u32,
    waiting: Waiting,
}

/// What is known of its caller's patience.
#[derive(Debug)]
enum Waiting {
    /// Its operation has not asked for its cancellation.
    Unwatched {
        interrupted: bool,
    },
    Watched(Arc<Shared>),
}

/// How a request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// Its caller waits.
    Waiting,
    /// Its caller does not want to wait any more: the INTERRUPT was here first.
    Interrupted,
}

/// What became of an INTERRUPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// Its operation knows, or will when it asks.
    Told,
    /// There is no such request any more, or not yet.
    Unknown,
}

impl LiveRequests {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Apart::default()) }
    }

    pub(crate) fn begin(&self, unique: u64, caller: u32) -> Begun {
        let mut shard = self.shard(unique);
        shard.begun += 1;
        let place = shard.early.iter().position(|early| *early == unique);
        let interrupted = place.is_some_and(|place| shard.early.remove(place).is_some());
        let waiting = Waiting::Unwatched { interrupted };
        shard.waiting.insert(unique, Request { caller, waiting });
        if interrupted { Begun::Interrupted } else { Begun::Waiting }
    }

    pub(crate) fn end(&self, unique: u64) {
        let mut shard = self.shard(unique);
        shard.ended += 1;
        shard.waiting.remove(&unique);
    }

    /// Lets go of everything that watches, at the end of a session. What was to be called may own
    /// the reply that it was to give, and with it the connection.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            // Dropped without the lock.
            let waiting = std::mem::take(&mut locked(&shard.0).waiting);
            for (_, request) in waiting {
                if let Waiting::Watched(shared) = request.waiting {
                    drop(std::mem::take(&mut *locked(&shared.watchers)));
                }
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        let lens = self.shards.iter().map(|shard| locked(&shard.0).waiting.len());
        lens.sum()
    }

    /// How many have begun, and how many have ended.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let counts = self.shards.iter().map(|shard| {
            let shard = locked(&shard.0);
            (shard.begun, shard.ended)
        });
        counts.fold((0, 0), |(begun, ended), shard| (begun + shard.0, ended + shard.1))
    }

    /// Who waits for which request, of those that were not interrupted.
    pub(crate) fn callers(&self) -> Vec<(u64, u32)> {
        let mut callers = Vec::new();
        for shard in &self.shards {
            let shard = locked(&shard.0);
            let waiting = shard.waiting.iter().filter(|(_, request)| request.waits());
            callers.extend(waiting.map(|(unique, request)| (*unique, request.caller)));
        }
        callers
    }

    /// Passes an INTERRUPT on.
    pub(crate) fn interrupt(&self, unique: u64) -> Interrupted {
        let watched = {
            let mut shard = self.shard(unique);
            match shard.waiting.get_mut(&unique).map(|request| &mut request.waiting) {
                None => {
                    if shard.early.len() == EARLY_MAX {
                        shard.early.pop_front();
                    }
                    shard.early.push_back(unique);
                    return Interrupted::Unknown;
                }
                Some(Waiting::Unwatched { interrupted }) => {
                    *interrupted = true;
                    return Interrupted::Told;
                }
                Some(Waiting::Watched(shared)) => Arc::clone(shared),
            }
        };
        // Without the lock: what is called here may answer the request.
        watched.cancel();
        Interrupted::Told
    }

    pub(crate) fn cancellation(&self, unique: u64) -> Cancellation {
        let mut shard = self.shard(unique);
        let Some(request) = shard.waiting.get_mut(&unique) else {
            return Cancellation(Arc::new(Shared::new(false)));
        };
        let shared = match &request.waiting {
            Waiting::Watched(shared) => Arc::clone(shared),
            Waiting::Unwatched { interrupted } => Arc::new(Shared::new(*interrupted)),
        };
        request.waiting = Waiting::Watched(Arc::clone(&shared));
        Cancellation(shared)
    }

    fn shard(&self, unique: u64) -> MutexGuard<'_, Shard> {
        // Uniques are even, and follow one another.
        let shard = usize::try_from((unique >> 1) % SHARDS_U64).expect("small");
        locked(&self.shards[shard].0)
    }
}

impl Request {
    /// Whether somebody is known to wait.
    fn waits(&self) -> bool {
        let interrupted = match &self.waiting {
            Waiting::Unwatched { interrupted } => *interrupted,
            Waiting::Watched(shared) => shared.cancelled.load(Ordering::Relaxed),
        };
        !interrupted && self.caller != 0
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
/// INTERRUPTs that are remembered in each shard. What overtakes a request does so by microseconds.
const EARLY_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_that_overtakes_its_request_is_told_when_that_begins() {
        let live = LiveRequests::new();
        assert_eq!(live.interrupt(8), Interrupted::Unknown);
        assert_eq!(live.begin(8 + 2 * SHARDS_U64, 1), Begun::Waiting, "which is another one");
        assert_eq!(live.begin(8, 1), Begun::Interrupted);
        assert!(live.cancellation(8).is_cancelled());
        live.end(8);
        assert_eq!(live.begin(8, 1), Begun::Waiting, "it counts once");
        assert!(!live.cancellation(8).is_cancelled());
    }

    #[test]
    fn interrupts_of_what_has_ended_do_not_pile_up() {
        let live = LiveRequests::new();
        let uniques = |count: usize| (1..).map(|place| place * 2 * SHARDS_U64).take(count);
        for unique in uniques(EARLY_MAX + 10) {
            assert_eq!(live.interrupt(unique), Interrupted::Unknown);
        }
        let told =
            uniques(EARLY_MAX + 10).filter(|unique| live.begin(*unique, 1) != Begun::Waiting);
        assert_eq!(told.count(), EARLY_MAX, "the last ones");
    }

    #[test]
    fn an_interrupt_calls_and_wakes_whoever_watches() {
        let live = Arc::new(LiveRequests::new());
        live.begin(8, 1);
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
        live.begin(8, 1);
        live.begin(8 + 2 * SHARDS_U64, 1);
        let (first, copy) = (live.cancellation(8), live.cancellation(8));
        let second = live.cancellation(8 + 2 * SHARDS_U64);
        live.interrupt(8);
        assert!(first.is_cancelled() && copy.is_cancelled() && !second.is_cancelled());
    }

    #[test]
    fn callers_are_those_who_still_wait() {
        let live = LiveRequests::new();
        for (unique, caller) in [(2, 10), (4, 0), (6, 11), (8, 12), (10, 13)] {
            live.begin(unique, caller);
        }
        let (_watched, _told) = (live.cancellation(2), live.cancellation(6));
        live.interrupt(6);
        live.interrupt(8);
        let mut callers = live.callers();
        callers.sort_unstable();
        assert_eq!(callers, [(2, 10), (10, 13)]);
    }
}
