//! What is wrong with one inode on one target: a pure function of what the target listed and what
//! the namespace says.
//!
//! ```text
//!   the namespace has         the target has            verdict
//!   nothing                   a content                 orphan
//!   a file                    an older content          orphan
//!   a file                    a newer content           newer: the namespace has lost something
//!   no file, another inode    a content                 newer
//!   a file                    chunks of it, elsewhere   misplaced: its layout puts them elsewhere
//!   a file without holes      not all chunks of it      missing, unless the bucket has them, or
//!                                                       parts of the file went with a target
//! ```
//!
//! # What it relies on
//! - The namespace is read *after* the target's list was made. A content that was on the target had
//!   a file when its first byte was written; ids are never used twice and generations only rise.
//!   So what has no file after the list has none for ever.
//! - A size is committed after its bytes were acknowledged. So a file that did not change since
//!   before the list had all its chunks at the list.
//! - Ids from the high-water mark of the check's start on are passed over: they are nobody's yet,
//!   or of files younger than the check.

use millrace_protocol::{cluster::Map, fsck::FsckKind, target::ContentName};
use millrace_types::{
    ChunkIndex, ContentGeneration, InodeId, Layout, TargetId, Timestamp, WriteEpoch,
};

/// What the namespace says of an inode.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Known {
    /// There is none.
    Nothing,
    /// A regular file.
    File(FileContent),
    /// Something that never has chunks.
    Other,
}

/// A regular file, as far as the comparison needs it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct FileContent {
    pub(super) generation: ContentGeneration,
    pub(super) write_epoch: WriteEpoch,
    pub(super) layout: Layout,
    pub(super) size: u64,
    /// So many bytes from the start the bucket backs.
    pub(super) origin_length: u64,
    /// Whether absent bytes may be holes, or lie in the inode: then nothing can be missing.
    pub(super) may_lack: bool,
    /// Whether some of it is known to have gone with a target. Nobody knows any more which of its
    /// chunks had to be there, nor where its object stood in for them, so nothing is missing.
    pub(super) is_lost: bool,
    /// Its last change.
    pub(super) changed: Timestamp,
}

/// One content on a target: its chunks that are there, ascending.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct HeldContent {
    pub(super) generation: ContentGeneration,
    pub(super) chunks: Vec<ChunkIndex>,
}

/// What seems to be wrong with one content on one target.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Suspect {
    pub(super) kind: FsckKind,
    pub(super) target: TargetId,
    pub(super) content: ContentName,
    /// How many chunks are concerned, and the first.
    pub(super) chunks: u64,
    pub(super) first: ChunkIndex,
    /// Of missing chunks: their bytes as the file's size has them.
    pub(super) bytes: u64,
    /// The file as it was seen with missing chunks.
    pub(super) seen: Option<FileContent>,
}

/// Where and when the lists of a check were made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    /// Says which group lies on which target.
    pub(super) map: &'a Map,
    /// Only lower ids are judged.
    pub(super) high_water: InodeId,
}

impl Frame<'_> {
    /// What is wrong with `inode` on `target`, which held `held` at some moment after `listed`;
    /// `known` was read after that.
    pub(super) fn judge(
        &self,
        target: TargetId,
        inode: InodeId,
        known: &Known,
        held: &[HeldContent],
        listed: Timestamp,
    ) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        if inode >= self.high_water {
            return suspects;
        }
        for content in held {
            suspects.extend(self.judge_held(target, inode, known, content));
        }
        if let Known::File(file) = known
            && file.changed < listed
        {
            let of_file = held.iter().find(|content| content.generation == file.generation);
            let chunks = of_file.map_or(&[][..], |content| &content.chunks);
            suspects.extend(self.missing(target, inode, file, chunks));
        }
        suspects
    }

    /// Whether a suspicion still holds: `held` and `known` are new, and were read in that order.
    pub(super) fn confirm(
        &self,
        suspect: &Suspect,
        known: &Known,
        held: &[HeldContent],
    ) -> Option<Suspect> {
        let ContentName { inode, generation } = suspect.content;
        let of_content = held.iter().find(|content| content.generation == generation);
        match (suspect.seen, known) {
            (None, _) => of_content
                .and_then(|content| self.judge_held(suspect.target, inode, known, content))
                .filter(|again| again.kind == suspect.kind),
            (Some(before), Known::File(now)) => {
                // A shrink in between may have taken chunks away that a growth wants back.
                let same =
                    now.generation == before.generation && now.write_epoch == before.write_epoch;
                let file = FileContent {
                    size: now.size.min(before.size),
                    origin_length: now.origin_length.max(before.origin_length),
                    ..*now
                };
                let chunks = of_content.map_or(&[][..], |content| &content.chunks);
                same.then(|| self.missing(suspect.target, inode, &file, chunks)).flatten()
            }
            (Some(_), Known::Nothing | Known::Other) => None,
        }
    }

    fn judge_held(
        &self,
        target: TargetId,
        inode: InodeId,
        known: &Known,
        held: &HeldContent,
    ) -> Option<Suspect> {
        let content = ContentName { inode, generation: held.generation };
        let all = held.chunks.iter().copied();
        let kind = match known {
            Known::Nothing => FsckKind::Orphan,
            Known::Other => FsckKind::Newer,
            Known::File(file) if held.generation < file.generation => FsckKind::Orphan,
            Known::File(file) if held.generation > file.generation => FsckKind::Newer,
            Known::File(file) => {
                let elsewhere =
                    |index: &ChunkIndex| self.lies_on(&file.layout, *index, target) == Some(false);
                return held_wrongly(FsckKind::Misplaced, target, content, all.filter(elsewhere));
            }
        };
        held_wrongly(kind, target, content, all)
    }

    /// What the file needs on the target and has not there.
    fn missing(
        &self,
        target: TargetId,
        inode: InodeId,
        file: &FileContent,
        chunks: &[ChunkIndex],
    ) -> Option<Suspect> {
        if file.may_lack || file.is_lost || file.size <= file.origin_length {
            return None;
        }
        let chunk_size = file.layout.chunk_size().bytes();
        let count = u32::try_from(file.size.div_ceil(chunk_size)).unwrap_or(u32::MAX);
        // The chunk in which the bucket's bytes end has others behind them.
        let start = u32::try_from(file.origin_length / chunk_size).unwrap_or(u32::MAX);
        let mut missing: Option<Suspect> = None;
        for index in self.expected(&file.layout, start..count, target) {
            if chunks.binary_search(&index).is_ok() {
                continue;
            }
            let begins = u64::from(index.0) * chunk_size;
            let suspect = missing.get_or_insert(Suspect {
                kind: FsckKind::Missing,
                target,
                content: ContentName { inode, generation: file.generation },
                chunks: 0,
                first: index,
                bytes: 0,
                seen: Some(*file),
            });
            suspect.chunks += 1;
            suspect.bytes += (file.size - begins).min(chunk_size);
        }
        missing
    }

    /// The chunks of a range that the layout puts on the target, ascending.
    fn expected(
        &self,
        layout: &Layout,
        range: std::ops::Range<u32>,
        target: TargetId,
    ) -> Box<dyn Iterator<Item = ChunkIndex> + '_> {
        let (layout, width) = (*layout, layout.width());
        let lies_here =
            move |index: u32| self.lies_on(&layout, ChunkIndex(index), target) == Some(true);
        if range.len() as u64 <= u64::from(width) {
            return Box::new(range.filter(move |index| lies_here(*index)).map(ChunkIndex));
        }
        // The groups go round: where the first round lies, all lie.
        let here: Vec<bool> = (0..width).map(lies_here).collect();
        let is_here = move |index: &u32| here[(*index % width) as usize];
        Box::new(range.filter(is_here).map(ChunkIndex))
    }

    /// Whether the layout puts the chunk on the target; `None` where the map does not know.
    fn lies_on(&self, layout: &Layout, index: ChunkIndex, target: TargetId) -> Option<bool> {
        let group = self.map.group(layout.pool(), layout.group(index))?;
        Some(group.targets.contains(&target))
    }
}

/// A suspicion of chunks that are there, if there are any.
fn held_wrongly(
    kind: FsckKind,
    target: TargetId,
    content: ContentName,
    mut chunks: impl Iterator<Item = ChunkIndex>,
) -> Option<Suspect> {
    let first = chunks.next()?;
    let chunks = 1 + chunks.count() as u64;
    Some(Suspect { kind, target, content, chunks, first, bytes: 0, seen: None })
}

#[cfg(test)]
mod tests;
