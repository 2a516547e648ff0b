//! Takes back what clients may keep, before a command changes it.

use std::ops::Bound;

use millrace_protocol::session::Operation;
use millrace_types::{ErrorKind, Failure, FileName, InodeId, SessionId};

use super::Core;
use crate::{
    apply::Effect,
    command::{Command, Outcome},
    leases::{Touch, Wait, Waits, touched, touched::writers},
    ops::{Need, Step},
    store::{Batch, StoreError, View, borrow, keys, prefix_end},
};

impl Core {
    /// Takes back what `batch` changes, before it is logged.
    ///
    /// A client's operation that must wait for that is refused here, and nothing has happened:
    /// [`Self::attempt`] then says what it waits for. The server's own commands do not wait.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], and when the store is broken.
    pub(super) fn take_back(
        &mut self,
        operation: Option<Operation>,
        batch: &Batch,
    ) -> Result<(), Failure> {
        if self.leases.is_idle() {
            self.given_back.iter().for_each(Wait::release);
            return Ok(());
        }
        let session = operation.map(|operation| operation.session).or(self.asked_by);
        let touches = touched(&*self.store.0, batch, session);
        let mut touches = touches.map_err(|error| self.failure(error.into()))?;
        touches.retain(|touch| !self.given_back.iter().any(|wait| wait.has_settled(touch)));
        let now = self.now();
        let waits = match (operation, &self.heard) {
            (Some(_), _) => Waits::Before,
            (None, Some(_)) => Waits::After,
            (None, None) => Waits::Nobody,
        };
        if let Some(heard) = &mut self.heard
            && touches.iter().any(Touch::shows_file)
        {
            // After a restart nobody knows who keeps them, until everybody has listened again.
            heard.extend(self.leases.declaring(None));
        }
        let wait = self.leases.recall(&touches, session, waits, now);
        self.answer_waits.extend(self.leases.take_told());
        match (wait, &mut self.heard) {
            (Some(wait), _) if waits == Waits::Before => {
                self.recall = Some(wait);
                let text = "other clients have not given back yet what this changes";
                return Err(Failure::new(ErrorKind::Busy, text));
            }
            (Some(wait), Some(heard)) => heard.push(wait),
            _ => {}
        }
        // What the reply shows may be kept.
        self.given_back.iter().for_each(Wait::release);
        Ok(())
    }

    /// Nobody keeps anything any more of what `batch` has removed.
    pub(super) fn forget_gone(&mut self, batch: &Batch) {
        let prefix = keys::inodes();
        let end = prefix_end(&prefix);
        for (key, value) in batch.range(Bound::Included(&prefix), borrow(&end)) {
            if value.is_none()
                && let Some(inode) = keys::number_at(key, 1)
            {
                self.leases.handle_gone(InodeId(inode));
            }
        }
    }

    /// Executes a command of the server's own; with what is over when nobody shows a file any more
    /// as it was before that.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn execute_heard(&mut self, command: Command) -> Result<(Outcome, Vec<Wait>), Failure> {
        self.heard = Some(Vec::new());
        let outcome = self.execute(None, command);
        let heard = self.heard.take().unwrap_or_default();
        outcome.map(|outcome| (outcome, heard))
    }

    /// Executes a command of the server's own that a session has asked for: nothing is taken back
    /// from that one, nor is it told.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn execute_for(
        &mut self,
        session: SessionId,
        command: Command,
    ) -> Result<Outcome, Failure> {
        self.asked_by = Some(session);
        let outcome = self.execute(None, command);
        self.asked_by = None;
        outcome
    }

    /// Has the other writers hear of contents that `effect` cuts or replaces, and that the log has.
    pub(super) fn tell_writers(&mut self, operation: Option<Operation>, effect: &Effect) {
        let by = operation.map(|operation| operation.session).or(self.asked_by);
        for &inode in &effect.raised {
            match self.writers_but(inode, by) {
                Ok(writers) => self.leases.handle_cut(inode, writers),
                // The store is made anew, and they are all asked for then.
                Err(failure) => tracing::warn!(%inode, %failure, "cannot look for writers"),
            }
        }
    }

    /// What an operation of `by` that has cut a content waits for before it is answered: that every
    /// other writer has heard of it.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn heard_of_cut(&mut self, inode: InodeId, by: SessionId) -> Result<Option<Wait>, Failure> {
        let others = !self.writers_but(inode, Some(by))?.is_empty();
        Ok(self.leases.heard_of_cut(inode, by, others))
    }

    fn writers_but(
        &mut self,
        inode: InodeId,
        by: Option<SessionId>,
    ) -> Result<Vec<SessionId>, Failure> {
        let writers = writers(self.view(), inode).map_err(|error| self.failure(error.into()))?;
        Ok(writers.into_iter().filter(|&writer| Some(writer) != by).collect())
    }

    /// Whether the operation of this turn was refused because it must wait for what others have.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.recall.is_some()
    }

    /// The answer to the operation of this turn tells that there is such a name: it waits until
    /// everybody has heard of it who is to.
    pub fn note_name_told(&mut self, directory: InodeId, name: &FileName) {
        self.answer_waits.extend(self.leases.unheard().of_name(directory, name));
    }

    /// The same for whatever is in the directory.
    pub fn note_names_told(&mut self, directory: InodeId) {
        self.answer_waits.extend(self.leases.unheard().of_directory(directory));
    }

    /// The operation of this turn was executed before, and may have made a name: it is answered
    /// when everybody has heard of that who keeps something of the directory. After a restart
    /// nobody knows who has, until everybody has listened again.
    pub fn note_repeated(&mut self, by: SessionId) {
        self.answer_waits.extend(self.leases.unheard().of_maker(by));
        self.answer_waits.extend(self.leases.declaring(Some(by)));
    }

    /// What the answer to the operation of this turn waits for: that others have heard of names
    /// that it tells of.
    pub fn take_answer_waits(&mut self) -> Vec<Wait> {
        std::mem::take(&mut self.answer_waits)
    }

    /// Tries an operation, for which others have given back what `given_back` says. Where others
    /// still have to, that is what it needs. What its answer must wait for is
    /// [`Self::take_answer_waits`].
    ///
    /// # Errors
    /// Those of the operation.
    pub fn attempt<T>(
        &mut self,
        given_back: Vec<Wait>,
        operation: impl FnOnce(&mut Self) -> Result<Step<T>, Failure>,
    ) -> Result<Step<T>, Failure> {
        (self.given_back, self.recall) = (given_back, None);
        self.answer_waits.clear();
        let step = operation(self);
        self.given_back.clear();
        match self.recall.take() {
            Some(wait) => Ok(Step::Need(Need::Recall(wait))),
            None => step,
        }
    }
}

/// Sessions that may keep what was granted to them.
pub(super) fn keepers(view: &(impl View + ?Sized)) -> Result<Vec<SessionId>, StoreError> {
    let prefix = keys::keepers();
    let end = prefix_end(&prefix);
    let found = view.scan(Bound::Included(&prefix), borrow(&end), usize::MAX)?;
    Ok(found.iter().filter_map(|(key, _)| keys::number_at(key, 1)).map(SessionId).collect())
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{metadata::NewNode, session::Caller};
    use millrace_types::ClusterId;
    use tempfile::TempDir;

    use super::*;
    use crate::{
        command::{Create, Remove},
        engine::startup::{EngineSettings, StoreKind, open},
        leases::Holding,
    };

    #[test]
    fn what_is_removed_is_kept_by_nobody_not_even_by_who_removes_it() {
        let dir = TempDir::new().unwrap();
        let settings = EngineSettings {
            store: StoreKind::Memory,
            reserve_bytes: 0,
            ..EngineSettings::new(dir.path().join("metadata"), ClusterId([7; 16]))
        };
        let mut core = open(settings).unwrap();
        let (session, now) = (SessionId(1), core.now());
        core.leases.handle_listening(session, 0, now);
        for number in 1..=10 {
            let (caller, parent) = (Caller::ROOT, InodeId::ROOT);
            let name = FileName::parse(b"directory").unwrap();
            let inode = core.new_inode_id().unwrap();
            let create = Create {
                caller: caller.clone(),
                parent,
                name: name.clone(),
                node: NewNode::Directory,
                mode: 0o755,
                inode,
                seed: 0,
                open: None,
                exclusive: true,
            };
            core.execute_for(session, Command::Create(create)).unwrap();
            let holding = Holding::OWN.with(Holding::WHOLE);
            assert!(core.leases.grant(session, inode, holding, now));
            let remove = Remove { caller, parent, name, directory: true, readers: Vec::new() };
            core.execute_for(session, Command::Remove(remove)).unwrap();
            assert_eq!(core.leases.counts().leases, 0, "after {number}");
        }
    }
}
