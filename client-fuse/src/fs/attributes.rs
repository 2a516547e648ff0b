//! getattr, setattr and truncation.

use std::{pin::pin, time::Duration};

use millrace_protocol::{
    metadata::{Attributes, FileKind, SetAttributes, SetTime},
    session::Caller,
};
use millrace_types::{Failure, InodeId};

use crate::fs::{
    FileSystem,
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

impl FileSystem {
    /// What `stat` shows of an inode, if a lease covers it; of a file that is open here, with this
    /// mount's own writes on top. Of such a one the kernel keeps nothing, so that it asks each time
    /// what a handle shows.
    pub(crate) fn attributes_kept(&self, caller: &Caller, inode: InodeId) -> Option<Shown> {
        if !self.may_answer(caller) {
            return None;
        }
        if let Some(file) = self.files.find(inode) {
            let state = file.state();
            let lease = state.lease.as_ref()?;
            let stands = self.names.stands(inode, lease);
            return stands.then(|| Shown::once(state.attributes.clone()));
        }
        let (attributes, lease) = self.names.attributes(inode)?;
        let keep = Keep { attributes: self.keep_attributes(inode, &lease), ..Keep::default() };
        Some(Shown { attributes, keep })
    }

    /// What kind of inode it is, if [`Self::attributes_kept`] may show it.
    pub(super) fn kind_kept(&self, inode: InodeId) -> Option<FileKind> {
        if let Some(file) = self.files.find(inode) {
            let state = file.state();
            let stands = self.names.stands(inode, state.lease.as_ref()?);
            return stands.then_some(state.attributes.kind);
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
        let stands = self.names.stands(handle.file.inode, state.lease.as_ref()?);
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

    /// As [`Self::attributes`], for an open file: the kernel asks so before it reads past the end
    /// that it knows, or seeks from it, and answers with the end of the file by itself if the new
    /// end lies before.
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
        if let (Some(file), None) = (&file, changes.size) {
            // As a program that copies a file with its attributes has it, before it is closed.
            self.publish_inline(file).await?;
        }
        let touches_times = changes.accessed.is_some() || changes.modified.is_some();
        if let Some(file) = &file
            && (changes.size.is_some() || touches_times)
        {
            self.flush_file(file).await;
            self.commit(file, false).await?;
        }
        if changes.accessed.is_some() {
            self.access_times.forget(inode);
        }
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
        if let (Some(file), Some(size)) = (&file, changes.size) {
            file.state().record_resize(size);
        }
        drop(sizing);
        self.present(reply)
    }

    /// Takes setuid and setgid away from a file that is written to by somebody without the right
    /// to keep them.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn drop_privilege_bits(&self, inode: InodeId) -> Result<(), Failure> {
        let known = self.files.find(inode).map(|file| file.state().attributes.clone());
        let attributes = match known {
            Some(attributes) => attributes,
            None => self.attributes(Caller::ROOT, inode).await?,
        };
        let mode = attributes.mode;
        let group_executes = mode & 0o010 != 0;
        let kept = mode & if group_executes { 0o1777 } else { 0o3777 };
        if kept == mode {
            return Ok(());
        }
        // In the name of the owner: the writer need not be that, and root may be nobody here.
        let owner = Caller { uid: attributes.uid, gid: attributes.gid, groups: Vec::new() };
        let changes = Changes { mode: Some(kept), ..Changes::default() };
        self.change_attributes(owner, inode, changes, true).await?;
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

/// How long what `stat` shows waits for a change of this mount before the server is asked: a few
/// times what one takes, and less than anybody notices where it waits for another host.
const CHANGE_WAIT_MAX: Duration = Duration::from_millis(20);
