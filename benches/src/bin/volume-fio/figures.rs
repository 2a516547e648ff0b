//! Goals, and figures held against them.

use std::fmt;

/// What a figure shall reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At least so many times what fio gets, in this unit.
    Share(f64, &'static str),
    /// At most so much, in this unit; fio has no part in it.
    AtMost(f64, &'static str),
}

/// The measurements, in their order.
pub(crate) const GOALS: [(&str, Goal); 7] = [
    ("1 MiB writes, 16 at once", Goal::Share(0.9, "MiB/s")),
    ("1 MiB reads, 16 at once", Goal::Share(0.9, "MiB/s")),
    ("4 KiB reads at random, 32 at once, index in memory", Goal::Share(0.8, "/s")),
    ("4 KiB reads at random, 32 at once, index on disk", Goal::Share(0.4, "/s")),
    ("written for a durable 4 KiB overwrite", Goal::AtMost(16.0, "KiB")),
    ("16 KiB writes with a sync each, 32 writers, of 1 writer", Goal::Share(10.0, "/s")),
    ("checksums", Goal::AtMost(0.06, "CPU-s/GB")),
];

/// A measurement over all rounds.
#[derive(Debug)]
pub(crate) struct Figure {
    name: &'static str,
    goal: Goal,
    rounds: Vec<(f64, f64)>,
}

impl Figure {
    /// Takes the rounds of a measurement: of fio and of the engine.
    pub(crate) fn median(name: &'static str, goal: Goal, mut rounds: Vec<(f64, f64)>) -> Self {
        rounds.sort_by(|one, other| worth(*one).total_cmp(&worth(*other)));
        Self { name, goal, rounds }
    }

    fn middle(&self) -> (f64, f64) {
        self.rounds[self.rounds.len() / 2]
    }
}

/// The share, or the figure itself where there is nothing to hold it against.
fn worth((plain, ours): (f64, f64)) -> f64 {
    if plain > 0.0 { ours / plain } else { ours }
}

impl fmt::Display for Figure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plain, ours) = self.middle();
        let all: Vec<_> = self.rounds.iter().map(|&one| format!("{:.2}", worth(one))).collect();
        let all = all.join(" ");
        match self.goal {
            Goal::Share(goal, unit) => {
                let share = ours / plain;
                let verdict = if share >= goal { "reached" } else { "missed" };
                write!(
                    out,
                    "{}: {ours:.0} {unit}, fio {plain:.0} {unit}: {share:.2} (goal {goal}: \
                     {verdict}; rounds {all})",
                    self.name
                )
            }
            Goal::AtMost(goal, unit) => {
                let verdict = if ours <= goal { "reached" } else { "missed" };
                write!(
                    out,
                    "{}: {ours:.3} {unit} (at most {goal}: {verdict}; rounds {all})",
                    self.name
                )
            }
        }
    }
}
