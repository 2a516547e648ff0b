//! Brings a bucket's names into the tree: a directory at a time, when somebody first looks.
//!
//! Listing and lookup:
//! - The first look into a linked directory starts one listing of it, shared by all who wait. Pages
//!   become commands of at most 1,000 entries, so that a reader can go on with what is there
//!   already. The next pages are on their way meanwhile, and of a large directory several at a time
//!   (`list`, `ranges`). What no program waits for gives way to a snapshot of the metadata that
//!   runs short of memory.
//! - A name that is looked up before its directory is listed is asked for alone (HEAD, and whether
//!   anything lies below `name/`) while the listing runs behind.
//! - Where an object and a directory have one name, the directory wins, whichever of them is found
//!   first; the object is left out. Keys that cannot be file names are left out too (see
//!   [`Page::left_out`]). What a listing left out is recorded (`left_out`), and a line in the log.
//!
//! Only HEAD tells POSIX attributes. Names found by listing get the link's defaults (the owner of
//! the linked directory, 0755 for directories and 0644 for files, the object's time), unless the
//! link asks for each object's own (`attributes`). Directories listed before are looked at again in
//! `again`, single objects in `object`.
//!
//! [`Page::left_out`]: millrace_object_source::Page::left_out

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use millrace_object_source::{Bucket, Buckets, Error as BucketError, LinkSpec, tallied};
use millrace_protocol::{admin::AttributeSource, cluster};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, LinkId, Timestamp};
use tokio::sync::{RwLock, watch};

#[cfg(test)]
pub(super) use self::turns::{LISTINGS_MAX, PATIENT_MAX};
use self::{entries::Found, running::Running, turns::Turns};
pub(super) use self::{
    entries::{Defaults, key_of, origin_of},
    object::Object,
    turns::Turn,
};
use super::{
    destination::prefix_of, environment::Environment, exporting::Exporting, left_out::Tray,
    metrics::FollowCounts,
};
use crate::{
    command::{Command, ImportEntries, ImportEntry, ImportKind, Outcome},
    namespace::{Body, LinkedDirectory, tree},
    store::{
        View, keys,
        records::{self, LinkRecord},
    },
};

mod again;
mod asked;
mod attributes;
pub(super) mod entries;
mod list;
pub(in crate::hydration) mod object;
mod probe;
mod ranges;
mod running;
mod shadow;
mod turns;

/// Listings that run or wait for their turn: who looks names up in a million directories would
/// otherwise queue as many. Each costs a task of a few KiB.
const LISTINGS_WAITING_MAX: usize = 4096;

/// How long who needs one more listing waits before asking again.
const LISTINGS_PAUSE: Duration = Duration::from_millis(250);

/// How far a listing is.
#[derive(Debug, Clone)]
pub enum Listing {
    /// So much is in the tree; more will come.
    Growing(Tally),
    /// All is there.
    Complete(Tally),
    /// It stopped; the next look starts another.
    Failed(Failure),
}

/// What a listing has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Names of files and directories.
    pub names: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Keys that can be no names.
    pub left_out: u64,
}

/// How much of what was found is in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Import {
    /// All of it.
    Whole,
    /// Not what an export has yet to tell of, nor what may have been removed here after the bucket
    /// was asked.
    Partial,
}

/// Lists directories and imports names. One per server.
#[derive(Debug)]
pub struct Importer<E> {
    environment: Arc<E>,
    buckets: Arc<Buckets>,
    running: Mutex<HashMap<InodeId, Running>>,
    turns: Turns,
    /// Directories whose listing began before an import of them was asked for.
    outrun: RwLock<HashSet<InodeId>>,
    /// Directories whose refresh failed, and until when lookups do without.
    put_off: Mutex<HashMap<InodeId, Instant>>,
    /// What is on its way to a bucket.
    pub(super) exporting: Exporting,
    pub(super) counts: FollowCounts,
}

/// A linked directory as an import needs it.
#[derive(Debug, Clone)]
pub(super) struct Linked {
    pub(super) directory: InodeId,
    pub(super) link: LinkId,
    pub(super) prefix: String,
    pub(super) listed: Option<Timestamp>,
    pub(super) born: Timestamp,
    pub(super) refresh_seconds: u32,
    pub(super) attributes: AttributeSource,
    pub(super) bucket: cluster::Bucket,
    pub(super) defaults: Defaults,
}

impl<E: Environment> Importer<E> {
    /// Nothing is being listed yet.
    pub fn new(environment: Arc<E>, buckets: Arc<Buckets>) -> Self {
        Self {
            environment,
            buckets,
            running: Mutex::default(),
            turns: Turns::new(),
            outrun: RwLock::default(),
            put_off: Mutex::default(),
            exporting: Exporting::default(),
            counts: FollowCounts::default(),
        }
    }

    /// Makes sure that `name` is in the tree if the bucket has it. Returns at once where
    /// `directory` shows no bucket, is listed, or has the name. To be called before a name is
    /// answered as missing, and before one is created.
    ///
    /// # Errors
    /// Those of the bucket: the name may exist.
    pub async fn name(
        self: &Arc<Self>,
        directory: InodeId,
        name: &FileName,
    ) -> Result<(), Failure> {
        let wanted = name.clone();
        let known = self.environment.read(move |view| {
            if tree::entry(view, directory, &wanted).map_err(broken)?.is_some() {
                return Ok(None);
            }
            Ok(linked(view, directory)?.filter(|linked| linked.listed.is_none()))
        });
        let Some(linked) = known.await? else { return Ok(()) };
        let Ok(listing) = self.listing(&linked, LISTINGS_WAITING_MAX) else {
            // Too many directories are being listed: this one has its turn with a later look.
            return self.probe(&linked, name).await;
        };
        let mut listing = listing.wanted();
        tokio::select! {
            probed = self.probe(&linked, name) => probed,
            // Whichever is first: a small directory is listed as fast as a name is found.
            done = finished(&mut listing) => match done {
                Listing::Failed(failure) => Err(failure),
                Listing::Growing(_) | Listing::Complete(_) => Ok(()),
            },
        }
    }

    /// Makes sure that the entries of `directory` behind the position `cookie` can be read: waits
    /// until its listing is complete or has added some. Says whether more will come, in which case
    /// the reader must not take the end for the end.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn entries(
        self: &Arc<Self>,
        directory: InodeId,
        cookie: u64,
    ) -> Result<Listing, Failure> {
        loop {
            let found = self.environment.read(move |view| {
                let linked = linked(view, directory)?.filter(|linked| linked.listed.is_none());
                let behind = tree::list(view, directory, cookie, 1).map_err(broken)?;
                Ok((linked, !behind.is_empty()))
            });
            let (Some(linked), behind) = found.await? else {
                return Ok(Listing::Complete(Tally::default()));
            };
            let mut listing = self.listing(&linked, LISTINGS_WAITING_MAX)?.wanted();
            let now = listing.borrow_and_update().clone();
            if let Listing::Growing(tally) = now {
                if behind {
                    return Ok(Listing::Growing(tally));
                }
                // Its end must be seen here: a listing that failed is forgotten, and another would
                // begin. An error means that the lister is gone.
                if listing.changed().await.is_err() {
                    return Err(ErrorKind::Unavailable.into());
                }
            }
            let now = listing.borrow().clone();
            match now {
                Listing::Failed(failure) => return Err(failure),
                Listing::Complete(tally) => return Ok(Listing::Complete(tally)),
                // Some more were added: look whether they are behind the cookie.
                Listing::Growing(_) => {}
            }
        }
    }

    /// Lists `directory` to its end, unless it is, and not longer ago than its link allows.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn whole(self: &Arc<Self>, directory: InodeId) -> Result<(), Failure> {
        match self.due(directory).await? {
            Some(linked) => self.wait_for(&linked, |_| (), LISTINGS_WAITING_MAX).await,
            None => Ok(()),
        }
    }

    /// Whether [`Self::whole`] has anything to list: where it has not, nobody needs a turn.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn is_due(&self, directory: InodeId) -> Result<bool, Failure> {
        Ok(self.due(directory).await?.is_some())
    }

    /// The linked directory, unless it is listed, and not longer ago than its link allows.
    async fn due(&self, directory: InodeId) -> Result<Option<Linked>, Failure> {
        // One that fails may have begun when the bucket was in trouble: the next one begins now.
        self.let_pass(directory).await;
        let now = self.environment.now();
        let known = self.environment.read(move |view| linked(view, directory)).await?;
        Ok(known.filter(|linked| linked.listed.is_none() || linked.is_old(now)))
    }

    /// Lists `directory` again, listed or not: finds what the bucket changed up to now. Calls
    /// `told` with what it has found so far, whenever that grows.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn refresh(
        self: &Arc<Self>,
        directory: InodeId,
        told: impl FnMut(Tally) + Send,
    ) -> Result<(), Failure> {
        self.refresh_within(directory, told, LISTINGS_WAITING_MAX).await
    }

    /// The same below a directory that is being listed, which waits for this: so it never waits for
    /// those above it to make room.
    pub(super) async fn refresh_below(self: &Arc<Self>, directory: InodeId) -> Result<(), Failure> {
        self.refresh_within(directory, |_| (), usize::MAX).await
    }

    /// Whether so much is listed that what is listed below it had better come one by one.
    pub(super) fn is_crowded(&self) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.len() > LISTINGS_WAITING_MAX / 2
    }

    /// Whether a directory is being listed, or waits for that: a page may be on its way.
    pub(super) fn is_listing(&self, directory: InodeId) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.contains_key(&directory)
    }

    async fn refresh_within(
        self: &Arc<Self>,
        directory: InodeId,
        told: impl FnMut(Tally) + Send,
        room: usize,
    ) -> Result<(), Failure> {
        // It may have passed what changed since.
        self.let_pass(directory).await;
        let known = self.environment.read(move |view| linked(view, directory)).await?;
        match known {
            Some(linked) if linked.listed != Some(LinkedDirectory::NEVER_AGAIN) => {
                self.wait_for(&linked, told, room).await
            }
            _ => Ok(()),
        }
    }

    /// Waits for the end of the listing that runs, if one does. How it ends says nothing of the
    /// next one.
    async fn let_pass(&self, directory: InodeId) {
        let before = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.get(&directory).cloned()
        };
        if let Some(before) = before {
            drop(finished(&mut before.patient()).await);
        }
    }

    /// The turn of a listing that has time: jobs and rounds take one for each directory that they
    /// have listed, so that some of the listings of its link that may run are left to who looks. It
    /// gives way to a snapshot here: most directories are no larger than what comes first of each.
    /// What shows no bucket needs none.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when the server ends; that it is busy.
    pub(super) async fn turn(&self, directory: InodeId) -> Result<Option<Turn>, Failure> {
        let linked = self.environment.read(move |view| linked(view, directory)).await?;
        let turn = match linked {
            Some(linked) => Some(self.turns.of(linked.link).patient().await?),
            None => None,
        };
        self.environment.give_way().await;
        Ok(turn)
    }

    /// The bucket behind a link.
    pub(super) fn bucket(&self, bucket: &cluster::Bucket) -> Result<Arc<Bucket>, Failure> {
        Ok(self.buckets.bucket(&spec_of(bucket)?)?)
    }

    async fn wait_for(
        self: &Arc<Self>,
        linked: &Linked,
        mut told: impl FnMut(Tally) + Send,
        room: usize,
    ) -> Result<(), Failure> {
        // A walk has time: it waits for its turn.
        let mut listing = loop {
            match self.listing(linked, room) {
                Ok(listing) => break listing.patient(),
                Err(_) => tokio::time::sleep(LISTINGS_PAUSE).await,
            }
        };
        loop {
            let now = listing.borrow_and_update().clone();
            match now {
                Listing::Growing(tally) => told(tally),
                Listing::Complete(tally) => {
                    told(tally);
                    return Ok(());
                }
                Listing::Failed(failure) => return Err(failure),
            }
            if listing.changed().await.is_err() {
                return Err(ErrorKind::Unavailable.into());
            }
        }
    }

    /// The listing of a directory: the one that runs, or a new one.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while `room` directories run or wait for their turn.
    fn listing(self: &Arc<Self>, linked: &Linked, room: usize) -> Result<Running, Failure> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listing) = running.get(&linked.directory) {
            return Ok(listing.clone());
        }
        if running.len() >= room {
            let text = "too many directories wait for being listed";
            return Err(Failure::new(ErrorKind::Busy, text).retry_after(LISTINGS_PAUSE));
        }
        let (lister, listing) = running::begin();
        running.insert(linked.directory, listing.clone());
        drop(running);
        let importer = Arc::clone(self);
        let linked = linked.clone();
        // Not bound to whoever asked first: others wait for it, and it is worth finishing.
        drop(tokio::spawn(tallied(async move {
            let end = match importer.list(&linked, &lister).await {
                Ok(tally) => Listing::Complete(tally),
                Err(failure) => {
                    tracing::warn!(directory = %linked.directory, prefix = %linked.prefix, %failure,
                        "a linked directory cannot be listed");
                    if linked.listed.is_some() {
                        importer.put_off(linked.directory);
                    }
                    Listing::Failed(failure)
                }
            };
            importer.forget(linked.directory);
            lister.tell(end);
        })));
        Ok(listing)
    }

    fn forget(&self, directory: InodeId) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&directory);
    }

    /// Imports what a listing found, as far as it is new.
    pub(super) async fn import_page(
        &self,
        bucket: &Bucket,
        linked: &Linked,
        asked: Timestamp,
        found: Vec<Found>,
        left_out: &mut Tray,
    ) -> Result<Import, Failure> {
        let (mut found, shadowed) = self.without_shadowed(linked, found).await?;
        for (key, reason) in shadowed {
            left_out.add(&key, reason);
        }
        let objects = linked.attributes == AttributeSource::Objects;
        if linked.listed.is_some() || objects {
            found = self.news(linked.directory, found).await?;
        }
        if objects {
            found = self.complete(bucket, linked, found).await?;
        }
        self.import(linked.directory, asked, found).await
    }

    /// Gives ids to names that were found when the bucket was `asked`, and makes them a command, or
    /// several where they are long. Of a file that changed here since then (by an export, or by a
    /// younger answer) the answer may be old: it is left alone, and the next look tells. So is an
    /// object that an export may be making just now, of a file that may have another name by then.
    pub(super) async fn import(
        &self,
        directory: InodeId,
        asked: Timestamp,
        found: Vec<Found>,
    ) -> Result<Import, Failure> {
        let mut all = Import::Whole;
        for found in entries::in_commands(found) {
            if self.import_at_once(directory, asked, found).await? == Import::Partial {
                all = Import::Partial;
            }
        }
        Ok(all)
    }

    /// The same for what one command takes.
    async fn import_at_once(
        &self,
        directory: InodeId,
        asked: Timestamp,
        found: Vec<Found>,
    ) -> Result<Import, Failure> {
        let (found, mut how_much) = self.without_unsettled(directory, found).await?;
        let (mut found, unchanged) = self.unchanged_since(directory, asked, found).await?;
        if unchanged == Import::Partial {
            how_much = Import::Partial;
        }
        // In this order the names that are known are found by one scan.
        found.sort_by(|one, other| one.name().cmp(other.name()));
        if found.is_empty() {
            return Ok(how_much);
        }
        let inodes = self.environment.reserve_inodes(found.len()).await?;
        let entries = found.into_iter().zip(inodes).map(|(found, inode)| {
            let seed = self.environment.random() >> 32;
            let seed = u32::try_from(seed).expect("the upper half has 32 bits");
            found.into_entry(inode, seed)
        });
        let entries: Vec<ImportEntry> = entries.collect();
        let import = ImportEntries { directory, entries };
        let outcome = self.environment.execute(Command::ImportEntries(import), false).await?;
        if let Outcome::Imported { refreshed, conflicts, .. } = outcome
            && refreshed + conflicts > 0
        {
            self.counts.imported(refreshed, conflicts);
            tracing::info!(%directory, refreshed, conflicts, "objects changed in their bucket");
        }
        Ok(how_much)
    }
}

impl Linked {
    /// Whether its listing is older than its link allows.
    fn is_old(&self, now: Timestamp) -> bool {
        is_old(self.listed, self.refresh_seconds, now)
    }
}

/// Whether a directory that was listed then is due again, under a link with this age.
pub fn is_old(listed: Option<Timestamp>, refresh_seconds: u32, now: Timestamp) -> bool {
    let age = Duration::from_secs(refresh_seconds.into());
    refresh_seconds > 0 && listed.is_some_and(|listed| listed.plus(age) <= now)
}

/// Waits for the end of a listing.
async fn finished(listing: &mut watch::Receiver<Listing>) -> Listing {
    let ended = |now: &Listing| !matches!(now, Listing::Growing(_));
    listing.wait_for(ended).await.map_or_else(
        |_| Listing::Failed(Failure::new(ErrorKind::Unavailable, "the listing was given up")),
        |now| now.clone(),
    )
}

/// The linked directory, if it is one whose link still imports, and not one that has been moved
/// since it was listed: its names are what was moved, while the bucket's now belong to whatever
/// takes the old place.
///
/// # Errors
/// [`ErrorKind::InUse`] for one that was never listed and never will be; when the store is broken.
pub(super) fn linked(view: &dyn View, directory: InodeId) -> Result<Option<Linked>, Failure> {
    let Some(linked) = linked_anywhere(view, directory)? else {
        return refuse_unlisted(view, directory).map(|()| None);
    };
    if linked.listed.is_none() {
        return Ok(Some(linked));
    }
    let prefix = prefix_of(view, directory)?;
    Ok(Some(linked).filter(|linked| prefix.as_ref() == Some(&linked.prefix)))
}

/// Refuses a directory that was not listed before its link began to be removed: it would look as
/// if its bucket had nothing there.
fn refuse_unlisted(view: &dyn View, directory: InodeId) -> Result<(), Failure> {
    let Some(inode) = tree::find(view, directory).map_err(broken)? else { return Ok(()) };
    let Body::Directory(body) = &inode.body else { return Ok(()) };
    let unlisted = body.linked.as_ref().filter(|linked| linked.listed.is_none());
    let Some(LinkedDirectory { link, .. }) = unlisted else { return Ok(()) };
    let record: Option<LinkRecord> = records::read(view, &keys::link(*link)).map_err(broken)?;
    if !record.is_some_and(|record| record.removing) {
        return Ok(());
    }
    let words = "the link is being removed, and what its bucket has here was never listed";
    Err(Failure::new(ErrorKind::InUse, words))
}

/// The linked directory, if it is one whose link still imports.
pub(super) fn linked_anywhere(
    view: &dyn View,
    directory: InodeId,
) -> Result<Option<Linked>, Failure> {
    let Some(inode) = tree::find(view, directory).map_err(broken)? else { return Ok(None) };
    let Body::Directory(body) = &inode.body else { return Ok(None) };
    let Some(linked) = &body.linked else { return Ok(None) };
    let record: Option<LinkRecord> =
        records::read(view, &keys::link(linked.link)).map_err(broken)?;
    let Some(record) = record.filter(|record| !record.removing) else { return Ok(None) };
    let top = tree::find(view, record.directory).map_err(broken)?;
    let (uid, gid) = top.map_or((inode.uid, inode.gid), |top| (top.uid, top.gid));
    Ok(Some(Linked {
        directory,
        link: linked.link,
        prefix: linked.prefix.clone(),
        listed: linked.listed,
        born: inode.born,
        refresh_seconds: record.refresh_seconds,
        attributes: record.attributes,
        bucket: record.bucket,
        defaults: Defaults { uid, gid },
    }))
}

/// The checked form of a bucket in a message or record.
pub(super) fn spec_of(bucket: &cluster::Bucket) -> Result<LinkSpec, BucketError> {
    LinkSpec::new(
        &bucket.url,
        bucket.endpoint.as_deref(),
        bucket.region.as_deref(),
        bucket.credentials.as_deref(),
    )
}

/// A broken store stops the server by itself; who asked just learns that it failed.
pub(crate) fn broken(error: crate::store::StoreError) -> Failure {
    Failure::new(ErrorKind::Internal, error.to_string())
}
