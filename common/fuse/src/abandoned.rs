//! Callers that the kernel forgets to speak for.
//!
//! Over io_uring a request is out of the kernel's hands from when it is given an entry, but it is
//! sent only when the thread of its queue gets to run. A signal that comes between is followed by
//! no INTERRUPT (Linux 6.18), nor is any later one: the caller cannot even be killed before it is
//! answered. On a busy machine that is a matter of milliseconds, and it happens.
//!
//! So one thread looks at the callers of requests that wait for long. Whoever has a signal that is
//! neither blocked nor ignored, and does not get to deal with it, is in that state.

use std::{
    collections::HashMap,
    convert::Infallible,
    fs,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use crate::connection::Connection;

/// Interrupts what is abandoned, until the other end of `session` is dropped. Takes no time while
/// nothing waits.
pub(crate) fn interrupt(connection: &Connection, session: &Receiver<Infallible>) {
    // How often each was seen with a signal; what was not there the last time is not old enough.
    let mut seen: HashMap<u64, u32> = HashMap::new();
    while session.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let mut still = HashMap::new();
        for (unique, caller) in connection.live().callers() {
            let times = match seen.get(&unique) {
                Some(times) if is_signalled(caller) => times + 1,
                _ => 0,
            };
            if times == LOOKS {
                tracing::debug!(unique, caller, "interrupts a request without being told");
                connection.interrupt(unique);
            }
            still.insert(unique, times);
        }
        seen = still;
    }
}

/// Whether a thread has a signal that it does not get to deal with.
fn is_signalled(thread: u32) -> bool {
    fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| has_signal(&status))
}

/// The same, of what the kernel says of the thread.
fn has_signal(status: &str) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let (Some(own), Some(shared), Some(blocked), Some(ignored)) =
        (set("SigPnd:"), set("ShdPnd:"), set("SigBlk:"), set("SigIgn:"))
    else {
        return false;
    };
    (own | shared) & !(blocked | ignored) != 0
}

/// A caller that is killed is gone within three of these.
const INTERVAL: Duration = Duration::from_millis(250);
/// A signal that another thread is about to take is not there so often.
const LOOKS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64, ignored: u64) -> String {
        format!(
            "Name:\tcat\nState:\tD (disk sleep)\nSigQ:\t1/1000\nSigPnd:\t{own:016x}\n\
             ShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
        )
    }

    #[test]
    fn signals_count_that_are_neither_blocked_nor_ignored() {
        let kill = 1 << 8;
        assert!(has_signal(&status(kill, 0, 0, 0)));
        assert!(has_signal(&status(0, kill, 0, 0)));
        assert!(has_signal(&status(3, 0, 1, 0)));
        assert!(!has_signal(&status(3, 0, 1, 2)));
        assert!(!has_signal(&status(0, 0, 0, 0)));
        assert!(!has_signal("SigPnd:\tffff\n"));
        assert!(!is_signalled(u32::MAX));
        assert!(!is_signalled(std::process::id()));
    }
}
