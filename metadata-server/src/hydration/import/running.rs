//! A listing that is under way: who lists, and who waits for it.
//!
//! Those who have time, jobs above all, let a listing give way to a snapshot that runs short of
//! memory. Once a program waits for it, it goes on.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Listing, Tally};

/// What who lists has of it.
#[derive(Debug)]
pub(super) struct Lister {
    told: watch::Sender<Listing>,
    wanted: CancellationToken,
}

/// What who waits has of it.
#[derive(Debug, Clone)]
pub(super) struct Running {
    told: watch::Receiver<Listing>,
    wanted: CancellationToken,
}

/// A listing begins.
pub(super) fn begin() -> (Lister, Running) {
    let (sender, receiver) = watch::channel(Listing::Growing(Tally::default()));
    let wanted = CancellationToken::new();
    (Lister { told: sender, wanted: wanted.clone() }, Running { told: receiver, wanted })
}

impl Lister {
    /// Says how far it is.
    pub(super) fn tell(&self, listing: Listing) {
        self.told.send_replace(listing);
    }

    /// Whether no program waits for it yet.
    pub(super) fn has_time(&self) -> bool {
        !self.wanted.is_cancelled()
    }

    /// Waits until a program waits for it.
    pub(super) async fn wanted(&self) {
        self.wanted.cancelled().await;
    }
}

impl Running {
    /// For who has time.
    pub(super) fn patient(self) -> watch::Receiver<Listing> {
        self.told
    }

    /// For a program.
    pub(super) fn wanted(self) -> watch::Receiver<Listing> {
        self.wanted.cancel();
        self.told
    }
}
