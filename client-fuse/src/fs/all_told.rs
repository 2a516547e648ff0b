//! Saying to a metadata server that was restarted that it knows of all that is open here.
//!
//! Opens for reading it keeps in memory only. So it keeps what is removed for every session from
//! before the restart that may have it open, until that has said that all is told, or for three
//! leases. That is said once it is true, which is when
//!
//! 1. this mount has begun to listen to this life of the server. What was opened without a message,
//!    under a lease of an earlier life, was told before that ([`super::quiet_opens`]); what is
//!    opened so from then on will be before its lease is given back;
//! 2. no open is on its way that an earlier life may have answered, so that none is missing among
//!    the handles;
//! 3. this life was told of every open for reading among those.
//!
//! Locks are declared before, and so are delegations before it listens. Opens for writing, and
//! files that were made without a name, are in the log.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::session::AllTold;
use millrace_types::SessionId;
use tokio::sync::{Notify, watch};

use crate::fs::{FileSystem, handle::Told};

/// What may be open that the server's present life was not told of.
#[derive(Debug, Default)]
pub(super) struct Untold {
    opening: Arc<Opening>,
    /// Where this mount began to listen last.
    listens: watch::Sender<Option<Told>>,
}

/// Opens for reading that are on their way.
#[derive(Debug, Default)]
struct Opening {
    /// How many, by the life of the server in which they began.
    lives: Mutex<BTreeMap<u64, usize>>,
    /// Some were the last of their life.
    ended: Notify,
}

/// An open for reading is on its way, until this is dropped.
#[derive(Debug)]
pub(super) struct OnItsWay {
    opening: Arc<Opening>,
    incarnation: u64,
}

impl Untold {
    /// An open for reading begins, at the moment that `now` says.
    pub(super) fn begin(&self, now: impl FnOnce() -> Told) -> (Told, OnItsWay) {
        let opening = Arc::clone(&self.opening);
        let mut lives = opening.lock();
        // With the lock held: whoever looks later in another life does not miss it.
        let now = now();
        *lives.entry(now.incarnation).or_default() += 1;
        drop(lives);
        (now, OnItsWay { opening, incarnation: now.incarnation })
    }

    /// The mount begins to listen, and has told of whatever was opened before without a message.
    pub(super) fn handle_listening(&self, told: Told) {
        self.listens.send_replace(Some(told));
    }
}

impl Opening {
    /// Returns when no open is on its way that began in another life of the server than this.
    async fn none_of_others(&self, incarnation: u64) {
        loop {
            let ended = self.ended.notified();
            if self.lock().keys().all(|&life| life == incarnation) {
                return;
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        // Each step leaves it whole.
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let mut lives = self.opening.lock();
        if let Some(count) = lives.get_mut(&self.incarnation) {
            *count -= 1;
            if *count == 0 {
                lives.remove(&self.incarnation);
                self.opening.ended.notify_waiters();
            }
        }
    }
}

impl FileSystem {
    /// Lets this life of the server know when it knows of all. Goes on in the background, for as
    /// long as that life lasts. Locks were declared to it.
    pub(super) fn say_all_told(&self, incarnation: u64) {
        self.spawn(|this| async move {
            tokio::select! {
                biased;
                // That one is told of anew.
                _ = this.other_life(incarnation) => {}
                () = this.tell_all(incarnation) => {}
            }
        });
    }

    async fn tell_all(&self, incarnation: u64) {
        let Some(session) = self.all_told(incarnation).await else { return };
        if let Err(failure) = self.cluster.ask(&AllTold { session, incarnation }).await {
            // A server of before there was this waits, as one does that hears nothing.
            tracing::debug!(%failure, "the server waits for what it may not have been told of");
        }
    }

    /// Returns when all is told, with the session in which.
    async fn all_told(&self, incarnation: u64) -> Option<SessionId> {
        let mut listens = self.untold.listens.subscribe();
        loop {
            let is_present = |told: &Option<Told>| *told == Some(self.told_now());
            let told = match listens.wait_for(is_present).await {
                Ok(told) => *told,
                Err(_) => None,
            };
            let session = told?.session;
            self.untold.opening.none_of_others(incarnation).await;
            self.tell_open_reads().await;
            // What was told in a session that has ended is closed.
            if self.cluster.session() == session {
                return Some(session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn told(incarnation: u64) -> Told {
        Told { session: SessionId(1), incarnation }
    }

    #[test]
    fn opens_that_an_earlier_life_may_have_answered_are_waited_for() {
        let untold = Untold::default();
        let others = |incarnation| untold.opening.none_of_others(incarnation).now_or_never();
        assert_eq!(others(1), Some(()), "nothing is on its way");
        let (now, first) = untold.begin(|| told(1));
        let (_, second) = untold.begin(|| told(1));
        assert_eq!((now, others(1)), (told(1), Some(())));
        assert_eq!(others(2), None);
        let (_, third) = untold.begin(|| told(2));
        drop(first);
        assert_eq!(others(2), None, "one is left");
        let mut waits = Box::pin(untold.opening.none_of_others(2));
        assert_eq!((&mut waits).now_or_never(), None);
        drop(second);
        assert_eq!(waits.now_or_never(), Some(()), "it is woken");
        assert_eq!(others(3), None);
        drop(third);
        assert!(untold.opening.lock().is_empty());
    }
}
