//! Faults by chance: from a seed, the request and how often it came, and nothing else.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use super::{
    fault::{Fault, ListFault},
    request::{Asked, Dialect, Request},
};

/// How often something goes wrong, and what.
#[derive(Debug, Clone)]
pub struct Storm {
    /// Another one, other faults.
    pub seed: u64,
    /// One request of so many has a fault.
    pub one_in: u64,
}

impl Storm {
    pub(super) fn draw(&self, request: &Request, ordinal: u64) -> Option<Fault> {
        let mut draws = Draws { seed: self.seed, request, ordinal, count: 0 };
        if draws.below(self.one_in) > 0 {
            return None;
        }
        Some(match request.asked {
            Asked::Get => of_get(&mut draws),
            Asked::List => of_list(&mut draws),
            Asked::Put | Asked::Part | Asked::Complete | Asked::Create => of_upload(&mut draws),
            Asked::Head | Asked::Abort | Asked::Other => of_any(&mut draws),
        })
    }
}

fn of_any(draws: &mut Draws<'_>) -> Fault {
    match draws.below(6) {
        0 => Fault::InternalError,
        1 => Fault::SlowDown,
        2 => Fault::Reset,
        3 => Fault::LostAnswer,
        4 => Fault::Denied,
        _ => Fault::SilenceFor(Duration::from_millis(200 + draws.below(800))),
    }
}

fn of_get(draws: &mut Draws<'_>) -> Fault {
    match draws.below(15) {
        0..5 => of_any(draws),
        5 => Fault::Vanished,
        6 => Fault::ResetAfter(draws.below(1_000_000)),
        7 => Fault::CutAfter(draws.below(1_000_000)),
        8 => Fault::Trickle(64 * 1024, Duration::from_millis(20)),
        9 => Fault::LengthTooLong(1 + draws.below(1000)),
        10 => Fault::LengthTooShort(1 + draws.below(1000)),
        11 => Fault::OtherTag,
        12 => Fault::OtherSize,
        // Azure tells no checksum, so that nobody could notice it.
        13 if draws.request.dialect == Dialect::S3 => {
            Fault::FlippedBitOfWhole(draws.below(1_000_000))
        }
        _ => Fault::ResetAfter(0),
    }
}

fn of_list(draws: &mut Draws<'_>) -> Fault {
    let pages = 2 + usize::try_from(draws.below(6)).expect("a few");
    match draws.below(12) {
        0..6 => of_any(draws),
        6 => Fault::List(ListFault::Stale),
        7 => Fault::List(ListFault::Circle(pages)),
        // Azure's pages that name no next one are the last.
        8 if draws.request.dialect == Dialect::S3 => Fault::List(ListFault::DeadEnd(pages)),
        9 => Fault::List(ListFault::Torn),
        _ => Fault::List(ListFault::Pages(pages)),
    }
}

fn of_upload(draws: &mut Draws<'_>) -> Fault {
    match draws.below(8) {
        0..5 => of_any(draws),
        5 => Fault::FailedAnswer,
        _ => Fault::LostAnswer,
    }
}

struct Draws<'a> {
    seed: u64,
    request: &'a Request,
    ordinal: u64,
    count: u64,
}

impl Draws<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.count += 1;
        // Its keys are fixed: the same number in each run.
        let mut hasher = DefaultHasher::new();
        (self.seed, self.request, self.ordinal, self.count).hash(&mut hasher);
        hasher.finish() % bound.max(1)
    }
}
