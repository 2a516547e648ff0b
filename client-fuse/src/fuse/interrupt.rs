//! When the program that waits for a request is let go before the answer is there.
//!
//! The kernel passes on that a waiting program got a signal, once for each request and without
//! saying which signal. So it is looked at in `/proc`: signals stay pending there until the request
//! is answered. A program that is being killed is let go from anything. One that has a handler for
//! a signal that asks it to end (Ctrl-C) is let go from what only looks (a name that is looked up
//! on the way to an open cannot be told from one for a stat), and from waiting for what happens
//! anyway (fsync, close). What changes something goes on to its end, and a program that was told
//! otherwise might do it twice. All other signals (timers, children, a runtime's own) wait.

use std::{fs, time::Duration};

use millrace_fuse_server::Cancellation;

/// From what a program is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetGo {
    /// Only when it is being killed.
    Killed,
    /// Also when it handles a signal that asks it to end.
    AskedToEnd,
    /// Also when it handles any signal: what POSIX says of waiting for a lock.
    Signalled,
}

/// Waits until the program is let go whose thread `thread` waits. `thread` is 0 for one that cannot
/// be seen from here; then any signal is enough, since nobody can say that it does not kill.
pub(super) async fn let_go(cancellation: Cancellation, thread: u32, when: LetGo) {
    cancellation.cancelled().await;
    // The kernel does not say it again when a second signal comes.
    while !is_let_go(thread, when) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn is_let_go(thread: u32, when: LetGo) -> bool {
    if thread == 0 {
        return true;
    }
    match fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => Signals::read(&status).let_go(when),
        // Hidden from this user, or gone.
        Err(_) => true,
    }
}

/// Sets of signals of a thread: bit 0 is signal 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signals {
    pending: u64,
    blocked: u64,
    ignored: u64,
    handled: u64,
}

impl Signals {
    fn read(status: &str) -> Self {
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let digits = line.and_then(|line| line.strip_prefix(':')).unwrap_or_default();
            u64::from_str_radix(digits.trim(), 16).unwrap_or(0)
        };
        Self {
            pending: set("SigPnd") | set("ShdPnd"),
            blocked: set("SigBlk"),
            ignored: set("SigIgn"),
            handled: set("SigCgt"),
        }
    }

    fn let_go(self, when: LetGo) -> bool {
        let arriving = self.pending & !self.blocked & !self.ignored;
        // The kernel turns most signals that kill into SIGKILL; not those that leave a core.
        let kills = arriving & !self.handled & !HARMLESS != 0;
        let asks = arriving & self.handled & ASKS_TO_END != 0;
        match when {
            LetGo::Killed => kills,
            LetGo::AskedToEnd => kills || asks,
            LetGo::Signalled => kills || arriving & self.handled != 0,
        }
    }
}

/// The set of these signals.
const fn set(signals: &[i32]) -> u64 {
    let mut set = 0;
    let mut index = 0;
    while index < signals.len() {
        set |= 1 << (signals[index] - 1);
        index += 1;
    }
    set
}

/// What is ignored, stops, or continues where it is not handled.
const HARMLESS: u64 = set(&[
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGWINCH,
]);

/// What a person or a supervisor sends to have a program end.
const ASKS_TO_END: u64 = set(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]);

/// A killed program is gone within a second; this leaves the machine in peace while it waits.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(pending: &[i32], blocked: &[i32], handled: &[i32]) -> Signals {
        let (pending, blocked, handled) = (set(pending), set(blocked), set(handled));
        Signals { pending, blocked, handled, ignored: 0 }
    }

    #[test]
    fn sets_are_read_from_the_status_of_a_thread() {
        let status = "Name:\tcat\nSigQ:\t0/1\nSigPnd:\t0000000000000100\n\
                      ShdPnd:\t0000000000000002\nSigBlk:\t0000000000010000\n\
                      SigIgn:\t0000000000001000\nSigCgt:\t0000000000000002\n";
        let read = Signals::read(status);
        let expected = signals(&[libc::SIGKILL, libc::SIGINT], &[libc::SIGCHLD], &[libc::SIGINT]);
        assert_eq!(read, Signals { ignored: set(&[libc::SIGPIPE]), ..expected });
        assert_eq!(Signals::read("nothing"), Signals::default());
    }

    #[test]
    fn who_is_killed_is_let_go_from_anything() {
        for when in [LetGo::Killed, LetGo::AskedToEnd] {
            assert!(signals(&[libc::SIGKILL], &[], &[]).let_go(when));
            assert!(signals(&[libc::SIGQUIT], &[], &[]).let_go(when), "it leaves a core");
            assert!(!signals(&[libc::SIGTERM], &[libc::SIGTERM], &[]).let_go(when));
            assert!(!signals(&[], &[], &[libc::SIGINT]).let_go(when));
        }
    }

    #[test]
    fn a_handled_signal_lets_go_only_if_it_asks_to_end() {
        let handled = |signal| signals(&[signal], &[], &[signal]);
        assert!(handled(libc::SIGINT).let_go(LetGo::AskedToEnd));
        assert!(!handled(libc::SIGINT).let_go(LetGo::Killed));
        assert!(!handled(libc::SIGALRM).let_go(LetGo::AskedToEnd));
        assert!(!signals(&[libc::SIGCHLD], &[], &[]).let_go(LetGo::AskedToEnd));
    }

    #[test]
    fn any_handled_signal_lets_go_from_waiting_for_a_lock() {
        assert!(signals(&[libc::SIGALRM], &[], &[libc::SIGALRM]).let_go(LetGo::Signalled));
        assert!(signals(&[libc::SIGKILL], &[], &[]).let_go(LetGo::Signalled));
        assert!(!signals(&[libc::SIGCHLD], &[], &[]).let_go(LetGo::Signalled));
        let blocked = signals(&[libc::SIGALRM], &[libc::SIGALRM], &[libc::SIGALRM]);
        assert!(!blocked.let_go(LetGo::Signalled));
    }
}
