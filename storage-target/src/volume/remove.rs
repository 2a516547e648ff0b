//! Giving up bytes: shrinking, removing, releasing; and what a target holds of a content.
//!
//! Trims are durable when they return, because others act on them.

use std::{cmp::Ordering, ops::RangeInclusive, sync::Arc};

use bytes::Bytes;
use futures::future::join_all;
use millrace_protocol::target::{ContentName, Present};
use millrace_types::{BlockState, ByteLen, ChunkIndex, ChunkKey, CopyIndex, WriteEpoch};

use super::{
    EngineError, Shared, Volume,
    commit::unreadable,
    ends::{ENDS_LEN, Ends},
    install::Cause,
    run,
    sections::{Sections, block_of_page, split_block, within},
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
};

/// Entries of the index looked at with one request.
const SCAN_ENTRIES: usize = 256;

/// Sections changed with one journal record.
const SECTIONS_PER_RECORD: usize = 16;

impl Volume {
    /// Drops what lies past `size` of one content and refuses older write epochs from then on.
    /// Returns the bytes freed. Doing it again changes nothing, even if the file has grown again.
    /// A damaged page within which the size lies stays damaged, and so does one that the disk fails
    /// to read when that was first met 5 minutes ago; until then it is an error.
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

    /// Drops the clean blocks of a chunk, as far as their records can be read; returns the bytes
    /// freed. The caller syncs.
    ///
    /// # Errors
    /// A failure of index or journal; nothing is then changed.
    pub async fn release(&self, key: ChunkKey) -> Result<ByteLen, EngineError> {
        self.release_readable_while(key, || true).await
    }

    /// The same of what still may go when its turn comes, behind everything that it waits for:
    /// it goes on when its caller goes away.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn release_readable_while(
        &self,
        key: ChunkKey,
        may_go: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<ByteLen, EngineError> {
        self.release_passing(key, AtDamage::GoRoundUnread, may_go).await
    }

    /// The same, but of a chunk of which a record cannot be read nothing is dropped.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn release_while(
        &self,
        key: ChunkKey,
        may_go: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<ByteLen, EngineError> {
        self.release_passing(key, AtDamage::Fail, may_go).await
    }

    async fn release_passing(
        &self,
        key: ChunkKey,
        damage: AtDamage,
        may_go: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<ByteLen, EngineError> {
        self.shared().drops.note(&key);
        let restate = move |_, _: u64, state| {
            (state == BlockState::Clean && may_go()).then_some(BlockState::Absent)
        };
        self.restate(key, 0..=SECTIONS_MAX - 1, damage, restate).await
    }

    /// Drops one clean block.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn drop_clean(&self, key: ChunkKey, block: u16) -> Result<(), EngineError> {
        self.drop_clean_if(key, block, |_| true).await
    }

    /// The same if it still may go when its turn comes, with the fingerprint that it has then.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn drop_clean_if(
        &self,
        key: ChunkKey,
        block: u16,
        may_go: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        let drops = Arc::clone(&self.shared().drops);
        let section = split_block(block).0;
        let restate = move |at, found: u64, state| {
            let goes = at == block && state == BlockState::Clean && may_go(found);
            if goes {
                drops.note(&key);
            }
            goes.then_some(BlockState::Absent)
        };
        self.restate(key, section..=section, AtDamage::Fail, restate).await.map(drop)
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

    /// Checks what somebody knows of a content who has found a part of a chunk absent: that it was
    /// not given up, unless that part `is_backed`, and was not cut or exported since.
    /// May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::StaleContent`], [`EngineError::StaleEpoch`]; [`EngineError::Index`].
    pub async fn check_content(
        &self,
        key: ChunkKey,
        write_epoch: WriteEpoch,
        is_backed: bool,
    ) -> Result<(), EngineError> {
        let mark = self.shared().mark(key.inode).await?;
        match key.generation.cmp(&mark.generation) {
            Ordering::Less if !is_backed => Err(EngineError::StaleContent),
            Ordering::Equal if write_epoch < mark.write_epoch => Err(EngineError::StaleEpoch),
            _ => Ok(()),
        }
    }

    /// Refuses what somebody asks for who knows a content of an older write epoch, from then on.
    /// The caller syncs.
    ///
    /// # Errors
    /// A failure of index or journal; nothing is then changed.
    pub async fn refuse_older(
        &self,
        content: ContentName,
        write_epoch: WriteEpoch,
    ) -> Result<(), EngineError> {
        let shared = self.shared();
        run(async move { shared.refuse_older(content, write_epoch).await }).await
    }

    pub(super) async fn restate(
        &self,
        key: ChunkKey,
        numbers: RangeInclusive<u8>,
        damage: AtDamage,
        new_state: impl Fn(u16, u64, BlockState) -> Option<BlockState> + Send + Sync + 'static,
    ) -> Result<ByteLen, EngineError> {
        let shared = self.shared();
        run(async move { shared.restate(key, numbers, damage, &new_state).await }).await
    }
}

/// What is done where a leaf of the index cannot be read, or the page within which a file is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AtDamage {
    /// Nothing more: the file is there, and its bytes would be too.
    Fail,
    /// One that is damaged is gone round. What is recorded in it is lost in any case, and so are
    /// its pages until the target is made anew; the rest is removed, or nothing could be reclaimed
    /// any more.
    GoRound,
    /// So is one that the disk fails to read: it may be there again in a moment.
    GoRoundUnread,
}

impl AtDamage {
    /// Whether what has failed so is gone round.
    pub(super) fn passes(self, error: &EngineError) -> bool {
        let (is_damaged, is_unread) = match error {
            EngineError::Index(error) => {
                (matches!(**error, IndexError::Damaged { .. }), error.is_failed_read())
            }
            EngineError::Corrupt { .. } => (true, false),
            EngineError::Disk(error) => (false, error.is_failed_read()),
            _ => (false, false),
        };
        match self {
            Self::Fail => false,
            Self::GoRound => is_damaged,
            Self::GoRoundUnread => is_damaged || is_unread,
        }
    }
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
        let mut damage = AtDamage::Fail;
        loop {
            match self.try_trim(trim, damage).await {
                // What is found bad is looked at twice before it counts.
                Err(EngineError::Corrupt { .. }) if damage == AtDamage::Fail => {
                    damage = AtDamage::GoRound;
                }
                Err(error) if damage != AtDamage::GoRoundUnread && is_failed_read(&error) => {
                    // It is not waited for here: whoever asks again may still do so.
                    if !self.has_cut_waited(trim.content).await {
                        return Err(error);
                    }
                    damage = AtDamage::GoRoundUnread;
                }
                done => {
                    if done.is_ok() {
                        self.unread_cuts.forget(trim.content);
                    }
                    return done;
                }
            }
        }
    }

    /// `damage` is what is done about the page within which the size lies.
    async fn try_trim(
        self: &Arc<Self>,
        trim: Trim,
        damage: AtDamage,
    ) -> Result<ByteLen, EngineError> {
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
            freed += self.cut(key, end, buffer, trim.write_epoch, damage).await?;
            first_gone = boundary.0.checked_add(1).map(ChunkIndex);
        }
        if let Some(first) = first_gone {
            let range = KeyRange::content(inode, generation, first);
            self.remove(range, AtDamage::Fail, &mut freed).await?;
        }
        // The mark comes last: a trim that was cut short is done again as a whole.
        self.commit(|_| Ok(Change::Mark(inode, mark))).await?;
        Ok(ByteLen(freed * PAGE as u64))
    }

    async fn refuse_older(
        &self,
        content: ContentName,
        write_epoch: WriteEpoch,
    ) -> Result<(), EngineError> {
        let ContentName { inode, generation } = content;
        let mark = Mark { generation, write_epoch };
        self.await_room_for_records().await?;
        let _turn = self.inode_turn(inode).write().await;
        if mark > self.mark(inode).await? {
            self.commit(|_| Ok(Change::Mark(inode, mark))).await?;
        }
        Ok(())
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
        damage: AtDamage,
    ) -> Result<u64, EngineError> {
        let whole = self.sections(key, 0..=SECTIONS_MAX - 1).await?;
        let page_end = end.next_multiple_of(PAGE);
        let rest = page_number(page_end)..u32::from(BLOCKS_MAX) * 16;
        let ends = match buffer {
            Some(buffer) => self.write_end_of_cut(&whole, &(end..page_end), damage, buffer).await?,
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
            ends.put(number, &mut section, |page| whole.state(block_of_page(page)));
            section.length = section.length.min(length);
            if section != *old {
                section.write_epoch = section.write_epoch.max(write_epoch);
                new.push((number, section));
            }
        }
        let cause = Cause::of_upkeep(key, &whole);
        let freed = self.commit_batches(&cause, &whole, &new).await?;
        if ends.is_spoilt() {
            // It is listed under the checksum that it has from now on.
            self.suspect(key, block_of_page(page_number(end)));
        }
        Ok(freed)
    }

    /// Removes the sections of some keys. The caller holds the inode's turn alone. Adds the pages
    /// freed, also of what is done before it fails.
    pub(super) async fn remove(
        &self,
        range: KeyRange,
        damage: AtDamage,
        freed: &mut u64,
    ) -> Result<(), EngineError> {
        let mut from = Some(range.from);
        while let Some(at) = from {
            let page = self.page_passing(at, range.until, damage).await?;
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
                *freed += self.commit(|_| Ok(Change::Remove(removal.clone()))).await?.given_up;
            }
        }
        Ok(())
    }

    /// Gives blocks another state without touching their bytes; returns the bytes concerned.
    pub(super) async fn restate(
        self: &Arc<Self>,
        key: ChunkKey,
        numbers: RangeInclusive<u8>,
        damage: AtDamage,
        new_state: &(dyn Fn(u16, u64, BlockState) -> Option<BlockState> + Send + Sync),
    ) -> Result<ByteLen, EngineError> {
        self.await_room_for_records().await?;
        let blocks = u16::from(*numbers.start()) * 8..=u16::from(*numbers.end()) * 8 + 7;
        let _guard = self.locks.lock(key, blocks).await;
        let turn = self.inode_turn(key.inode).read().await;
        let range = u16::from(*numbers.start())..=u16::from(*numbers.end());
        let lock = self.section_locks.lock(key, range).await;
        let old = self.sections_passing(key, numbers, damage).await?;
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

    /// As [`Self::sections`]; one that cannot be read counts as having no record, if that is said.
    async fn sections_passing(
        &self,
        key: ChunkKey,
        numbers: RangeInclusive<u8>,
        damage: AtDamage,
    ) -> Result<Sections, EngineError> {
        if damage == AtDamage::Fail {
            return self.sections(key, numbers).await;
        }
        let first = *numbers.start();
        let mut records = Vec::with_capacity(numbers.len());
        let mut passed = None;
        for found in join_all(numbers.map(|number| self.section(key, number))).await {
            match found {
                Ok((_, record)) => records.push(record),
                Err(error) if damage.passes(&error) => {
                    passed = Some(error);
                    records.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = passed {
            let target = self.target;
            tracing::warn!(%target, chunk = %key, %error, "a part of a chunk is left as it is");
        }
        Ok(Sections::new(key, first, records))
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

    /// As [`Self::page`]; goes round a leaf that cannot be read, if that is said.
    pub(super) async fn page_passing(
        &self,
        from: Key,
        until: Key,
        damage: AtDamage,
    ) -> Result<Page, EngineError> {
        match self.page(from, until).await {
            Err(error) if damage.passes(&error) => self.page_around(from, until).await,
            other => other,
        }
    }

    /// As [`Self::page`], of what can be read of the leaf to which the key belongs.
    async fn page_around(&self, from: Key, until: Key) -> Result<Page, EngineError> {
        let survey = self.index.survey(from, SCAN_ENTRIES).await?;
        if let Some(damage) = &survey.damage {
            let (target, page, reason) = (self.target, damage.reference.page, &damage.reason);
            tracing::error!(%target, page, reason, "goes round a node of the index");
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

fn is_failed_read(error: &EngineError) -> bool {
    matches!(error, EngineError::Disk(error) if error.is_failed_read())
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
