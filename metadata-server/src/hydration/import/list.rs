//! One directory listed from its beginning to its end: pages asked for ahead, and imported.
//!
//! While a page is imported, the next ones are on their way, and they are read in other threads. A
//! page has a [`PageRoom`] from its request until it is in the tree, so that memory stays bounded
//! however fast a bucket is.
//!
//! While a snapshot of the metadata runs short of memory, a listing that no program waits for asks
//! for no further page, imports what has come, and then waits: with nothing that others need.

use std::sync::Arc;

use millrace_object_source::{Bucket, Page, tallied};
use millrace_types::{ErrorKind, Failure, Timestamp};
use tokio::task::{JoinError, JoinSet};

use super::{
    Environment, Import, Importer, Linked, Listing, Tally,
    again::Seen,
    entries,
    ranges::{Ask, Handed, Ranges},
    running::Lister,
    turns::{OfLink, PageRoom, Turn},
};
use crate::{command::BATCH_MAX, hydration::left_out::Tray};

/// A page that has come.
struct Answered {
    range: u64,
    /// When it was asked for.
    asked: Timestamp,
    page: Page,
    /// Given back when it is imported, or waits for that.
    room: Option<PageRoom>,
}

/// Pages that are on their way.
type Pages = JoinSet<Result<Answered, Failure>>;

impl<E: Environment> Importer<E> {
    /// Lists a directory, and says how far that is whenever there is more.
    pub(super) async fn list(
        self: &Arc<Self>,
        linked: &Linked,
        lister: &Lister,
    ) -> Result<Tally, Failure> {
        let is_first = linked.listed.is_none();
        let (tally, is_whole) = self.list_once(linked, lister).await?;
        // The next look finds what an export has told of by then.
        if is_first && !is_whole {
            return Ok(tally);
        }
        if self.mark_listed(linked.directory).await? || !is_first {
            return Ok(tally);
        }
        // Others wait until it counts as listed. Only what changed is imported now.
        let again = Linked { listed: Some(self.environment.now()), ..linked.clone() };
        let (tally, is_whole) = self.list_once(&again, lister).await?;
        if is_whole && !self.mark_listed(linked.directory).await? {
            // Imports are asked for faster than it is listed: the next look begins anew.
            tracing::debug!(directory = %linked.directory, "a listing was outrun twice");
        }
        Ok(tally)
    }

    /// The same, once. Also says whether all that was found is in the tree.
    async fn list_once(
        self: &Arc<Self>,
        linked: &Linked,
        lister: &Lister,
    ) -> Result<(Tally, bool), Failure> {
        let turns = self.turns.of(linked.link);
        let mut turn = turns.listing().await?;
        self.begin_listing(linked.directory).await;
        let bucket = self.bucket(&linked.bucket)?;
        let again = linked.listed.is_some();
        let mut tally = Tally::default();
        let mut left_out = Tray::default();
        let mut is_whole = true;
        let mut seen = Seen::default();
        let mut ranges = Ranges::new(bucket.lists_ranges());
        // Dropped at a failure, it gives up what is on its way.
        let mut pages = Pages::new();
        self.ask(&bucket, linked, &mut ranges, &mut pages);
        loop {
            if pages.is_empty() && !ranges.is_done() {
                turn = self.give_way_without(&turns, turn, false, lister).await?;
                self.ask(&bucket, linked, &mut ranges, &mut pages);
            }
            let Some(answered) = pages.join_next().await else { break };
            let Answered { range, asked, mut page, mut room } = joined(answered)?;
            let handed = ranges.handle(range, &linked.prefix, &mut page);
            let handed = handed.map_err(|_| no_end(linked))?;
            if !self.is_held_up(lister) {
                self.ask(&bucket, linked, &mut ranges, &mut pages);
            }
            if handed == Handed::BeginsAgain {
                (tally, left_out) = (Tally::default(), Tray::default());
                continue;
            }
            let mut found = entries::of_page(&page, linked);
            left_out.add_page(page.skipped, &page.left_out);
            tally.names += found.len() as u64;
            tally.bytes += found.iter().map(|found| found.bytes()).sum::<u64>();
            if again {
                seen.add(&found);
            }
            while !found.is_empty() {
                let rest = found.split_off(found.len().min(BATCH_MAX));
                let batch = std::mem::replace(&mut found, rest);
                let import = self.import_page(&bucket, linked, asked, batch, &mut left_out).await?;
                is_whole &= import == Import::Whole;
                if !found.is_empty() && self.is_held_up(lister) {
                    // Left to the pages of those who do not wait.
                    room = None;
                    let holds = !pages.is_empty();
                    turn = self.give_way_without(&turns, turn, holds, lister).await?;
                }
            }
            drop(room);
            tally.left_out = left_out.keys();
            if !ranges.is_done() {
                lister.tell(Listing::Growing(tally));
            }
        }
        // Subdirectories are listed for it too: with turns of their own.
        drop(turn);
        let mut followed = Ok(());
        if again {
            self.counts.refreshes.inc();
            followed = self.follow_missing(linked, seen, &mut left_out).await;
            tally.left_out = left_out.keys();
        }
        tell_left_out(linked, &left_out);
        left_out.keep(&*self.environment, linked.directory).await?;
        followed?;
        Ok((tally, is_whole))
    }

    /// Asks for the pages that may be on their way.
    fn ask(
        self: &Arc<Self>,
        bucket: &Arc<Bucket>,
        linked: &Linked,
        ranges: &mut Ranges,
        pages: &mut Pages,
    ) {
        while let Some(ask) = ranges.next() {
            let page = Arc::clone(self).page(Arc::clone(bucket), linked.clone(), ask);
            pages.spawn(tallied(page));
        }
    }

    /// How many more directories may be listed at this moment.
    #[cfg(test)]
    pub(in crate::hydration) fn listings_left(&self, link: millrace_types::LinkId) -> usize {
        self.turns.of(link).listings_left()
    }

    /// Lets a snapshot get ahead, with the turn left to others meanwhile: the job that wanted the
    /// listing may be gone, and its turn be another one's. Who holds pages may wait for no turn.
    async fn give_way_without(
        &self,
        turns: &OfLink,
        turn: Turn,
        holds_pages: bool,
        lister: &Lister,
    ) -> Result<Turn, Failure> {
        if !self.is_held_up(lister) {
            return Ok(turn);
        }
        if holds_pages {
            self.give_way(lister).await;
            return Ok(turn);
        }
        drop(turn);
        self.give_way(lister).await;
        turns.listing().await
    }

    /// Whether a snapshot is to get ahead of a listing that has time.
    fn is_held_up(&self, lister: &Lister) -> bool {
        lister.has_time() && self.environment.is_pressed()
    }

    /// Lets a snapshot get ahead, until a program waits for the listing.
    async fn give_way(&self, lister: &Lister) {
        tokio::select! {
            () = lister.wanted() => {}
            () = self.environment.give_way() => {}
        }
    }

    /// Asks for one page, when there is room for it.
    async fn page(
        self: Arc<Self>,
        bucket: Arc<Bucket>,
        linked: Linked,
        ask: Ask,
    ) -> Result<Answered, Failure> {
        let room = self.turns.of(linked.link).page().await?;
        let asked = self.environment.now();
        let page = bucket.list_directory(&linked.prefix, ask.after.as_ref()).await?;
        Ok(Answered { range: ask.range, asked, page, room: Some(room) })
    }
}

fn tell_left_out(linked: &Linked, left_out: &Tray) {
    if left_out.keys() > 0 {
        let (keys, example) = (left_out.keys(), left_out.example());
        tracing::warn!(link = %linked.link, prefix = %linked.prefix, keys, example,
            "keys that cannot be file names are left out");
    }
}

fn joined(answered: Result<Result<Answered, Failure>, JoinError>) -> Result<Answered, Failure> {
    answered.map_err(|_| ErrorKind::Cancelled)?
}

fn no_end(linked: &Linked) -> Failure {
    let text = format!("the bucket's listing of {:?} has no end", linked.prefix);
    Failure::new(ErrorKind::BucketUnavailable, text)
}
