//! Which chunks have bytes that their bucket has too.

use millrace_types::{ByteLen, ChunkKey};

use super::{EngineError, Volume, contents::SECTIONS, remove::AtDamage};
use crate::{format::table::KeyRange, index::Key};

/// Where a look through all chunks goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanPlace(Key);

/// Some chunks with clean bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CleanPage {
    /// In the order of the index. A chunk whose records lie on two pages comes twice, with a part
    /// of its bytes each time.
    pub chunks: Vec<(ChunkKey, ByteLen)>,
    /// Where the rest begins; `None` at the end.
    pub next: Option<CleanPlace>,
}

impl Volume {
    /// Chunks with clean bytes, from a place on: those of some hundred records of the index. What
    /// cannot be read of the index is passed over: it may come next time. May be dropped at its
    /// await.
    ///
    /// # Errors
    /// [`EngineError::Index`] where the disk has ended.
    pub async fn clean_chunks(&self, from: Option<CleanPlace>) -> Result<CleanPage, EngineError> {
        let range = KeyRange::table(SECTIONS);
        let from = from.map_or(range.from, |place| place.0);
        let shared = self.shared();
        let page = shared.page_passing(from, range.until, AtDamage::GoRoundUnread).await?;
        let mut clean = CleanPage { chunks: Vec::new(), next: page.next.map(CleanPlace) };
        for (key, section) in page.sections {
            let bytes = section.held(key.section).clean;
            match clean.chunks.last_mut() {
                _ if bytes.0 == 0 => {}
                Some((chunk, sum)) if *chunk == key.chunk => sum.0 += bytes.0,
                _ => clean.chunks.push((key.chunk, bytes)),
            }
        }
        Ok(clean)
    }
}
