//! CPU time of the programs that have a part in a measurement, from `/proc/PID/stat`.

use std::fs;

use anyhow::{Context as _, Result};
use millrace_benches::figures::Figure;

/// Programs, in groups that are reported as one.
#[derive(Clone, Default)]
pub(crate) struct Processes(Vec<(&'static str, Vec<u32>)>);

/// In what CPU time is told.
#[derive(Clone, Copy)]
pub(crate) enum Per {
    /// For each 1,000,000,000 bytes that the load moves; so many it has.
    Gigabyte(u64),
    /// For the whole of it.
    Whole,
}

impl Processes {
    /// Adds a group; one without processes is left out.
    pub(crate) fn add(&mut self, name: &'static str, pids: Vec<u32>) {
        if !pids.is_empty() {
            self.0.push((name, pids));
        }
    }

    /// Does something, and says what CPU time each group has used for it.
    pub(crate) fn around<T>(
        &self,
        per: Per,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Vec<Figure>)> {
        let before = self.seconds()?;
        let outcome = act()?;
        let after = self.seconds()?;
        let (unit, share) = match per {
            Per::Gigabyte(bytes) => ("CPU-s/GB", bytes as f64 / 1e9),
            Per::Whole => ("CPU-s", 1.0),
        };
        let used = self.0.iter().zip(before.iter().zip(&after));
        let used = used.map(|((name, _), (before, after))| (*name, unit, (after - before) / share));
        Ok((outcome, used.collect()))
    }

    fn seconds(&self) -> Result<Vec<f64>> {
        let of = |pids: &Vec<u32>| pids.iter().map(|pid| seconds(*pid)).sum();
        self.0.iter().map(|(_, pids)| of(pids)).collect()
    }
}

/// What a process has used, its children not counted.
fn seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The program's name stands in brackets, and may have spaces.
    let (_, fields) = text.rsplit_once(')').with_context(|| format!("{path} has no name"))?;
    let ticks: Vec<u64> =
        fields.split_whitespace().skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The row of whoever serves the mount.
pub(crate) const MOUNT_CPU: &str = "CPU of the mount";
