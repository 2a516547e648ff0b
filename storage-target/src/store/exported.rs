//! What exports have read of a target's written blocks, until it hears that their objects stand.
//!
//! ```text
//!   an export reads ─▶ note ─▶ the object stands: take, and what is still the same becomes clean
//!                       └─▶ it comes to nothing, or is never heard of again: the notes lie here
//!                             until others need the room, and their contents are the oldest
//! ```
//!
//! Nobody tells a target that an export was given up, so that room is all that ends such notes. A
//! content whose notes are gone is exported once more. That comes to an end: what is noted at that
//! moment becomes clean and needs no note the next time. Only a content that fills its room by
//! itself is not sent again for it, because that would cost all of its bytes each time.

use std::collections::{BTreeMap, HashMap};

use millrace_types::{ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, InodeId};

use crate::volume::ExportedBlocks;

/// What a content takes besides its chunks, in notes: some 250 bytes of the maps here.
const CONTENT_ROOM: usize = 16;

/// What a chunk takes besides its notes, in notes: some 130 bytes of the maps here.
const CHUNK_ROOM: usize = 8;

/// What one content may take, in notes: 64 GiB in chunks of the default 8 MiB, of 128 blocks each.
/// Of smaller chunks it is less: 45 GiB at 1 MiB.
const CONTENT_ROOM_MAX: usize = 8192 * (128 + CHUNK_ROOM) + CONTENT_ROOM;

/// What all contents of a target may take, in notes: 34 MiB of memory, and up to twice that while
/// chunks are being read. One content never needs the room of all others.
const ROOM_MAX: usize = 2 * CONTENT_ROOM_MAX;

/// The notes of one target.
#[derive(Debug)]
pub(super) struct Exported {
    contents: BTreeMap<Id, Content>,
    /// The contents by their last use: the first one goes first.
    order: BTreeMap<u64, Id>,
    /// Counts uses.
    uses: u64,
    room: usize,
    room_max: usize,
}

/// A content of a file.
type Id = (InodeId, ContentGeneration);

/// The notes of one content.
#[derive(Debug)]
struct Content {
    chunks: HashMap<(ChunkIndex, CopyIndex), Vec<Note>>,
    room: usize,
    last_use: u64,
    /// Blocks were read for which it has no room.
    is_too_large: bool,
    /// The object stands: what is read from now on is for another one.
    is_taken: bool,
}

/// The version of a block that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) block: u16,
    pub(super) fingerprint: u64,
}

const _: () = assert!(size_of::<Note>() == 16, "room is counted in notes");

/// What is known of a chunk when its object stands.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The versions that were read.
    pub(super) blocks: ExportedBlocks,
    /// Whether its content has more blocks than one may have notes of.
    pub(super) is_too_large: bool,
}

impl Default for Exported {
    fn default() -> Self {
        Self::new(ROOM_MAX)
    }
}

impl Exported {
    fn new(room_max: usize) -> Self {
        let (contents, order) = (BTreeMap::new(), BTreeMap::new());
        Self { contents, order, uses: 0, room: 0, room_max }
    }

    /// Notes which versions of a chunk's written blocks an export has read.
    pub(super) fn note(&mut self, key: ChunkKey, notes: &[Note]) {
        if notes.is_empty() {
            return;
        }
        // Of what was replaced nobody asks any more.
        if let Some(before) = key.generation.0.checked_sub(1) {
            self.forget(key.inode, ContentGeneration(before));
        }
        let id = (key.inode, key.generation);
        let mut content = self.remove(id).unwrap_or_else(Content::new);
        if content.is_taken {
            (content.is_taken, content.is_too_large) = (false, false);
        }
        content.note((key.index, key.copy), notes, self.room_max / 2);
        while self.room + content.room > self.room_max
            && let Some((_, &oldest)) = self.order.first_key_value()
        {
            self.remove(oldest);
        }
        self.put(id, content);
    }

    /// Takes what is noted of a chunk.
    pub(super) fn take(&mut self, key: ChunkKey) -> Taken {
        let id = (key.inode, key.generation);
        let Some(mut content) = self.remove(id) else { return Taken::default() };
        let notes = content.take((key.index, key.copy));
        let is_too_large = content.is_too_large;
        // The other chunks have to be answered alike.
        if is_too_large || !content.chunks.is_empty() {
            self.put(id, content);
        }
        let blocks = notes.into_iter().map(|note| (note.block, note.fingerprint)).collect();
        Taken { blocks, is_too_large }
    }

    /// Drops what is noted of a file's contents up to and with one.
    pub(super) fn forget(&mut self, inode: InodeId, last: ContentGeneration) {
        let known = self.contents.range((inode, ContentGeneration(0))..=(inode, last));
        let known: Vec<Id> = known.map(|(&id, _)| id).collect();
        for id in known {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: Id) -> Option<Content> {
        let content = self.contents.remove(&id)?;
        self.order.remove(&content.last_use);
        self.room -= content.room;
        Some(content)
    }

    fn put(&mut self, id: Id, mut content: Content) {
        self.uses += 1;
        content.last_use = self.uses;
        self.order.insert(self.uses, id);
        self.room += content.room;
        self.contents.insert(id, content);
    }
}

impl Content {
    fn new() -> Self {
        let chunks = HashMap::new();
        Self { chunks, room: CONTENT_ROOM, last_use: 0, is_too_large: false, is_taken: false }
    }

    fn note(&mut self, chunk: (ChunkIndex, CopyIndex), notes: &[Note], room_max: usize) {
        if !self.chunks.contains_key(&chunk) {
            if self.room + CHUNK_ROOM >= room_max {
                self.is_too_large = true;
                return;
            }
            self.room += CHUNK_ROOM;
        }
        let known = self.chunks.entry(chunk).or_default();
        for &note in notes {
            match known.binary_search_by_key(&note.block, |known| known.block) {
                Ok(at) => known[at] = note,
                Err(_) if self.room >= room_max => self.is_too_large = true,
                Err(at) => {
                    known.insert(at, note);
                    self.room += 1;
                }
            }
        }
    }

    fn take(&mut self, chunk: (ChunkIndex, CopyIndex)) -> Vec<Note> {
        self.is_taken = true;
        let Some(notes) = self.chunks.remove(&chunk) else { return Vec::new() };
        self.room -= CHUNK_ROOM + notes.len();
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for two contents of one chunk and some 40 blocks each.
    const ROOM: usize = 2 * (CONTENT_ROOM + CHUNK_ROOM + 40);

    fn key(inode: u64, index: u32) -> ChunkKey {
        ChunkKey {
            inode: InodeId(inode),
            generation: ContentGeneration(1),
            index: ChunkIndex(index),
            copy: CopyIndex(0),
        }
    }

    fn notes(blocks: std::ops::Range<u16>, fingerprint: u64) -> Vec<Note> {
        blocks.map(|block| Note { block, fingerprint }).collect()
    }

    fn taken(exported: &mut Exported, key: ChunkKey) -> (usize, bool) {
        let Taken { blocks, is_too_large } = exported.take(key);
        (blocks.len(), is_too_large)
    }

    fn assert_empty(exported: &Exported) {
        let Exported { contents, order, room, .. } = exported;
        assert_eq!((contents.len(), order.len(), *room), (0, 0, 0));
    }

    #[test]
    fn what_was_read_last_is_noted_once_and_taken_once() {
        let mut exported = Exported::new(ROOM);
        exported.note(key(1, 0), &notes(4..8, 1));
        exported.note(key(1, 0), &notes(0..6, 2));
        exported.note(key(1, 1), &notes(0..1, 3));
        let Taken { blocks, is_too_large } = exported.take(key(1, 0));
        let expected: ExportedBlocks =
            (0..6).map(|block| (block, 2)).chain([(6, 1), (7, 1)]).collect();
        assert_eq!((blocks, is_too_large), (expected, false));
        assert_eq!(taken(&mut exported, key(1, 0)), (0, false));
        assert_eq!(taken(&mut exported, key(1, 1)), (1, false));
        assert_empty(&exported);
    }

    #[test]
    fn nothing_is_kept_of_what_nobody_wrote() {
        let mut exported = Exported::new(ROOM);
        for index in 0..1000 {
            exported.note(key(1, index), &[]);
        }
        assert_empty(&exported);
    }

    #[test]
    fn exports_that_come_to_nothing_make_room_for_others_for_ever() {
        let mut exported = Exported::new(ROOM);
        for inode in 1..1000 {
            exported.note(key(inode, 0), &notes(0..30, inode));
            assert!(exported.room <= ROOM);
            assert_eq!(exported.contents.len(), exported.order.len());
        }
        assert_eq!(taken(&mut exported, key(1, 0)), (0, false), "it is exported once more");
        assert_eq!(taken(&mut exported, key(998, 0)), (30, false));
        assert_eq!(taken(&mut exported, key(999, 0)), (30, false));
        assert_empty(&exported);
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
        let mut exported = Exported::new(ROOM);
        exported.note(key(1, 0), &notes(0..30, 1));
        exported.note(key(2, 0), &notes(0..30, 2));
        exported.note(key(1, 0), &notes(30..40, 1));
        exported.note(key(3, 0), &notes(0..30, 3));
        assert_eq!(taken(&mut exported, key(2, 0)), (0, false));
        assert_eq!(taken(&mut exported, key(1, 0)), (40, false));
        assert_eq!(taken(&mut exported, key(3, 0)), (30, false));
    }

    #[test]
    fn a_content_that_fills_its_room_says_so_for_all_chunks_until_it_is_read_again() {
        let mut exported = Exported::new(ROOM);
        exported.note(key(2, 0), &notes(0..30, 2));
        exported.note(key(1, 0), &notes(0..50, 1));
        exported.note(key(1, 1), &notes(0..1, 1));
        assert_eq!(taken(&mut exported, key(1, 0)), (40, true));
        for _ in 0..2 {
            assert_eq!(taken(&mut exported, key(1, 1)), (0, true));
        }
        assert_eq!(taken(&mut exported, key(2, 0)), (30, false), "others have room of their own");
        // The first 40 are clean by now.
        exported.note(key(1, 0), &notes(40..50, 1));
        exported.note(key(1, 1), &notes(0..1, 1));
        assert_eq!(taken(&mut exported, key(1, 0)), (10, false));
        assert_eq!(taken(&mut exported, key(1, 1)), (1, false));
        assert_empty(&exported);
    }

    #[test]
    fn contents_that_were_replaced_are_forgotten() {
        let mut exported = Exported::new(ROOM);
        let newer = ChunkKey { generation: ContentGeneration(3), ..key(1, 0) };
        exported.note(key(1, 0), &notes(0..3, 1));
        exported.note(key(2, 0), &notes(0..3, 2));
        exported.note(newer, &notes(0..3, 3));
        assert_eq!(taken(&mut exported, key(1, 0)), (0, false));
        exported.forget(InodeId(1), ContentGeneration(2));
        assert_eq!(taken(&mut exported, newer), (3, false));
        exported.forget(InodeId(2), ContentGeneration(1));
        assert_empty(&exported);
    }

    #[test]
    fn a_file_of_64_gib_has_room() {
        let (chunks, blocks) = (8192, 128);
        let mut content = Content::new();
        for index in 0..=chunks {
            let chunk = (ChunkIndex(index), CopyIndex(0));
            assert!(!content.is_too_large, "chunk {index}");
            content.note(chunk, &notes(0..blocks, 1), ROOM_MAX / 2);
        }
        assert!(content.is_too_large);
        assert_eq!(content.room, CONTENT_ROOM_MAX);
    }
}
