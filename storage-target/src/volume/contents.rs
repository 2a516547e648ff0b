//! What lies on the target, chunk by chunk in the order of the keys, and what the target has seen
//! of the cluster's command log: for the check of the targets against the namespace.

use millrace_protocol::{
    cluster::LogPoint,
    fsck::{ContentPosition, ContentsPage, ListedContent},
    target::ContentName,
};

use super::{EngineError, Volume, commit::unreadable};
use crate::{
    format::{
        change::Change,
        fact::{Fact, FactNumber},
        table::{KeyRange, TableKey},
    },
    index::Key,
};

/// Entries of the index asked for at once while chunks have few sections.
const ENTRIES: usize = 256;

/// Chunks that are jumped to one by one before it is tried again to read them in a row.
const JUMPS: u32 = 64;

/// The table of sections.
pub(super) const SECTIONS: u8 = 1;

impl Volume {
    /// The chunks that are here, from `from` on: at most `limit`. Reads the index alone, and of a
    /// chunk of many sections only the first ones. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Index`].
    pub async fn contents(
        &self,
        from: ContentPosition,
        limit: u32,
    ) -> Result<ContentsPage, EngineError> {
        let until = KeyRange::table(SECTIONS).until;
        let mut page = ContentsPage::default();
        let (mut room, mut jumps) = (limit.max(1), 0_u32);
        let mut at = first_key(from);
        loop {
            let entries = if jumps > 0 { 1 } else { ENTRIES };
            jumps = jumps.saturating_sub(1);
            let scan = self.shared().index.scan(at, Some(until), entries).await?;
            let mut chunks = 0;
            let mut last = None;
            for (key, _) in &scan.entries {
                let position = position_of(key)?;
                if last == Some(position) {
                    continue;
                }
                if room == 0 {
                    page.next = Some(position);
                    return Ok(page);
                }
                push(&mut page, position);
                last = Some(position);
                (chunks, room) = (chunks + 1, room - 1);
            }
            let Some(next) = scan.next else { return Ok(page) };
            at = match last {
                None => next,
                // The rest of the sections is no news.
                Some(last) => match last.next() {
                    Some(behind) => next.max(first_key(behind)),
                    None => return Ok(page),
                },
            };
            if entries == ENTRIES && chunks * 4 < scan.entries.len() {
                jumps = JUMPS;
            }
        }
    }

    /// The newest point of the cluster's command log that the target was told. May be dropped at
    /// its await.
    ///
    /// # Errors
    /// [`EngineError::Index`].
    pub async fn log_seen(&self) -> Result<Option<LogPoint>, EngineError> {
        let key = TableKey::Fact(FactNumber::LogSeen).encode();
        let Some(value) = self.shared().index.get(&key).await? else { return Ok(None) };
        match Fact::decode(FactNumber::LogSeen, &value).map_err(unreadable)? {
            Fact::LogSeen(point) => Ok(Some(point)),
            _ => Ok(None),
        }
    }

    /// Keeps a newer point of the cluster's command log; durable with the next sync.
    ///
    /// # Errors
    /// A failure of index or journal; the point before is then kept.
    pub async fn note_log(&self, point: LogPoint) -> Result<(), EngineError> {
        let shared = self.shared();
        super::run(async move {
            shared.await_room_for_records().await?;
            shared.commit(|_| Ok(Change::Fact(Fact::LogSeen(point)))).await.map(drop)
        })
        .await
    }
}

/// Where the sections of a chunk begin.
fn first_key(position: ContentPosition) -> Key {
    KeyRange::content(position.inode, position.generation, position.chunk).from
}

fn position_of(key: &Key) -> Result<ContentPosition, EngineError> {
    match TableKey::decode(key.as_slice()).map_err(unreadable)? {
        TableKey::Section(section) => Ok(ContentPosition {
            inode: section.chunk.inode,
            generation: section.chunk.generation,
            chunk: section.chunk.index,
        }),
        other => unreachable!("the table of sections holds {other:?}"),
    }
}

/// Adds a chunk to the list.
fn push(page: &mut ContentsPage, position: ContentPosition) {
    let ContentPosition { inode, generation, chunk } = position;
    let content = ContentName { inode, generation };
    match page.contents.last_mut() {
        Some(last) if last.content == content => last.chunks.push(chunk),
        _ => page.contents.push(ListedContent { content, chunks: vec![chunk] }),
    }
}
