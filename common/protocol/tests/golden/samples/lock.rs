//! Messages of locks.

use millrace_protocol::lock::{
    AwaitAppends, AwaitAppendsReply, AwaitLocks, AwaitLocksReply, CancelLock, Lock, LockConflict,
    LockSpace, SetLock, SetLockReply, TestLock, TestLockReply,
};
use millrace_types::{ChangeCount, InodeId, LockKind, LockRange, SessionId};

use super::{Sample, done, operation, pair};

pub(super) fn all() -> Vec<Sample> {
    let range = LockRange { start: 100, last: LockRange::END };
    let conflict = LockConflict { range, kind: LockKind::Read, process: 4242 };
    let test = TestLock { session: SessionId(7), lock: lock(Some(LockKind::Read)) };
    let set = SetLock { operation: operation(), lock: lock(None), wait: 9 };
    let granted = SetLockReply { granted: true, change_count: ChangeCount(77) };
    let wait = AwaitLocks { session: SessionId(7), known: vec![3, 5] };
    let append = AwaitAppends { session: SessionId(7), known: vec![InodeId(3)] };
    [
        pair(&test, &TestLockReply { conflict: Some(conflict) }),
        pair(&set, &granted),
        pair(&CancelLock { operation: operation(), wait: 9 }, &done()),
        pair(&wait, &AwaitLocksReply { ended: vec![9, 11] }),
        pair(&append, &AwaitAppendsReply { wanted: vec![InodeId(9), InodeId(11)] }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn lock(kind: Option<LockKind>) -> Lock {
    Lock {
        inode: InodeId(0x1_0000_0001),
        space: LockSpace::Range,
        owner: 0x0102_0304_0506_0708,
        kind,
        range: LockRange { start: 5, last: 99 },
        process: 4711,
    }
}
