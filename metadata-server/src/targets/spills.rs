//! Brings bytes that live in an inode to the targets, before somebody writes the file.
//!
//! ```text
//!   open for writing ─▶ StoreInline ─▶ target: durable, and refuses the write epoch from then on
//!                          └─▶ Spilled is in the log, synced: the inode has another write epoch
//!                                 └─▶ the open goes on, with a capability for that one
//! ```
//!
//! Nobody can write the file before. A spill that ends half way, by a crash of either side, is
//! begun again by the next open: it stores the same bytes, which nobody can have changed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use millrace_protocol::{
    capability::Content,
    cluster::{Group, Map},
    target::StoreInline,
};
use millrace_service::metrics::Metrics;
use millrace_types::{ChunkIndex, ErrorKind, Failure, InodeId, SessionId, WriteEpoch};
use tokio::sync::OnceCell;

use super::peers::Peers;
use crate::{
    apply,
    command::{Command, Spilled},
    engine::{Core, Handle},
    namespace::tree,
};

use metrics::SpillMetrics;

mod metrics;

/// How long one attempt may take; the caller's own deadline decides how often it is tried again.
const ATTEMPT: Duration = Duration::from_secs(20);

/// After which a client that was told to wait tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// An attempt, for all who wait for it.
type Attempt = Arc<OnceCell<Result<(), Failure>>>;

/// The spills under way. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spills {
    engine: Handle,
    peers: Peers,
    under_way: Arc<Mutex<HashMap<InodeId, Attempt>>>,
    metrics: SpillMetrics,
}

impl Spills {
    /// Nothing is under way yet.
    #[must_use]
    pub fn new(engine: Handle, peers: Peers) -> Self {
        Self { engine, peers, under_way: Arc::default(), metrics: SpillMetrics::default() }
    }

    /// Has its counters shown.
    pub fn register_metrics(&self, metrics: &mut Metrics) {
        self.metrics.register(metrics);
    }

    /// Returns when no bytes live in the inode, for a session that wants to write there. Who comes
    /// while an attempt is under way hears how that ends.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`]; [`ErrorKind::Busy`] for whatever else keeps a target from storing
    /// them; [`ErrorKind::Lost`] where the store lacks them. The bytes stay where they are.
    pub async fn settle(&self, inode: InodeId, by: SessionId) -> Result<(), Failure> {
        let attempt = Arc::clone(self.under_way().entry(inode).or_default());
        let result = attempt.get_or_init(|| self.spill(inode, by)).await.clone();
        let mut under_way = self.under_way();
        if under_way.get(&inode).is_some_and(|present| Arc::ptr_eq(present, &attempt)) {
            under_way.remove(&inode);
        }
        result
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<InodeId, Attempt>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn spill(&self, inode: InodeId, by: SessionId) -> Result<(), Failure> {
        // On stable storage before a target hears of it, or others might be published in its place.
        let found = self.engine.durable_turn(move |core| inline(core, inode)).await?;
        let Some(Inline { content, under, bytes }) = found else {
            return Ok(());
        };
        let Content { generation, write_epoch, .. } = content;
        let len = bytes.len() as u64;
        let stored = self.store(Content { write_epoch: under, ..content.clone() }, bytes).await;
        let group = match stored {
            Ok(group) => group,
            Err(failure) => return self.not_stored(inode, &content, failure).await,
        };
        // Synced, because clients act on it: what they write next must not be found to lie behind
        // the bytes that were here before.
        let spilled = Command::Spilled(Spilled { inode, generation, write_epoch });
        let end = move |core: &mut Core| {
            if serving(&core.map().0, &content) != Some(&group) {
                return Err(wait("the file's first chunk has another place by now"));
            }
            core.execute_for(by, spilled).map(drop)
        };
        self.engine.durable_turn(end).await?;
        self.metrics.files.inc();
        self.metrics.bytes.inc_by(len);
        Ok(())
    }

    /// Has every target of the first chunk store the bytes; which they are.
    async fn store(&self, content: Content, bytes: Vec<u8>) -> Result<Group, Failure> {
        let map = self.peers.map().await?;
        let group = serving(&map, &content).ok_or(ErrorKind::Unavailable)?;
        let asks = group.targets.iter().map(|&target| {
            let request = StoreInline {
                target,
                group_epoch: group.epoch,
                content: content.clone(),
                bytes: bytes.clone(),
            };
            let host = map.host_of(target).map(|host| host.id);
            async move {
                let host = host.ok_or(ErrorKind::Unavailable)?;
                self.peers.ask(host, &request, ATTEMPT).await
            }
        });
        try_join_all(asks).await?;
        Ok(group.clone())
    }

    /// A target has not stored the bytes of this content, which may be another one by now.
    async fn not_stored(
        &self,
        inode: InodeId,
        content: &Content,
        failure: Failure,
    ) -> Result<(), Failure> {
        let version = |content: &Content| (content.generation, content.write_epoch);
        let found = self.engine.turn(move |core| inline(core, inode)).await?;
        if found.is_none_or(|found| version(&found.content) != version(content)) {
            return Ok(());
        }
        self.metrics.failed.inc();
        tracing::warn!(%inode, %failure, "a target does not store the bytes of an inode");
        Err(match failure.kind {
            ErrorKind::NoSpace => failure,
            _ => wait(&format!("a target has not stored the file's bytes yet: {failure}")),
        })
    }
}

/// Nothing has happened: whoever hears it tries again.
fn wait(text: &str) -> Failure {
    Failure::new(ErrorKind::Busy, text).retry_after(PAUSE)
}

/// The group of the first chunk, if a target serves it.
fn serving<'a>(map: &'a Map, content: &Content) -> Option<&'a Group> {
    let layout = &content.layout;
    let group = map.group(layout.pool(), layout.group(ChunkIndex(0)))?;
    (!group.targets.is_empty()).then_some(group)
}

/// Bytes that live in an inode.
#[derive(Debug)]
struct Inline {
    /// The content that they are. What a bucket has of it is not mentioned: what the targets get
    /// was written here.
    content: Content,
    /// The write epoch under which the targets get them.
    under: WriteEpoch,
    bytes: Vec<u8>,
}

fn inline(core: &mut Core, inode: InodeId) -> Result<Option<Inline>, Failure> {
    let found = tree::find(core.view(), inode).map_err(|error| core.failure(error.into()))?;
    let Some(inode) = found else { return Ok(None) };
    let Some(content) = inode.content() else { return Ok(None) };
    let bytes = tree::inline(core.view(), &inode).map_err(|error| core.failure(error))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let under = apply::inline::spill_epoch(core.view(), content.write_epoch);
    let under = under.map_err(|error| core.failure(error.into()))?;
    let content = Content { origin: None, origin_length: 0, ..content };
    Ok(Some(Inline { content, under, bytes }))
}

#[cfg(test)]
mod tests {
    use millrace_protocol::cluster::Pool;
    use millrace_types::{
        ChunkSize, ContentGeneration, GroupEpoch, Layout, MapEpoch, PoolId, TargetId,
    };

    use super::*;

    /// While a target is given up, its groups have none: what is stored nowhere is not stored.
    #[test]
    fn a_group_without_a_target_takes_nothing() {
        let layout = Layout::new(ChunkSize::MIN, 1, PoolId(0), 1, 0).unwrap();
        let content = Content {
            inode: InodeId(9),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout,
            origin: None,
            origin_length: 0,
            sparse: false,
        };
        let map = |targets| Map {
            epoch: MapEpoch(1),
            hosts: Vec::new(),
            targets: Vec::new(),
            pools: vec![Pool {
                id: PoolId(0),
                name: "default".to_owned(),
                groups: vec![Group { epoch: GroupEpoch(1), targets }],
            }],
        };
        assert!(serving(&map(vec![TargetId([1; 8])]), &content).is_some());
        assert_eq!(serving(&map(Vec::new()), &content), None);
    }
}
