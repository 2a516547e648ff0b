//! Giving up bytes: shrinking, reclaiming, releasing; and what a target holds of a content.
//!
//! Trims and reclaims are durable when they return, because others act on them.

use std::{collections::HashMap, ops::RangeInclusive, sync::Arc};

use bytes::Bytes;
use millrace_protocol::target::{ContentName, Present};
use millrace_types::{
    BlockState, ByteLen, ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, InodeId, WriteEpoch,
};

use super::{
    EngineError, Shared, Volume,
    commit::unreadable,
    ends::{ENDS_LEN, Ends},
    install::Cause,
    run,
    sections::{Sections, split_block, within},
    write::page_number,
};
use crate::{
    disk::AlignedBuffer,
    format::{
        change::{Change, Removal},
        mark::Mark,
        section::{SECTIONS_MAX, Section, SectionKey},
        table::{Entry, KeyRange},
        units::BLOCKS_MAX,
    },
    index::{IndexError, Key},
    page_checksum::PAGE,
    space::Purpose,
};

/// Entries of the index looked at with one request.
const SCAN_ENTRIES: usize = 256;

/// Sections changed with one journal record.
const SECTIONS_PER_RECORD: usize = 16;

/// The version that each block of a chunk had when it was handed to an export.
pub type ExportedBlocks = HashMap<u16, u64>;

impl Volume {
    /// Drops what lies past `size` of one content and refuses older write epochs from then on.
    /// Returns the bytes freed. Doing it again changes nothing, even if the file has grown again.
    ///
    /// # Errors
    /// As [`Volume::write`]; it must then be done again.
    pub async fn trim(
        &self,
        content: ContentName,
        chunk_size: u64,
        size: u64,
        write_epoch: WriteEpoch,
    ) -> Result<ByteLen, EngineError> {
        let shared = self.shared();
        let trim = Trim { content, chunk_size, size, write_epoch };
        run(async move {
            let freed = shared.trim(trim).await?;
            shared.sync().await?;
            Ok(freed)
        })
        .await
    }

    /// Frees every chunk of each inode up to and with the generation named. Returns the bytes
    /// freed.
    ///
    /// # Errors
    /// A failure of index or journal; it must then be done again.
    pub async fn reclaim(
        &self,
        entries: &[(InodeId, ContentGeneration)],
    ) -> Result<ByteLen, EngineError> {
        let shared = self.shared();
        let entries = entries.to_vec();
        run(async move {
            let mut pages = 0;
            for (inode, last) in entries {
                pages += shared.reclaim(inode, last).await?;
            }
            shared.sync().await?;
            Ok(ByteLen(pages * PAGE as u64))
        })
        .await
    }

    /// Drops the clean blocks of a chunk; returns the bytes freed. The caller syncs.
    ///
    /// # Errors
    /// A failure of index or journal; nothing is then changed.
    pub async fn release(&self, key: ChunkKey) -> Result<ByteLen, EngineError> {
        self.release_while(key, || true).await
    }

    /// The same of what still may go when its turn comes, behind everything that it waits for:
    /// it goes on when its caller goes away.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn release_while(
        &self,
        key: ChunkKey,
        may_go: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<ByteLen, EngineError> {
        self.shared().drops.note(&key);
        let restate = move |_, _: u64, state| {
            (state == BlockState::Clean && may_go()).then_some(BlockState::Absent)
        };
        self.restate(key, 0..=SECTIONS_MAX - 1, restate).await
    }

    /// Drops one clean block, because it is damaged and the bucket has it.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn drop_clean(&self, key: ChunkKey, block: u16) -> Result<(), EngineError> {
        self.shared().drops.note(&key);
        let section = split_block(block).0;
        let restate = move |at, _: u64, state| {
            (at == block && state == BlockState::Clean).then_some(BlockState::Absent)
        };
        self.restate(key, section..=section, restate).await.map(drop)
    }

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
        let exported = exported.clone();
        let restate = move |at, fingerprint: u64, state| {
            let same = exported.get(&at) == Some(&fingerprint);
            (same && state == BlockState::Written).then_some(BlockState::Clean)
        };
        self.restate(key, 0..=SECTIONS_MAX - 1, restate).await
    }

    /// The chunks of a content that are here, from `first` on, `count` of them at most by index.
    /// May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Index`].
    pub async fn chunks(
        &self,
        content: ContentName,
        first: ChunkIndex,
        count: u32,
    ) -> Result<Vec<ChunkKey>, EngineError> {
        let end = first.0.saturating_add(count);
        let mut keys: Vec<ChunkKey> = Vec::new();
        let range = KeyRange::content(content.inode, content.generation, first);
        let mut from = Some(range.from);
        while let Some(at) = from {
            let page = self.shared().page(at, range.until).await?;
            from = page.next;
            for (key, _) in page.sections {
                if key.chunk.index.0 >= end {
                    return Ok(keys);
                }
                if keys.last() != Some(&key.chunk) {
                    keys.push(key.chunk);
                }
            }
        }
        Ok(keys)
    }

    /// What is held of each content. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Index`].
    pub async fn presence(&self, contents: &[ContentName]) -> Result<Vec<Present>, EngineError> {
        let mut presence = Vec::with_capacity(contents.len());
        for content in contents {
            let mut present = Present::default();
            let range = KeyRange::content(content.inode, content.generation, ChunkIndex(0));
            let mut from = Some(range.from);
            while let Some(at) = from {
                let page = self.shared().page(at, range.until).await?;
                from = page.next;
                for (key, section) in page.sections {
                    add(&mut present, key, &section);
                }
            }
            presence.push(present);
        }
        Ok(presence)
    }

    /// Checks that the content of a chunk was not given up, for who has found a part of it absent.
    /// May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::StaleContent`] when it was; [`EngineError::Index`].
    pub async fn check_content(&self, key: ChunkKey) -> Result<(), EngineError> {
        match key.generation < self.shared().mark(key.inode).await?.generation {
            true => Err(EngineError::StaleContent),
            false => Ok(()),
        }
    }

    async fn restate(
        &self,
        key: ChunkKey,
        numbers: RangeInclusive<u8>,
        new_state: impl Fn(u16, u64, BlockState) -> Option<BlockState> + Send + Sync + 'static,
    ) -> Result<ByteLen, EngineError> {
        let shared = self.shared();
        run(async move { shared.restate(key, numbers, &new_state).await }).await
    }
}

/// What a removal does where it meets a damaged leaf of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AtDamage {
    /// Nothing more: the file is there, and its bytes would be too.
    Fail,
    /// What is recorded in the leaf is lost in any case, and so are its pages until the target is
    /// made anew; the rest is removed, or nothing could be reclaimed any more.
    GoRound,
}

#[derive(Clone, Copy)]
struct Trim {
    content: ContentName,
    chunk_size: u64,
    size: u64,
    write_epoch: WriteEpoch,
}

/// Sections in the order of their keys.
pub(super) struct Page {
    pub(super) sections: Vec<(SectionKey, Section)>,
    /// Where the next page begins.
    pub(super) next: Option<Key>,
}

impl Shared {
    async fn trim(self: &Arc<Self>, trim: Trim) -> Result<ByteLen, EngineError> {
        let ContentName { inode, generation } = trim.content;
        let boundary = ChunkIndex(u32::try_from(trim.size / trim.chunk_size).unwrap_or(u32::MAX));
        let end = usize::try_from(trim.size % trim.chunk_size).expect("below 64 MiB");
        let key = ChunkKey { inode, generation, index: boundary, copy: CopyIndex(0) };
        self.await_room_for_records().await?;
        let _guard = self.locks.lock(key, 0..=BLOCKS_MAX - 1).await;
        // Before the turn: fills hold memory while they wait for that.
        let buffer = match end % PAGE {
            0 => None,
            _ => Some(self.pool.acquire(ENDS_LEN).await),
        };
        let _turn = self.inode_turn(inode).write().await;
        let mark = Mark { generation, write_epoch: trim.write_epoch };
        if mark <= self.mark(inode).await? {
            return Ok(ByteLen(0));
        }
        let mut freed = 0;
        let mut first_gone = Some(boundary);
        if end > 0 {
            freed += self.cut(key, end, buffer, trim.write_epoch).await?;
            first_gone = boundary.0.checked_add(1).map(ChunkIndex);
        }
        if let Some(first) = first_gone {
            let range = KeyRange::content(inode, generation, first);
            freed += self.remove(range, AtDamage::Fail).await?;
        }
        // The mark comes last: a trim that was cut short is done again as a whole.
        self.commit(|_| Ok(Change::Mark(inode, mark))).await?;
        Ok(ByteLen(freed * PAGE as u64))
    }

    /// Cuts the chunk in which the new size lies: later blocks go, and the bytes of its own block
    /// past the size become zero. The caller holds the lock of the whole chunk, and the inode's
    /// turn alone; the buffer is there if the size lies within a page. Returns the pages freed.
    async fn cut(
        self: &Arc<Self>,
        key: ChunkKey,
        end: usize,
        buffer: Option<AlignedBuffer>,
        write_epoch: WriteEpoch,
    ) -> Result<u64, EngineError> {
        let whole = self.sections(key, 0..=SECTIONS_MAX - 1).await?;
        let page_end = end.next_multiple_of(PAGE);
        let rest = page_number(page_end)..u32::from(BLOCKS_MAX) * 16;
        let ends = match buffer {
            Some(buffer) => {
                self.write_ends(&whole, &(end..page_end), Purpose::Free, buffer).await?
            }
            None => Ends::default(),
        };
        let length = u32::try_from(end).expect("below 64 MiB");
        let mut new = Vec::new();
        for (number, old) in whole.iter() {
            let Some(old) = old else { continue };
            let mut section = old.clone();
            let gone = within(number, &rest);
            if !gone.is_empty() {
                section.truncate(gone.start);
            }
            ends.put(number, &mut section, |page| {
                whole.state(super::sections::block_of_page(page))
            });
            section.length = section.length.min(length);
            if section != *old {
                section.write_epoch = section.write_epoch.max(write_epoch);
                new.push((number, section));
            }
        }
        let cause = Cause::of_upkeep(key, &whole);
        self.commit_batches(&cause, &whole, &new).await
    }

    /// Removes the sections of some keys. The caller holds the inode's turn alone. Returns the
    /// pages freed.
    async fn remove(&self, range: KeyRange, damage: AtDamage) -> Result<u64, EngineError> {
        let mut freed = 0;
        let mut from = Some(range.from);
        while let Some(at) = from {
            let page = match damage {
                AtDamage::Fail => self.page(at, range.until).await?,
                AtDamage::GoRound => self.page_passing_damage(at, range.until).await?,
            };
            from = page.next;
            let mut sections = page.sections.iter().peekable();
            while sections.peek().is_some() {
                let mut removal = Removal::default();
                while let Some((key, section)) = sections.peek()
                    && removal.push(*key, section)
                {
                    sections.next();
                }
                assert!(!removal.is_empty(), "any section fits a record");
                freed += self.commit(|_| Ok(Change::Remove(removal.clone()))).await?.given_up;
            }
        }
        Ok(freed)
    }

    async fn reclaim(&self, inode: InodeId, last: ContentGeneration) -> Result<u64, EngineError> {
        self.await_room_for_records().await?;
        let _turn = self.inode_turn(inode).write().await;
        // Nothing of these generations is accepted any more, however late it arrives. The mark
        // comes first: who finds a block absent because it went here finds the mark as well.
        let generation = ContentGeneration(last.0.saturating_add(1));
        let mark = Mark { generation, write_epoch: WriteEpoch(0) };
        let marked = self.raise_mark(inode, mark).await;
        match &marked {
            Err(EngineError::Index(error)) if matches!(**error, IndexError::Damaged { .. }) => {}
            Err(_) => return marked.map(|()| 0),
            Ok(()) => {}
        }
        let freed = self.remove(KeyRange::inode(inode, last), AtDamage::GoRound).await?;
        // Where the mark cannot be read, the bytes go all the same.
        marked.map(|()| freed)
    }

    async fn raise_mark(&self, inode: InodeId, mark: Mark) -> Result<(), EngineError> {
        if mark > self.mark(inode).await? {
            self.commit(|_| Ok(Change::Mark(inode, mark))).await?;
        }
        Ok(())
    }

    /// Gives blocks another state without touching their bytes; returns the bytes concerned.
    pub(super) async fn restate(
        self: &Arc<Self>,
        key: ChunkKey,
        numbers: RangeInclusive<u8>,
        new_state: &(dyn Fn(u16, u64, BlockState) -> Option<BlockState> + Send + Sync),
    ) -> Result<ByteLen, EngineError> {
        self.await_room_for_records().await?;
        let blocks = u16::from(*numbers.start()) * 8..=u16::from(*numbers.end()) * 8 + 7;
        let _guard = self.locks.lock(key, blocks).await;
        let turn = self.inode_turn(key.inode).read().await;
        let range = u16::from(*numbers.start())..=u16::from(*numbers.end());
        let lock = self.section_locks.lock(key, range).await;
        let old = self.sections(key, numbers).await?;
        let mut pages = 0;
        let mut new = Vec::new();
        for (number, record) in old.iter() {
            let Some(record) = record else { continue };
            let mut section = record.clone();
            for within in 0..8 {
                let block = u16::from(number) * 8 + u16::from(within);
                let state = section.state(within);
                let Some(state) = new_state(block, old.fingerprint(block), state) else { continue };
                pages += old.pages_of(block).count() as u64;
                section.set_state(within..within + 1, state);
            }
            if section != *record {
                new.push((number, section));
            }
        }
        let cause = Cause::of_upkeep(key, &old);
        self.commit_batches(&cause, &old, &new).await?;
        drop(lock);
        drop(turn);
        if !new.is_empty() {
            self.written(self.journal.next_sequence() - 1).await?;
        }
        Ok(ByteLen(pages * PAGE as u64))
    }

    /// Journals new records, some at a time; returns the pages given up.
    async fn commit_batches(
        &self,
        cause: &Cause,
        old: &Sections,
        new: &[(u8, Section)],
    ) -> Result<u64, EngineError> {
        let mut given_up = 0;
        for batch in new.chunks(SECTIONS_PER_RECORD) {
            let installed = self.commit_sections(cause, old, batch).await?;
            given_up += installed.map_or(0, |installed| installed.given_up);
        }
        Ok(given_up)
    }

    /// As [`Self::page`]; goes round a damaged leaf.
    pub(super) async fn page_passing_damage(
        &self,
        from: Key,
        until: Key,
    ) -> Result<Page, EngineError> {
        match self.page(from, until).await {
            Err(EngineError::Index(error)) if matches!(*error, IndexError::Damaged { .. }) => {
                self.page_around(from, until).await
            }
            other => other,
        }
    }

    /// As [`Self::page`], of what can be read of the leaf to which the key belongs.
    async fn page_around(&self, from: Key, until: Key) -> Result<Page, EngineError> {
        let survey = self.index.survey(from, SCAN_ENTRIES).await?;
        if let Some(damage) = &survey.damage {
            let (target, page) = (self.target, damage.reference.page);
            tracing::error!(%target, page, "goes round a damaged node of the index");
        }
        let entries = survey.entries.into_iter().filter(|(key, _)| *key < until).collect();
        Ok(Page { sections: sections_of(entries)?, next: survey.next.filter(|next| *next < until) })
    }

    /// Section records from a key on.
    pub(super) async fn page(&self, from: Key, until: Key) -> Result<Page, EngineError> {
        let scan = self.index.scan(from, Some(until), SCAN_ENTRIES).await?;
        Ok(Page { sections: sections_of(scan.entries)?, next: scan.next })
    }
}

fn sections_of(entries: Vec<(Key, Bytes)>) -> Result<Vec<(SectionKey, Section)>, EngineError> {
    let mut sections = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        if let Entry::Section(key, section) =
            Entry::decode(key.as_slice(), &value).map_err(unreadable)?
        {
            sections.push((key, section));
        }
    }
    Ok(sections)
}

fn add(present: &mut Present, key: SectionKey, section: &Section) {
    let held = section.held(key.section);
    present.clean.0 += held.clean.0;
    present.written.0 += held.written.0;
    present.zero.0 += held.zero.0;
    if held.end > 0 {
        let start = u64::from(key.chunk.index.0).saturating_mul(section.chunk_size.bytes());
        present.end = present.end.max(start.saturating_add(held.end));
    }
}
