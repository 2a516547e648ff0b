//! Bytes of the bucket that the disk has not kept as they were.
//!
//! They are fetched again, and for that what is here of their block is dropped: also the pages
//! around that are sound. So the bucket is asked first. Where it has another version by now, or
//! does not answer, the block stays: what can be read of it can be read from nowhere else. What was
//! asked of one block counts for no other that has come into its place, and not for long.

use std::time::Instant;

use millrace_types::{BlockState, Failure};

use super::Store;
use crate::{
    format::units::BLOCK_PAGES, parts::BLOCK, release::ANSWER_COUNTS, view::ChunkView,
    volume::EngineError,
};

/// What the disk fails to read now of what a request is about.
#[derive(Debug)]
enum Unread {
    /// This block, which the bucket may have.
    Block(u16),
    /// Perhaps a block that no bucket has.
    Kept,
    /// Nothing any more.
    Nothing,
}

impl Store {
    /// Drops a clean block that is damaged, or that the disk fails to read, if that is why
    /// something failed that was about some `blocks`, and the bucket still has the version that the
    /// view names. It can then be tried again; so it can where the disk reads all of them by now.
    ///
    /// # Errors
    /// Why it failed, if that is another reason; those of the bucket.
    pub(super) async fn give_up_damaged(
        &self,
        view: &ChunkView,
        blocks: impl IntoIterator<Item = u16>,
        error: EngineError,
    ) -> Result<(), Failure> {
        let block = match &error {
            EngineError::Corrupt { block, clean: true, .. } if is_backed(view, *block) => *block,
            EngineError::Disk(failed) if failed.is_failed_read() => {
                match self.unread(view, blocks.into_iter().collect()).await? {
                    Unread::Block(block) => block,
                    Unread::Kept => return Err(error.into()),
                    Unread::Nothing => return Ok(()),
                }
            }
            _ => return Err(error.into()),
        };
        let seen = self.volume.snapshot(view.key, block..block + 1).await?.fingerprint(block);
        self.hydrator.check_object(view).await?;
        // Its turn comes behind writers and a disk that may hang.
        let answered = Instant::now();
        let may_go = move |found: u64| found == seen && answered.elapsed() < ANSWER_COUNTS;
        Ok(self.volume.drop_clean_if(view.key, block, may_go).await?)
    }

    /// Looks at some blocks one by one. Each is read for this alone: what others read meanwhile may
    /// fail because of another block, and a sound one must not go for that.
    async fn unread(&self, view: &ChunkView, blocks: Vec<u16>) -> Result<Unread, Failure> {
        let mut unread = Unread::Nothing;
        for block in blocks {
            let snapshot = self.volume.snapshot(view.key, block..block + 1).await?;
            if snapshot.page_count(block) == 0 {
                continue;
            }
            if snapshot.state(block) != BlockState::Clean || !is_backed(view, block) {
                unread = Unread::Kept;
                continue;
            }
            let pages = u32::from(BLOCK_PAGES);
            let loaded = self.volume.load_alone(&snapshot, u32::from(block) * pages, pages).await;
            // What else is wrong with it the next attempt meets.
            if matches!(&loaded, Err(EngineError::Disk(failed)) if failed.is_failed_read()) {
                return Ok(Unread::Block(block));
            }
        }
        Ok(unread)
    }
}

fn is_backed(view: &ChunkView, block: u16) -> bool {
    u32::from(block) * BLOCK < view.backed
}
