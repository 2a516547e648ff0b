//! Goals, and figures held against them.

use std::fmt;

use millrace_benches::figures::{Figures, Row, median};
use serde_json::{Value, json};

use super::{loads::Load, proxy::CAP_MB};

/// Whom the others are held against.
pub(crate) const RAW: &str = "raw";
/// The contestant with goals.
pub(crate) const MILLRACE: &str = "millrace";

/// The same, past the kernel's page cache.
pub(crate) const DIRECT: &str = "millrace, direct";

/// What a figure shall reach.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// At least so many times what the raw client gets.
    Share(f64),
    /// At least this share of what the bucket carries as a whole.
    OfCap(f64),
    /// At most so much more than the raw client, in the row's unit.
    Behind(f64),
    /// At most so much, in the row's unit.
    AtMost(f64),
}

/// A goal, and what was reached.
pub(crate) struct Verdict {
    name: String,
    /// What is compared: the median over the rounds.
    found: f64,
    goal: f64,
    words: String,
    is_reached: bool,
}

/// What a load's figures make of its goals.
pub(crate) fn verdicts(load: Load, figures: &Figures, cloud: bool) -> Vec<Verdict> {
    let goals = goals(load, cloud);
    let mut verdicts: Vec<_> = goals
        .iter()
        .filter_map(|(name, contestant, goal)| {
            let row = figures.rows().iter().find(|row| row.name == *name)?;
            goal.verdict(format!("{}: {name}, {contestant}", load.name()), row, contestant)
        })
        .collect();
    if load == Load::Epoch {
        verdicts.extend(figures.rows().iter().filter(|row| row.name == FILES).flat_map(rivals));
    }
    verdicts
}

/// How the first epoch stands against those of other mounts.
fn rivals(row: &Row) -> impl Iterator<Item = Verdict> {
    let others = row.contestants.iter().filter(|(name, _)| name != RAW && name != MILLRACE);
    others.filter_map(|(rival, theirs)| {
        let found = middle(rounds(row, MILLRACE)?, theirs, |ours, theirs| ours / theirs);
        let is_reached = found >= RIVALS;
        let name = format!("{}: {FILES}, {MILLRACE}", Load::Epoch.name());
        Some(Verdict { name, found, goal: RIVALS, words: format!("times {rival}"), is_reached })
    })
}

/// Rows, contestants in them, and what these shall reach.
fn goals(load: Load, cloud: bool) -> &'static [(&'static str, &'static str, Goal)] {
    match (load, cloud) {
        (Load::Epoch, true) => &[(FILES, MILLRACE, Goal::Share(0.8))],
        (Load::Epoch, false) => &[(FILES, MILLRACE, Goal::Share(0.5))],
        (Load::Sequential, true) => {
            &[(BYTES, MILLRACE, Goal::OfCap(0.95)), (BYTES, DIRECT, Goal::OfCap(0.95))]
        }
        (Load::Sequential, false) => {
            &[(BYTES, MILLRACE, Goal::Share(0.5)), (BYTES, DIRECT, Goal::Share(0.5))]
        }
        (Load::FirstByte, true) => &[(FIRST, MILLRACE, Goal::Behind(3.0))],
        (Load::Hydrate | Load::Export, true) => &[(BYTES, MILLRACE, Goal::OfCap(0.95))],
        (Load::Hydrate | Load::Export, false) => &[(BYTES, MILLRACE, Goal::Share(0.85))],
        (Load::Import, false) => &[(NAMES, MILLRACE, Goal::Share(0.6))],
        (Load::Random, _) => &[(FETCHED, MILLRACE, Goal::AtMost(1024.0))],
        (Load::FirstByte, false) | (Load::Import, true) | (Load::Vast, _) => &[],
    }
}

impl Goal {
    /// `None` where a contestant was not measured.
    fn verdict(self, name: String, row: &Row, contestant: &str) -> Option<Verdict> {
        let ours = rounds(row, contestant)?;
        let (found, goal, words) = match self {
            Self::Share(goal) => {
                (middle(ours, rounds(row, RAW)?, |ours, raw| ours / raw), goal, "of raw".to_owned())
            }
            Self::OfCap(goal) => {
                // The server, or the machine, may give even the raw client less.
                let raw = median(rounds(row, RAW)?) / CAP_MB;
                let words = format!("of what the bucket carries, raw {raw:.3}");
                (median(ours) / CAP_MB, goal, words)
            }
            Self::Behind(goal) => (
                middle(ours, rounds(row, RAW)?, |ours, raw| ours - raw),
                goal,
                "ms behind raw".to_owned(),
            ),
            Self::AtMost(goal) => (median(ours), goal, row.unit.to_owned()),
        };
        let is_reached = match self {
            Self::Share(_) | Self::OfCap(_) => found >= goal,
            Self::Behind(_) | Self::AtMost(_) => found <= goal,
        };
        Some(Verdict { name, found, goal, words, is_reached })
    }
}

impl Verdict {
    /// For a program.
    pub(crate) fn json(&self) -> Value {
        let Self { name, found, goal, words, is_reached } = self;
        json!({ "what": name, "found": found, "goal": goal, "unit": words, "reached": is_reached })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_reached { "reached" } else { "missed" };
        let (found, words) = (self.found, &self.words);
        write!(out, "{}: {found:.3} {words} (goal {}: {verdict})", self.name, self.goal)
    }
}

fn rounds<'a>(row: &'a Row, contestant: &str) -> Option<&'a [f64]> {
    let (_, rounds) = row.contestants.iter().find(|(name, _)| name == contestant)?;
    Some(rounds)
}

/// The median over the rounds of what is made of each.
fn middle(ours: &[f64], others: &[f64], made: impl Fn(f64, f64) -> f64) -> f64 {
    let each: Vec<_> = ours.iter().zip(others).map(|(ours, others)| made(*ours, *others)).collect();
    median(&each)
}

/// Rows that have goals.
pub(crate) const FILES: &str = "files";
/// Median of the first bytes.
pub(crate) const FIRST: &str = "first byte, median";
/// What is moved.
pub(crate) const BYTES: &str = "bytes";
/// What is listed.
pub(crate) const NAMES: &str = "names";
/// Looking up a name of a directory that nobody has listed.
pub(crate) const LOOKUP: &str = "first lookup of a name, median";
/// What a small read has the bucket send.
pub(crate) const FETCHED: &str = "fetched for 4 KiB";
/// Times the first epoch of other mounts.
const RIVALS: f64 = 3.0;
