//! How readers of the device wait for the next request.
//!
//! A thread that sleeps lets its CPU halt, and waking a halted CPU takes longer than most requests:
//! 40 of 50 microseconds on a virtual machine. So while requests follow one another closely,
//! readers look for the next one for a short time before they sleep. While they look they offer
//! their CPU to whoever else wants it. When a request comes later than that, the next one is slept
//! for at once. So it is where looking would not pay: while most requests are there before anybody
//! looks for them, or take the last reader, and for a while when whoever got the CPU has kept it.
//! Then CPUs are busy and do not halt, and a reader that sleeps is woken at once, but one that
//! looks has to wait for its turn.
//!
//! Two readers look at a time, and the others are parked: the kernel wakes one sleeping reader for
//! each request, which would be in vain. A reader that takes a request while nobody else is waiting
//! unparks another, so that one is always there for the next request, however long an operation
//! takes.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicBool);

/// What the readers of a channel share.
#[derive(Debug)]
pub(super) struct Lookout {
    /// For how long to look; zero is not at all.
    polling: Duration,
    /// More readers than this are parked while requests are frequent.
    parks: bool,
    begun: Instant,
    /// When the last request came, in nanoseconds since the beginning.
    last: AtomicU64,
    /// Whether it came soon after the one before, and had to be waited for, as most before it.
    brisk: AtomicBool,
    /// When looking has last cost a turn of somebody else, until when nobody looks for that reason,
    /// and for how long that is, in nanoseconds.
    outrun: AtomicU64,
    pause_end: AtomicU64,
    pause: AtomicU64,
    /// How many of the last ones were there already: a sliding mean, from 0 to `ALL`.
    found: AtomicU32,
    /// Readers that wait for a request, awake or asleep.
    waiting: AtomicUsize,
    /// How many are parked. Whoever parks looks at `waiting` under this lock.
    parked: Mutex<usize>,
    unparked: Condvar,
    /// By reader: whether it is about to read the device, or reads it.
    reading: Box<[Apart]>,
    stopped: AtomicBool,
    ended: AtomicBool,
}

impl Lookout {
    /// For so many readers.
    pub(super) fn new(readers: usize, polling: Duration) -> Self {
        Self {
            polling,
            parks: readers > AWAKE && !polling.is_zero(),
            begun: Instant::now(),
            last: AtomicU64::new(0),
            brisk: AtomicBool::new(false),
            outrun: AtomicU64::new(0),
            pause_end: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            found: AtomicU32::new(0),
            waiting: AtomicUsize::new(0),
            parked: Mutex::new(0),
            unparked: Condvar::new(),
            reading: (0..readers).map(|_| Apart::default()).collect(),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// A reader has nothing else to do. It waits until one more is needed; then it says when that
    /// was, for [`Self::depart`].
    pub(super) fn arrive(&self) -> u64 {
        if self.parks {
            self.gather();
        }
        if self.polling.is_zero() { 0 } else { self.now() }
    }

    fn gather(&self) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) < AWAKE || !self.is_brisk() {
            return;
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let mut parked = self.parked();
        while self.waiting.load(Ordering::Acquire) >= AWAKE && !self.is_over() {
            *parked += 1;
            parked = self.unparked.wait(parked).unwrap_or_else(PoisonError::into_inner);
            *parked -= 1;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// A reader that came at `arrived` has a request.
    pub(super) fn depart(&self, reader: usize, arrived: u64) {
        if !self.polling.is_zero() {
            let now = self.now();
            let waited = now.saturating_sub(arrived) > FOUND && !self.is_last(reader);
            let gap = now.saturating_sub(self.last.swap(now, Ordering::Relaxed));
            // Readers that meet here may undo each other's step, which does no harm.
            let found = self.found.load(Ordering::Relaxed);
            let found = found - found / SLIDE + if waited { 0 } else { ALL / SLIDE };
            self.found.store(found, Ordering::Relaxed);
            let brisk = gap < nanoseconds(self.polling)
                && found < ALL / 2
                && now >= self.pause_end.load(Ordering::Relaxed);
            if self.brisk.load(Ordering::Relaxed) != brisk {
                self.brisk.store(brisk, Ordering::Relaxed);
            }
        }
        if self.parks && self.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            let parked = self.parked();
            if *parked > 0 {
                self.unparked.notify_one();
            }
        }
    }

    /// A reader is about to read. From here on to [`Self::ends_reading`] it may get a request,
    /// unless it finds that it is [stopped](Self::is_stopped).
    pub(super) fn begins_reading(&self, reader: usize) {
        // This before looking at `stopped`, which is set before these are looked at: so who stops
        // sees it, or it sees that it is to stop.
        self.reading[reader].0.store(true, Ordering::SeqCst);
    }

    pub(super) fn ends_reading(&self, reader: usize) {
        self.reading[reader].0.store(false, Ordering::Release);
    }

    pub(super) fn is_reading(&self, reader: usize) -> bool {
        self.reading.get(reader).is_some_and(|reading| reading.0.load(Ordering::SeqCst))
    }

    /// Whether no other reader of several waits for a request.
    fn is_last(&self, reader: usize) -> bool {
        let mut others = self.reading.iter().enumerate().filter(|(other, _)| *other != reader);
        self.reading.len() > 1 && !others.any(|(_, reading)| reading.0.load(Ordering::Relaxed))
    }

    /// Whether to look for a request now, and not to sleep until there is one.
    pub(super) fn looks(&self) -> bool {
        let since = || self.now().saturating_sub(self.last.load(Ordering::Relaxed));
        self.is_brisk() && since() < nanoseconds(self.polling)
    }

    /// There was none: the CPU is offered to others for a moment.
    pub(super) fn give_way(&self) {
        let before = self.now();
        rustix::thread::sched_yield();
        let after = self.now();
        // The program that asks gives the CPU back sooner than that.
        if after.saturating_sub(before) > 2 * nanoseconds(self.polling) {
            self.pause(after);
        }
    }

    /// Nobody looks for a while; each time in a row for longer.
    fn pause(&self, now: u64) {
        let last = self.pause.load(Ordering::Relaxed);
        let again = now.saturating_sub(self.outrun.swap(now, Ordering::Relaxed)) < 2 * last;
        let pause = if again { (2 * last).min(PAUSE_MAX) } else { PAUSE_MIN };
        self.pause.store(pause, Ordering::Relaxed);
        self.pause_end.store(now + pause, Ordering::Relaxed);
        self.brisk.store(false, Ordering::Relaxed);
    }

    /// The connection is at its end: parked readers go and see for themselves.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.unpark_all();
    }

    /// Has all readers end before their next request. Who sleeps has to be woken.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.unpark_all();
    }

    fn unpark_all(&self) {
        // Under the lock: nobody is between looking and waiting.
        let _parked = self.parked();
        self.unparked.notify_all();
    }

    /// Readers may begin again; none is there now.
    pub(super) fn resume(&self) {
        self.waiting.store(0, Ordering::Release);
        self.ended.store(false, Ordering::Release);
        self.stopped.store(false, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn is_over(&self) -> bool {
        self.is_stopped() || self.ended.load(Ordering::Acquire)
    }

    fn is_brisk(&self) -> bool {
        self.brisk.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        nanoseconds(self.begun.elapsed())
    }

    fn parked(&self) -> MutexGuard<'_, usize> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Readers that look for requests at a time. With one, it would have to wake another whenever it
/// takes one.
const AWAKE: usize = 2;
/// Nanoseconds in which only a request is read that was there already.
const FOUND: u64 = 4_000;
/// Nanoseconds of a pause: several turns of another thread, and so long that a turn is nothing.
const PAUSE_MIN: u64 = 10_000_000;
const PAUSE_MAX: u64 = 2_000_000_000;
/// What `found` is when all requests were there already, about; and over how many it is the mean.
const ALL: u32 = 4096;
const SLIDE: u32 = 16;

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        thread::{self, JoinHandle},
    };

    use super::*;

    fn six_that_arrive(lookout: &Arc<Lookout>) -> Vec<JoinHandle<u64>> {
        let arrives = |_| {
            let lookout = Arc::clone(lookout);
            thread::spawn(move || lookout.arrive())
        };
        (0..6).map(arrives).collect()
    }

    /// A request that was waited for, or was there.
    fn come(lookout: &Lookout, waited: bool) {
        let now = lookout.now();
        lookout.depart(0, if waited { 0 } else { now });
    }

    #[test]
    fn requests_that_follow_closely_are_looked_for() {
        let lookout = Lookout::new(1, Duration::from_secs(3600));
        thread::sleep(Duration::from_nanos(2 * FOUND));
        assert!(!lookout.looks());
        come(&lookout, true);
        come(&lookout, true);
        assert!(lookout.looks());
        for _ in 0..2 * SLIDE {
            come(&lookout, false);
        }
        assert!(!lookout.looks(), "they are there before anybody looks");
        for _ in 0..2 * SLIDE {
            come(&lookout, true);
        }
        assert!(lookout.looks());
        let never = Lookout::new(1, Duration::ZERO);
        come(&never, true);
        come(&never, true);
        assert!(!never.looks());
    }

    #[test]
    fn pauses_get_longer_while_others_want_the_cpu() {
        // Far from now: the last of these pauses is not over when it is looked at.
        const HOUR: u64 = 3_600_000_000_000;
        let lookout = Lookout::new(1, Duration::from_secs(3600));
        let lengths = [0, 11, 12, 13, 14].map(|at| {
            lookout.pause(HOUR + at * 1_000_000);
            lookout.pause.load(Ordering::Relaxed)
        });
        assert_eq!(lengths, [1, 2, 4, 8, 16].map(|times| times * PAUSE_MIN));
        come(&lookout, true);
        come(&lookout, true);
        assert!(!lookout.looks());
        lookout.pause(2 * HOUR);
        assert_eq!(lookout.pause.load(Ordering::Relaxed), PAUSE_MIN);
    }

    #[test]
    fn a_reader_is_always_there_for_the_next_request() {
        let lookout = Arc::new(Lookout::new(6, Duration::from_secs(3600)));
        lookout.brisk.store(true, Ordering::Relaxed);
        let readers: Vec<_> = (0..6)
            .map(|_| {
                let lookout = Arc::clone(&lookout);
                // Each takes a request and is never done with it: the next must be let in.
                thread::spawn(move || lookout.depart(0, lookout.arrive()))
            })
            .collect();
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(lookout.waiting.load(Ordering::Acquire), 0);
    }

    #[test]
    fn whoever_is_parked_sees_the_end() {
        let lookout = Arc::new(Lookout::new(6, Duration::from_secs(3600)));
        lookout.brisk.store(true, Ordering::Relaxed);
        let readers = six_that_arrive(&lookout);
        lookout.end();
        for reader in readers {
            reader.join().unwrap();
        }
    }

    #[test]
    fn whoever_is_parked_ends_when_told_to_and_can_begin_again() {
        let lookout = Arc::new(Lookout::new(6, Duration::from_secs(3600)));
        for _ in 0..2 {
            lookout.brisk.store(true, Ordering::Relaxed);
            let readers = six_that_arrive(&lookout);
            lookout.stop();
            for reader in readers {
                reader.join().unwrap();
            }
            lookout.resume();
            assert!(!lookout.is_stopped());
        }
    }
}
