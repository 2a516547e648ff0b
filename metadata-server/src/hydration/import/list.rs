//! One directory listed from its beginning to its end: pages asked for ahead, and imported.
//!
//! While a page is imported, the next ones are on their way, and they are read in other threads. A
//! page counts against [`PAGES_MAX`](super::PAGES_MAX) from its request until it is in the tree, so
//! that memory stays bounded however fast a bucket is.

use std::{collections::HashSet, sync::Arc};

use millrace_object_source::{
    Bucket, Continuation, Entry, EntryKind, Error as BucketError, Page, tallied,
};
use millrace_protocol::left_out::LeftOutReason;
use millrace_types::{ErrorKind, Failure, FileName, Timestamp};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    task::JoinSet,
};

use super::{
    Environment, Importer, Linked, Listing, Tally,
    again::Seen,
    entries,
    ranges::{Ask, Ranges, on_the_edge},
};
use crate::{
    command::{BATCH_MAX, Command},
    hydration::left_out::Tray,
};

/// A page that has come.
struct Answered {
    range: u64,
    /// When it was asked for.
    asked: Timestamp,
    page: Page,
    /// Directories that the bucket may not show to who begins where this page does.
    around: Vec<Entry>,
    /// Given back when it is imported.
    _room: OwnedSemaphorePermit,
}

impl<E: Environment> Importer<E> {
    /// Lists a directory, and says how far that is whenever there is more.
    pub(super) async fn list(
        self: &Arc<Self>,
        linked: &Linked,
        told: &watch::Sender<Listing>,
    ) -> Result<Tally, Failure> {
        let permit = self.listings.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        let bucket = self.bucket(&linked.bucket)?;
        let again = linked.listed.is_some();
        let mut tally = Tally::default();
        let mut left_out = Tray::default();
        let mut seen = Seen::default();
        let mut ranges = Ranges::new(bucket.lists_ranges());
        // Directories that were found beside the listing: few, and told once.
        let mut known: HashSet<FileName> = HashSet::new();
        // Dropped at a failure, it gives up what is on its way.
        let mut pages = JoinSet::new();
        loop {
            while let Some(ask) = ranges.next() {
                let page = Arc::clone(self).page(Arc::clone(&bucket), linked.prefix.clone(), ask);
                pages.spawn(tallied(page));
            }
            let Some(answered) = pages.join_next().await else { break };
            let answered = answered.map_err(|_| ErrorKind::Cancelled)?;
            let Answered { range, asked, mut page, around, _room } = answered?;
            ranges.handle(range, &linked.prefix, &mut page).map_err(|_| no_end(linked))?;
            while let Some(ask) = ranges.next() {
                let page = Arc::clone(self).page(Arc::clone(&bucket), linked.prefix.clone(), ask);
                pages.spawn(tallied(page));
            }
            let is_told =
                |entry: &Entry| entry.kind == EntryKind::Directory && known.contains(&entry.name);
            page.entries.retain(|entry| !is_told(entry));
            known.extend(around.iter().map(|entry| entry.name.clone()));
            page.entries.extend(around);
            let (found, shadowed) = entries::of_page(&page, linked);
            left_out.add_page(page.skipped, &page.left_out);
            for key in shadowed {
                left_out.add(&key, LeftOutReason::Directory);
            }
            tally.names += found.len() as u64;
            tally.bytes += found.iter().map(|found| found.bytes()).sum::<u64>();
            if again {
                seen.add(&found);
            }
            let mut found = found;
            while !found.is_empty() {
                let rest = found.split_off(found.len().min(BATCH_MAX));
                let batch = std::mem::replace(&mut found, rest);
                self.import_page(&bucket, linked, asked, batch, &mut left_out).await?;
            }
            tally.left_out = left_out.keys();
            if !ranges.is_done() {
                told.send_replace(Listing::Growing(tally));
            }
        }
        if left_out.keys() > 0 {
            let example = left_out.example();
            tracing::warn!(link = %linked.link, prefix = %linked.prefix, keys = tally.left_out,
                example, "keys that cannot be file names are left out");
        }
        left_out.keep(&*self.environment, linked.directory).await?;
        // Subdirectories are listed for it too: with permits of their own.
        drop(permit);
        if again {
            self.counts.refreshes.inc();
            self.follow_missing(linked, seen).await?;
        }
        let listed = Command::MarkDirectoryListed(linked.directory);
        self.environment.execute(listed, false).await?;
        Ok(tally)
    }

    /// Asks for one page, when there is room for it.
    async fn page(
        self: Arc<Self>,
        bucket: Arc<Bucket>,
        prefix: String,
        ask: Ask,
    ) -> Result<Answered, Failure> {
        let pages = Arc::clone(&self.pages);
        let room = pages.acquire_owned().await.map_err(|_| ErrorKind::Cancelled)?;
        let asked = self.environment.now();
        let cut = ask.after.as_ref().and_then(Continuation::name_text);
        let (page, around) = tokio::try_join!(
            bucket.list_directory(&prefix, ask.after.as_ref()),
            around(&bucket, &prefix, cut)
        )?;
        Ok(Answered { range: ask.range, asked, page, around, _room: room })
    }
}

/// The directories on which servers disagree whether they lie behind a cut, asked for one by one.
async fn around(
    bucket: &Bucket,
    prefix: &str,
    cut: Option<&str>,
) -> Result<Vec<Entry>, BucketError> {
    let mut found = Vec::new();
    for name in cut.into_iter().flat_map(on_the_edge) {
        let Ok(parsed) = FileName::parse(name.as_bytes()) else { continue };
        if bucket.has_below(&format!("{prefix}{name}/")).await? {
            found.push(Entry { name: parsed, kind: EntryKind::Directory });
        }
    }
    Ok(found)
}

fn no_end(linked: &Linked) -> Failure {
    let text = format!("the bucket's listing of {:?} has no end", linked.prefix);
    Failure::new(ErrorKind::BucketUnavailable, text)
}
