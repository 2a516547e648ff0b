//! What memory daemons have at most, from `/proc/PID/status`.

use std::fs;

use anyhow::{Context as _, Result};
use millrace_benches::figures::Figure;

/// Daemons, in groups of which the largest counts.
#[derive(Default)]
pub(crate) struct Memory(Vec<(&'static str, Vec<u32>)>);

impl Memory {
    /// Adds a group.
    pub(crate) fn add(&mut self, name: &'static str, pids: Vec<u32>) {
        self.0.push((name, pids));
    }

    /// Does something, and says what the largest of each group had resident at most meanwhile.
    pub(crate) fn around<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Figure>)> {
        for pid in self.0.iter().flat_map(|(_, pids)| pids) {
            // What it has now is the most that it had, from here on.
            fs::write(format!("/proc/{pid}/clear_refs"), "5")
                .with_context(|| format!("forget what process {pid} had at most"))?;
        }
        let outcome = act()?;
        let mut figures = Vec::new();
        for (name, pids) in &self.0 {
            let most = pids.iter().map(|pid| most(*pid)).collect::<Result<Vec<_>>>()?;
            figures.push((*name, "MiB", most.into_iter().fold(0.0, f64::max)));
        }
        Ok((outcome, figures))
    }
}

/// In MiB.
fn most(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("{path} tells no memory"))? / 1024.0)
}
