//! What is absent is fetched: for jobs, and before anybody asks.
//!
//! All of it happens on the runtime of the buckets. Of each file it is waited until its bytes have
//! come, and until they are stored: to wake another thread twice for that took a tenth of the
//! target's time for a small file.

use std::{sync::Arc, time::Instant};

use futures::{StreamExt, stream};
use millrace_object_source::tallied;
use millrace_protocol::{
    ahead::FetchAhead,
    target::{Hydrate, Item, ItemResults},
};
use millrace_types::{ByteLen, ChunkIndex, ErrorKind, Failure, TargetId};
use tokio::task::JoinSet;

use super::{Daemon, control::check_items};
use crate::{
    background::Background,
    cluster::Cluster,
    store::{Behind, Store},
    view::ChunkView,
};

/// Items of a request that are looked at together; each waits for its turns.
const ITEMS_AT_A_TIME: usize = 64;

/// What the items of one request have in common.
#[derive(Clone)]
struct Work {
    store: Store,
    target: TargetId,
    asked: Instant,
    behind: Behind,
    background: Arc<Background>,
    cluster: Cluster,
}

impl Daemon {
    /// Fetches what is absent and backed.
    pub(crate) async fn hydrate(&self, request: Hydrate) -> Result<ItemResults, Failure> {
        self.bring(request.target, request.items, Behind::Job).await
    }

    /// Fetches likewise, behind what readers wait for, and only while there is room.
    pub(crate) async fn fetch_ahead(&self, request: FetchAhead) -> Result<ItemResults, Failure> {
        self.bring(request.target, request.items, Behind::Readers).await
    }

    async fn bring(
        &self,
        target: TargetId,
        items: Vec<Item>,
        behind: Behind,
    ) -> Result<ItemResults, Failure> {
        check_items(items.len())?;
        let work = Work {
            store: self.store(target)?.clone(),
            target,
            asked: Instant::now(),
            behind,
            background: Arc::clone(&self.background),
            cluster: self.cluster.clone(),
        };
        let runtime = work.store.hydrator().runtime().clone();
        let all = stream::iter(items)
            .map(move |item| work.clone().bring(item))
            .buffered(ITEMS_AT_A_TIME)
            .collect();
        // Ended with the request that it is for; what was asked of the bucket goes on.
        let mut tasks = JoinSet::new();
        tasks.spawn_on(tallied(all), &runtime);
        // Only when the daemon stops is there no answer.
        let ended = tasks.join_next().await.and_then(Result::ok);
        Ok(ItemResults { results: ended.ok_or(ErrorKind::Unavailable)? })
    }
}

impl Work {
    async fn bring(self, item: Item) -> Result<ByteLen, Failure> {
        let _turns = self.background.turns(&item.content).await?;
        let content = item.content.checked()?;
        let chunks = content.origin_length.div_ceil(content.layout.chunk_size().bytes());
        let end = u64::from(item.first.0).saturating_add(u64::from(item.count)).min(chunks);
        let mut fetched = 0;
        for index in u64::from(item.first.0)..end {
            let index = ChunkIndex(u32::try_from(index).map_err(|_| ErrorKind::FileTooLarge)?);
            let map = self.cluster.map_with(&content.layout, index).await?;
            let group = map.group(content.layout.pool(), content.layout.group(index));
            // Chunks of other targets are passed over.
            if group.is_some_and(|group| group.targets.contains(&self.target)) {
                if self.cluster.has_moved_since(&content.layout, index, self.asked) {
                    let words = "others had the chunk when this was asked: ask again";
                    return Err(Failure::new(ErrorKind::StaleGroup, words));
                }
                let view = ChunkView::new(&content, index);
                fetched += self.store.hydrate(&view, self.behind).await?.0;
            }
        }
        Ok(ByteLen(fetched))
    }
}
