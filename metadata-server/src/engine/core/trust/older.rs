//! Whether a target is what it was, or an older copy of itself that somebody has put back.
//!
//! A target keeps the newest point of the command log that it was told, every 10 seconds, and shows
//! it once that survives a loss of power. So what it shows never goes back, and one that shows less
//! than before has its disk of then: what was overwritten in place since is there in its older
//! version, with checksums that are right. Such a one is refused, and serves nobody, until it shows
//! what it did, or an operator takes it as it is.
//!
//! What targets have shown is known here at once, and noted in the log when they show this run for
//! the first time, and every few minutes then as long as the log goes on: whoever starts next
//! knows it from there. It is a place in *this* log, so that it has an order, whichever run told it
//! and whatever end the log has lost since.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use millrace_protocol::cluster::LogWitness;
use millrace_types::{ErrorKind, Failure, LogIndex, TargetId};

use super::Core;
use crate::{
    command::{Command, NoteShown},
    store::{
        keys,
        records::{self, ShownRecord},
    },
};

/// Between two notes in the log of what the same target has shown.
const NOTE: Duration = Duration::from_secs(5 * 60);

/// What targets have shown in this run.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Up to where each has seen the log.
    newest: BTreeMap<TargetId, LogIndex>,
    /// The same of those that have shown more before.
    older: BTreeMap<TargetId, LogIndex>,
    /// Of which it was noted in the log.
    noted: BTreeMap<TargetId, Noted>,
    /// How many notes this run has logged.
    notes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Noted {
    at: Instant,
    /// The records of the log without the notes of this run: while there are no more, nothing but
    /// notes would follow each other.
    others: u64,
}

impl Core {
    /// Compares what a target shows with what it has shown before.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] for an older copy; when the store is broken.
    pub(super) fn compare_shown(&mut self, witness: LogWitness) -> Result<(), Failure> {
        let target = witness.target;
        let Some(place) = self.place_of(witness)? else {
            self.doubt.shown.older.remove(&target);
            return Ok(());
        };
        let logged = self.logged(target)?;
        let newest =
            self.doubt.shown.newest.get(&target).map_or(logged, |known| logged.max(*known));
        if place < newest {
            return Err(self.refuse(target, place, logged, newest));
        }
        self.doubt.shown.older.remove(&target);
        self.doubt.shown.newest.insert(target, place);
        let shows_this_run = witness.seen.is_some_and(|seen| seen.incarnation == self.incarnation);
        if shows_this_run && place > logged && self.is_note_due(target) {
            self.note(target, place);
        }
        Ok(())
    }

    /// An operator takes the targets that are older copies of themselves as they are.
    ///
    /// # Errors
    /// As [`Core::execute`]; those that are left stay refused.
    pub(super) fn accept_older(&mut self) -> Result<(), Failure> {
        while let Some((target, place)) = self.doubt.shown.older.pop_first() {
            let accepted = self.logged(target).and_then(|logged| match logged > place {
                true => self.execute(None, note(target, place)).map(drop),
                false => Ok(()),
            });
            if let Err(failure) = accepted {
                self.doubt.shown.older.insert(target, place);
                return Err(failure);
            }
            self.doubt.shown.newest.insert(target, place);
            tracing::warn!(%target, "an operator takes an older copy of a target as it is");
        }
        Ok(())
    }

    /// Whether a target was last seen as an older copy of itself.
    #[must_use]
    pub fn is_older_copy(&self, target: TargetId) -> bool {
        self.doubt.shown.older.contains_key(&target)
    }

    /// A sentence for each target that is an older copy of itself.
    #[must_use]
    pub fn older_copies(&self) -> Vec<String> {
        let older = self.doubt.shown.older.keys();
        let there = older.filter(|target| self.registry.state(**target).is_some());
        there.map(|target| words(*target)).collect()
    }

    /// Up to where a target has seen this log. Nothing where it has shown nothing, as when it was
    /// just made, or when it was damaged where it keeps that; nor where it tells of another log.
    fn place_of(&mut self, witness: LogWitness) -> Result<Option<LogIndex>, Failure> {
        let Some(seen) = witness.seen else { return Ok(None) };
        let kept = self.kept_of(seen.incarnation)?;
        Ok(kept.map(|kept| seen.index.min(kept)))
    }

    /// What the log knows of what a target has shown.
    fn logged(&mut self, target: TargetId) -> Result<LogIndex, Failure> {
        let record = records::read::<ShownRecord>(self.view(), &keys::shown(target));
        let record = record.map_err(|error| self.failure(error.into()))?;
        Ok(record.map(|record| record.index).unwrap_or_default())
    }

    fn refuse(
        &mut self,
        target: TargetId,
        place: LogIndex,
        logged: LogIndex,
        newest: LogIndex,
    ) -> Failure {
        // Nothing is freed on it that was found before.
        self.doubt.compared.remove(&target);
        if self.doubt.shown.older.insert(target, place).is_none() {
            tracing::error!(%target, shows = place.0, has_shown = newest.0,
                "a target is an older copy of itself, and is not served");
        }
        // The next start must know it too.
        if newest > logged {
            self.note(target, newest);
        }
        Failure::new(ErrorKind::Stale, words(target))
    }

    fn is_note_due(&self, target: TargetId) -> bool {
        let noted = self.doubt.shown.noted.get(&target);
        noted.is_none_or(|noted| {
            let since = self.instant().saturating_duration_since(noted.at);
            since >= NOTE && self.other_records() > noted.others
        })
    }

    fn other_records(&self) -> u64 {
        self.last_index().0.saturating_sub(self.doubt.shown.notes)
    }

    /// Notes in the log what a target has shown. Where it takes nothing now, what the target shows
    /// next is noted.
    fn note(&mut self, target: TargetId, index: LogIndex) {
        match self.execute(None, note(target, index)) {
            Ok(_) => {
                self.doubt.shown.notes += 1;
                let noted = Noted { at: self.instant(), others: self.other_records() };
                self.doubt.shown.noted.insert(target, noted);
            }
            Err(failure) => {
                tracing::debug!(%target, %failure, "the log cannot take what a target has shown");
            }
        }
    }
}

fn note(target: TargetId, index: LogIndex) -> Command {
    Command::NoteShown(NoteShown { target, index })
}

/// What an operator has to know.
fn words(target: TargetId) -> String {
    format!(
        "target {target} is an older copy of itself, such as an image of its disk or a snapshot of \
         its machine, or its disk has lost what it had called durable, and it serves nobody: what \
         was overwritten since would be as it was then. Bring the newer disk back; or take it out \
         of its daemon's settings and give it up (millrace target lost {target}); or take it as it \
         is (millrace fsck trust)"
    )
}
