//! Listed directories looked at again: on command, and when their listing is older than the link
//! allows and somebody looks.
//!
//! A listing of what is known costs one request a page and no command. New and changed keys are
//! imported as by the first listing. A name that the bucket does not list any more is asked for
//! alone before it goes: listings may be stale or out of order, and what is in use must not vanish
//! by mistake. Nor does it go because something that stands before the bucket, or is where it was
//! mounted, has nothing of that name ([`Bucket::look`]). A subdirectory below which nothing lies is
//! listed too, which empties it, and goes if it was imported and nobody changed it here. An object
//! of its name does not keep it, and has its place then.
//!
//! Of a directory and an object of one name a page hands on the directory. A file that has kept its
//! name from it, because it is more than the object, is asked for alone: it follows the object as
//! others do, and the directory comes where it goes.
//!
//! Lookups wait for what they need and not longer: for the answer about their own name or for the
//! listing, whichever comes first, two seconds at most. A bucket that is away costs them nothing
//! for a while: they are answered from what is known.
//!
//! [`Bucket::look`]: millrace_object_source::Bucket::look

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt, future::BoxFuture, stream};
use millrace_object_source::Error;
use millrace_protocol::metadata::FileKind;
use millrace_types::{Failure, FileName, InodeId, Timestamp};

use super::{
    Environment, Import, ImportKind, Importer, Linked, Object, attributes::Refusal, broken,
    entries::Found, finished, key_of, linked,
};
use crate::{
    apply::export_has_made,
    command::{BATCH_MAX, Command, DropDirectory, Observation, Outcome},
    hydration::left_out::Tray,
    namespace::{Body, ObjectState, tree},
    store::{
        View, keys,
        records::{Entry, Export, Whiteout},
    },
};

/// The longest that a lookup or listing waits for news of a bucket. Tests are about the news, which
/// may take long to come on a busy machine.
const NEWS_WAIT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });

/// After a failed refresh of a directory, lookups there wait for nothing for this time.
const PUT_OFF: Duration = Duration::from_secs(10);

/// Directories that are put off at a time; beyond it they are tried sooner.
const PUT_OFF_MAX: usize = 10_000;

/// Names of one directory that are remembered to find deleted ones: 16 MiB. In a larger directory
/// deletions are found by lookups and reads.
const SEEN_MAX: usize = 2_000_000;

/// Missing names that are asked for alone at the same time, in one directory.
const CHECKS_MAX: usize = 16;

/// The names of one listing, each as a directory's or an object's, as hashes: two with one hash
/// hide a deletion from a listing, never make one up.
#[derive(Debug, Default)]
pub(super) struct Seen {
    hashes: Vec<u64>,
    overflow: bool,
}

impl Seen {
    pub(super) fn add(&mut self, found: &[Found]) {
        if self.hashes.len() + found.len() > SEEN_MAX {
            self.overflow = true;
            self.hashes = Vec::new();
        }
        if !self.overflow {
            let is_directory = |found: &Found| *found.kind() == ImportKind::Directory;
            self.hashes.extend(found.iter().map(|found| hash(found.name(), is_directory(found))));
        }
    }

    fn has_directory(&self, name: &FileName) -> bool {
        self.hashes.binary_search(&hash(name, true)).is_ok()
    }

    fn has_object(&self, name: &FileName) -> bool {
        self.hashes.binary_search(&hash(name, false)).is_ok()
    }
}

fn hash(name: &FileName, is_directory: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name.as_bytes(), is_directory).hash(&mut hasher);
    hasher.finish()
}

/// A name of the tree that the bucket does not list.
#[derive(Debug)]
enum Missing {
    File {
        name: FileName,
        object: Box<Object>,
        /// Whether the bucket lists a directory of its name, which a page shows alone.
        is_beside: bool,
    },
    Directory {
        name: FileName,
        inode: InodeId,
        prefix: String,
        /// Whether the bucket lists an object of its name.
        has_object: bool,
    },
}

impl<E: Environment> Importer<E> {
    /// Called for a lookup of `name`, or a listing, in a directory whose listing is old: begins
    /// another, and waits for the news that the caller needs. Fails never: what is known is the
    /// answer then.
    pub async fn fresh(self: &Arc<Self>, directory: InodeId, name: Option<&FileName>) {
        let now = self.environment.now();
        let query = self.environment.read(move |view| linked(view, directory));
        let Ok(Some(linked)) = query.await else { return };
        if !linked.is_old(now) || self.is_put_off(directory) {
            return;
        }
        // With too many listings under way, lookups do without the news.
        let Ok(listing) = self.listing(&linked, super::LISTINGS_WAITING_MAX) else { return };
        let mut listing = listing.wanted();
        let news = async {
            match name {
                None => drop(finished(&mut listing).await),
                Some(name) => tokio::select! {
                    looked = self.look_again(&linked, name) => if let Err(failure) = looked {
                        tracing::debug!(%directory, %name, %failure, "a name cannot be looked at");
                    },
                    _ = finished(&mut listing) => {}
                },
            }
        };
        drop(tokio::time::timeout(NEWS_WAIT, news).await);
    }

    /// Asks for one name alone.
    async fn look_again(&self, linked: &Linked, name: &FileName) -> Result<(), Failure> {
        let (directory, wanted) = (linked.directory, name.clone());
        let query = self.environment.read(move |view| {
            let entry = tree::entry(view, directory, &wanted).map_err(broken)?;
            let Some(entry) = entry else { return Ok(None) };
            Object::of(view, entry.inode).map(Some)
        });
        match query.await? {
            None => self.probe(linked, name).await,
            Some(Some(object)) if object.known.is_some() => self.observe(&object).await.map(drop),
            // Of directories, links and files without an object only a listing tells.
            Some(_) => Ok(()),
        }
    }

    /// What of a batch is not known as it is.
    pub(super) async fn news(
        &self,
        directory: InodeId,
        found: Vec<Found>,
    ) -> Result<Vec<Found>, Failure> {
        let query = self.environment.read(move |view| {
            let known = known(view, directory, &found)?;
            let mut news = Vec::new();
            for found in found {
                if !is_known(view, known.get(found.name()), &found)? {
                    news.push(found);
                }
            }
            Ok(news)
        });
        query.await
    }

    /// Follows names that a listing did not show. Objects that directories were in the way of are
    /// not left out any more where these are gone. Boxed, because it lists subdirectories.
    pub(super) fn follow_missing<'a>(
        self: &'a Arc<Self>,
        linked: &'a Linked,
        mut seen: Seen,
        left_out: &'a mut Tray,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            if seen.overflow {
                tracing::info!(directory = %linked.directory, names = SEEN_MAX,
                    "too many names to look for deleted ones; reads and lookups find them");
                return Ok(());
            }
            seen.hashes.sort_unstable();
            let seen = Arc::new(seen);
            let mut cookie = 0;
            loop {
                let (of_query, linked_directory) = (Arc::clone(&seen), linked.clone());
                let query = self
                    .environment
                    .read(move |view| missing(view, &linked_directory, cookie, &of_query));
                let (missing, last) = query.await?;
                let checks = missing.into_iter().map(|missing| self.follow_one(linked, missing));
                let width = if self.is_crowded() { 1 } else { CHECKS_MAX };
                let mut checks = stream::iter(checks).buffer_unordered(width);
                while let Some(checked) = checks.next().await {
                    if let Some(key) = checked? {
                        left_out.remove(&key);
                    }
                }
                match last {
                    Some(last) => cookie = last,
                    None => return Ok(()),
                }
            }
        })
    }

    /// The same of one name. Tells the key of what has the place now of what was in its way.
    async fn follow_one(
        self: &Arc<Self>,
        linked: &Linked,
        missing: Missing,
    ) -> Result<Option<String>, Failure> {
        let (name, inode, prefix, has_object) = match missing {
            Missing::File { name, object, is_beside } => {
                return self.follow_file(linked, &name, &object, is_beside).await;
            }
            Missing::Directory { name, inode, prefix, has_object } => {
                (name, inode, prefix, has_object)
            }
        };
        if !self.bucket(&linked.bucket)?.is_gone_below(&prefix).await? {
            return Ok(None);
        }
        self.refresh_below(inode).await?;
        let key = key_of(&linked.prefix, &name);
        if has_object && !self.can_follow(linked, &key).await? {
            return Ok(None);
        }
        let drop = DropDirectory { parent: linked.directory, name: name.clone(), inode };
        let outcome = self.environment.execute(Command::DropDirectory(drop), false).await?;
        if outcome != Outcome::Observed(Observation::Removed) {
            return Ok(None);
        }
        self.counts.observed(Observation::Removed);
        tracing::info!(%inode, prefix, "a directory is gone from its bucket, and here too");
        if !has_object {
            return Ok(None);
        }
        self.probe(linked, &name).await?;
        Ok(Some(key))
    }

    /// The same of a file. Where it goes, a directory of its name that was in the bucket beside its
    /// object comes.
    async fn follow_file(
        &self,
        linked: &Linked,
        name: &FileName,
        object: &Object,
        is_beside: bool,
    ) -> Result<Option<String>, Failure> {
        let (observation, _) = self.observe(object).await?;
        if !is_beside || observation != Observation::Removed {
            return Ok(None);
        }
        self.probe(linked, name).await?;
        Ok(Some(format!("{}/", key_of(&linked.prefix, name))))
    }

    /// Whether an object can be asked for that is to have the place of a directory: a name must not
    /// go for one that is refused.
    async fn can_follow(&self, linked: &Linked, key: &str) -> Result<bool, Failure> {
        match self.bucket(&linked.bucket)?.head(key).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Refusal::of(key, error).map(|_| false),
        }
    }

    /// What was found, without the names of files that changed here after a moment, or may have
    /// been removed after it with another version of their object. Says whether some of the latter
    /// are left out, which the next look tells.
    pub(super) async fn unchanged_since(
        &self,
        directory: InodeId,
        moment: Timestamp,
        mut found: Vec<Found>,
    ) -> Result<(Vec<Found>, Import), Failure> {
        let query = self.environment.read(move |view| {
            let known = known(view, directory, &found)?;
            let removed = removed_since(view, directory, moment, &found)?;
            let is_removed = |found: &Found| match (removed.get(found.name()), found.kind()) {
                (Some(whiteout), ImportKind::File(origin)) => {
                    !known.contains_key(found.name()) && is_of_another(whiteout, &origin.tag)
                }
                _ => false,
            };
            let before = found.len();
            found.retain(|found| !is_removed(found));
            let import = if found.len() < before { Import::Partial } else { Import::Whole };
            if known.is_empty() {
                return Ok((found, import));
            }
            let mut changed = HashSet::new();
            for (name, entry) in known {
                if entry.kind == FileKind::Regular
                    && tree::named(view, &entry).map_err(broken)?.changed > moment
                {
                    changed.insert(name);
                }
            }
            // A directory takes the place of an object, whenever that was imported.
            let is_settled = |found: &Found| {
                *found.kind() != ImportKind::Directory && changed.contains(found.name())
            };
            found.retain(|found| !is_settled(found));
            Ok((found, import))
        });
        query.await
    }

    /// What was found without the objects that an export may have made whose end is not known. Says
    /// whether some of their files are elsewhere by now, so that nothing here shows what was found.
    pub(super) async fn without_unsettled(
        &self,
        directory: InodeId,
        mut found: Vec<Found>,
    ) -> Result<(Vec<Found>, Import), Failure> {
        let query = self.environment.read(move |view| {
            let mut import = Import::Whole;
            let exports = tree::scan::<Export>(view, &keys::exports(), usize::MAX);
            let exports = exports.map_err(broken)?;
            if exports.is_empty() {
                return Ok((found, import));
            }
            let object = |found: &Found| match found.kind() {
                ImportKind::File(origin) => Some((origin.link, origin.key.clone())),
                ImportKind::Directory | ImportKind::Symlink(_) => None,
            };
            let names: HashMap<_, _> =
                found.iter().filter_map(|one| Some((object(one)?, one.name().clone()))).collect();
            let mut unsettled = HashSet::new();
            for (at, export) in exports {
                let Some(id) = keys::number_at(&at, 1).map(InodeId) else { continue };
                let place = (export.link, export.key.clone());
                let Some(name) = names.get(&place) else { continue };
                let entry = tree::entry(view, directory, name).map_err(broken)?;
                let file = tree::find(view, id).map_err(broken)?;
                let is_made = file.is_some_and(|file| export_has_made(&export, &file));
                if is_made {
                    continue;
                }
                if entry.is_none_or(|entry| entry.inode != id) {
                    import = Import::Partial;
                }
                unsettled.insert(place);
            }
            found.retain(|one| object(one).is_none_or(|place| !unsettled.contains(&place)));
            Ok((found, import))
        });
        query.await
    }

    fn is_put_off(&self, directory: InodeId) -> bool {
        let mut put_off = self.put_off.lock().unwrap_or_else(PoisonError::into_inner);
        match put_off.get(&directory) {
            Some(until) if Instant::now() < *until => true,
            Some(_) => {
                put_off.remove(&directory);
                false
            }
            None => false,
        }
    }

    /// A listing failed: lookups do without for a while.
    pub(super) fn put_off(&self, directory: InodeId) {
        let now = Instant::now();
        let mut put_off = self.put_off.lock().unwrap_or_else(PoisonError::into_inner);
        if put_off.len() >= PUT_OFF_MAX {
            put_off.retain(|_, until| now < *until);
        }
        if put_off.len() < PUT_OFF_MAX {
            put_off.insert(directory, now + PUT_OFF);
        }
    }
}

/// What a directory has under names that were found.
pub(super) fn known(
    view: &dyn View,
    directory: InodeId,
    found: &[Found],
) -> Result<BTreeMap<FileName, Entry>, Failure> {
    let key = |name: &FileName| keys::entry(directory, name.as_bytes());
    tree::of_names(view, key, found.iter().map(Found::name)).map_err(broken)
}

/// What hides objects under names that were found, where some name may have been removed after a
/// moment: only the directory knows when, by the time of its last change, which users cannot set
/// and imports leave as it was.
///
/// That is the time of any change. In a directory that is changed during each look, a new object
/// under a name that was removed here is left out until a look passes without one. And what an
/// export leaves behind that ends after its file was removed hides another version than before,
/// without a change of the directory: a page that was asked for between the two brings the older
/// version back, until the next look finds that the bucket does not have it.
fn removed_since(
    view: &dyn View,
    directory: InodeId,
    moment: Timestamp,
    found: &[Found],
) -> Result<BTreeMap<FileName, Whiteout>, Failure> {
    let inode = tree::find(view, directory).map_err(broken)?;
    if inode.is_none_or(|inode| inode.changed <= moment) {
        return Ok(BTreeMap::new());
    }
    let key = |name: &FileName| keys::whiteout(directory, name.as_bytes());
    tree::of_names(view, key, found.iter().map(Found::name)).map_err(broken)
}

/// Whether what was removed under a name had an object, and that was another version.
fn is_of_another(whiteout: &Whiteout, tag: &str) -> bool {
    !whiteout.tag.is_empty() && whiteout.tag != tag
}

/// Whether importing what was found would change nothing.
fn is_known(view: &dyn View, entry: Option<&Entry>, found: &Found) -> Result<bool, Failure> {
    let Some(entry) = entry else { return Ok(false) };
    let origin = match (found.kind(), entry.kind) {
        (ImportKind::Directory, FileKind::Directory) => return Ok(true),
        // An object, in whose place the directory comes: others were left out before.
        (ImportKind::Directory, FileKind::Regular) => return Ok(false),
        (ImportKind::File(origin), FileKind::Regular) => origin,
        // What was there first stays, whatever else has its name.
        _ => return Ok(true),
    };
    let inode = tree::named(view, entry).map_err(broken)?;
    let Body::File(body) = &inode.body else { return Ok(false) };
    let own = body.origin.as_ref();
    Ok(body.state == ObjectState::Conflict
        || own.is_some_and(|own| own.tag == origin.tag || own.key != origin.key))
}

/// The imported names of one page of a directory that were not seen, and where the next begins.
fn missing(
    view: &dyn View,
    linked: &Linked,
    cookie: u64,
    seen: &Seen,
) -> Result<(Vec<Missing>, Option<u64>), Failure> {
    let page = tree::list(view, linked.directory, cookie, BATCH_MAX).map_err(broken)?;
    let last = (page.len() == BATCH_MAX).then(|| page.last().map(|(_, entry)| entry.cookie));
    let mut missing = Vec::new();
    for (name, entry) in page {
        let (has_object, has_directory) = (seen.has_object(&name), seen.has_directory(&name));
        let is_shown = match entry.kind {
            FileKind::Directory => has_directory,
            // One whose place a directory could not take: its object may be there or not.
            FileKind::Regular => has_object,
            _ => has_object || has_directory,
        };
        if is_shown {
            continue;
        }
        match entry.kind {
            FileKind::Regular => {
                let Some(object) = Object::of(view, entry.inode)? else { continue };
                let own = object.link == linked.link && object.key == key_of(&linked.prefix, &name);
                // A conflict stays one, whatever becomes of the object.
                if own && object.known.is_some() && !object.is_conflict() {
                    let (object, is_beside) = (Box::new(object), has_directory);
                    missing.push(Missing::File { name, object, is_beside });
                }
            }
            FileKind::Directory => {
                let inode = tree::named(view, &entry).map_err(broken)?;
                let Body::Directory(body) = &inode.body else { continue };
                let Some(below) = &body.linked else { continue };
                // An empty one that was made or changed here stays, whatever the bucket has.
                if inode.size == 0 && !inode.is_as_imported() {
                    continue;
                }
                let prefix = format!("{}/", key_of(&linked.prefix, &name));
                if below.link == linked.link && below.prefix == prefix {
                    missing.push(Missing::Directory { name, inode: inode.id, prefix, has_object });
                }
            }
            _ => {}
        }
    }
    Ok((missing, last.flatten()))
}
