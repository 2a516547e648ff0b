//! Has targets take the blocks of an exported file for the object's, so that they may be dropped.
//!
//! ```text
//!   object stands ─▶ MarkExportedAt ─▶ all blocks are those that were read ─▶ it is forgotten
//!                         ├─▶ a target is away, or from before it ─▶ asked again until it answers
//!                         └─▶ some are not, or a target was restarted and does not know any
//!                             more, or had to remember others ─▶ the file is dirty again, and is
//!                             sent once more (unless it has more blocks than a target remembers
//!                             of one file: it then keeps them until it is exported again)
//! ```
//!
//! Targets remember what was read last of a block, and not for which export. So they are asked only
//! while the file is still what the export made of it: once somebody has opened it for writing, or
//! another export has begun, nothing is marked, and the file's next export does it.
//!
//! A target daemon from before `MarkExportedAt` would make blocks clean and keep no epoch, so that
//! readers from before the export could take what is dropped later for something else: it does not
//! know the request, and is asked again until it was upgraded.
//!
//! Until then the export's record stays, and the file counts as dirty in reports: what was killed
//! in the middle is found again by it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::{
    capability::{Content, Origin},
    target::Item,
};
use millrace_types::{ErrorKind, Failure, InodeId};
use tokio::sync::Notify;

use super::{
    Environment,
    dispatch::{Task, ask},
    settle::Export,
};
use crate::{
    command::Command,
    hydration::{
        import::broken,
        spread::{places_of, runs},
    },
    namespace::{Body, Inode, ObjectState, tree},
    store::{
        keys,
        records::{self, Export as Record},
    },
};

/// Exports of which a target could not be told. One per server.
#[derive(Debug, Default)]
pub(super) struct Unmarked {
    waiting: Mutex<Waiting>,
    news: Notify,
    /// Held while targets are asked for one of them.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    exports: VecDeque<Export>,
    /// The file that targets are being asked for.
    asked: Option<InodeId>,
}

/// What became of the marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// They are set, or will be.
    Known,
    /// Some are missing: the file is dirty again.
    Missing,
}

/// As many exports are remembered; others are found by their records when the server starts again.
const WAITING_MAX: usize = 10_000;

/// Between two that failed.
const PAUSE: Duration = Duration::from_secs(2);

impl Unmarked {
    /// They are asked again, at once and later.
    pub(super) fn put(&self, export: Export) {
        let mut waiting = self.waiting();
        let exports = &mut waiting.exports;
        if exports.len() < WAITING_MAX && !exports.iter().any(|known| known.id == export.id) {
            exports.push_back(export);
            self.news.notify_one();
        }
    }

    /// Asks again for those that failed, one after the other, for as long as it is polled.
    pub(super) async fn ask_again<E: Environment>(&self, environment: &Arc<E>) {
        loop {
            let turn = self.asking.lock().await;
            let next = self.next();
            let Some(export) = next else {
                drop(turn);
                self.news.notified().await;
                continue;
            };
            match mark(environment, &export).await {
                Ok(()) => forget(environment, &export).await,
                Err(failure) if failure.kind == ErrorKind::ObjectChanged => {
                    reopen(environment, &export).await;
                }
                Err(Failure { kind: ErrorKind::Stale | ErrorKind::FileTooLarge, .. }) => {
                    forget(environment, &export).await;
                }
                Err(failure) => {
                    tracing::debug!(inode = %export.inode, %failure, "not known everywhere yet");
                    self.put(export);
                    drop(turn);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// The file is exported once more: nobody is asked for its earlier exports any more. What is
    /// being asked is waited for, because it could take what the new export reads for the object's.
    /// May be dropped at its await.
    pub(super) async fn leave(&self, inode: InodeId) {
        let is_asked = {
            let mut waiting = self.waiting();
            waiting.exports.retain(|export| export.inode != inode);
            waiting.asked == Some(inode)
        };
        if is_asked {
            let _turn = self.asking.lock().await;
            // It failed, and was put back.
            self.waiting().exports.retain(|export| export.inode != inode);
        }
    }

    fn next(&self) -> Option<Export> {
        let mut waiting = self.waiting();
        let next = waiting.exports.pop_front();
        waiting.asked = next.as_ref().map(|export| export.inode);
        next
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the targets take their blocks for the object's, now or when they are back.
pub(super) async fn set<E: Environment>(
    environment: &Arc<E>,
    unmarked: &Unmarked,
    export: &Export,
) -> Marks {
    match mark(environment, export).await {
        Ok(()) => forget(environment, export).await,
        Err(failure) if failure.kind == ErrorKind::Stale => forget(environment, export).await,
        Err(failure) if failure.kind == ErrorKind::ObjectChanged => {
            tracing::info!(inode = %export.inode, %failure, "is exported once more");
            reopen(environment, export).await;
            return Marks::Missing;
        }
        Err(failure) if failure.kind == ErrorKind::FileTooLarge => {
            tracing::warn!(inode = %export.inode, %failure, "exported, but cannot be released");
            forget(environment, export).await;
        }
        Err(failure) => {
            tracing::warn!(inode = %export.inode, %failure, "targets do not know of an export yet");
            unmarked.put(export.clone());
        }
    }
    Marks::Known
}

async fn mark<E: Environment>(environment: &Arc<E>, export: &Export) -> Result<(), Failure> {
    let content = exported(&**environment, export).await?.ok_or(ErrorKind::Stale)?;
    let size = content.origin_length;
    let map = environment.map().await?;
    let mut outcome = Ok(());
    for item in runs(&content, size) {
        for place in places_of(&map, &item, size)?.into_keys() {
            let one: Vec<Item> = vec![item.clone()];
            let reply = ask(&**environment, place, Task::MarkExported, one).await?;
            for result in reply.results {
                match result {
                    // Too many for one export stays so, whatever others say.
                    Err(failure) if failure.kind == ErrorKind::FileTooLarge => {
                        outcome = Err(failure);
                    }
                    Err(failure) if failure.kind == ErrorKind::ObjectChanged => {
                        outcome = outcome.and(Err(failure));
                    }
                    other => drop(other?),
                }
            }
        }
    }
    outcome
}

/// The content that the export put into the bucket, if the file still has it.
async fn exported<E: Environment>(
    environment: &E,
    export: &Export,
) -> Result<Option<Content>, Failure> {
    let export = export.clone();
    let query = environment.read(move |view| {
        if view.get(&keys::trim(export.inode)).map_err(broken)?.is_some() {
            // What is told of the export would pass for that of the cut, which is older.
            let words = "targets have not cut the file yet to the size that was exported";
            return Err(Failure::new(ErrorKind::Unavailable, words));
        }
        let record: Option<Record> =
            records::read(view, &keys::export(export.inode)).map_err(broken)?;
        let inode = tree::find(view, export.inode).map_err(broken)?;
        let inode = inode.filter(|inode| is_as_exported(inode, &export, record.as_ref()));
        Ok(inode.and_then(|inode| inode.content()))
    });
    query.await
}

/// Whether nobody has opened a file for writing since the export read it, or has begun another one.
/// Its owner, mode and times may be others, and so its change count. Before feature level 9 there
/// is no record of an export whose object stands.
fn is_as_exported(inode: &Inode, export: &Export, record: Option<&Record>) -> bool {
    let Body::File(file) = &inode.body else { return false };
    let is_its = |record: &Record| record.id == export.id && record.generation == file.generation;
    let is_there = |origin: &Origin| (origin.link, &origin.key) == (export.link, &export.key);
    file.state == ObjectState::Exported
        && record.is_none_or(is_its)
        && file.origin.as_ref().is_some_and(is_there)
}

/// All that is to be known of it is.
async fn forget<E: Environment>(environment: &Arc<E>, export: &Export) {
    let forget = Command::AbortExport { inode: export.inode, export: export.id };
    if let Err(failure) = environment.execute(forget, false).await {
        // The next start asks the targets again, who answer the same.
        tracing::debug!(inode = %export.inode, %failure, "an export stays known");
    }
}

async fn reopen<E: Environment>(environment: &Arc<E>, export: &Export) {
    let reopen = Command::ReopenExport { inode: export.inode, export: export.id };
    if let Err(failure) = environment.execute(reopen, true).await
        && failure.kind != ErrorKind::NotFound
    {
        tracing::warn!(inode = %export.inode, %failure, "a file cannot be exported again now");
    }
}
