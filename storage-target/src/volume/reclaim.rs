//! Freeing what has no file any more. It is durable when it returns, because the metadata server
//! forgets then what there was to free.
//!
//! A leaf of the index that cannot be read must not be in the way of everything behind it, so it is
//! gone round in the end, and what it holds stays. But a path that fails over, or a controller that
//! is reset, shows whole disks so for a minute or two: that is waited for.

use millrace_types::{ByteLen, ContentGeneration, InodeId, WriteEpoch};

use super::{
    EngineError, Shared, Volume,
    checkpoint::{Attempts, PATIENCE, PATIENCE_PRESSED},
    remove::AtDamage,
    run,
};
use crate::{
    format::{change::Change, mark::Mark, table::KeyRange},
    page_checksum::PAGE,
};

impl Volume {
    /// Frees every chunk of each inode up to and with the generation named. Returns the bytes
    /// freed. What cannot be read of the index stays as it is and counts as done, so that it is not
    /// in the way of everything else; what the disk fails to read is waited for before, once, for
    /// 5 minutes.
    ///
    /// # Errors
    /// A failure of journal or checkpoint, or of a disk that reads nothing any more; it must then
    /// be done again.
    pub async fn reclaim(
        &self,
        entries: &[(InodeId, ContentGeneration)],
    ) -> Result<ByteLen, EngineError> {
        self.reclaim_until(entries, AtDamage::GoRoundUnread).await
    }

    /// The same for who cannot wait for long: 20 s.
    ///
    /// # Errors
    /// As [`Self::reclaim`], and what the disk still fails to read by then.
    pub async fn reclaim_soon(
        &self,
        entries: &[(InodeId, ContentGeneration)],
    ) -> Result<ByteLen, EngineError> {
        self.reclaim_until(entries, AtDamage::GoRound).await
    }

    async fn reclaim_until(
        &self,
        entries: &[(InodeId, ContentGeneration)],
        at_last: AtDamage,
    ) -> Result<ByteLen, EngineError> {
        let shared = self.shared();
        let entries = entries.to_vec();
        run(async move {
            let (mut pages, mut attempts) = (0, None);
            for (inode, last) in entries {
                pages += shared.reclaim(inode, last, at_last, &mut attempts).await?;
            }
            shared.sync().await?;
            Ok(ByteLen(pages * PAGE as u64))
        })
        .await
    }
}

impl Shared {
    /// Frees what an inode has up to a generation; returns the pages. `at_last` is what is done
    /// about what the disk fails to read, after the last of the attempts, which begin with the
    /// first failure. A disk that reads nothing at all says nothing of what it has: that is an
    /// error, or everything would stay and count as done.
    async fn reclaim(
        &self,
        inode: InodeId,
        last: ContentGeneration,
        at_last: AtDamage,
        attempts: &mut Option<Attempts>,
    ) -> Result<u64, EngineError> {
        let patience = match at_last {
            AtDamage::GoRoundUnread => PATIENCE,
            AtDamage::GoRound | AtDamage::Fail => PATIENCE_PRESSED,
        };
        let (mut freed, mut damage) = (0, AtDamage::GoRound);
        loop {
            self.await_room_for_records().await?;
            match self.try_reclaim(inode, last, damage, &mut freed).await {
                Err(error) if damage != AtDamage::GoRoundUnread && is_failed_read(&error) => {
                    // Without the inode's turn, which others have as well.
                    let begin = || Attempts::begin(&self.clock, patience);
                    if attempts.get_or_insert_with(begin).again().await {
                        continue;
                    }
                    if at_last != AtDamage::GoRoundUnread || !self.can_read().await {
                        return Err(error);
                    }
                    damage = at_last;
                }
                done => return done.map(|()| freed),
            }
        }
    }

    async fn try_reclaim(
        &self,
        inode: InodeId,
        last: ContentGeneration,
        damage: AtDamage,
        freed: &mut u64,
    ) -> Result<(), EngineError> {
        let _turn = self.inode_turn(inode).write().await;
        // Nothing of these generations is accepted any more, however late it arrives. The mark
        // comes first: who finds a block absent because it went here finds the mark as well.
        let generation = ContentGeneration(last.0.saturating_add(1));
        let mark = Mark { generation, write_epoch: WriteEpoch(0) };
        match self.mark(inode).await {
            Ok(known) if known >= mark => {}
            Ok(_) => drop(self.commit(|_| Ok(Change::Mark(inode, mark))).await?),
            // The bytes go all the same.
            Err(error) if damage.passes(&error) => {
                tracing::error!(
                    target = %self.target, %inode, %error,
                    "what is accepted of an inode cannot be read, and is left as it is"
                );
            }
            Err(error) => return Err(error),
        }
        self.remove(KeyRange::inode(inode, last), damage, freed).await
    }
}

fn is_failed_read(error: &EngineError) -> bool {
    matches!(error, EngineError::Index(error) if error.is_failed_read())
}
