//! What an open file knows of copies that targets make into it, as of writes whose bytes are not
//! here.

use std::ops::Range;

use millrace_types::{TargetId, Timestamp};

use crate::{
    cache::write_buffer::CopyNumber,
    fs::file::{Access, State},
};

impl State {
    /// Targets are about to copy to these ranges, of which the first begins at `start`. No size is
    /// told, nor shown, past what they have not copied yet.
    pub(crate) fn begin_copy(
        &mut self,
        start: u64,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> CopyNumber {
        let size = self.attributes.size;
        // It may have been another one a moment before.
        self.undeclared |= start > size;
        self.buffer.begin_copy(ranges, size)
    }

    /// Records that `target` has acknowledged `range` of a copy, written under `access`.
    pub(crate) fn record_copied(
        &mut self,
        copy: CopyNumber,
        range: &Range<u64>,
        access: &Access,
        (target, loss_count): (TargetId, u64),
        now: Timestamp,
    ) {
        self.buffer.handle_copied(copy, range.start);
        self.record_stored(range, access, target, loss_count);
        self.landings += 1;
        self.written_at = Some(now);
        // Otherwise it went to a content that another host has cut or replaced meanwhile.
        if self.version == Some(access.version()) {
            let end = self.buffer.first_uncopied().unwrap_or(self.stored.end);
            self.own_end = self.own_end.max(end.min(self.stored.end));
        }
        self.show_own_writes();
    }

    /// A copy is over, of which the program is told as far as `until`: what was stored behind that
    /// has a hole before it, where something is missing. What is not acknowledged may be there all
    /// the same: nothing stays that was fetched before.
    pub(crate) fn end_copy(&mut self, copy: CopyNumber, until: u64) {
        for range in self.buffer.end_copy(copy) {
            self.pieces.invalidate(&range);
            self.landings += 1;
            let missing = range.start.max(until)..range.end;
            if !missing.is_empty() && missing.start < self.stored.end {
                self.record_unstored(&missing);
            }
        }
        // What was stored behind something missing counts from here on, as the server is told.
        if self.version == Some(self.stored.version) {
            let end = self.buffer.first_uncopied().unwrap_or(self.stored.end);
            self.own_end = self.own_end.max(end.min(self.stored.end));
            self.show_own_writes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use millrace_protocol::capability::Rights;

    use super::*;
    use crate::{
        cache::pieces::Part,
        fs::file::tests::{file, reply},
    };

    const NOW: Timestamp = Timestamp(20);

    fn copied(state: &mut State, copy: CopyNumber, range: Range<u64>) {
        let access = state.access.clone().expect("it may be written");
        state.record_copied(copy, &range, &access, (TargetId([1; 8]), 3), NOW);
    }

    #[test]
    fn a_size_is_shown_and_told_as_far_as_everything_before_it_is_there() {
        let file = file(7);
        let mut state = file.state();
        let copy = state.begin_copy(0, [0..100, 100..200, 200..250].into_iter());
        copied(&mut state, copy, 100..200);
        assert_eq!((state.attributes.size, state.end_to_tell()), (0, 0));
        assert!(state.needs_commit() && state.landings == 1);
        copied(&mut state, copy, 0..100);
        assert_eq!((state.attributes.size, state.end_to_tell()), (200, 200));
        assert_eq!(state.attributes.modified, NOW);
        // The server has heard of these.
        let told = state.stored.acknowledgements;
        state.accept(reply(9, 200, 1, Rights::ReadWrite)).expect("sound");
        state.record_commit(told);
        copied(&mut state, copy, 200..250);
        state.end_copy(copy, 250);
        assert_eq!((state.attributes.size, state.end_to_tell()), (250, 250));
        assert!(!state.has_unstored_hole() && state.needs_commit());
        let unsynced = state.durable.begin_sync();
        assert_eq!(unsynced.get(&TargetId([1; 8])), Some(&3));
    }

    #[test]
    fn what_is_missing_of_a_copy_is_a_hole_before_what_is_stored_behind_it() {
        let file = file(7);
        let mut state = file.state();
        let copy = state.begin_copy(0, [0..100, 100..200, 200..300].into_iter());
        copied(&mut state, copy, 0..100);
        state.end_copy(copy, 100);
        assert!(!state.has_unstored_hole(), "the file ends before what is missing");
        let copy = state.begin_copy(100, [100..200, 200..300].into_iter());
        copied(&mut state, copy, 200..300);
        assert_eq!((state.attributes.size, state.end_to_tell()), (100, 100));
        state.end_copy(copy, 100);
        assert!(state.has_unstored_hole());
        assert_eq!((state.attributes.size, state.end_to_tell()), (300, 300));
        state.forget_unstored();
        // Copied by way of the mount in the end.
        let copy = state.begin_copy(100, [100..200, 200..300].into_iter());
        state.end_copy(copy, 300);
        assert!(!state.has_unstored_hole());
    }

    #[test]
    fn what_was_fetched_of_a_range_stays_only_where_a_copy_has_certainly_not_written() {
        let file = file(7);
        let mut state = file.state();
        state.attributes.size = 300;
        let copy = state.begin_copy(0, [0..100, 100..200].into_iter());
        copied(&mut state, copy, 0..100);
        let landings = state.landings;
        // Both were asked for before the outcome of the second range came to be unknown.
        for range in [100..200, 200..300] {
            state.pieces.begin(range, true, None, Instant::now());
        }
        state.end_copy(copy, 100);
        let parts = state.pieces.plan(&(100..300));
        assert!(matches!(&parts[..], [Part::Missing(old), Part::Held { range, .. }]
            if *old == (100..200) && *range == (200..300)));
        assert!(state.landings > landings, "a read that is on its way may be older");
    }

    #[test]
    fn what_goes_to_a_content_that_was_cut_meanwhile_shows_no_size() {
        let file = file(7);
        let mut state = file.state();
        let old = state.access.clone().expect("it may be written");
        let copy = state.begin_copy(0, [0..100, 100..200].into_iter());
        state.accept(reply(9, 0, 2, Rights::ReadWrite)).expect("sound");
        state.record_copied(copy, &(0..100), &old, (TargetId([1; 8]), 3), NOW);
        assert_eq!(state.attributes.size, 0);
        assert!(state.has_undeclared_hole(), "what follows may lie behind its end");
        copied(&mut state, copy, 100..200);
        assert_eq!((state.attributes.size, state.stored.end), (200, 200));
    }
}
