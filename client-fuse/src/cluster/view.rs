//! What the metadata server has shown of itself: how far its log had come, and in which life.
//!
//! A server that was restarted has all that it has acknowledged, unless its host lost power: then
//! the end of its log may be gone, of changes that nobody had synced. To compare the last index
//! would not do, since others may have changed something by then. So each new life is asked how far
//! its log is the one in which this mount saw what it saw last, before it is asked anything else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_protocol::{
    cluster::LogPoint,
    session::{CheckLog, Hello},
};
use millrace_transport::{CallOptions, Connected};
use millrace_types::{ErrorKind, Failure, LogIndex};
use tokio::sync::watch;

use crate::cluster::ATTACH_DEADLINE;

/// That of one mount.
#[derive(Debug, Default)]
pub(super) struct View {
    seen: Mutex<Seen>,
    /// The server's present life: another number means that it was restarted. Changed with `seen`
    /// locked.
    incarnation: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The newest log index of any reply, and the life that showed it.
    newest: Option<LogPoint>,
    /// For each life that did not know of the newest: up to where its log was the same.
    ends: Vec<LogIndex>,
}

/// Where something stands in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Logged {
    /// Its index.
    pub(crate) index: LogIndex,
    /// How often the log had lost its end before that.
    pub(crate) losses: usize,
}

/// What a life of the server turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// It has all that was seen.
    Whole,
    /// It lacks some of it, which nobody has recorded before.
    Lossy,
    /// More was seen meanwhile: it has to be asked again.
    Unchecked,
}

impl View {
    /// Records the log index that a reply of the present life shows.
    pub(super) fn handle_index(&self, index: LogIndex) -> Logged {
        let mut seen = self.lock();
        if index > seen.index() {
            seen.newest = Some(LogPoint { incarnation: *self.incarnation.borrow(), index });
        }
        Logged { index, losses: seen.ends.len() }
    }

    /// The newest log index of any reply; 0 before the first.
    pub(super) fn seen_index(&self) -> LogIndex {
        self.lock().index()
    }

    /// For each life of the server that did not know what one before had acknowledged: up to where
    /// its log was still the same.
    pub(super) fn ends(&self) -> Vec<LogIndex> {
        self.lock().ends.clone()
    }

    /// The server's present life.
    pub(super) fn incarnation(&self) -> watch::Receiver<u64> {
        self.incarnation.subscribe()
    }

    /// What a server in this life has to know of; nothing while it goes on, or at first.
    fn unchecked(&self, incarnation: u64) -> Option<LogPoint> {
        let seen = self.lock();
        seen.newest.filter(|_| *self.incarnation.borrow() != incarnation)
    }

    /// The server is in this life, in which its log has what was `asked` for up to `kept`. It was
    /// greeted while the life `before` was the last that was known.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where another greeting has found another life meanwhile: it may
    /// be a later one.
    fn handle_life(
        &self,
        incarnation: u64,
        before: u64,
        (asked, kept): (Option<LogPoint>, LogIndex),
    ) -> Result<Life, Failure> {
        let mut seen = self.lock();
        let known = *self.incarnation.borrow();
        if known == incarnation {
            return Ok(Life::Whole);
        }
        if known != before {
            let words = "the metadata server was restarted while it was greeted";
            return Err(Failure::new(ErrorKind::Unavailable, words));
        }
        if seen.newest != asked {
            return Ok(Life::Unchecked);
        }
        let lost = asked.filter(|newest| kept < newest.index);
        if let Some(newest) = lost {
            seen.ends.push(kept);
            // The indexes behind that are given again.
            let is_any_kept = kept > LogIndex(0);
            seen.newest = is_any_kept.then_some(LogPoint { index: kept, ..newest });
        }
        self.incarnation.send_replace(incarnation);
        Ok(if lost.is_some() { Life::Lossy } else { Life::Whole })
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Each step leaves it whole.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn index(&self) -> LogIndex {
        self.newest.map_or(LogIndex(0), |newest| newest.index)
    }
}

/// The first messages on every connection to the metadata server.
pub(super) async fn greet(connected: Connected, view: Arc<View>) -> Result<(), Failure> {
    let before = *view.incarnation.borrow();
    let hello = Hello { seen_index: view.seen_index() };
    let reply = connected.call(&hello, CallOptions::control(ATTACH_DEADLINE)).await?;
    loop {
        let asked = view.unchecked(reply.incarnation);
        let kept = match asked {
            Some(seen) => kept_of(&connected, seen, reply.last_index).await?,
            None => LogIndex(0),
        };
        match view.handle_life(reply.incarnation, before, (asked, kept))? {
            Life::Whole => return Ok(()),
            Life::Lossy => {
                tracing::error!(
                    seen = %hello.seen_index,
                    %kept,
                    "the metadata server has lost changes that it had acknowledged"
                );
                return Ok(());
            }
            Life::Unchecked => {}
        }
    }
}

/// Up to where the log of a server that was restarted, which ends at `last`, is the one in which
/// this point was seen.
async fn kept_of(
    connected: &Connected,
    seen: LogPoint,
    last: LogIndex,
) -> Result<LogIndex, Failure> {
    let options = CallOptions::control(ATTACH_DEADLINE);
    match connected.call(&CheckLog { seen }, options).await {
        Ok(reply) => Ok(reply.kept),
        // A server from before there was this: its last index is all that there is.
        Err(failure) if failure.kind == ErrorKind::NotSupported => Ok(last),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(incarnation: u64, index: u64) -> LogPoint {
        LogPoint { incarnation, index: LogIndex(index) }
    }

    /// A greeting of a life whose log is the same up to `kept`, which nothing comes in between of.
    fn greeted(view: &View, incarnation: u64, kept: u64) -> Life {
        let before = *view.incarnation().borrow();
        let asked = view.unchecked(incarnation);
        let life = view.handle_life(incarnation, before, (asked, LogIndex(kept)));
        life.expect("no other life was met")
    }

    #[test]
    fn each_life_of_the_server_is_asked_for_what_was_seen_last() {
        let view = View::default();
        assert_eq!(view.unchecked(1), None, "nothing was seen yet");
        assert_eq!(greeted(&view, 1, 0), Life::Whole);
        view.handle_index(LogIndex(7));
        view.handle_index(LogIndex(5));
        assert_eq!(view.unchecked(1), None, "another connection to the same life");
        assert_eq!(view.unchecked(2), Some(point(1, 7)));
        assert_eq!(greeted(&view, 2, 7), Life::Whole);
        // Nothing new was seen in that one: what was acknowledged before counts all the same.
        assert_eq!(view.unchecked(3), Some(point(1, 7)));
        view.handle_index(LogIndex(9));
        assert_eq!(view.unchecked(3), Some(point(2, 9)));
        assert_eq!((view.ends(), *view.incarnation().borrow()), (Vec::new(), 2));
    }

    #[test]
    fn a_loss_is_counted_once_and_indexes_go_on_where_the_log_ended() {
        let view = View::default();
        greeted(&view, 1, 0);
        let logged = view.handle_index(LogIndex(1000));
        assert_eq!(logged, Logged { index: LogIndex(1000), losses: 0 });
        assert_eq!(greeted(&view, 2, 990), Life::Lossy);
        assert_eq!(greeted(&view, 2, 990), Life::Whole, "a connection that asked at the same time");
        assert_eq!((view.ends(), view.seen_index()), (vec![LogIndex(990)], LogIndex(990)));
        assert_eq!(view.unchecked(3), Some(point(1, 990)));
        let logged = view.handle_index(LogIndex(992));
        assert_eq!(logged, Logged { index: LogIndex(992), losses: 1 });
        assert_eq!(view.unchecked(3), Some(point(2, 992)));
        // Of a life that it never was in, the log has nothing.
        assert_eq!(greeted(&view, 3, 0), Life::Lossy);
        assert_eq!((view.ends().len(), view.seen_index()), (2, LogIndex(0)));
    }

    #[test]
    fn what_is_seen_while_a_life_is_asked_is_asked_for_as_well() {
        let view = View::default();
        greeted(&view, 1, 0);
        view.handle_index(LogIndex(98));
        let asked = view.unchecked(2);
        view.handle_index(LogIndex(99));
        let life = |asked| view.handle_life(2, 1, (asked, LogIndex(98))).expect("no other life");
        assert_eq!(life(asked), Life::Unchecked);
        assert_eq!(life(view.unchecked(2)), Life::Lossy);
        assert_eq!(view.ends(), [LogIndex(98)]);
    }

    #[test]
    fn a_greeting_that_ends_late_does_not_bring_an_earlier_life_back() {
        let view = View::default();
        greeted(&view, 2, 0);
        let late = view.handle_life(1, 0, (None, LogIndex(0))).expect_err("another life is known");
        assert_eq!(late.kind, ErrorKind::Unavailable);
        assert_eq!(*view.incarnation().borrow(), 2);
    }
}
