//! Files of which this mount has just met that their object changed in the bucket.
//!
//! The target that met it tells the metadata server, which looks at the object and lets the file
//! follow: tens of milliseconds. A program that was answered ESTALE and opens the file again at
//! once shall find the new content, so that an open here first waits for that news, for a while.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::{metadata::GetInode, session::Caller};
use millrace_types::{ChangeCount, InodeId};

use crate::fs::{FileSystem, REFRESH_PAUSE};

/// How often an open looks for the news, with a pause of 20 ms between: 2 s, many times what a HEAD
/// takes. Counted in looks, so that a metadata server that is away meanwhile costs none of them.
const LOOKS_MAX: u32 = 100;

/// After this time nobody waits any more: the news has come, or the bucket is away.
const FRESH: Duration = Duration::from_secs(10);

/// Files that are remembered: 100 KiB.
const FILES_MAX: usize = 2048;

/// What was met, by file.
#[derive(Debug, Default)]
pub(crate) struct ChangedObjects {
    met: Mutex<HashMap<InodeId, (ChangeCount, Instant)>>,
}

impl ChangedObjects {
    /// Remembers that the object of a file changed, of which `count` is known here.
    pub(crate) fn note(&self, inode: InodeId, count: ChangeCount) {
        let now = Instant::now();
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if met.len() >= FILES_MAX {
            met.retain(|_, (_, when)| now.duration_since(*when) < FRESH);
        }
        // One that is forgotten only costs its next reader another ESTALE.
        if met.len() < FILES_MAX {
            met.insert(inode, (count, now));
        }
    }

    /// Whether an open of the file would wait for news.
    pub(crate) fn is_met(&self, inode: InodeId) -> bool {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.get(&inode).is_some_and(|(_, when)| when.elapsed() < FRESH)
    }

    fn take(&self, inode: InodeId) -> Option<ChangeCount> {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, when) = met.remove(&inode)?;
        (when.elapsed() < FRESH).then_some(count)
    }
}

impl FileSystem {
    /// Before an open: if the file's object was just met changed, waits until the metadata server
    /// shows something else than then. Gives up quietly: the open shows what there is.
    pub(crate) async fn await_news(&self, caller: &Caller, inode: InodeId) {
        let Some(count) = self.changed.take(inode) else { return };
        for _ in 0..LOOKS_MAX {
            let request = GetInode { caller: caller.clone(), session: None, inode };
            match self.cluster.ask(&request).await {
                Ok(reply) if reply.attributes.change_count == count => {}
                Ok(_) | Err(_) => return,
            }
            tokio::time::sleep(REFRESH_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_waited_for_once() {
        let changed = ChangedObjects::default();
        changed.note(InodeId(1), ChangeCount(7));
        assert_eq!(changed.take(InodeId(2)), None);
        assert_eq!(changed.take(InodeId(1)), Some(ChangeCount(7)));
        assert_eq!(changed.take(InodeId(1)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let changed = ChangedObjects::default();
        for inode in 0..2 * FILES_MAX as u64 {
            changed.note(InodeId(inode), ChangeCount(1));
        }
        assert!(changed.met.lock().unwrap().len() <= FILES_MAX);
    }
}
