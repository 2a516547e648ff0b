//! Says of damaged clean bytes whether they could be had again, as the metadata server knows it.

use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use millrace_protocol::{
    release::{AskRelease, ReleaseAnswer},
    target::ContentName,
};
use millrace_transport::{CallOptions, Peer};

use super::ANSWER;
use crate::{cluster::Cluster, volume::Judge};

/// Asks the metadata server.
#[derive(Debug)]
pub(super) struct MetadataJudge {
    metadata: Arc<OnceLock<(Peer, Cluster)>>,
}

impl MetadataJudge {
    pub(super) fn new(metadata: Arc<OnceLock<(Peer, Cluster)>>) -> Self {
        Self { metadata }
    }

    async fn ask(&self, content: ContentName) -> Option<bool> {
        let (metadata, cluster) = self.metadata.get()?;
        // Others may serve the file by now, of which the server then speaks.
        cluster.check_may_write().ok()?;
        let request = AskRelease { contents: vec![content] };
        let reply = metadata.call(&request, CallOptions::control(ANSWER)).await.ok()?;
        reply.answers.first().copied().map(is_saved)
    }
}

impl Judge for MetadataJudge {
    fn is_saved(&self, content: ContentName) -> BoxFuture<'_, Option<bool>> {
        Box::pin(self.ask(content))
    }
}

/// Whether an answer says that the bucket has a content. It is asked first; what is pinned or
/// written to is kept for other reasons, and damaged bytes are of no use for these.
fn is_saved(answer: ReleaseAnswer) -> bool {
    match answer {
        ReleaseAnswer::MayGo | ReleaseAnswer::InUse | ReleaseAnswer::Pinned => true,
        ReleaseAnswer::Unsaved | ReleaseAnswer::Unknown => false,
    }
}
