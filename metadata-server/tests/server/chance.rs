//! Seeds: the same one gives the same run.

use std::env;

use millrace_runtime::Random;

/// Runs `test` with `count` seeds, unless the environment says how many, and others each time. A
/// panic in it names its seed.
pub(crate) fn for_each_seed(count: u64, test: impl Fn(Random)) {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("MILLRACE_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            // Short enough to be typed.
            let first = Random::system().number() >> 24;
            first..first + number("MILLRACE_TEST_ROUNDS").unwrap_or(count)
        }
    };
    for seed in seeds {
        let _named = Named(seed);
        test(Random::seeded(seed));
    }
}

/// `count` as the environment stretches it.
pub(crate) fn stretched(count: usize) -> usize {
    let factor = env::var("MILLRACE_TEST_LENGTH").map_or(1, |text| text.parse().unwrap());
    count * factor
}

/// One of `choices`.
pub(crate) fn pick<'a, T>(random: &Random, choices: &'a [T]) -> Option<&'a T> {
    let count = u64::try_from(choices.len()).unwrap();
    (count > 0).then(|| &choices[usize::try_from(random.within(0..count)).unwrap()])
}

/// True `count` times of a hundred.
pub(crate) fn percent(random: &Random, count: u64) -> bool {
    random.within(0..100) < count
}

/// Prints the seed when the test panics.
struct Named(u64);

impl Drop for Named {
    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to run it again: MILLRACE_TEST_SEED={}", self.0);
        }
    }
}
