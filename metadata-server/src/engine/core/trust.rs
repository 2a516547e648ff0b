//! Whether the namespace may have lost something: then nothing is freed because no file has it.
//!
//! Doubt comes up when the store is made anew, and when a target knows something of the log that
//! the log does not know. It is a command, so that it outlives every restart until an operator ends
//! it. As long as that command cannot be logged (a full disk) it is kept here, nothing is freed
//! either, and the marker that vouches for the store is away: the next start doubts too.
//!
//! The other way round, [`older`] has what is known of a target that knows less than it did.

use std::collections::BTreeSet;

use millrace_protocol::{
    cluster::{LogPoint, LogWitness},
    fsck::Distrust,
    target::ContentName,
};
use millrace_types::{ErrorKind, Failure, InodeId, LogIndex, TargetId};

use self::older::Shown;
use super::{Core, log_failure};
use crate::{
    apply::unnamed,
    command::{Command, Outcome},
    log::LogError,
    namespace::tree,
    store::{
        StoreError, View, keys,
        records::{self, DistrustRecord, RunRecord},
    },
};

mod older;

/// What is known in this run.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Why, where the command is not logged yet.
    pending: Option<String>,
    /// What checks of the targets found wrong, in sentences.
    problems: Vec<String>,
    /// Targets that have shown what they saw of the log.
    compared: BTreeSet<TargetId>,
    /// How much of it they have shown.
    shown: Shown,
}

impl Doubt {
    pub(super) fn new(rebuilt: Option<String>) -> Self {
        Self { pending: rebuilt, ..Self::default() }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }
}

impl Core {
    /// Why the namespace is not trusted, if so.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn distrusted(&mut self) -> Result<Option<Distrust>, Failure> {
        if let Some(reason) = self.doubt.pending.clone() {
            return Ok(Some(Distrust { since: self.started, reason }));
        }
        let record = records::read::<DistrustRecord>(self.view(), &keys::distrust());
        let record = record.map_err(|error| self.failure(error.into()))?;
        Ok(record.map(|DistrustRecord { since, reason }| Distrust { since, reason }))
    }

    /// The namespace may have lost something, for this reason.
    pub(super) fn distrust(&mut self, reason: String) {
        self.doubt.pending.get_or_insert(reason);
        self.settle_doubt();
    }

    /// Logs a doubt that is not logged yet, and vouches for the store again after that.
    pub(super) fn settle_doubt(&mut self) {
        let Some(reason) = self.doubt.pending.clone() else { return };
        if self.broken.is_some() {
            return;
        }
        // One doubt is enough.
        let known = records::read::<DistrustRecord>(self.view(), &keys::distrust());
        let logged = match known {
            Ok(Some(_)) => Ok(Outcome::Done),
            _ => self.execute(None, Command::Distrust(reason.clone())),
        };
        let saved = logged.and_then(|_| {
            let path = self.settings.dir.clone();
            self.marker.save(&*self.settings.files, &path).map_err(|error| {
                Failure::new(ErrorKind::Disk, format!("{}: {error}", path.display()))
            })
        });
        match saved {
            Ok(()) => {
                self.doubt.pending = None;
                tracing::error!(
                    reason,
                    "the namespace may have lost files: nothing is freed as an orphan until \
                     `millrace fsck trust`"
                );
            }
            Err(failure) => tracing::warn!(%failure, "the doubt cannot be logged yet"),
        }
    }

    /// Whether a doubt is not logged yet.
    #[must_use]
    pub fn is_doubt_pending(&self) -> bool {
        self.doubt.is_pending()
    }

    /// An operator trusts the namespace, and targets that are older copies of themselves.
    ///
    /// # Errors
    /// As [`Core::execute`].
    pub fn trust(&mut self) -> Result<(), Failure> {
        self.settle_doubt();
        if self.doubt.is_pending() {
            let text = "the reason for the doubt cannot be logged yet";
            return Err(Failure::new(ErrorKind::Unavailable, text));
        }
        self.execute(None, Command::Trust)?;
        self.accept_older()
    }

    /// Whether the log is the one in which somebody has seen this point. One that lost its end, or
    /// was put back from an older copy, is not.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn knows(&mut self, seen: LogPoint) -> Result<bool, Failure> {
        Ok(self.kept_of(seen.incarnation)?.is_some_and(|kept| seen.index <= kept))
    }

    /// Up to where the log is the one that was seen in this run of the server; nothing where it
    /// does not know that run.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn kept_of(&mut self, incarnation: u64) -> Result<Option<LogIndex>, Failure> {
        if incarnation == self.incarnation && !self.is_run_logged {
            // This run itself: there was no room for its start yet.
            return Ok(Some(self.last_index()));
        }
        let kept = kept_of(self.view(), incarnation, self.last_index());
        kept.map_err(|error| self.failure(error.into()))
    }

    /// Compares what a target saw of the log with the log, and with what it showed before.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] for an older copy of a target; when the store is broken.
    pub fn compare_log(&mut self, witness: LogWitness) -> Result<(), Failure> {
        self.compare_shown(witness)?;
        if let Some(seen) = witness.seen
            && !self.knows(seen)?
        {
            self.distrust(format!(
                "target {} has seen record {} of the command log, in a run of the server that \
                 went on longer than this log knows: it was put back from an older copy, or \
                 lost its end",
                witness.target, seen.index.0
            ));
        }
        self.doubt.compared.insert(witness.target);
        Ok(())
    }

    /// Raises a doubt if one of these contents, which no file has, may be of a file that the log
    /// has lost; tells whether it did.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn doubt_orphans(
        &mut self,
        target: TargetId,
        contents: &[ContentName],
    ) -> Result<bool, Failure> {
        let unnamed = unnamed(self.view()).map_err(|error| self.failure(error.into()))?;
        let is_unnamed =
            |content: &&ContentName| unnamed.iter().any(|ids| ids.contains(&content.inode));
        let Some(found) = contents.iter().find(is_unnamed) else { return Ok(false) };
        self.distrust(format!(
            "target {target} holds chunks of {}, an id that no file had when this server began to \
             run: the file was removed shortly before, or the command log has lost it",
            found.inode
        ));
        Ok(true)
    }

    /// Whether the target has shown what it saw of the log since the server's start.
    #[must_use]
    pub fn has_compared(&self, target: TargetId) -> bool {
        self.doubt.compared.contains(&target)
    }

    /// A target has to show again what it saw of the log.
    pub fn forget_compared(&mut self, target: TargetId) {
        self.doubt.compared.remove(&target);
    }

    /// Keeps what is wrong since a check of the targets, in place of what was before.
    pub fn note_problems(&mut self, problems: Vec<String>) {
        self.doubt.problems = problems;
    }

    /// What checks of the targets found wrong, in sentences.
    #[must_use]
    pub fn noted_problems(&self) -> &[String] {
        &self.doubt.problems
    }

    /// The newest synced point of the log.
    #[must_use]
    pub fn log_point(&self) -> LogPoint {
        LogPoint { incarnation: self.incarnation, index: self.log.state().synced }
    }

    /// Below this every inode id that was given out is used, or never will be: the first that may
    /// still be given out, or that a client has with a delegation and has not used.
    #[must_use]
    pub fn high_water(&self) -> InodeId {
        let unused = self.ids.high_water();
        self.leases.lowest_given().map_or(unused, |given| given.min(unused))
    }

    /// Remembers this run in the log. Without room there it goes on all the same, and is remembered
    /// when there is. If it ends before that, targets that saw it are a reason for doubt in a later
    /// one.
    pub(super) fn begin_run(&mut self) {
        if let Err(failure) = self.log_run() {
            tracing::warn!(%failure, "the log cannot take the start of this run yet");
        }
    }

    /// Nothing of a run is logged before its start, so that this may come late: what it forgets is
    /// of the runs before, whose last record is the one before it, and no id that it takes for
    /// unused has gone to a file of this run.
    ///
    /// # Errors
    /// As [`Core::execute`]: then there is no room for `command` either.
    pub(super) fn begin_run_before(&mut self, command: &Command) -> Result<(), Failure> {
        match command {
            Command::BeginRun(_) => Ok(()),
            _ => self.log_run(),
        }
    }

    fn log_run(&mut self) -> Result<(), Failure> {
        if self.is_run_logged {
            return Ok(());
        }
        // What it is made of takes long to look for, and each change asks.
        if !self.room.is_enough_for_ends() {
            return Err(log_failure(LogError::NoSpace));
        }
        self.execute(None, Command::BeginRun(self.incarnation))?;
        self.is_run_logged = true;
        Ok(())
    }

    /// Logs what there was no room for: the start of this run, and a doubt.
    pub(super) fn settle_trust(&mut self) {
        if let Err(failure) = self.log_run() {
            tracing::debug!(%failure, "the log still cannot take the start of this run");
        }
        self.settle_doubt();
    }

    /// Whether the log knows of this run. If not, the store still has what a start takes out of it,
    /// such as which files nobody had written before.
    #[must_use]
    pub fn is_run_logged(&self) -> bool {
        self.is_run_logged
    }
}

/// The last record of a run in the log that `view` shows, which ends at `last`.
fn kept_of(
    view: &dyn View,
    incarnation: u64,
    last: LogIndex,
) -> Result<Option<LogIndex>, StoreError> {
    let runs = tree::scan::<RunRecord>(view, &keys::runs(), usize::MAX)?;
    let begins = |key: &[u8]| LogIndex(keys::number_at(key, 1).unwrap_or_default());
    let Some(at) = runs.iter().rposition(|(_, run)| run.incarnation == incarnation) else {
        return Ok(None);
    };
    // The record that began the next run follows the last one of this.
    Ok(Some(match runs.get(at + 1) {
        Some((next, _)) => LogIndex(begins(next).0.saturating_sub(1)),
        None => last,
    }))
}
