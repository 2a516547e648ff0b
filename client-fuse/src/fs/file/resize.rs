//! What an open file makes of the answer to a truncation from here.
//!
//! The server has made it long before: it answers when the writers on other hosts have heard of it.
//! What programs of this mount have written meanwhile went to the content that the answer shows, or
//! to a later one, and is not cut by it.

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
}

#[cfg(test)]
mod tests {
    use millrace_protocol::capability::Rights;
    use millrace_types::Timestamp;

    use super::*;
    use crate::fs::file::tests::{file, reply};

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
}
