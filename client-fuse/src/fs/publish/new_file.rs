//! What the server is told of a file that was made here.

use millrace_protocol::{delegation::NewFile, session::Operation};

use crate::fs::{
    delegations::Unpublished,
    file::File,
    inline::{Bytes, inline_bytes},
};

/// What the server must hear of a file, if it does not know of it; and how many acknowledgements of
/// targets it knows of when it has answered.
pub(super) fn as_new_file(file: &File, bytes: Bytes) -> Option<(Unpublished, NewFile, u64)> {
    let mut state = file.state();
    let access = state.access.clone()?;
    let inline = (bytes == Bytes::InInode).then(|| inline_bytes(&state)).flatten();
    let unpublished = state.unpublished.as_mut()?;
    let was_sent = std::mem::replace(&mut unpublished.was_sent, true);
    unpublished.was_sent_inline |= inline.is_some();
    let unpublished = unpublished.clone();
    if !was_sent {
        // Until now nobody else can have set a mode.
        state.privileges.take_due();
    }
    // Numbered when it is sent.
    let operation = Operation { session: unpublished.session, sequence: 0, lowest_pending: 0 };
    // While something is on its way, what the targets have may have gaps: a commit tells the rest.
    let is_here = state.buffer.held_bytes() > 0 || state.buffer.has_flights();
    let is_whole = !is_here && !state.has_unstored_hole();
    let (end, told) = match &inline {
        Some(bytes) => (bytes.len() as u64, state.committed),
        None if is_whole => (state.stored.end, state.stored.acknowledgements),
        None => (0, state.committed),
    };
    let is_told = inline.is_some() || (is_whole && told > 0);
    let written_at = state.written_at.filter(|_| is_told);
    let request = NewFile {
        operation,
        caller: unpublished.caller.clone(),
        parent: unpublished.parent,
        name: unpublished.name.clone(),
        mode: unpublished.mode,
        made_at: unpublished.made_at,
        content: access.capability.clone(),
        end,
        written_at,
        inline,
    };
    // What was sent before may have been less: a commit tells the rest again.
    let known = if was_sent { state.committed } else { told };
    Some((unpublished, request, known))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use millrace_protocol::session::Caller;
    use millrace_types::{FileName, InodeId, SessionId, TargetId, Timestamp};

    use super::*;
    use crate::{cache::budget::Budget, fs::file::tests::file};

    fn unpublished() -> Unpublished {
        Unpublished {
            parent: InodeId(1),
            name: FileName::parse(b"name").expect("a name"),
            mode: 0o644,
            caller: Caller::ROOT,
            made_at: Timestamp(0),
            since: Instant::now(),
            session: SessionId(1),
            was_sent: false,
            inline_bytes_max: 16,
            was_sent_inline: false,
        }
    }

    #[test]
    fn what_is_sent_again_leaves_the_rest_to_a_commit() {
        let file = file(20);
        file.state().unpublished = Some(unpublished());
        let write = |range| {
            let access = file.access().expect("it was opened");
            file.state().record_stored(&range, &access, TargetId([1; 8]), 0);
        };
        write(0..10);
        let (_, request, known) =
            as_new_file(&file, Bytes::AtTargets).expect("it is not published");
        assert_eq!((request.end, known), (10, 1));
        // Of whose answer nobody heard: the server may have made the file with ten bytes.
        write(10..30);
        let (_, request, known) =
            as_new_file(&file, Bytes::AtTargets).expect("it is not published");
        assert_eq!((request.end, known), (30, 0));
        let mut state = file.state();
        state.unpublished = None;
        state.record_commit(known);
        assert!(state.needs_commit());
    }

    #[test]
    fn small_files_are_sent_with_their_bytes_and_stay_here_as_they_were_changed_meanwhile() {
        let now = Timestamp(5);
        let whole = |file: &File, bytes| as_new_file(file, bytes).expect("not published").1;
        let written = |bytes: &[u8]| {
            let file = file(0);
            let mut state = file.state();
            state.unpublished = Some(unpublished());
            state.buffer.insert(0, bytes);
            state.permit = Budget::new(1000).try_take(bytes.len() as u64);
            state.record_write(&(0..bytes.len() as u64), now);
            drop(state);
            file
        };
        let file = written(b"0123456789");
        let request = whole(&file, Bytes::AtTargets);
        assert_eq!((request.inline, request.end, request.written_at), (None, 0, None));
        let request = whole(&file, Bytes::InInode);
        let sent = request.inline.clone().expect("it is small");
        assert_eq!((&sent[..], request.end), (&b"0123456789"[..], 10));
        assert_eq!(request.written_at, Some(now));
        assert!(file.state().unpublished.as_ref().is_some_and(|of| of.was_sent_inline));

        // Written on while the message was on its way: all of it stays to be stored.
        file.state().buffer.insert(3, b"x");
        file.state().handle_inline(&sent);
        assert_eq!(file.state().buffer.read_covered(&(0..10)).as_deref(), Some(&b"012x456789"[..]));
        let unchanged = written(b"0123456789");
        unchanged.state().handle_inline(&sent);
        assert_eq!(unchanged.state().buffer.held_bytes(), 0);

        // Too large, with a hole, or partly at a target.
        assert_eq!(whole(&written(&[1; 17]), Bytes::InInode).inline, None);
        let gap = written(b"0");
        gap.state().buffer.insert(5, b"5");
        gap.state().record_write(&(5..6), now);
        assert_eq!(whole(&gap, Bytes::InInode).inline, None);
        let stored = written(b"0123456789");
        let access = stored.access().expect("it was opened");
        stored.state().record_stored(&(0..3), &access, TargetId([1; 8]), 0);
        assert_eq!(whole(&stored, Bytes::InInode).inline, None);
    }
}
