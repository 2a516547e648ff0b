//! What makes one run of a test another one: its seed, and how long it is.

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

/// The seed of this run: `MILLRACE_TEST_SEED`, else another one each time. It is printed, so that a
/// failure can be run again.
///
/// # Errors
/// When the variable holds no number.
#[expect(clippy::print_stdout, reason = "the seed, for whoever runs a failure again")]
pub fn seed() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = number("MILLRACE_TEST_SEED", u64::from(now.subsec_nanos()))?;
    println!("MILLRACE_TEST_SEED={seed}");
    Ok(seed)
}

/// How many times as long as with the other tests this run is: `MILLRACE_TEST_LENGTH`, else 1.
///
/// # Errors
/// When the variable holds no number.
pub fn length() -> Result<u64> {
    number("MILLRACE_TEST_LENGTH", 1)
}

/// For how many seconds a test works that otherwise does a fixed number of things:
/// `MILLRACE_TEST_SECONDS`, if that is set.
///
/// # Errors
/// When the variable holds no number.
pub fn seconds() -> Result<Option<u64>> {
    let name = "MILLRACE_TEST_SECONDS";
    env::var_os(name).map(|_| number(name, 0)).transpose()
}

fn number(name: &str, default: u64) -> Result<u64> {
    env::var(name)
        .map_or(Ok(default), |text| text.parse().with_context(|| format!("{name}={text}")))
}
