//! What an open file makes of the answer to a truncation from here.
//!
//! The server has made it long before: it answers when the writers on other hosts have heard of it.
//! What programs of this mount have written meanwhile went to the content that the answer shows, or
//! to a later one, and is not cut by it.
//!
//! And what it makes of its end when bytes behind that could not be stored.

use millrace_protocol::metadata::InodeReply;
use millrace_types::{ChangeCount, ContentGeneration, WriteEpoch};

use crate::fs::file::State;

/// A file that has got another size at this mount's wish, as the answer shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resized {
    /// After which change.
    pub(crate) count: ChangeCount,
    /// The content and epoch.
    version: Option<(ContentGeneration, WriteEpoch)>,
    size: u64,
}

/// What the server has told of a file's size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    size: u64,
    /// The same, as far as nothing before it waits to be stored.
    pub(super) end: u64,
}

impl Told {
    /// The server has told this size; at `held` and behind, bytes wait or are on their way.
    pub(super) fn handle_size(&mut self, size: u64, held: Option<u64>) {
        *self = Self { size, end: held.map_or(size, |at| at.min(size)) };
    }
}

impl Resized {
    /// What the answer shows.
    pub(crate) fn shown_by(reply: &InodeReply) -> Self {
        let version = reply.content.as_ref().map(|of| (of.generation, of.write_epoch));
        Self { count: reply.attributes.change_count, version, size: reply.attributes.size }
    }
}

impl State {
    /// Records that the server has set the size. The answer may be taken over already, or be older
    /// than what is known: then the size is as the server has told it since.
    pub(crate) fn record_resize(&mut self, shown: Resized) {
        self.pieces.clear();
        self.streams.handle_invalidation();
        if shown.version.is_none_or(|version| self.stored.version < version) {
            self.stored.end = self.stored.end.min(shown.size);
        }
        // What is buffered by now was written since, and is stored yet.
        let written = self.buffer.end().max(self.stored.end);
        self.own_end = self.own_end.min(shown.size.max(written));
        let is_newest = shown.count >= self.attributes.change_count;
        let size = if is_newest { shown.size } else { self.told.size };
        self.attributes.size = size.max(self.own_end);
    }

    /// Bytes that could not be stored have left the buffer. The file ends where the server has
    /// told, or behind what targets have taken or what waits: nothing is appended behind what is
    /// nowhere, and nobody is shown an end there.
    pub(crate) fn handle_unstored_end(&mut self) {
        let is_same = self.version == Some(self.stored.version);
        let stored = if is_same { self.stored.end } else { 0 };
        self.own_end = self.own_end.min(self.buffer.end().max(stored));
        let size = self.told.size.max(self.own_end);
        self.attributes.size = size;
        // With nothing behind them, what is written next begins where they did.
        self.unstored = self
            .unstored
            .filter(|&start| start < size || self.buffer.first_behind(start).is_some());
    }
}

#[cfg(test)]
mod tests {
    use std::{ops::Range, sync::MutexGuard};

    use millrace_protocol::{capability::Rights, storage::TRANSFER_LEN_MAX};
    use millrace_types::{TargetId, Timestamp};

    use super::*;
    use crate::{
        cache::write_buffer::SlotIndex,
        fs::file::{
            File,
            tests::{file, reply},
        },
    };

    /// A file of 100 bytes, to which `range` was written, and in which slots that is.
    fn written(file: &File, range: Range<u64>) -> (MutexGuard<'_, State>, Vec<SlotIndex>) {
        let mut state = file.state();
        state.accept(reply(5, 100, 1, Rights::ReadWrite)).expect("sound");
        let len = usize::try_from(range.end - range.start).expect("a few bytes");
        state.buffer.insert(range.start, &vec![7; len]);
        state.record_write(&range, Timestamp(20));
        let slots = state.buffer.dirty_slots();
        (state, slots)
    }

    /// What was written of `range`, in `slot`, is sent, and cannot be stored.
    fn fail(state: &mut State, slot: SlotIndex, range: &Range<u64>) {
        assert!(state.buffer.take_off(slot).is_some());
        state.record_unstored(range);
        state.buffer.land(slot);
        state.handle_unstored_end();
    }

    fn store(state: &mut State, range: &Range<u64>) {
        let access = state.access.clone().expect("it may be written");
        state.record_stored(range, &access, TargetId([1; 8]), 1);
    }

    #[test]
    fn the_late_answer_to_a_truncation_leaves_the_size_that_was_told_since() {
        let file = file(7);
        let mut state = file.state();
        state.record_write(&(0..500), Timestamp(20));
        let cut = Resized::shown_by(&reply(7, 0, 2, Rights::ReadWrite));
        // Another host has written since, as a stat shows.
        let mut stat = reply(8, 200, 2, Rights::Read);
        stat.capability = None;
        state.accept(stat).expect("sound");
        assert_eq!(state.attributes.size, 500, "it is not known that these bytes are cut");
        state.record_resize(cut);
        assert_eq!(state.attributes.size, 200);
    }
    #[test]
    fn a_file_ends_where_it_did_before_what_could_not_be_stored() {
        let file = file(7);
        let (mut state, slots) = written(&file, 100..200);
        let (end, count) = (state.attributes.size, state.attributes.change_count);
        assert_eq!(end, 200);
        fail(&mut state, slots[0], &(100..200));
        assert_eq!(state.attributes.size, 100);
        assert!(state.has_other_end(end, count), "who has waited to append must look again");
        state.accept(reply(6, 100, 1, Rights::ReadWrite)).expect("sound");
        assert_eq!(state.attributes.size, 100, "and that is all that anybody is shown");

        // Appended there, which leaves no hole.
        state.buffer.insert(100, b"more");
        state.record_write(&(100..104), Timestamp(30));
        let slot = state.buffer.dirty_slots()[0];
        assert!(state.buffer.take_off(slot).is_some());
        store(&mut state, &(100..104));
        state.buffer.land(slot);
        assert_eq!((state.attributes.size, state.end_to_tell()), (104, 104));
        assert!(!state.has_unstored_hole() && !state.has_undeclared_hole());
    }

    #[test]
    fn a_file_ends_behind_what_waits_or_is_stored_also_where_something_before_it_is_not() {
        let slot_len = u64::from(TRANSFER_LEN_MAX);
        let end = slot_len + 10;
        let waits = file(7);
        let (mut state, slots) = written(&waits, 100..end);
        fail(&mut state, slots[0], &(100..slot_len));
        assert_eq!(state.attributes.size, end, "it may be stored yet");
        fail(&mut state, slots[1], &(slot_len..end));
        assert_eq!(state.attributes.size, 100);

        let stored = file(7);
        let (mut state, slots) = written(&stored, 100..end);
        assert!(state.buffer.take_off(slots[1]).is_some());
        store(&mut state, &(slot_len..end));
        state.buffer.land(slots[1]);
        fail(&mut state, slots[0], &(100..slot_len));
        assert_eq!(state.attributes.size, end);
        assert!(state.has_unstored_hole(), "the server has to hear of it");
    }
}
