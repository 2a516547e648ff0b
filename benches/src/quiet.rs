//! Waiting for a machine that does nothing else.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// Waits until the machine is quiet, or for so long; says whether it is, which is not asked for
/// where there is no time to wait.
///
/// # Errors
/// Where `/proc/stat` cannot be read.
pub fn wait(patience: Duration) -> Result<bool> {
    let started = Instant::now();
    loop {
        let (idle, all) = ticks()?;
        thread::sleep(LOOK);
        let (idle_now, all_now) = ticks()?;
        let share = (idle_now - idle) as f64 / (all_now - all).max(1) as f64;
        if patience.is_zero() || share > QUIET {
            return Ok(true);
        }
        if started.elapsed() > patience {
            return Ok(false);
        }
    }
}

/// Of all CPUs since the machine was started: idle ones, and all. A thread that sleeps in io_uring
/// counts as one that waits for a disk, and its CPU is idle all the same.
fn ticks() -> Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let idle = numbers.get(3..5).context("/proc/stat has no idle time")?;
    Ok((idle.iter().sum(), numbers.iter().take(8).sum()))
}

const LOOK: Duration = Duration::from_millis(300);
/// Share of the time in which CPUs have nothing to do.
const QUIET: f64 = 0.93;
