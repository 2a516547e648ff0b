//! Goals, and figures held against them.

use std::fmt;

use millrace_benches::{
    figures::{Figures, Row, median},
    goal_bars::Bar,
};
use serde_json::{Value, json};

use super::{loads::Load, proxy::Line};

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
    /// What is compared, of each round.
    rounds: Vec<f64>,
    goal: f64,
    words: String,
    more_is_better: bool,
}

/// What a load's figures make of its goals.
pub(crate) fn verdicts(load: Load, figures: &Figures, line: Option<Line>) -> Vec<Verdict> {
    let goals = goals(load, line.is_some());
    let mut verdicts: Vec<_> = goals
        .iter()
        .filter_map(|(name, contestant, goal)| {
            let row = figures.rows().iter().find(|row| row.name == *name)?;
            let name = format!("{}: {name}, {contestant}", load.name());
            goal.verdict(name, row, contestant, line)
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
        let rounds = each(rounds(row, MILLRACE)?, theirs, |ours, theirs| ours / theirs);
        let name = format!("{}: {FILES}, {MILLRACE}", Load::Epoch.name());
        let words = format!("times {rival}");
        Some(Verdict { name, rounds, goal: RIVALS, words, more_is_better: true })
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
    fn verdict(
        self,
        name: String,
        row: &Row,
        contestant: &str,
        line: Option<Line>,
    ) -> Option<Verdict> {
        let ours = rounds(row, contestant)?;
        let (rounds, goal, words) = match self {
            Self::Share(goal) => {
                (each(ours, rounds(row, RAW)?, |ours, raw| ours / raw), goal, "of raw".to_owned())
            }
            Self::OfCap(goal) => {
                // The server, or the machine, may give even the raw client less.
                let cap = line?.cap_mb();
                let raw = median(rounds(row, RAW)?) / cap;
                let words = format!("of what the bucket carries, raw {raw:.3}");
                (ours.iter().map(|ours| ours / cap).collect(), goal, words)
            }
            Self::Behind(goal) => (
                each(ours, rounds(row, RAW)?, |ours, raw| ours - raw),
                goal,
                "ms behind raw".to_owned(),
            ),
            Self::AtMost(goal) => (ours.to_vec(), goal, row.unit.to_owned()),
        };
        let more_is_better = matches!(self, Self::Share(_) | Self::OfCap(_));
        Some(Verdict { name, rounds, goal, words, more_is_better })
    }
}

impl Verdict {
    /// For a picture.
    pub(crate) fn bar(&self) -> Bar {
        let times = |found: f64| match self.more_is_better {
            true => found / self.goal,
            // No later than the raw client: as far from the goal as can be.
            false if found <= 0.0 => f64::INFINITY,
            false => self.goal / found,
        };
        let all: Vec<_> = self.rounds.iter().copied().map(times).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        let found = self.found();
        let summary = format!("{found:.3} {}; goal {}", self.words, self.goal);
        Bar { name: self.name.clone(), summary, times_of_goal: (least, times(found), most) }
    }

    fn found(&self) -> f64 {
        median(&self.rounds)
    }

    fn is_reached(&self) -> bool {
        match self.more_is_better {
            true => self.found() >= self.goal,
            false => self.found() <= self.goal,
        }
    }

    /// For a program.
    pub(crate) fn json(&self) -> Value {
        let Self { name, goal, words, .. } = self;
        let (found, is_reached) = (self.found(), self.is_reached());
        json!({ "what": name, "found": found, "goal": goal, "unit": words, "reached": is_reached })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_reached() { "reached" } else { "missed" };
        let (found, words) = (self.found(), &self.words);
        write!(out, "{}: {found:.3} {words} (goal {}: {verdict})", self.name, self.goal)
    }
}

fn rounds<'a>(row: &'a Row, contestant: &str) -> Option<&'a [f64]> {
    let (_, rounds) = row.contestants.iter().find(|(name, _)| name == contestant)?;
    Some(rounds)
}

/// What is made of each round.
fn each(ours: &[f64], others: &[f64], made: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    ours.iter().zip(others).map(|(ours, others)| made(*ours, *others)).collect()
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
