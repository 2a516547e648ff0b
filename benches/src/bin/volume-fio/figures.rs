//! Goals, and figures held against them.

use std::fmt;

use millrace_benches::goal_bars::Bar;

/// What a figure shall reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At least so many times what fio gets, in this unit.
    Share(f64, &'static str),
    /// At most so much, in this unit; fio has no part in it.
    AtMost(f64, &'static str),
}

/// A measurement, in the order in which they are made.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    /// Writing all data, 1 MiB at a time.
    LargeWrites,
    /// Reading all of it likewise.
    LargeReads,
    /// Reading 4 KiB at random, with all nodes of the index in memory.
    SmallReads,
    /// The same, with next to no leaf of it in memory.
    ColdReads,
    /// Overwriting 4 KiB durably, one after the other.
    Overwrites,
    /// Writing 16 KiB durably, many at a time, to space that nobody has written to before.
    DurableWrites,
    /// The same to space that was used before, as fio's is and that of any target after a while.
    DurableWritesUsed,
    /// Checksums of pages.
    Checksums,
}

impl Case {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LargeWrites => "1 MiB writes, 16 at once",
            Self::LargeReads => "1 MiB reads, 16 at once",
            Self::SmallReads => "4 KiB reads at random, 32 at once, index in memory",
            Self::ColdReads => "4 KiB reads at random, 32 at once, index on disk",
            Self::Overwrites => "written for a durable 4 KiB overwrite",
            Self::DurableWrites => "16 KiB writes with a sync each, 32 writers, of 1 writer",
            Self::DurableWritesUsed => "the same to space that was used before",
            Self::Checksums => "checksums",
        }
    }

    fn goal(self) -> Goal {
        match self {
            Self::LargeWrites | Self::LargeReads => Goal::Share(0.9, "MiB/s"),
            Self::SmallReads => Goal::Share(0.8, "/s"),
            Self::ColdReads => Goal::Share(0.4, "/s"),
            Self::Overwrites => Goal::AtMost(16.0, "KiB"),
            Self::DurableWrites | Self::DurableWritesUsed => Goal::Share(10.0, "/s"),
            Self::Checksums => Goal::AtMost(0.06, "CPU-s/GB"),
        }
    }
}

/// A measurement over all rounds.
#[derive(Debug)]
pub(crate) struct Figure {
    case: Case,
    rounds: Vec<(f64, f64)>,
}

impl Figure {
    /// Takes the rounds of a measurement: of fio and of the engine.
    pub(crate) fn median(case: Case, mut rounds: Vec<(f64, f64)>) -> Self {
        rounds.sort_by(|one, other| worth(*one).total_cmp(&worth(*other)));
        Self { case, rounds }
    }

    /// For a picture.
    pub(crate) fn bar(&self) -> Bar {
        let (name, summary) = (self.case.name().to_owned(), self.summary());
        Bar { name, summary, times_of_goal: self.times_of_goal() }
    }

    /// The figure and its goal, in a few words.
    fn summary(&self) -> String {
        let (plain, ours) = self.middle();
        match self.case.goal() {
            Goal::Share(goal, unit) => {
                format!("{ours:.0} {unit}, fio {plain:.0}: {:.2}; goal {goal}", ours / plain)
            }
            Goal::AtMost(goal, unit) => format!("{ours:.3} {unit}; at most {goal}"),
        }
    }

    /// How many times its goal it is, more being better: the worst round, the middle, the best.
    fn times_of_goal(&self) -> (f64, f64, f64) {
        let times = |round: &(f64, f64)| match self.case.goal() {
            Goal::Share(goal, _) => worth(*round) / goal,
            Goal::AtMost(goal, _) => goal / worth(*round),
        };
        let all: Vec<f64> = self.rounds.iter().map(times).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        (least, times(&self.middle()), most)
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
        match self.case.goal() {
            Goal::Share(goal, unit) => {
                let share = ours / plain;
                let verdict = if share >= goal { "reached" } else { "missed" };
                write!(
                    out,
                    "{}: {ours:.0} {unit}, fio {plain:.0} {unit}: {share:.2} (goal {goal}: \
                     {verdict}; rounds {all})",
                    self.case.name()
                )
            }
            Goal::AtMost(goal, unit) => {
                let verdict = if ours <= goal { "reached" } else { "missed" };
                write!(
                    out,
                    "{}: {ours:.3} {unit} (at most {goal}: {verdict}; rounds {all})",
                    self.case.name()
                )
            }
        }
    }
}
