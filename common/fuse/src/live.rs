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
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

/// Every request that was read and not answered, by its unique.
///
/// Most are answered before their operation returns to the thread that read them. Those are only
/// noted as what that thread is at, which costs no lock; what is left when the operation returns,
/// or asks whether its caller still waits, is entered by its unique.
#[derive(Debug)]
pub(crate) struct LiveRequests {
    shards: [Apart<Mutex<Shard>>; SHARDS],
    at_hand: [Apart<AtHand>; PLACES],
    interrupts: AtomicU64,
}

/// What a thread is at.
#[derive(Debug, Default)]
struct AtHand {
    /// The unique of a request that is not entered anywhere else; 0 is none.
    unique: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Where a request was noted when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u8);

/// A request whose operation runs on the thread that read it. Dropped when that returns.
#[derive(Debug)]
#[must_use = "the request is entered where INTERRUPT finds it when this is dropped"]
pub(crate) struct Current<'live> {
    live: &'live LiveRequests,
    place: Place,
    unique: u64,
    caller: u32,
}

/// On cache lines of its own: threads that have different shards do not meet.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Debug, Default)]
struct Shard {
    waiting: HashMap<u64, Request, BuildHasherDefault<ByUnique>>,
    /// Interrupted before they were entered, or after they had ended.
    early: VecDeque<u64>,
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

impl LiveRequests {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Apart::default()),
            at_hand: std::array::from_fn(|_| Apart::default()),
            interrupts: AtomicU64::new(0),
        }
    }

    /// This thread begins with a request, and is at it until what this answers is dropped.
    pub(crate) fn begin(&self, unique: u64, caller: u32) -> (Place, Current<'_>) {
        let place = Place(PLACE.with(|place| *place));
        let at_hand = self.at_hand(place);
        at_hand.begun.fetch_add(1, Ordering::Relaxed);
        let noted = unique != 0
            && at_hand
                .unique
                .compare_exchange(0, unique, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !noted {
            // Another thread has the same place, or this one is in the middle of an operation.
            self.enter(&mut self.shard(unique), unique, caller);
        }
        (place, Current { live: self, place, unique, caller })
    }

    pub(crate) fn end(&self, place: Place, unique: u64) {
        let at_hand = self.at_hand(place);
        at_hand.ended.fetch_add(1, Ordering::Relaxed);
        if !at_hand.take(unique) {
            self.shard(unique).waiting.remove(&unique);
        }
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
        let entered: usize = lens.sum();
        let is_busy = |at: &&Apart<AtHand>| at.0.unique.load(Ordering::Acquire) != 0;
        entered + self.at_hand.iter().filter(is_busy).count()
    }

    /// How many have begun, and how many have ended.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let counts = self
            .at_hand
            .iter()
            .map(|at| (at.0.begun.load(Ordering::Relaxed), at.0.ended.load(Ordering::Relaxed)));
        counts.fold((0, 0), |(begun, ended), at| (begun + at.0, ended + at.1))
    }

    /// Who waits for which request that was entered, of those that were not interrupted.
    pub(crate) fn callers(&self) -> Vec<(u64, u32)> {
        let mut callers = Vec::new();
        for shard in &self.shards {
            let shard = locked(&shard.0);
            let waiting = shard.waiting.iter().filter(|(_, request)| request.waits());
            callers.extend(waiting.map(|(unique, request)| (*unique, request.caller)));
        }
        callers
    }

    /// How many INTERRUPTs were passed on.
    pub(crate) fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// Passes an INTERRUPT on.
    pub(crate) fn interrupt(&self, unique: u64) {
        let watched = {
            let mut shard = self.shard(unique);
            match shard.waiting.get_mut(&unique).map(|request| &mut request.waiting) {
                None => {
                    if shard.early.len() == EARLY_MAX {
                        shard.early.pop_front();
                    }
                    shard.early.push_back(unique);
                    return;
                }
                Some(Waiting::Unwatched { interrupted }) => {
                    *interrupted = true;
                    self.interrupts.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Some(Waiting::Watched(shared)) => Arc::clone(shared),
            }
        };
        // Without the lock: what is called here may answer the request.
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        watched.cancel();
    }

    /// The cancellation of a request of that thread.
    pub(crate) fn cancellation(&self, place: Place, unique: u64, caller: u32) -> Cancellation {
        let mut shard = self.shard(unique);
        if self.at_hand(place).take(unique) {
            self.enter(&mut shard, unique, caller);
        }
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

    /// The operation has returned: if the request is not answered, it is entered.
    fn settle(&self, place: Place, unique: u64, caller: u32) {
        let at_hand = self.at_hand(place);
        if at_hand.unique.load(Ordering::Acquire) == unique {
            // Under the lock: who answers now finds it either here or there.
            let mut shard = self.shard(unique);
            if at_hand.take(unique) {
                self.enter(&mut shard, unique, caller);
            }
        }
    }

    fn enter(&self, shard: &mut Shard, unique: u64, caller: u32) {
        let place = shard.early.iter().position(|early| *early == unique);
        let interrupted = place.is_some_and(|place| shard.early.remove(place).is_some());
        if interrupted {
            self.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        let waiting = Waiting::Unwatched { interrupted };
        shard.waiting.insert(unique, Request { caller, waiting });
    }

    fn at_hand(&self, place: Place) -> &AtHand {
        &self.at_hand[usize::from(place.0)].0
    }

    fn shard(&self, unique: u64) -> MutexGuard<'_, Shard> {
        // Uniques are even, and follow one another.
        let shard = usize::try_from((unique >> 1) % SHARDS_U64).expect("small");
        locked(&self.shards[shard].0)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        self.live.settle(self.place, self.unique, self.caller);
    }
}

impl AtHand {
    /// Takes the request from here, if it is here.
    fn take(&self, unique: u64) -> bool {
        unique != 0
            && self.unique.compare_exchange(unique, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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
/// Threads that note what they are at. One for each reader, of which there are as many as CPUs;
/// where two have the same, one of them enters its requests at once.
const PLACES: usize = 64;
const PLACES_U8: u8 = 64;

static PLACES_GIVEN: AtomicU8 = AtomicU8::new(0);

thread_local! {
    static PLACE: u8 = PLACES_GIVEN.fetch_add(1, Ordering::Relaxed) % PLACES_U8;
}

/// INTERRUPTs that are remembered in each shard. What overtakes a request does so by microseconds.
const EARLY_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A request whose operation has returned without an answer.
    fn wait(live: &LiveRequests, unique: u64) -> Place {
        live.begin(unique, 1).0
    }

    fn cancellation(live: &LiveRequests, place: Place, unique: u64) -> Cancellation {
        live.cancellation(place, unique, 1)
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_is_told_when_that_begins() {
        let live = LiveRequests::new();
        live.interrupt(8);
        assert_eq!(live.interrupts(), 0);
        wait(&live, 8 + 2 * SHARDS_U64);
        assert_eq!(live.interrupts(), 0, "which is another one");
        let place = wait(&live, 8);
        assert_eq!(live.interrupts(), 1);
        assert!(cancellation(&live, place, 8).is_cancelled());
        live.end(place, 8);
        let place = wait(&live, 8);
        assert_eq!(live.interrupts(), 1, "it counts once");
        assert!(!cancellation(&live, place, 8).is_cancelled());
    }

    #[test]
    fn interrupts_of_what_has_ended_do_not_pile_up() {
        let live = LiveRequests::new();
        let uniques = |count: usize| (1..).map(|place| place * 2 * SHARDS_U64).take(count);
        for unique in uniques(EARLY_MAX + 10) {
            live.interrupt(unique);
        }
        for unique in uniques(EARLY_MAX + 10) {
            wait(&live, unique);
        }
        assert_eq!(live.interrupts(), EARLY_MAX as u64, "the last ones");
    }

    #[test]
    fn what_is_answered_at_once_is_entered_nowhere_and_counted() {
        let live = LiveRequests::new();
        for unique in [2, 4, 2] {
            let (place, current) = live.begin(unique, 1);
            assert_eq!(live.len(), 1);
            live.end(place, unique);
            drop(current);
            assert_eq!((live.len(), live.callers().len()), (0, 0));
        }
        assert_eq!(live.counts(), (3, 3));
    }

    #[test]
    fn one_that_asks_for_its_cancellation_hears_of_an_interrupt_while_it_runs() {
        let live = LiveRequests::new();
        let (place, current) = live.begin(8, 1);
        let watched = cancellation(&live, place, 8);
        live.interrupt(8);
        assert!(watched.is_cancelled());
        drop(current);
        assert_eq!(live.len(), 1, "entered once");
        live.end(place, 8);
        assert_eq!(live.len(), 0);
        assert!(!cancellation(&live, place, 8).is_cancelled(), "of what has ended");
        let (place, current) = live.begin(10, 1);
        live.interrupt(10);
        drop(current);
        assert!(cancellation(&live, place, 10).is_cancelled(), "the one that came meanwhile");
    }

    #[test]
    fn a_thread_in_the_middle_of_one_request_can_begin_with_another() {
        let live = LiveRequests::new();
        let (outer, outer_current) = live.begin(2, 1);
        let (inner, inner_current) = live.begin(4, 1);
        drop(inner_current);
        assert_eq!(live.len(), 2);
        live.end(inner, 4);
        drop(outer_current);
        live.end(outer, 2);
        assert_eq!((live.len(), live.counts()), (0, (2, 2)));
    }

    #[test]
    fn what_other_threads_answer_at_any_moment_is_gone() {
        let live = LiveRequests::new();
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let live = &live;
            scope.spawn(move || {
                for unique in 1..20_000 {
                    let (place, _current) = live.begin(2 * unique, 1);
                    sender.send((place, 2 * unique)).unwrap();
                }
            });
            for (place, unique) in receiver {
                live.end(place, unique);
            }
        });
        assert_eq!((live.len(), live.counts()), (0, (19_999, 19_999)));
    }

    #[test]
    fn an_interrupt_calls_and_wakes_whoever_watches() {
        let live = Arc::new(LiveRequests::new());
        let place = wait(&live, 8);
        let cancellation = cancellation(&live, place, 8);
        let told = Arc::new(AtomicBool::new(false));
        let (seen, inside) = (Arc::clone(&told), Arc::clone(&live));
        cancellation.on_cancel(move || {
            inside.end(place, 8);
            seen.store(true, Ordering::Relaxed);
        });
        let mut future = Box::pin(cancellation.cancelled());
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        live.interrupt(8);
        assert_eq!(live.interrupts(), 1);
        assert!(told.load(Ordering::Relaxed) && cancellation.is_cancelled());
        assert!(future.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn requests_do_not_see_the_interrupts_of_others() {
        let live = LiveRequests::new();
        let (place, other) = (wait(&live, 8), wait(&live, 8 + 2 * SHARDS_U64));
        let (first, copy) = (cancellation(&live, place, 8), cancellation(&live, place, 8));
        let second = cancellation(&live, other, 8 + 2 * SHARDS_U64);
        live.interrupt(8);
        assert!(first.is_cancelled() && copy.is_cancelled() && !second.is_cancelled());
    }

    #[test]
    fn callers_are_those_who_still_wait() {
        let live = LiveRequests::new();
        let places = [(2, 10), (4, 0), (6, 11), (8, 12), (10, 13)]
            .map(|(unique, caller)| live.begin(unique, caller).0);
        let _watched = cancellation(&live, places[0], 2);
        let _told = cancellation(&live, places[2], 6);
        live.interrupt(6);
        live.interrupt(8);
        let mut callers = live.callers();
        callers.sort_unstable();
        assert_eq!(callers, [(2, 10), (10, 13)]);
    }
}
