//! Frees at once what was removed or cut a moment ago, for a change that finds no space.
//!
//! Otherwise a target hears of that with its heartbeats, when the metadata server has synced it: a
//! second or two later. Whoever writes a checkpoint over the one before would find a full target
//! until then.

use std::time::{Duration, Instant};

use millrace_protocol::cluster::{AcknowledgeReclaim, FetchReclaim};
use millrace_transport::{CallOptions, Peer};
use millrace_types::Failure;
use tokio::sync::Mutex;

use super::{ANSWER, Releaser};
use crate::cluster::Cluster;

/// The last times that somebody has looked; one does at a time.
#[derive(Debug, Default)]
pub(super) struct Removed {
    looks: Mutex<Looks>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    /// When the last one has begun, if it was in vain.
    vain: Option<Instant>,
    /// When something was freed.
    freed: Option<Instant>,
}

/// After a look in vain the next one follows so much later: so often does a target that is full of
/// what nobody has removed have the metadata server sync its log.
const PAUSE: Duration = Duration::from_millis(250);

/// For so long after something was freed whoever finds no space tries again: four looks.
const RECENT: Duration = Duration::from_secs(1);

impl Releaser {
    /// Frees what was removed before this call, if anything was; tells whether there may be room
    /// now. May be dropped at its await.
    ///
    /// # Errors
    /// When the metadata server does not answer, or the volume fails.
    pub(super) async fn free_removed(&self) -> Result<bool, Failure> {
        let Some((metadata, cluster)) = self.inner.metadata.get() else { return Ok(false) };
        let asked = Instant::now();
        let mut looks = self.inner.removed.looks.lock().await;
        // Otherwise somebody has looked for this one as well.
        if looks.vain.is_none_or(|begun| begun <= asked) {
            if let Some(begun) = looks.vain {
                tokio::time::sleep(PAUSE.saturating_sub(begun.elapsed())).await;
            }
            let begun = Instant::now();
            let found = self.look_for_removed(metadata, cluster).await;
            match found {
                Ok(true) => *looks = Looks { vain: None, freed: Some(Instant::now()) },
                // One that was not answered is one in vain, for all who wait for it.
                Ok(false) | Err(_) => looks.vain = Some(begun),
            }
            found?;
        }
        // Who found no space just before may not have tried since.
        Ok(looks.freed.is_some_and(|freed| freed.elapsed() < RECENT))
    }

    /// Frees what the metadata server has in the target's queue, if anything is; tells whether.
    async fn look_for_removed(&self, metadata: &Peer, cluster: &Cluster) -> Result<bool, Failure> {
        cluster.check_may_write()?;
        let target = self.target();
        let fetch = FetchReclaim { target, entries_max: FetchReclaim::AT_ONCE };
        let batch = metadata.call(&fetch, CallOptions::control(ANSWER)).await?;
        let Some(through) = batch.entries.iter().map(|entry| entry.position).max() else {
            return Ok(false);
        };
        let entries: Vec<_> =
            batch.entries.iter().map(|entry| (entry.inode, entry.generation)).collect();
        let freed = self.inner.volume.reclaim_soon(&entries).await?.0;
        let request = AcknowledgeReclaim { target, through };
        metadata.call(&request, CallOptions::control(ANSWER)).await?;
        tracing::info!(%target, bytes = freed, "freed at once what was removed");
        Ok(true)
    }
}
