//! Locks on files (`flock`, `fcntl`): clients to the metadata server.
//!
//! A request is an *exchange*: it is answered at once, also when the lock cannot be had. Who wants
//! to wait gives its wait a number; the server queues it, and *reserves* the lock for it when its
//! turn has come. All waits of a session are watched by one request, [`AwaitLocks`], so that
//! however many programs wait, one stream is used. The reserved lock is then *claimed* by the same
//! [`SetLock`] again, or given up by [`CancelLock`]:
//!
//! ```text
//!   SetLock, wait 7 ──▶ queued ─── its turn ──▶ reserved ──SetLock, wait 7──▶ held
//!                         └───────CancelLock 7──────┴──▶ as if it had never been asked for
//! ```
//!
//! Exchanges are numbered apart from other mutations, and answered once however often they are
//! sent. A client sends those of one owner on one inode one after the other. Locks are not logged:
//! after a restart of the server each session declares what it holds ([`crate::session::Declare`]),
//! and who waits asks again.
//!
//! Appends of several hosts to one file stand in line by a lock too, one of a space that programs
//! cannot reach ([`LockSpace::Append`]). A client keeps it from one append to the next, and hears
//! by [`AwaitAppends`] when another one waits for it:
//!
//! ```text
//!   A: SetLock ──▶ held ─ appends ─ appends ─┬─ stores, commits ─ unlocks
//!   B:               SetLock, wait 7 ──▶ A is told ──────────────────▶ reserved, claimed
//! ```

use millrace_types::{ChangeCount, ErrorKind, InodeId, LockKind, LockRange, SessionId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::session::Operation;

/// Which locks meet each other.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
#[repr(u8)]
pub enum LockSpace {
    /// Of `flock`: on whole files.
    Flock = 1,
    /// Of `fcntl`, those of open file descriptions included: on ranges of bytes.
    Range = 2,
    /// The right to append, of clients instead of programs: for writing, on whole files.
    Append = 3,
}

/// One owner's lock, or where it wants none.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The file.
    pub inode: InodeId,
    /// Which kind of locks.
    pub space: LockSpace,
    /// Whose, in its session: a number that the client chose.
    pub owner: u64,
    /// `None` unlocks.
    pub kind: Option<LockKind>,
    /// [`LockRange::WHOLE`] where whole files are locked.
    pub range: LockRange,
    /// The process, as its host numbers it; for people and for `F_GETLK` on that host.
    pub process: u32,
}

impl Lock {
    /// Checks what a peer sent.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a range that is none, or no whole file in a space of
    /// whole files, or an append that others may share.
    pub fn checked(self) -> Result<Self, ErrorKind> {
        self.range.checked()?;
        let sound = match self.space {
            LockSpace::Range => true,
            LockSpace::Flock => self.range == LockRange::WHOLE,
            LockSpace::Append => {
                self.range == LockRange::WHOLE && self.kind != Some(LockKind::Read)
            }
        };
        sound.then_some(self).ok_or(ErrorKind::InvalidArgument)
    }
}

/// Takes, changes or gives back a lock. Answered [`ErrorKind::Locked`] where another owner is in
/// the way and `wait` is 0, [`ErrorKind::Deadlock`], [`ErrorKind::NoLocks`], and
/// [`ErrorKind::Busy`] while sessions have not declared after a restart what they hold.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetLock {
    /// Answered once.
    pub operation: Operation,
    /// The lock.
    pub lock: Lock,
    /// Names the wait in its session if the lock cannot be had at once; 0 does not wait. A number
    /// that waits already asks how that stands, and claims what is reserved for it.
    pub wait: u64,
}

/// How a lock stands.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetLockReply {
    /// Whether it is as asked for; otherwise the wait is queued.
    pub granted: bool,
    /// Of the inode, now: another one than the client knows means that it changed meanwhile. 0
    /// where nothing was taken.
    pub change_count: ChangeCount,
}

/// Ends a wait, and gives up what is reserved for it. One that the server does not know is no
/// error.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CancelLock {
    /// Answered once.
    pub operation: Operation,
    /// Which.
    pub wait: u64,
}

/// Asks which lock is in the way.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TestLock {
    /// The session.
    pub session: SessionId,
    /// What would be locked.
    pub lock: Lock,
}

/// A lock that is in the way, if there is one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TestLockReply {
    /// The first by offset of the first owner that is found.
    pub conflict: Option<LockConflict>,
}

/// A lock that is in the way of another.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockConflict {
    /// Where.
    pub range: LockRange,
    /// What.
    pub kind: LockKind,
    /// The process that holds it; 0 for one of another session, whose numbers mean nothing here.
    pub process: u32,
}

/// Waits until one of the session's waits is over that is not in `known`. A second request of the
/// session ends the first.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AwaitLocks {
    /// The session.
    pub session: SessionId,
    /// Waits of which the client knows that they are over; at most [`WAITS_PER_SESSION_MAX`].
    pub known: Vec<u64>,
}

/// Waits that are over: reserved, or failed. Empty after 20 s without any: ask again.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AwaitLocksReply {
    /// By their numbers.
    pub ended: Vec<u64>,
}

/// Waits until somebody waits for the right to append to a file that this session holds, and that
/// is not in `known`. A second request of the session ends the first.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AwaitAppends {
    /// The session.
    pub session: SessionId,
    /// Files whose right to append the client is giving up; at most [`WANTED_MAX`].
    pub known: Vec<InodeId>,
}

/// Files that others want to append to. Empty after 20 s without any: ask again.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AwaitAppendsReply {
    /// At most [`WANTED_MAX`], in ascending order.
    pub wanted: Vec<InodeId>,
}

/// Files that are told of, or known, in one exchange: 8 KiB.
pub const WANTED_MAX: usize = 1024;

/// Waits of one session: threads that wait on one host.
pub const WAITS_PER_SESSION_MAX: usize = 4096;
