//! Requests of the metadata server: trim, release, presence, lists, marks, bucket checks; and the
//! reclaim queue, which this daemon asks for itself.

use std::sync::atomic::Ordering;

use millrace_object_source::Trial;
use millrace_protocol::{
    cluster::{LogPoint, LogWitness, ReclaimBatch},
    fsck::{ContentsPage, LISTED_CHUNKS_MAX, ListContents},
    requests::{CountRequests, CountsReply, RequestCounts},
    session::Done,
    target::{
        CheckBucket, ContentName, ITEMS_MAX, Item, ItemResults, MarkExported, MarkExportedAt,
        Presence, PresenceReply, Release, Tried, Trim, TrimReply, TryBucket,
    },
};
use millrace_types::{ByteLen, ErrorKind, Failure, TargetId};

use super::Daemon;
use crate::{
    links,
    store::{Hold, Store},
};

/// Contents in one presence request at most.
const CONTENTS_MAX: usize = 4096;

/// What becomes of who knows a file from before its export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Older {
    Served,
    /// Where something is absent.
    Refused,
}

impl Daemon {
    /// Drops what lies past a new size.
    pub(crate) async fn trim(&self, request: &Trim) -> Result<TrimReply, Failure> {
        let layout = request.layout.checked()?;
        self.cluster.check_may_write()?;
        let content = ContentName { inode: request.inode, generation: request.generation };
        let mut freed = 0;
        for &target in &request.targets {
            let store = self.store(target)?;
            let size = layout.chunk_size().bytes();
            freed += store.trim(content, size, request.size, request.write_epoch).await?.0;
        }
        Ok(TrimReply { freed: ByteLen(freed) })
    }

    /// Drops clean blocks, until it is over: who asked has looked at the files a moment before, and
    /// waits no longer than that look is worth.
    pub(crate) async fn release(
        &self,
        request: &Release,
        is_over: impl Fn() -> bool + Clone + Send + Sync + 'static,
    ) -> Result<ItemResults, Failure> {
        check_items(request.items.len())?;
        self.cluster.check_may_write()?;
        let store = self.store(request.target)?;
        let mut results = Vec::new();
        for item in &request.items {
            results.push(release_item(store, item, &is_over).await);
            if is_over() {
                return Err(given_up());
            }
        }
        store.volume().sync().await?;
        Ok(ItemResults { results })
    }

    /// Turns exported blocks clean, for a server whose exports begin no write epoch. What it names
    /// may be that of a cut which this target has yet to be told of.
    pub(crate) async fn mark_exported(
        &self,
        request: &MarkExported,
    ) -> Result<ItemResults, Failure> {
        self.mark(request.target, &request.items, Older::Served).await
    }

    /// Turns exported blocks clean, and refuses older write epochs from then on.
    pub(crate) async fn mark_exported_at(
        &self,
        request: &MarkExportedAt,
    ) -> Result<ItemResults, Failure> {
        self.mark(request.target, &request.items, Older::Refused).await
    }

    async fn mark(
        &self,
        target: TargetId,
        items: &[Item],
        older: Older,
    ) -> Result<ItemResults, Failure> {
        check_items(items.len())?;
        self.cluster.check_may_write()?;
        let store = self.store(target)?;
        let mut results = Vec::new();
        for item in items {
            results.push(mark_item_exported(store, item, older).await);
        }
        store.volume().sync().await?;
        Ok(ItemResults { results })
    }

    /// Tells how much is present.
    pub(crate) async fn presence(&self, request: &Presence) -> Result<PresenceReply, Failure> {
        if request.contents.len() > CONTENTS_MAX {
            let words = format!("more than {CONTENTS_MAX} contents in one request");
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        let volume = self.store(request.target)?.volume();
        let present = volume.presence(&request.contents).await?;
        Ok(PresenceReply { present })
    }

    /// Lists what lies on a target.
    pub(crate) async fn list_contents(
        &self,
        request: &ListContents,
    ) -> Result<ContentsPage, Failure> {
        let limit = request.chunks_max.clamp(1, LISTED_CHUNKS_MAX);
        self.store(request.target)?.contents(request.from, limit).await
    }

    /// What a target has seen of the cluster's command log.
    pub(crate) async fn log_witness(&self, target: TargetId) -> Result<LogWitness, Failure> {
        let store = self.open_store(target)?;
        // If a loss of power took back what was shown, the target would pass for an older copy.
        store.volume().sync().await?;
        Ok(LogWitness { target, seen: store.log_seen().await? })
    }

    /// What a target has shown was looked at: one that is an older copy of itself serves nobody
    /// until it is not, or an operator takes it as it is. After other failures it is served as it
    /// was, and one that nobody has looked at is.
    pub(crate) fn handle_compared(&self, target: TargetId, failure: Option<&Failure>) {
        let Some(store) = self.stores.get(&target) else { return };
        match failure {
            None => {
                if let Some(why) = store.hold_back(None).map(Hold::into_words) {
                    tracing::info!(%target, why, "the target is served now");
                }
            }
            Some(failure) if failure.kind == ErrorKind::Stale => {
                let hold = Hold::Older(failure.message.clone());
                if store.hold_back(Some(hold.clone())).as_ref() != Some(&hold) {
                    tracing::error!(%target, why = failure.message, "the target is not served");
                }
            }
            Some(_) => store.end_unseen(),
        }
    }

    /// Lets a target keep what the metadata server has said of its log, after it was shown what the
    /// target saw before.
    pub(crate) async fn note_log(&self, target: TargetId, point: LogPoint) -> Result<(), Failure> {
        let store = self.open_store(target)?;
        match store.log_seen().await? {
            Some(seen) if seen == point => Ok(()),
            _ => store.note_log(point).await,
        }
    }

    /// Tells whether this host can reach a bucket.
    pub(crate) async fn check_bucket(&self, request: &CheckBucket) -> Result<Done, Failure> {
        let spec = links::spec(&request.bucket)?;
        let bucket = self.links.open(&request.bucket)?;
        let (prefix, write) = (spec.prefix().to_owned(), request.write);
        bucket.check(&prefix, write).await?;
        Ok(Done::default())
    }

    /// Tells whether this host can use a bucket, and what of that could not be tried.
    pub(crate) async fn try_bucket(&self, request: &TryBucket) -> Result<Tried, Failure> {
        let spec = links::spec(&request.bucket)?;
        let bucket = self.links.open(&request.bucket)?;
        // Deletions and uploads are the metadata server's.
        let trial = Trial { read: request.read, write: request.write, ..Trial::default() };
        let untried = bucket.try_out(spec.prefix(), trial).await?;
        let untried = untried.iter().map(ToString::to_string).collect();
        Ok(Tried { deletes: false, untried })
    }

    /// What this host asked some buckets since it began.
    pub(crate) fn count_requests(&self, request: &CountRequests) -> CountsReply {
        let counts_of = |bucket| {
            let open = self.links.open(bucket)?;
            let counters = open.counters();
            let (received, sent) = (counters.bytes_received(), counters.bytes_sent());
            Ok(RequestCounts::new(counters.by_class(), counters.failures(), received, sent))
        };
        let counts = request.buckets.iter().map(|bucket| {
            // One that cannot be opened was asked nothing.
            counts_of(bucket).unwrap_or_else(|_: Failure| RequestCounts::default())
        });
        CountsReply { counts: counts.collect() }
    }

    /// Frees a part of a target's reclaim queue; returns the position of its last entry.
    pub(crate) async fn reclaim(
        &self,
        target: TargetId,
        batch: &ReclaimBatch,
    ) -> Result<Option<u64>, Failure> {
        let Some(last) = batch.entries.iter().map(|entry| entry.position).max() else {
            return Ok(None);
        };
        let entries: Vec<_> =
            batch.entries.iter().map(|entry| (entry.inode, entry.generation)).collect();
        let freed = self.store(target)?.reclaim(&entries).await?;
        self.reclaimed_bytes.fetch_add(freed.0, Ordering::Relaxed);
        let (entries, freed_bytes) = (entries.len(), freed.0);
        tracing::debug!(%target, entries, freed_bytes, "chunks reclaimed");
        Ok(Some(last))
    }
}

async fn release_item(
    store: &Store,
    item: &Item,
    is_over: &(impl Fn() -> bool + Clone + Send + Sync + 'static),
) -> Result<ByteLen, Failure> {
    let mut freed = 0;
    for key in store.volume().chunks(name_of(item), item.first, item.count).await? {
        if is_over() {
            return Err(given_up());
        }
        let is_over = is_over.clone();
        freed += store.volume().release_while(key, move || !is_over()).await?.0;
    }
    Ok(ByteLen(freed))
}

fn given_up() -> Failure {
    Failure::new(ErrorKind::DeadlineExceeded, "nobody waits for the release any more")
}

async fn mark_item_exported(store: &Store, item: &Item, older: Older) -> Result<ByteLen, Failure> {
    let (mut marked, mut outcome) = (0, Ok(()));
    let chunk = item.content.layout.chunk_size().bytes();
    let keys = store.volume().chunks(name_of(item), item.first, item.count).await?;
    if older == Older::Refused && !keys.is_empty() {
        // Before any of it may be dropped: who knows the file from before its export would fetch
        // what is absent from the object of then, or take it for a hole.
        store.volume().refuse_older(name_of(item), item.content.write_epoch).await?;
    }
    for key in keys {
        let before = u64::from(key.index.0) * chunk;
        let backed = item.content.origin_length.saturating_sub(before).min(chunk);
        let backed = u32::try_from(backed).map_err(|_| ErrorKind::Internal)?;
        match store.mark_exported(key, backed).await {
            Ok(bytes) => marked += bytes.0,
            // Too many for one export stays so, whatever the others say.
            Err(failure) if failure.kind == ErrorKind::FileTooLarge => outcome = Err(failure),
            Err(failure) if failure.kind == ErrorKind::ObjectChanged => {
                outcome = outcome.and(Err(failure));
            }
            Err(failure) => return Err(failure),
        }
    }
    outcome.map(|()| ByteLen(marked))
}

fn name_of(item: &Item) -> ContentName {
    ContentName { inode: item.content.inode, generation: item.content.generation }
}

pub(super) fn check_items(count: usize) -> Result<(), Failure> {
    if count <= ITEMS_MAX {
        return Ok(());
    }
    Err(Failure::new(ErrorKind::InvalidArgument, format!("more than {ITEMS_MAX} items")))
}
