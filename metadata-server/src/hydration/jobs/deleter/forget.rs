//! Takes entries out of the queue.
//!
//! With an object that was deleted goes what hides it here, so that who puts it back sees it. But a
//! page of a listing that was asked for before the deletion still shows the object, and would bring
//! the removed name back. So that stays while the directory is being listed. It stays in one that
//! never was, too: there somebody may be asking for the name alone.
//!
//! A listing that begins later shows what the bucket says then. Where that is late, the name is
//! back until a look at the object finds it gone, as with what is deleted by others.

use millrace_types::{ErrorKind, Failure, InodeId, LinkId};

use super::{Deleter, Queued};
use crate::{
    apply::{OBJECT_DELETED_LEVEL, place_of_key},
    command::{Command, ForgetDeletion},
    hydration::{
        environment::Environment,
        import::{broken, linked},
    },
    store::{
        View, keys,
        records::{self, DeletionRecord, FileSystem},
    },
};

impl<E: Environment> Deleter<E> {
    /// The object stays, or is nobody's affair any more.
    pub(super) async fn forget(&self, entry: &Queued) -> Result<(), Failure> {
        let command = Command::ForgetDeletion(Box::new(entry.to_forget()));
        self.environment.execute(command, false).await.map(|_| ())
    }

    /// The object was deleted a moment ago.
    pub(super) async fn forget_deleted(&self, entry: &Queued) -> Result<(), Failure> {
        let (link, key) = (entry.link, entry.key.clone());
        let directory = self.environment.read(move |view| listed(view, link, &key)).await?;
        // A listing that does not run now begins after the deletion.
        let may_show = directory.is_none_or(|directory| self.importer.is_listing(directory));
        if may_show {
            return self.forget(entry).await;
        }
        let command = Command::ObjectDeleted(Box::new(entry.to_forget()));
        self.environment.execute(command, false).await.map(|_| ())
    }
}

impl Queued {
    fn to_forget(&self) -> ForgetDeletion {
        let DeletionRecord { tag, queued, .. } = self.record.clone();
        ForgetDeletion { link: self.link, key: self.key.clone(), tag, queued }
    }
}

/// The directory that shows a key, if it has been listed, and what hides objects there may go.
fn listed(view: &dyn View, link: LinkId, key: &str) -> Result<Option<InodeId>, Failure> {
    let file_system: Option<FileSystem> =
        records::read(view, &keys::file_system()).map_err(broken)?;
    if file_system.is_none_or(|found| found.feature_level < OBJECT_DELETED_LEVEL) {
        return Ok(None);
    }
    let place = place_of_key(view, link, key).map_err(broken)?;
    let Some((directory, _)) = place else { return Ok(None) };
    let linked = match linked(view, directory) {
        // Its link is being removed, and nothing is imported there any more.
        Err(failure) if failure.kind == ErrorKind::InUse => None,
        other => other?,
    };
    Ok(linked.filter(|linked| linked.listed.is_some()).map(|linked| linked.directory))
}
