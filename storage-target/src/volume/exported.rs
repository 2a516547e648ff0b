//! What exports have read, and the bucket has since.

use std::collections::HashMap;

use millrace_types::{BlockState, ByteLen, ChunkKey};

use super::{EngineError, Volume, remove::AtDamage, sections::split_block};

/// The version that each block of a chunk had when it was handed to an export.
pub type ExportedBlocks = HashMap<u16, u64>;

impl Volume {
    /// Turns written blocks clean that are still those of `exported`; returns their bytes. The
    /// caller syncs.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn mark_exported(
        &self,
        key: ChunkKey,
        exported: &ExportedBlocks,
    ) -> Result<ByteLen, EngineError> {
        // Not all that a chunk can have: a small file has its blocks in one.
        let sections = exported.keys().map(|&block| split_block(block).0);
        let Some(numbers) = sections.clone().min().zip(sections.max()) else {
            return Ok(ByteLen(0));
        };
        let exported = exported.clone();
        let restate = move |at, fingerprint: u64, state| {
            let same = exported.get(&at) == Some(&fingerprint);
            (same && state == BlockState::Written).then_some(BlockState::Clean)
        };
        self.restate(key, numbers.0..=numbers.1, AtDamage::Fail, restate).await
    }
}
