//! Opens that find their file gone, because it lost its last name just after it was looked up.
//!
//! A client opens a file in two steps: it looks the name up, and opens what that leads to. Who
//! removes or replaces the name in between leaves nothing to be opened. The client's kernel begins
//! anew then, once; if the same happens again, the program gets ESTALE, which no local file system
//! knows: there an open has the old file or the new one.
//!
//! So from the first such miss on, what loses *that name* stays for a moment, as if the sessions
//! that missed it had it open: their opens find it, as programs find what they have opened before.
//! The miss and the removals are executed by one thread, and the kernel looks the name up again
//! after the miss; so whatever it finds then is kept for it. Names that nobody misses cost nothing.
//!
//! In memory only. After a restart a session that has not declared a read does not read, as ever.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use millrace_types::{FileName, InodeId, SessionId, Timestamp};

/// What is missed, and what stays for that.
#[derive(Debug, Default)]
pub struct LateOpens {
    /// The last files that have lost their last name, and that name; the oldest first.
    gone: VecDeque<(InodeId, Name)>,
    /// Names under which files were missed.
    missed: BTreeMap<Name, Missed>,
    /// What stays for whom, and until when.
    kept: BTreeMap<(InodeId, SessionId), Timestamp>,
}

/// A name in a directory.
type Name = (InodeId, FileName);

#[derive(Debug, Default)]
struct Missed {
    by: BTreeSet<SessionId>,
    until: Timestamp,
}

impl LateOpens {
    /// A file has lost its last name, and stays until then for these sessions, which
    /// [`Self::keepers`] named.
    pub fn handle_gone(
        &mut self,
        inode: InodeId,
        name: Name,
        keepers: Vec<SessionId>,
        now: Timestamp,
    ) {
        for session in keepers {
            self.kept.insert((inode, session), now.plus(KEPT));
        }
        if self.gone.len() >= GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back((inode, name));
    }

    /// The session wanted to open an inode that is not there.
    pub fn handle_missed(&mut self, inode: InodeId, session: SessionId, now: Timestamp) {
        let Some((_, name)) = self.gone.iter().rev().find(|(gone, _)| *gone == inode) else {
            return;
        };
        if !self.missed.contains_key(name) {
            self.missed.retain(|_, missed| missed.until > now);
            if self.missed.len() >= MISSED_MAX {
                return;
            }
        }
        let missed = self.missed.entry(name.clone()).or_default();
        missed.until = now.plus(MISSED);
        if missed.by.len() < MISSED_BY_MAX {
            missed.by.insert(session);
        }
    }

    /// For whom what loses this name has to stay.
    #[must_use]
    pub fn keepers(&self, name: &Name, now: Timestamp) -> Vec<SessionId> {
        let missed = self.missed.get(name).filter(|missed| missed.until > now);
        let missed = missed.filter(|_| self.kept.len() < KEPT_MAX);
        missed.into_iter().flat_map(|missed| &missed.by).copied().collect()
    }

    /// Whether the inode stays for the session.
    #[must_use]
    pub fn is_kept(&self, inode: InodeId, session: SessionId) -> bool {
        self.kept.contains_key(&(inode, session))
    }

    /// What has stayed for long enough, and for whom; until [`Self::handle_over`].
    #[must_use]
    pub fn over(&self, now: Timestamp) -> Vec<(InodeId, SessionId)> {
        self.kept.iter().filter(|(_, until)| **until <= now).map(|(kept, _)| *kept).collect()
    }

    /// The inode does not stay for the session any more.
    pub fn handle_over(&mut self, inode: InodeId, session: SessionId) {
        self.kept.remove(&(inode, session));
    }

    /// The session has ended, and with it whatever was open in it.
    pub fn handle_end(&mut self, session: SessionId) {
        self.kept.retain(|&(_, of), _| of != session);
        self.missed.retain(|_, missed| {
            missed.by.remove(&session);
            !missed.by.is_empty()
        });
    }
}

/// How long a file stays: a program's open follows its lookup within microseconds, and comes later
/// only where it gets no processor. With names that are kept by the kernel, a client counts on a
/// tenth of this for the same.
pub const KEPT: Duration = Duration::from_secs(1);

/// How long a name counts as one under which files are missed. Of one that is missed again after
/// that an open takes two attempts once more.
const MISSED: Duration = Duration::from_secs(60);

/// The last files that are remembered: what clients miss they have looked up just before.
const GONE_MAX: usize = 1024;

/// Names, and sessions of each, that are watched so; half a megabyte. Of others an open that has
/// missed twice fails.
const MISSED_MAX: usize = 1024;
const MISSED_BY_MAX: usize = 64;

/// What may stay at a time, with some more for the sessions of the last one: a command to drop it
/// follows for each.
const KEPT_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1);
    const SESSION: SessionId = SessionId(4);

    fn name() -> Name {
        (InodeId(1), FileName::parse(b"name").unwrap())
    }

    #[test]
    fn what_loses_a_name_stays_for_who_has_missed_something_under_it() {
        let mut late = LateOpens::default();
        assert!(late.keepers(&name(), START).is_empty(), "nobody has missed anything");
        late.handle_gone(InodeId(5), name(), Vec::new(), START);
        late.handle_missed(InodeId(6), SESSION, START);
        assert!(late.keepers(&name(), START).is_empty(), "that never had the name");
        late.handle_missed(InodeId(5), SESSION, START);
        let other = (InodeId(2), name().1);
        assert!(late.keepers(&other, START).is_empty());
        let keepers = late.keepers(&name(), START);
        assert_eq!(keepers, [SESSION]);
        late.handle_gone(InodeId(6), name(), keepers, START);
        assert!(late.is_kept(InodeId(6), SESSION) && !late.is_kept(InodeId(5), SESSION));
        assert!(late.over(START).is_empty());
        assert_eq!(late.over(START.plus(KEPT)), [(InodeId(6), SESSION)]);
        late.handle_over(InodeId(6), SESSION);
        assert!(late.over(START.plus(KEPT)).is_empty());
        assert!(late.keepers(&name(), START.plus(MISSED)).is_empty(), "that was long ago");
    }

    #[test]
    fn nothing_stays_for_a_session_that_has_ended() {
        let mut late = LateOpens::default();
        late.handle_gone(InodeId(5), name(), vec![SESSION], START);
        late.handle_missed(InodeId(5), SESSION, START);
        late.handle_end(SESSION);
        assert!(!late.is_kept(InodeId(5), SESSION) && late.missed.is_empty());
    }

    #[test]
    fn nothing_grows_without_bounds() {
        let mut late = LateOpens::default();
        let numbered = |number: u64| (InodeId(number), name().1);
        for number in 0..2 * GONE_MAX as u64 {
            late.handle_gone(InodeId(number), numbered(number), Vec::new(), START);
            late.handle_missed(InodeId(number), SESSION, START);
        }
        assert_eq!((late.gone.len(), late.missed.len()), (GONE_MAX, MISSED_MAX));
        let latest = 2 * GONE_MAX as u64 - 1;
        late.handle_missed(InodeId(latest), SESSION, START.plus(MISSED));
        assert_eq!(late.missed.len(), 1, "those of before are over");
        for session in 0..2 * MISSED_BY_MAX as u64 {
            late.handle_missed(InodeId(latest), SessionId(session), START.plus(MISSED));
        }
        let keepers = late.keepers(&numbered(latest), START.plus(MISSED));
        assert_eq!(keepers.len(), MISSED_BY_MAX);
        for number in 0..KEPT_MAX as u64 {
            late.handle_gone(InodeId(number), numbered(latest), vec![SESSION], START);
        }
        assert!(late.keepers(&numbered(latest), START.plus(MISSED)).is_empty());
    }
}
