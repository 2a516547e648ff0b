//! getattr, setattr and truncation.

use std::{pin::pin, sync::Arc, time::Duration};

use millrace_protocol::{
    metadata::{Attributes, FileKind, SetAttributes, SetTime},
    session::Caller,
};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId};

use crate::fs::{
    FileSystem,
    durable::Whole,
    file::{File, State, resize::Resized},
    handle::FileHandle,
    kernel_names::{Keep, Shown},
};

/// What to change; `None` leaves a value as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Changes {
    /// Permission bits.
    pub(crate) mode: Option<u16>,
    /// Owner.
    pub(crate) uid: Option<u32>,
    /// Group.
    pub(crate) gid: Option<u32>,
    /// Bytes.
    pub(crate) size: Option<u64>,
    /// Last read.
    pub(crate) accessed: Option<SetTime>,
    /// Last change of the content.
    pub(crate) modified: Option<SetTime>,
}

/// What is to be done about setuid and setgid of an open file, to which somebody writes without the
/// right to keep them.
#[derive(Debug, Default)]
pub(crate) struct Privileges {
    /// The next commit tells whether another host has set them before what is written now.
    is_due: bool,
    /// Whether somebody has written to it since a program here set the mode.
    was_due: bool,
    /// How many programs here set the mode at this moment.
    setting: u32,
    /// How many have.
    set: u64,
}

/// What a commit has taken on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    is_due: bool,
    set: u64,
}

impl Privileges {
    /// One of those is about to write.
    fn handle_write(&mut self) {
        (self.is_due, self.was_due) = (true, true);
    }

    /// What a commit took away may be there again.
    pub(super) fn handle_log_loss(&mut self) {
        self.is_due |= self.was_due;
    }

    /// Whether the commit that begins now has to look.
    pub(super) fn take_due(&mut self) -> Due {
        Due { is_due: std::mem::take(&mut self.is_due), set: self.set }
    }

    /// The same commit has failed.
    pub(super) fn put_back(&mut self, due: Due) {
        self.is_due |= self.is_still(due);
    }

    /// Whether setuid and setgid are to be taken away that the same commit has shown: not what a
    /// program here has set meanwhile. While one does, the next commit looks again.
    pub(super) fn end(&mut self, due: Due) -> bool {
        if self.setting > 0 {
            self.put_back(due);
            return false;
        }
        self.is_still(due)
    }

    fn is_still(&self, due: Due) -> bool {
        due.is_due && due.set == self.set
    }

    /// A program here has set the mode: it means that, whatever was written before.
    fn handle_set(&mut self) {
        self.set += 1;
        (self.is_due, self.was_due) = (false, false);
    }
}

/// A program here sets the mode of an open file, until this is dropped.
struct Setting<'a> {
    file: &'a File,
}

impl<'a> Setting<'a> {
    fn begin(file: &'a File) -> Self {
        file.state().privileges.setting += 1;
        Self { file }
    }
}

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.file.state().privileges.setting -= 1;
    }
}

impl FileSystem {
    /// What `stat` shows of an inode, if a lease covers it; of a file that is open here, with this
    /// mount's own writes on top. Of such a one the kernel keeps no more than it had when it was
    /// opened, if that: then it asks each time what a handle shows.
    pub(crate) fn attributes_kept(&self, caller: &Caller, inode: InodeId) -> Option<Shown> {
        if !self.may_answer(caller) {
            return None;
        }
        if let Some(file) = self.files.find(inode) {
            let state = file.state();
            let stands = self.is_covered(inode, &state);
            return stands.then(|| Shown::once(state.attributes.clone()));
        }
        let (attributes, lease) = self.names.attributes(inode)?;
        let keep = Keep { attributes: self.keep_attributes(inode, &lease), ..Keep::default() };
        Some(Shown { attributes, keep })
    }

    /// Whether this version of an inode is what is shown of it under a lease, and so all that the
    /// kernel may have.
    pub(super) fn shows_version(&self, inode: InodeId, count: ChangeCount) -> bool {
        self.names.attributes(inode).is_some_and(|(shown, _)| shown.change_count == count)
    }

    /// Whether a lease stands on what is shown of an open file.
    pub(super) fn is_covered(&self, inode: InodeId, state: &State) -> bool {
        state.lease.as_ref().is_some_and(|lease| self.names.stands(inode, lease))
    }

    /// What kind of inode it is, if [`Self::attributes_kept`] may show it.
    pub(super) fn kind_kept(&self, inode: InodeId) -> Option<FileKind> {
        if let Some(file) = self.files.find(inode) {
            let state = file.state();
            return self.is_covered(inode, &state).then_some(state.attributes.kind);
        }
        Some(self.names.attributes(inode)?.0.kind)
    }

    /// What an open file shows, if a lease covers it, and it is the version that the handle was
    /// opened on.
    pub(crate) fn attributes_kept_of(
        &self,
        caller: &Caller,
        handle: &FileHandle,
    ) -> Option<Attributes> {
        if !self.may_answer(caller) {
            return None;
        }
        let state = handle.file.state();
        let stands = self.is_covered(handle.file.inode, &state);
        (stands && handle.check_version(&state).is_ok()).then(|| state.attributes.clone())
    }

    /// What `stat` shows, asked of the server unless a change from here tells it, with this mount's
    /// own writes on top.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn attributes(
        &self,
        caller: Caller,
        inode: InodeId,
    ) -> Result<Attributes, Failure> {
        if let Some(attributes) = self.attributes_after_change(&caller, inode).await {
            return Ok(attributes);
        }
        let (reply, lease) = match self.show_inode(&caller, inode).await {
            Ok(shown) => shown,
            Err(failure) => return self.removed.show(inode, failure),
        };
        let Some(file) = self.files.find(inode) else {
            return Ok(reply.attributes);
        };
        let mut state = file.state();
        state.accept_under(reply, lease)?;
        Ok(state.attributes.clone())
    }

    /// What the answer to a change that is under way on this mount shows of an inode. Of a
    /// directory in which many programs make files the kernel asks again for each of them, whenever
    /// another one has: the next answer says it.
    pub(super) async fn attributes_after_change(
        &self,
        caller: &Caller,
        inode: InodeId,
    ) -> Option<Attributes> {
        let note = self.names.note();
        let shows_later = || self.names.is_changing(inode) && self.files.find(inode).is_none();
        if !shows_later() || !self.may_answer(caller) {
            return None;
        }
        let told = async {
            loop {
                let mut end = pin!(self.names.next_end());
                end.as_mut().enable();
                if let Some(attributes) = self.names.shown_since(inode, note) {
                    return Some(attributes);
                }
                if !shows_later() {
                    return None;
                }
                end.await;
            }
        };
        let told = tokio::time::timeout(CHANGE_WAIT_MAX, told).await.ok().flatten()?;
        // What it shows may be shown to this caller at this moment, too.
        self.may_answer(caller).then_some(told)
    }

    /// As [`Self::attributes`], for an open file: the kernel asks so, unless it has attributes from
    /// a moment ago, before it reads past the end that it knows, or seeks from it, and answers with
    /// the end of the file by itself if the new end lies before.
    ///
    /// # Errors
    /// What the server answers; [`millrace_types::ErrorKind::Stale`] when the handle was opened on
    /// an older version of the object, whose end this is not.
    pub(crate) async fn attributes_of(
        &self,
        caller: Caller,
        handle: &FileHandle,
    ) -> Result<Attributes, Failure> {
        let attributes = self.attributes(caller, handle.file.inode).await?;
        handle.check_version(&handle.file.state())?;
        Ok(attributes)
    }

    /// Changes attributes. Writes that are buffered are committed first where that matters: before
    /// a change of size or times, which would otherwise be undone by them.
    ///
    /// # Errors
    /// What the server answers, and failures of the buffered writes.
    pub(crate) async fn change_attributes(
        &self,
        caller: Caller,
        inode: InodeId,
        changes: Changes,
        open_for_writing: bool,
    ) -> Result<Attributes, Failure> {
        let file = self.files.find(inode);
        let sizing = match &file {
            Some(file) if changes.size.is_some() => Some(file.sizing.lock().await),
            _ => None,
        };
        if let Some(file) = &file {
            self.store_before(file, changes).await?;
        }
        if changes.accessed.is_some() {
            self.access_times.forget(inode);
        }
        let _setting = match (&file, changes.mode) {
            (Some(file), Some(_)) => Some(Setting::begin(file)),
            _ => None,
        };
        let whole = self.files.whole(inode);
        let reply = self
            .set_attributes(
                |request| SetAttributes {
                    mode: changes.mode,
                    uid: changes.uid,
                    gid: changes.gid,
                    size: changes.size,
                    accessed: changes.accessed,
                    modified: changes.modified,
                    open: open_for_writing,
                    ..request
                },
                &caller,
                inode,
            )
            .await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                return self.removed.change(inode, changes, self.cluster.now(), failure);
            }
        };
        if let Some(file) = &file {
            file.state().handle_changes(changes, whole, Resized::shown_by(&reply));
        }
        drop(sizing);
        self.present(reply)
    }

    /// Stores what was written as far as these changes ask for it.
    async fn store_before(&self, file: &Arc<File>, changes: Changes) -> Result<(), Failure> {
        if changes.size.is_none() {
            // As a program that copies a file with its attributes has it, before it is closed.
            self.publish_inline(file).await?;
        }
        let touches_times = changes.accessed.is_some() || changes.modified.is_some();
        if changes.size.is_some() || touches_times {
            self.flush_file(file).await;
            self.commit(file, false).await?;
        }
        Ok(())
    }

    /// Takes setuid and setgid away from a file that is cut by somebody without the right to keep
    /// them.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn drop_privilege_bits(&self, inode: InodeId) -> Result<(), Failure> {
        let attributes = match self.attributes_covered(inode) {
            Some(attributes) => attributes,
            None => self.attributes(Caller::ROOT, inode).await?,
        };
        self.take_privilege_bits(inode, attributes).await
    }

    /// What is known of an open file whose mode no other host has changed since: what is taken back
    /// is asked for again.
    fn attributes_covered(&self, inode: InodeId) -> Option<Attributes> {
        let file = self.files.find(inode)?;
        let state = file.state();
        let is_covered = |lease| {
            self.names.stands(inode, lease) && self.may_answer(&owner_of(&state.attributes))
        };
        let is_known = state.unpublished.is_some() || state.lease.as_ref().is_some_and(is_covered);
        is_known.then(|| state.attributes.clone())
    }

    /// As [`Self::drop_privilege_bits`], from an open file to which such a one is about to write.
    /// What another host has set of late is not known here, and to ask before every write would
    /// cost as much as the write: the commit shows it, and takes it away.
    ///
    /// # Errors
    /// The same.
    pub(crate) async fn drop_privilege_bits_of(&self, file: &File) -> Result<(), Failure> {
        let attributes = {
            let mut state = file.state();
            state.privileges.handle_write();
            state.attributes.clone()
        };
        self.take_privilege_bits(file.inode, attributes).await
    }

    /// Takes setuid and setgid away, if a file has them that was shown so. In the name of the
    /// owner: the writer need not be that, and root may be nobody here. The owner stays who it is:
    /// to name it is enough for the server to take them from the mode that there is by then, while
    /// a mode from here could undo what another host has set meanwhile. If it has another owner by
    /// then, the old one is refused; but what was root's, and was just given away, is root's again.
    ///
    /// # Errors
    /// What the server answers.
    pub(super) async fn take_privilege_bits(
        &self,
        inode: InodeId,
        mut attributes: Attributes,
    ) -> Result<(), Failure> {
        let mut is_second = false;
        while has_privilege_bits(attributes.mode) {
            let owner = owner_of(&attributes);
            let uid = Some(owner.uid);
            let request = |request| SetAttributes { uid, open: true, ..request };
            let whole = self.files.whole(inode);
            match self.set_attributes(request, &owner, inode).await {
                Ok(reply) => {
                    if let Some(file) = self.files.find(inode) {
                        let count = reply.attributes.change_count;
                        file.state().durable.handle_own_change(whole, count);
                    }
                    return self.present(reply).map(drop);
                }
                Err(failure) if failure.kind == ErrorKind::NotPermitted && !is_second => {}
                Err(failure) => return Err(failure),
            }
            is_second = true;
            attributes = self.attributes(Caller::ROOT, inode).await?;
        }
        Ok(())
    }

    /// Sets the size of a file.
    ///
    /// # Errors
    /// As [`Self::change_attributes`].
    pub(crate) async fn truncate(
        &self,
        caller: Caller,
        inode: InodeId,
        size: u64,
        open_for_writing: bool,
    ) -> Result<Attributes, Failure> {
        let changes = Changes { size: Some(size), ..Changes::default() };
        self.change_attributes(caller, inode, changes, open_for_writing).await
    }
}

impl State {
    /// The server has made these changes at this mount's wish, and shows what came of them; `whole`
    /// was known of the file's bytes before.
    fn handle_changes(&mut self, changes: Changes, whole: Option<Whole>, shown: Resized) {
        if changes.size.is_some() {
            self.record_resize(shown);
        }
        if changes.mode.is_some() {
            self.privileges.handle_set();
        }
        // Of none the server makes no change.
        if changes != Changes::default() {
            self.durable.handle_own_change(whole, shown.count);
        }
    }
}

/// Whether a write by somebody else takes something from this mode. As Linux has it, setgid without
/// the group's right to execute is another thing.
fn has_privilege_bits(mode: u16) -> bool {
    let group_executes = mode & 0o010 != 0;
    mode & if group_executes { 0o6000 } else { 0o4000 } != 0
}

fn owner_of(attributes: &Attributes) -> Caller {
    Caller { uid: attributes.uid, gid: attributes.gid, groups: Vec::new() }
}

/// How long what `stat` shows waits for a change of this mount before the server is asked: a few
/// times what one takes, and less than anybody notices where it waits for another host.
const CHANGE_WAIT_MAX: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_takes_setuid_and_the_setgid_of_programs() {
        for (mode, has_some) in [
            (0o755, false),
            (0o1777, false),
            (0o4644, true),
            (0o2755, true),
            (0o2745, false),
            (0o6745, true),
        ] {
            assert_eq!(has_privilege_bits(mode), has_some, "{mode:o}");
        }
    }

    fn due() -> Privileges {
        Privileges { is_due: true, ..Privileges::default() }
    }

    #[test]
    fn what_a_program_here_sets_while_a_commit_is_on_its_way_stays() {
        let mut privileges = due();
        let taken = privileges.take_due();
        assert!(!privileges.is_due && privileges.end(taken), "another host may have set it");
        // It was set and answered before the commit's answer.
        let mut privileges = due();
        let taken = privileges.take_due();
        privileges.handle_set();
        assert!(!privileges.end(taken) && !privileges.is_due);
        privileges.put_back(taken);
        assert!(!privileges.is_due, "nor by the next, when this one has failed");
        // It is answered after that, also where the commit began while it was set.
        let mut privileges = due();
        privileges.setting = 1;
        let taken = privileges.take_due();
        assert!(!privileges.end(taken) && privileges.is_due);
        privileges.handle_set();
        assert!(!privileges.is_due, "it was meant");
    }

    #[test]
    fn a_mode_that_is_refused_or_a_commit_that_fails_leaves_the_next_one_to_look() {
        let mut privileges = due();
        privileges.setting = 1;
        let taken = privileges.take_due();
        assert!(!privileges.end(taken), "it may be what is being set");
        privileges.setting = 0;
        let taken = privileges.take_due();
        privileges.put_back(taken);
        assert!(privileges.is_due);
        let taken = privileges.take_due();
        assert!(privileges.end(taken));
        // What was not due is not made so.
        let taken = privileges.take_due();
        privileges.put_back(taken);
        assert!(!privileges.end(taken) && !privileges.is_due);
    }

    #[test]
    fn what_a_lost_commit_took_away_is_looked_for_again() {
        let mut privileges = Privileges::default();
        privileges.handle_log_loss();
        assert!(!privileges.is_due, "whoever has written may keep them");
        privileges.handle_write();
        let taken = privileges.take_due();
        assert!(privileges.end(taken) && !privileges.is_due);
        privileges.handle_log_loss();
        assert!(privileges.is_due);
        privileges.handle_set();
        privileges.handle_log_loss();
        assert!(!privileges.is_due, "a program here has set the mode since");
    }
}
