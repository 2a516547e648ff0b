//! How much is asked for at the same time: of each link by itself, so that a bucket that says
//! nothing keeps nobody from another one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use millrace_types::{ErrorKind, Failure, LinkId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Held while something is asked for.
pub(in crate::hydration) type Turn = OwnedSemaphorePermit;

/// The turns of all links.
#[derive(Debug)]
pub(super) struct Turns {
    links: Mutex<HashMap<LinkId, Arc<OfLink>>>,
    /// Pages in memory, whoever asked for them.
    pages: Arc<Semaphore>,
}

/// Those of one link.
#[derive(Debug)]
pub(super) struct OfLink {
    listings: Arc<Semaphore>,
    patient: Arc<Semaphore>,
    pages: Arc<Semaphore>,
    probes: Arc<Semaphore>,
    heads: Arc<Semaphore>,
    all_pages: Arc<Semaphore>,
}

/// Room for a page, from its request until it is in the tree.
#[derive(Debug)]
pub(super) struct PageRoom {
    _of_link: Turn,
    _of_all: Turn,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self { links: Mutex::default(), pages: Arc::new(Semaphore::new(ALL_PAGES_MAX)) }
    }

    /// Those of a link. They are kept: links are few, and their numbers are not used again.
    pub(super) fn of(&self, link: LinkId) -> Arc<OfLink> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(links.entry(link).or_insert_with(|| {
            let places = |count| Arc::new(Semaphore::new(count));
            Arc::new(OfLink {
                listings: places(LISTINGS_MAX),
                patient: places(PATIENT_MAX),
                pages: places(PAGES_MAX),
                probes: places(PROBES_MAX),
                heads: places(HEADS_MAX),
                all_pages: Arc::clone(&self.pages),
            })
        }))
    }
}

impl OfLink {
    /// Lists a directory.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when the server ends, as for all of them.
    pub(super) async fn listing(&self) -> Result<Turn, Failure> {
        turn(&self.listings).await
    }

    /// Has a directory listed that nobody waits for but jobs and rounds.
    pub(super) async fn patient(&self) -> Result<Turn, Failure> {
        turn(&self.patient).await
    }

    /// Asks for a page of a listing.
    pub(super) async fn page(&self) -> Result<PageRoom, Failure> {
        let of_link = turn(&self.pages).await?;
        Ok(PageRoom { _of_link: of_link, _of_all: turn(&self.all_pages).await? })
    }

    /// Asks for a name alone, because somebody waits for it.
    pub(super) async fn probe(&self) -> Result<Turn, Failure> {
        turn(&self.probes).await
    }

    /// Asks for the attributes of an object that was listed.
    pub(super) async fn head(&self) -> Result<Turn, Failure> {
        turn(&self.heads).await
    }

    /// How many more directories may be listed at this moment.
    #[cfg(test)]
    pub(super) fn listings_left(&self) -> usize {
        self.listings.available_permits()
    }
}

async fn turn(of: &Arc<Semaphore>) -> Result<Turn, Failure> {
    Arc::clone(of).acquire_owned().await.map_err(|_| ErrorKind::Cancelled.into())
}

/// Listings of a link that run at the same time.
pub(in crate::hydration) const LISTINGS_MAX: usize = 16;

/// Listings of these that nobody waits for but jobs and rounds: the rest is for who looks.
pub(in crate::hydration) const PATIENT_MAX: usize = 12;

/// Pages that the listings of a link together have asked for and not imported yet: a third of the
/// requests that may be on their way to a bucket, so that who looks a name up always finds room.
const PAGES_MAX: usize = 24;

/// The same of all links. A page of a thousand names takes some 300 KiB.
const ALL_PAGES_MAX: usize = 4 * PAGES_MAX;

/// Names that are asked for alone at the same time, because somebody waits for them.
const PROBES_MAX: usize = 64;

/// Objects that the listings of a link together ask for at the same time, for their attributes:
/// fewer than may be on their way to a bucket, so that who looks a name up finds room.
const HEADS_MAX: usize = 48;
