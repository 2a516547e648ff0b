//! Times of access: clients tell the metadata server lazily, in batches, what was read on them.
//!
//! The rule is that of Linux's `relatime`, and it is here because both sides need the same one: a
//! client notes what it says is due, shows that at once, and tells it later; the server asks it
//! again of what it knows by then.

use std::time::Duration;

use millrace_types::{InodeId, SessionId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::metadata::Attributes;

/// Tells what was read on a client. What is not due any more, not there any more or not to be seen
/// by the client is passed over. May be sent again: a time of access is only ever raised.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NoteReads {
    /// Whose programs have read.
    pub session: SessionId,
    /// At most [`READS_MAX`].
    pub reads: Vec<LastRead>,
}

/// That something was read.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastRead {
    /// What: a file, directory or symbolic link.
    pub inode: InodeId,
    /// Its time of access as the reader knew it; [`LastRead::UNSEEN`] if it did not.
    pub seen: Timestamp,
    /// When it was read, in server time.
    pub at: Timestamp,
}

/// The most entries of one message: of 24 bytes each, and a few milliseconds of the server's time
/// together.
pub const READS_MAX: usize = 256;

/// How old a time of access has to be before a read raises it, where nothing has changed since.
pub const ACCESS_AGE: Duration = Duration::from_secs(24 * 60 * 60);

impl LastRead {
    /// Stands for a time of access that the reader did not know.
    pub const UNSEEN: Timestamp = Timestamp(i64::MIN);

    /// What this raises the time of access of an inode to that shows `shown`, at `now` at most; if
    /// it does.
    ///
    /// A time of access that is not the one that the reader saw may have been set after the read.
    /// Setting one changes the inode: so this counts only if the inode has not changed since.
    #[must_use]
    pub fn raises(&self, shown: &Attributes, now: Timestamp) -> Option<Timestamp> {
        let at = self.at.min(now);
        let stands = shown.accessed == self.seen || at > shown.changed;
        (stands && is_due(shown, at)).then_some(at)
    }
}

/// Whether a read at `at` of what shows `shown` raises its time of access: because that is not
/// later than the last change, or older than [`ACCESS_AGE`].
#[must_use]
pub fn is_due(shown: &Attributes, at: Timestamp) -> bool {
    let accessed = shown.accessed;
    let old =
        accessed <= shown.modified || accessed <= shown.changed || at.since(accessed) >= ACCESS_AGE;
    old && at > accessed
}

#[cfg(test)]
mod tests {
    use millrace_types::{ChangeCount, Timestamp};

    use super::*;
    use crate::metadata::FileKind;

    const DAY: i64 = 24 * 60 * 60 * 1_000_000_000;

    fn shown(accessed: i64, modified: i64, changed: i64) -> Attributes {
        Attributes {
            inode: InodeId(7),
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            device: 0,
            size: 0,
            accessed: Timestamp(accessed),
            modified: Timestamp(modified),
            changed: Timestamp(changed),
            born: Timestamp(0),
            change_count: ChangeCount(1),
        }
    }

    #[test]
    fn a_read_is_due_after_a_change_and_after_a_day_as_with_relatime() {
        let due = |accessed, modified, changed, at| {
            is_due(&shown(accessed, modified, changed), Timestamp(at))
        };
        assert!(due(10, 10, 5, 11) && due(10, 5, 10, 11), "not later than the last change");
        assert!(!due(10, 9, 9, 11) && !due(10, 9, 9, 9 + DAY));
        assert!(due(10, 9, 9, 10 + DAY), "a day old");
        assert!(!due(10, 20, 20, 10) && !due(10, 20, 20, 9), "never lowered");
    }

    #[test]
    fn a_read_counts_for_what_its_reader_saw_and_for_what_has_not_changed_since() {
        let read =
            |seen, at| LastRead { inode: InodeId(7), seen: Timestamp(seen), at: Timestamp(at) };
        let raises = |read: LastRead, accessed, changed| {
            read.raises(&shown(accessed, 30, changed), Timestamp(100))
        };
        assert_eq!(raises(read(10, 50), 10, 60), Some(Timestamp(50)), "written to since");
        assert_eq!(raises(read(10, 50), 11, 60), None, "its time was set since");
        assert_eq!(raises(read(10, 50), 11, 40), Some(Timestamp(50)), "by an earlier read");
        assert_eq!(raises(read(LastRead::UNSEEN.0, 50), 11, 40), Some(Timestamp(50)));
        assert_eq!(raises(read(LastRead::UNSEEN.0, 50), 11, 60), None);
        assert_eq!(raises(read(10, 50), 50, 40), None, "told before");
        assert_eq!(raises(read(10, 500), 10, 60), Some(Timestamp(100)), "never in the future");
        assert_eq!(raises(read(10, 500), 100, 40), None);
    }
}
