//! The way through all candidates, those used longest ago first, over as many rounds as it takes.
//!
//! What may not go can be much, and used longer ago than the rest. Each round goes on where the one
//! before has ended, so that the rest has its turn. Answers are remembered too, for a while and in
//! bounds; that only saves questions.

use std::time::Instant;

use millrace_protocol::release::ReleaseAnswer;
use millrace_types::ChunkKey;

use super::{
    oldest::Candidate,
    recency::Used,
    refused::{COUNTS, Refused},
};

/// How far it is, and what it was told. Pure.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Everything up to here was asked about. What is used then is ahead again; what turns up
    /// behind, like the bytes of an export, is found by the next sweep.
    place: Option<(Used, ChunkKey)>,
    /// When the first of it was asked about.
    began: Option<Instant>,
    /// When something was asked about last.
    asked: Option<Instant>,
    /// Whether anything might go since it began.
    found: bool,
    refused: Refused,
}

impl Sweep {
    /// A round begins. After a long pause the place counts no more than the answers do.
    pub(super) fn resume(&mut self, now: Instant) {
        self.refused.forget_old(now);
        if self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= COUNTS) {
            self.begin_again();
        }
    }

    /// Whether it is still to be asked about.
    pub(super) fn is_ahead(&self, candidate: &Candidate) -> bool {
        self.place.is_none_or(|place| (candidate.used, candidate.chunk) > place)
            && !self.refused.contains(candidate.content())
    }

    /// These come next, in order, and were answered; returns those that may go.
    pub(super) fn pass(
        &mut self,
        batch: &[Candidate],
        answers: &[ReleaseAnswer],
        now: Instant,
    ) -> Vec<Candidate> {
        self.began.get_or_insert(now);
        let mut may_go = Vec::new();
        for (candidate, answer) in batch.iter().zip(answers) {
            self.place = Some((candidate.used, candidate.chunk));
            if *answer == ReleaseAnswer::MayGo {
                may_go.push(*candidate);
            } else {
                self.refused.insert(candidate.content(), now);
            }
        }
        self.asked = Some(now);
        self.found |= !may_go.is_empty();
        may_go
    }

    /// All that was ahead has been asked about. Tells whether nothing at all may go: everything was
    /// refused since it began, and all these answers count.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        let counts = |began: Instant| now.saturating_duration_since(began) < COUNTS;
        let refused_all = !self.found && self.began.is_none_or(counts);
        self.begin_again();
        refused_all
    }

    /// The next look begins with what was used longest ago.
    pub(super) fn begin_again(&mut self) {
        (self.place, self.began, self.found) = (None, None, false);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use millrace_types::{ByteLen, ChunkIndex, ContentGeneration, CopyIndex, InodeId};

    use super::*;
    use crate::release::{oldest::Oldest, recency::Recency};

    const BYTES: u64 = 4096;

    /// Candidates of one question.
    const BATCH: usize = 16;
    const BATCH_BYTES: u64 = BATCH as u64 * BYTES;

    /// Hardly any answer of one round counts in the next, but the place does.
    const QUESTION: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_secs(29);

    /// A target on which most files may not go, and were used before the others.
    struct Target {
        all: Vec<Candidate>,
        /// They have the lowest numbers: the order of use is not that of the index.
        others: u64,
        now: Instant,
        proposed: Vec<u64>,
    }

    impl Target {
        fn new(refused: u64, others: u64) -> Self {
            let now = Instant::now();
            let recency = Recency::new(now);
            let candidate = |number| {
                let chunk = ChunkKey {
                    inode: InodeId(number),
                    generation: ContentGeneration(1),
                    index: ChunkIndex(0),
                    copy: CopyIndex(0),
                };
                if number < others {
                    recency.note(chunk, now);
                }
                Candidate { used: recency.of(chunk), chunk, bytes: ByteLen(BYTES) }
            };
            let all = (0..refused + others).map(candidate).collect();
            Self { all, others, now, proposed: Vec::new() }
        }

        fn answer(&self, candidate: &Candidate) -> ReleaseAnswer {
            match candidate.chunk.inode.0 < self.others {
                true => ReleaseAnswer::MayGo,
                false => ReleaseAnswer::Pinned,
            }
        }

        /// One round of so many questions; tells what went, or whether nothing may.
        fn round(&mut self, sweep: &mut Sweep, questions: usize, wanted: u64) -> Round {
            self.now += PAUSE;
            sweep.resume(self.now);
            let mut left = questions;
            loop {
                let mut oldest = Oldest::new(ByteLen(wanted));
                let ahead = self.all.iter().filter(|candidate| sweep.is_ahead(candidate));
                ahead.for_each(|candidate| oldest.push(*candidate));
                let has_all = oldest.has_all();
                for batch in oldest.into_sorted().chunks(BATCH) {
                    if left == 0 {
                        return Round::Short;
                    }
                    left -= 1;
                    self.now += QUESTION;
                    self.proposed.extend(batch.iter().map(|candidate| candidate.chunk.inode.0));
                    let answers: Vec<_> = batch.iter().map(|one| self.answer(one)).collect();
                    let may_go = sweep.pass(batch, &answers, self.now);
                    if !may_go.is_empty() {
                        return Round::Found(may_go.len());
                    }
                }
                if has_all {
                    return if sweep.end(self.now) { Round::Nothing } else { Round::Again };
                }
            }
        }
    }

    #[derive(PartialEq, Eq, Debug)]
    enum Round {
        Found(usize),
        Short,
        Again,
        Nothing,
    }

    #[test]
    fn however_much_may_not_go_what_may_has_its_turn_and_nothing_is_asked_twice_before() {
        const QUESTIONS: usize = 20;
        const ROUNDS: usize = 30;
        let others = BATCH as u64 / 2;
        let refused = (BATCH * QUESTIONS * ROUNDS) as u64;
        let mut target = Target::new(refused, others);
        let mut sweep = Sweep::default();
        for round in 0..ROUNDS {
            let ended = target.round(&mut sweep, QUESTIONS, 10 * BATCH_BYTES);
            assert_eq!(ended, Round::Short, "round {round}");
        }
        let found = target.round(&mut sweep, QUESTIONS, 10 * BATCH_BYTES);
        assert_eq!(found, Round::Found(BATCH / 2));
        let distinct: HashSet<_> = target.proposed.iter().collect();
        assert_eq!(distinct.len(), target.proposed.len(), "nothing is asked twice");
        assert_eq!(distinct.len(), target.all.len());
    }

    #[test]
    fn nothing_may_go_only_when_all_was_refused_while_the_first_answer_counts() {
        let mut target = Target::new(10 * BATCH as u64, 0);
        let mut sweep = Sweep::default();
        assert_eq!(target.round(&mut sweep, 6, 3 * BATCH_BYTES), Round::Short);
        assert_eq!(target.round(&mut sweep, 6, 3 * BATCH_BYTES), Round::Again);
        // With a pause in which answers come out of date.
        target.now += COUNTS;
        assert_eq!(target.round(&mut sweep, 6, 3 * BATCH_BYTES), Round::Short);
        target.now += COUNTS;
        assert_eq!(target.round(&mut sweep, 10, 3 * BATCH_BYTES), Round::Nothing);
    }

    #[test]
    fn the_end_of_a_sweep_that_has_found_something_is_not_the_end_of_all() {
        let mut target = Target::new(BATCH as u64, BATCH as u64);
        let mut sweep = Sweep::default();
        assert_eq!(target.round(&mut sweep, 4, 10 * BATCH_BYTES), Round::Found(BATCH));
        target.all.retain(|candidate| candidate.chunk.inode.0 >= BATCH as u64);
        assert_eq!(target.round(&mut sweep, 4, 10 * BATCH_BYTES), Round::Again);
        assert_eq!(target.round(&mut sweep, 4, 10 * BATCH_BYTES), Round::Nothing);
    }
}
