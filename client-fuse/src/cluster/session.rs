//! The session's ticket, and the metadata server's clock.

use std::{
    sync::{PoisonError, RwLock},
    time::{Duration, Instant},
};

use millrace_protocol::{
    capability::Signed,
    session::{OpenSession, SessionReply},
};
use millrace_transport::{CallOptions, Peer};
use millrace_types::{Failure, SessionId, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// The present session of a mount.
#[derive(Debug)]
pub(crate) struct Session {
    held: RwLock<Held>,
}

#[derive(Debug)]
struct Held {
    reply: SessionReply,
    received: Instant,
    /// Before the request was sent: the ticket counts for a lease from here at least.
    asked: Asked,
    clock: ServerClock,
}

/// When something was asked for, by two clocks of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at: Instant,
    /// By the clock that goes on while the host sleeps, as a lease does at the server.
    since_boot: Duration,
}

/// The server's clock, as its answers let us know it. The server takes no time that lies ahead of
/// it, so that this one does not run ahead: it is behind by as long as the quickest answer was on
/// its way. It never goes back: programs look at the times of what they have written.
#[derive(Clone, Copy, Debug)]
struct ServerClock {
    /// What it has come to at least, when `at` was.
    time: Timestamp,
    at: Instant,
    /// It stands at this until it has come so far again.
    shown: Timestamp,
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn open(metadata: &Peer, options: CallOptions) -> Result<Self, Failure> {
        let asked = Asked::now();
        let reply = open(metadata, options).await?;
        let received = Instant::now();
        let clock = ServerClock::new(reply.server_time, received);
        let held = Held { reply, received, asked, clock };
        Ok(Self { held: RwLock::new(held) })
    }

    /// Opens another session in the place of this one.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn replace(
        &self,
        metadata: &Peer,
        options: CallOptions,
    ) -> Result<(), Failure> {
        let asked = Asked::now();
        let reply = open(metadata, options).await?;
        self.take(reply, asked);
        Ok(())
    }

    /// Takes another session over that was asked for at `asked`.
    fn take(&self, reply: SessionReply, asked: Asked) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        *held = held.followed_by(reply, asked);
    }

    /// Takes a renewed ticket over, unless another session has taken the place of its own.
    pub(crate) fn handle_renewal(&self, reply: SessionReply, asked: Asked) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.reply.session == reply.session {
            *held = held.followed_by(reply, asked);
        }
    }

    /// Which session.
    pub(crate) fn id(&self) -> SessionId {
        self.read(|held| held.reply.session)
    }

    /// The ticket, to be shown to targets.
    pub(crate) fn ticket(&self) -> Signed {
        self.read(|held| held.reply.ticket.clone())
    }

    /// The server's clock, as far as its answers let us know it. Never goes back.
    pub(crate) fn now(&self) -> Timestamp {
        self.read(|held| held.clock.now(Instant::now()))
    }

    /// Whether the ticket counts at the server for certain, and for so long: what it granted to the
    /// session stands.
    pub(crate) fn is_valid_for(&self, time: Duration) -> bool {
        self.read(|held| {
            let lease = Duration::from_millis(u64::from(held.reply.lease_ms));
            stands_for(time, lease, held.asked.since_boot, since_boot())
        })
    }

    /// When the ticket should be renewed: after a third of the lease, so that two attempts may
    /// fail.
    pub(crate) fn until_renewal(&self) -> Duration {
        self.read(|held| {
            let lease = Duration::from_millis(u64::from(held.reply.lease_ms));
            (lease / 3).saturating_sub(held.received.elapsed())
        })
    }

    fn read<T>(&self, look: impl FnOnce(&Held) -> T) -> T {
        look(&self.held.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Held {
    /// What is held once an answer has come that was asked for at `asked`. To be called with the
    /// lock held, so that who looks at the clock before does so at an earlier moment.
    fn followed_by(&self, reply: SessionReply, asked: Asked) -> Self {
        let received = Instant::now();
        let clock = self.clock.corrected(reply.server_time, asked.at, received);
        Self { reply, received, asked, clock }
    }
}

impl Asked {
    /// To be called before the request is sent.
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), since_boot: since_boot() }
    }
}

impl ServerClock {
    /// As the first answer shows it: the server's time was this or later when it was received.
    fn new(server_time: Timestamp, received: Instant) -> Self {
        Self { time: server_time, at: received, shown: server_time }
    }

    fn now(&self, now: Instant) -> Timestamp {
        self.time.plus(now.saturating_duration_since(self.at)).max(self.shown)
    }

    /// The same after another answer. The server's clock was at `server_time` at some moment from
    /// `asked` to `received`; what is known better than that stays.
    fn corrected(&self, server_time: Timestamp, asked: Instant, received: Instant) -> Self {
        let shown = self.now(received);
        let latest = server_time.plus(received.saturating_duration_since(asked));
        // Past that it is where the server's clock is slower than this host's, or was set back.
        let time = if shown > latest { server_time } else { shown.max(server_time) };
        Self { time, at: received, shown }
    }
}

async fn open(metadata: &Peer, options: CallOptions) -> Result<SessionReply, Failure> {
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let request = OpenSession { nonce: rand::random(), host_name };
    metadata.call_until(&request, options).await
}

/// Whether a lease that was asked for at `asked` stands for `time` after `now`. A host that was
/// suspended meanwhile must not take it for a young one: the server has given it up.
fn stands_for(time: Duration, lease: Duration, asked: Duration, now: Duration) -> bool {
    now.saturating_sub(asked).saturating_add(time) < lease
}

/// How long the host has run, with the time that it was suspended, which [`Instant`] leaves out.
fn since_boot() -> Duration {
    // Never before its start; if it ever were, nothing would stand.
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// A server whose clock is the same one, and a moment of both.
    fn begin() -> (Instant, Timestamp) {
        (Instant::now(), Timestamp(1_000_000_000_000))
    }

    /// What an answer changes that was asked for so long after the beginning, was on its way to the
    /// server, and back, for so long.
    fn renew(
        clock: ServerClock,
        (at, time): (Instant, Timestamp),
        after: Duration,
        (there, back): (Duration, Duration),
    ) -> ServerClock {
        clock.corrected(time.plus(after + there), at + after, at + after + there + back)
    }

    #[test]
    fn an_answer_that_was_slow_does_not_set_the_clock_back() {
        let (at, time) = begin();
        let clock = ServerClock::new(time, at + MILLISECOND);
        let slow = renew(clock, (at, time), SECOND, (MILLISECOND, SECOND));
        let mut last = Timestamp(0);
        for step in 0..4000 {
            let moment = at + MILLISECOND * step;
            let received = at + 2 * SECOND + MILLISECOND;
            let now = if moment < received { clock.now(moment) } else { slow.now(moment) };
            assert!(last <= now, "{now:?} after {last:?}");
            let truth = time.plus(moment - at);
            assert!(now <= truth, "ahead of the server's");
            assert_eq!(truth.since(now), MILLISECOND.min(moment - at));
            last = now;
        }
    }

    #[test]
    fn a_quick_answer_corrects_what_a_slow_one_has_shown() {
        let (at, time) = begin();
        let clock = ServerClock::new(time, at + SECOND);
        assert_eq!(clock.now(at + 2 * SECOND), time.plus(SECOND));
        let quick = renew(clock, (at, time), 2 * SECOND, (MILLISECOND, MILLISECOND));
        let later = at + 5 * SECOND;
        assert_eq!(quick.now(later), time.plus(5 * SECOND - MILLISECOND));
        // And stays so.
        let slow = renew(quick, (at, time), 3 * SECOND, (SECOND, SECOND));
        assert_eq!(slow.now(later), quick.now(later));
    }

    #[test]
    fn of_a_clock_that_was_set_back_it_stands_still_until_that_has_come_so_far() {
        let (at, time) = begin();
        let clock = ServerClock::new(time, at);
        let back = time.minus(10 * SECOND);
        let ways = (MILLISECOND, MILLISECOND);
        let renewed = renew(clock, (at, back), SECOND, ways);
        let received = at + SECOND + 2 * MILLISECOND;
        let shown = clock.now(received);
        assert_eq!(renewed.now(received), shown);
        assert_eq!(renewed.now(at + 5 * SECOND), shown);
        // However often it is heard of meanwhile.
        let again = renew(renewed, (at, back), 4 * SECOND, ways);
        assert_eq!(again.now(at + 5 * SECOND), shown);
        let after = at + 20 * SECOND;
        assert_eq!(again.now(after), back.plus(20 * SECOND - MILLISECOND));
    }

    #[test]
    fn a_lease_ends_while_the_host_sleeps() {
        let (lease, asked) = (30 * SECOND, 1000 * SECOND);
        let stands = |time, now| stands_for(time, lease, asked, now);
        assert!(stands(Duration::ZERO, asked));
        assert!(stands(9 * SECOND, asked + 20 * SECOND));
        assert!(!stands(10 * SECOND, asked + 20 * SECOND), "not to its very end");
        // Suspended for an hour after the first second.
        assert!(stands(Duration::ZERO, asked + SECOND));
        assert!(!stands(Duration::ZERO, asked + 3601 * SECOND));
        assert!(!stands(Duration::ZERO, Duration::MAX));
        let (before, after) = (since_boot(), since_boot());
        assert!(before <= after && after < Duration::MAX, "{before:?}, {after:?}");
    }
}
