//! Tells the metadata server of objects that a fetch found changed or gone.
//!
//! Whoever meets such an object notes its content here and goes on. A task of its own sends what
//! was noted, in batches, over the connection that carries the heartbeats. The next fetch of the
//! same content finds the same, so that nothing is lost for good.

use std::time::{Duration, Instant};

use millrace_protocol::{
    cluster::{CHANGED_CONTENTS_MAX, ReportChanged},
    target::ContentName,
};
use millrace_transport::{CallOptions, Peer};
use millrace_types::{ChunkKey, ErrorKind, Failure};

use crate::noted::Noted;

/// Contents that are remembered, waiting or told: 80 bytes each, 1.5 MiB at most with the tables.
const REMEMBERED_MAX: usize = 16 * 1024;

/// A content is told of again after this time: the server may have been restarted, or have found
/// the bucket away.
const AGAIN: Duration = Duration::from_secs(1);

/// How long one report may take, and the pause after one that failed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// The contents that were noted. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    noted: Noted<ContentName>,
}

impl Default for Changed {
    fn default() -> Self {
        Self { noted: Noted::new(REMEMBERED_MAX, AGAIN) }
    }
}

impl Changed {
    /// Notes the content of a chunk if `outcome` says that its object changed.
    pub(crate) fn note<T>(&self, key: ChunkKey, outcome: &Result<T, Failure>) {
        if matches!(outcome, Err(failure) if failure.kind == ErrorKind::ObjectChanged) {
            let content = ContentName { inode: key.inode, generation: key.generation };
            self.noted.insert(content, Instant::now());
        }
    }

    /// Sends what is noted, until it is dropped.
    pub(crate) async fn report(self, metadata: Peer) {
        loop {
            let contents = self.noted.take(CHANGED_CONTENTS_MAX, Instant::now());
            if contents.is_empty() {
                self.noted.news().await;
                continue;
            }
            let request = ReportChanged { contents };
            match metadata.call(&request, CallOptions::control(PATIENCE)).await {
                Ok(_) => {
                    tracing::info!(
                        contents = request.contents.len(),
                        "objects are not the recorded version any more: told the metadata server"
                    );
                }
                Err(failure) if failure.kind.is_transient() => {
                    tracing::debug!(%failure, "changed objects cannot be told of now");
                    self.noted.put_back(request.contents);
                    tokio::time::sleep(PAUSE).await;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "the metadata server refuses to hear of changes");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}
