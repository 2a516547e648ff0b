//! Restarts, repeated requests and news.

use millrace_protocol::lock::LockSpace;
use millrace_types::{LockKind, LockRange};
use tokio::sync::oneshot;

use super::*;

const FILE: InodeId = InodeId(5);

fn operation(session: u64, sequence: u64) -> Operation {
    Operation { session: SessionId(session), sequence, lowest_pending: sequence.saturating_sub(3) }
}

fn write(owner: u64) -> Lock {
    let (space, kind, range) = (LockSpace::Range, Some(LockKind::Write), LockRange::WHOLE);
    Lock { inode: FILE, space, owner, kind, range, process: 7 }
}

fn kind<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> ErrorKind {
    outcome.expect_err("a failure").kind
}

#[test]
fn a_request_that_arrives_again_late_does_nothing_again() {
    let mut locks = Locks::after_restart([]);
    assert_eq!(locks.set(operation(1, 1), &write(1), 0), Ok(true));
    let unlock = Lock { kind: None, ..write(1) };
    assert_eq!(locks.set(operation(1, 2), &unlock, 0), Ok(true));
    assert_eq!(locks.set(operation(2, 1), &write(1), 0), Ok(true));
    assert_eq!(locks.set(operation(1, 1), &write(1), 0), Ok(true), "what it was answered");
    assert_eq!(locks.counts().locks, 1);
    assert_eq!(kind(locks.set(operation(1, 3), &write(1), 0)), ErrorKind::Locked);
    assert_eq!(locks.set(operation(2, 2), &unlock, 0), Ok(true));
    assert_eq!(kind(locks.set(operation(1, 3), &write(1), 0)), ErrorKind::Locked, "as before");
    assert_eq!(locks.set(operation(1, 9), &write(1), 0), Ok(true));
    let forgotten = locks.set(operation(1, 2), &unlock, 0);
    assert_eq!(kind(forgotten), ErrorKind::InvalidArgument, "nobody waits for it");
    assert_eq!(locks.counts().locks, 1);
}

#[test]
fn after_a_restart_nothing_new_is_granted_until_all_have_declared_or_ended() {
    let known = [SessionId(1), SessionId(2), SessionId(3)];
    let mut locks = Locks::after_restart(known);
    assert_eq!(locks.problem(), None, "nobody is held up");
    assert_eq!(kind(locks.set(operation(4, 1), &write(1), 0)), ErrorKind::Busy);
    assert_eq!(kind(locks.test(SessionId(4), &write(1))), ErrorKind::Busy);
    assert!(locks.problem().is_some_and(|text| text.contains("3 sessions")));
    assert!(locks.declare(SessionId(1), &Held::Lock(write(1))));
    assert!(locks.declare(SessionId(1), &Held::Lock(write(1))), "once more is once");
    assert!(!locks.declare(SessionId(2), &Held::Lock(write(1))), "somebody has it");
    assert!(!locks.declare(SessionId(2), &Held::Lock(Lock { kind: None, ..write(1) })));
    locks.handle_declared(SessionId(1));
    locks.handle_declared(SessionId(2));
    assert_eq!(locks.set(operation(1, 1), &write(1), 0), Ok(true), "it holds that");
    assert_eq!(kind(locks.set(operation(1, 2), &write(2), 9)), ErrorKind::Busy);
    let unlock = Lock { kind: None, ..write(2) };
    assert_eq!(locks.set(operation(1, 3), &unlock, 0), Ok(true));
    assert_eq!(locks.undeclared(), 1);
    locks.handle_end(SessionId(3));
    assert_eq!((locks.undeclared(), locks.problem()), (0, None));
    assert_eq!(kind(locks.set(operation(1, 2), &write(2), 0)), ErrorKind::Locked);
    assert_eq!(locks.set(operation(1, 4), &write(2), 9), Ok(false));
}

#[test]
fn who_does_not_declare_in_time_is_not_waited_for() {
    let mut locks = Locks::after_restart([SessionId(1)]);
    assert_eq!(locks.handle_declaring_over(), 1);
    assert_eq!(locks.set(operation(4, 1), &write(1), 0), Ok(true));
    assert!(!locks.declare(SessionId(1), &Held::Lock(write(1))), "too late");
}

#[test]
fn news_of_a_wait_are_told_once_to_the_last_who_asked() {
    let mut locks = Locks::after_restart([]);
    let session = SessionId(2);
    assert_eq!(locks.set(operation(1, 1), &write(1), 0), Ok(true));
    assert_eq!(locks.set(operation(2, 1), &write(1), 70), Ok(false));
    let News::Later(mut first) = locks.watch(session, &[]) else { panic!("it waits") };
    let News::Later(mut second) = locks.watch(session, &[]) else { panic!("it waits") };
    assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert_eq!(second.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    locks.handle_end(SessionId(1));
    assert_eq!(second.try_recv(), Ok(()));
    let News::Now(ended) = locks.watch(session, &[]) else { panic!("it is over") };
    assert_eq!(ended, [70]);
    assert!(matches!(locks.watch(session, &[70]), News::Later(_)), "it knows");
    locks.cancel(operation(2, 2), 70).unwrap();
    locks.cancel(operation(2, 2), 70).unwrap();
    assert_eq!(locks.counts(), Counts::default());
}

#[test]
fn who_may_append_hears_of_those_who_wait_also_when_it_waited_itself() {
    let append = |kind| Lock { space: LockSpace::Append, kind, ..write(0) };
    let (taken, none) = (append(Some(LockKind::Write)), append(None));
    let mut locks = Locks::after_restart([]);
    assert_eq!(locks.set(operation(1, 1), &taken, 0), Ok(true));
    let News::Later(mut first) = locks.watch_appends(SessionId(1), &[]) else { panic!("alone") };
    assert_eq!(locks.set(operation(2, 1), &taken, 7), Ok(false));
    assert_eq!(first.try_recv(), Ok(()));
    let News::Now(wanted) = locks.watch_appends(SessionId(1), &[]) else { panic!("it is wanted") };
    assert_eq!(wanted, [taken.inode]);
    let News::Later(_) = locks.watch_appends(SessionId(1), &wanted) else { panic!("it knows") };
    assert_eq!(locks.set(operation(3, 1), &taken, 8), Ok(false));

    let News::Later(mut second) = locks.watch_appends(SessionId(2), &[]) else { panic!("nothing") };
    assert_eq!(locks.set(operation(1, 2), &none, 0), Ok(true));
    assert_eq!(second.try_recv(), Err(oneshot::error::TryRecvError::Empty), "not claimed yet");
    assert_eq!(locks.set(operation(2, 2), &taken, 7), Ok(true));
    assert_eq!(second.try_recv(), Ok(()), "the third one waits for it");
    locks.handle_end(SessionId(2));
    assert_eq!(locks.set(operation(3, 2), &taken, 8), Ok(true));
    assert!(matches!(locks.watch_appends(SessionId(3), &[]), News::Later(_)));
}
