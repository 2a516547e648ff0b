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
    asked: Instant,
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn open(metadata: &Peer, options: CallOptions) -> Result<Self, Failure> {
        let asked = Instant::now();
        let reply = open(metadata, options).await?;
        let held = Held { reply, received: Instant::now(), asked };
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
        let asked = Instant::now();
        let reply = open(metadata, options).await?;
        self.take(reply, asked);
        Ok(())
    }

    /// Takes another session over that was asked for at `asked`.
    fn take(&self, reply: SessionReply, asked: Instant) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        *held = Held { reply, received: Instant::now(), asked };
    }

    /// Takes a renewed ticket over, unless another session has taken the place of its own.
    pub(crate) fn handle_renewal(&self, reply: SessionReply, asked: Instant) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.reply.session == reply.session {
            *held = Held { reply, received: Instant::now(), asked };
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

    /// The server's clock, as far as the last answer lets us know it.
    pub(crate) fn now(&self) -> Timestamp {
        self.read(|held| held.reply.server_time.plus(held.received.elapsed()))
    }

    /// Whether the ticket counts at the server for certain, and for so long: what it granted to the
    /// session stands.
    pub(crate) fn is_valid_for(&self, time: Duration) -> bool {
        self.read(|held| {
            let lease = Duration::from_millis(u64::from(held.reply.lease_ms));
            held.asked.elapsed() + time < lease
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

async fn open(metadata: &Peer, options: CallOptions) -> Result<SessionReply, Failure> {
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let request = OpenSession { nonce: rand::random(), host_name };
    metadata.call_until(&request, options).await
}
