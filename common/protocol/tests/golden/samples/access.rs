//! Messages of times of access.

use millrace_protocol::access::{LastRead, NoteReads};
use millrace_types::{InodeId, SessionId, Timestamp};

use super::{Sample, done, pair};

pub(super) fn all() -> Vec<Sample> {
    let read = LastRead {
        inode: InodeId(0x1_0000_0001),
        seen: Timestamp(1_700_000_000_123_456_789),
        at: Timestamp(1_700_086_400_987_654_321),
    };
    let unseen = LastRead { seen: LastRead::UNSEEN, ..read };
    pair(&NoteReads { session: SessionId(7), reads: vec![read, unseen] }, &done()).into()
}
