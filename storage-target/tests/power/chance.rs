//! Seeds: the same one gives the same run.

use std::{env, sync::atomic::AtomicU64, sync::atomic::Ordering, thread};

use millrace_runtime::Random;

/// Runs `test` with many seeds on all processors: as many as the environment says, otherwise
/// `rounds`, and other ones each time; with one if `rounds` is 1. A failure names its seed.
pub(crate) fn for_each_seed(rounds: u64, test: impl Fn(u64) -> anyhow::Result<()> + Sync) {
    if let Some(seed) = number("MILLRACE_TEST_SEED") {
        return run(seed, &test);
    }
    let first = any_seed();
    let wanted = number("MILLRACE_TEST_ROUNDS").filter(|_| rounds > 1);
    let rounds = wanted.unwrap_or(rounds);
    let next = AtomicU64::new(0);
    let worker = || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= rounds {
                return;
            }
            run(first + nth, &test);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for thread in running {
            if let Err(panic) = thread.join() {
                next.store(u64::MAX / 2, Ordering::Relaxed);
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// Short enough to be typed.
pub(crate) fn any_seed() -> u64 {
    Random::system().number() >> 16
}

fn run(seed: u64, test: &impl Fn(u64) -> anyhow::Result<()>) {
    let _named = Named(seed);
    if let Err(error) = test(seed) {
        panic!("seed {seed}: after {error:#}");
    }
}

/// `count` as the environment stretches it.
pub(crate) fn stretched(count: usize) -> usize {
    count * usize::try_from(number("MILLRACE_TEST_LENGTH").unwrap_or(1)).unwrap()
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

/// True `count` times of a hundred.
pub(crate) fn percent(random: &Random, count: u64) -> bool {
    random.within(0..100) < count
}

/// A number below `end`, which is not 0.
pub(crate) fn below(random: &Random, end: usize) -> usize {
    usize::try_from(random.within(0..end as u64)).unwrap()
}

/// Prints the seed when the test panics.
struct Named(u64);

impl Drop for Named {
    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the failure")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("to run it again: MILLRACE_TEST_SEED={}", self.0);
        }
    }
}
