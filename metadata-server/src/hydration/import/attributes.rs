//! What only HEAD tells of listed names: owner, mode, time, and which objects are symbolic links.
//!
//! Asked for links that say so, and only of names that are new or changed. One request for each. A
//! key that is refused hides no name of its directory: it has what a listing tells of it.

use futures::{StreamExt, TryStreamExt, stream};
use millrace_object_source::{Bucket, EXPORT_ID_KEY, Error, Head, PosixAttributes};
use millrace_types::{Failure, FileName};

use super::{Environment, ImportKind, Importer, Linked, broken, entries::Found, key_of, probe};
use crate::{
    hydration::own::{OwnMark, is_ahead},
    namespace::tree,
};

/// Names of one page that are asked for at the same time.
const HEADS_OF_PAGE_MAX: usize = 32;

/// A name, and why no more is known of it, if that was refused.
pub(super) type Told = (Found, Option<Refusal>);

/// A key of which the bucket refuses to tell.
#[derive(Debug)]
pub(super) struct Refusal {
    key: String,
    error: Error,
}

impl Refusal {
    /// Takes an error for what it says of one key, whenever somebody asks.
    ///
    /// # Errors
    /// Those that say nothing of the key, and may not come again.
    pub(super) fn of(key: &str, error: Error) -> Result<Self, Failure> {
        match error {
            Error::Denied { .. } | Error::Unsupported { .. } | Error::Invalid { .. } => {
                Ok(Self { key: key.to_owned(), error })
            }
            other => Err(other.into()),
        }
    }
}

/// A directory with what the metadata of its own object say, whose key is `prefix`.
pub(super) async fn directory(
    bucket: &Bucket,
    prefix: &str,
    found: Found,
) -> Result<Told, Failure> {
    match bucket.head_directory(prefix).await {
        Ok(mark) => Ok((found.with_mark(PosixAttributes::from_metadata(&mark)), None)),
        // Most directories have no object of their own.
        Err(Error::NotFound { .. } | Error::Invalid { .. }) => Ok((found, None)),
        Err(error) => Ok((found, Some(Refusal::of(prefix, error)?))),
    }
}

/// Lets names be without what was refused of them, if the bucket lists their directory for the
/// same credentials: then that was said of their keys. Who asks has seen it listed before they were
/// refused too, because credentials that have ended, and were replaced meanwhile, must not cost
/// any name its owner and mode: what is known is not asked for again.
///
/// # Errors
/// Those of access.
pub(super) async fn accept(
    bucket: &Bucket,
    linked: &Linked,
    refusals: &[Refusal],
) -> Result<(), Failure> {
    let Some(Refusal { key, error }) = refusals.first() else { return Ok(()) };
    bucket.has_below(&linked.prefix).await?;
    tracing::warn!(link = %linked.link, key, %error, keys = refusals.len(),
        "the attributes of a key cannot be asked for: the link's defaults stand");
    for Refusal { key, error } in refusals {
        tracing::debug!(link = %linked.link, key, %error, "a key is refused");
    }
    Ok(())
}

impl<E: Environment> Importer<E> {
    /// Completes found names. One whose object went away meanwhile is left out.
    pub(super) async fn complete(
        &self,
        bucket: &Bucket,
        linked: &Linked,
        found: Vec<Found>,
    ) -> Result<Vec<Found>, Failure> {
        let (mut completed, mut refused) = (Vec::with_capacity(found.len()), Vec::new());
        for (found, refusal) in self.ask_all(bucket, linked, found).await? {
            match refusal {
                None => completed.push(found),
                Some(_) => refused.push(found),
            }
        }
        if refused.is_empty() {
            return Ok(completed);
        }
        bucket.has_below(&linked.prefix).await?;
        let mut refusals = Vec::new();
        for (found, refusal) in self.ask_all(bucket, linked, refused).await? {
            completed.push(found);
            refusals.extend(refusal);
        }
        accept(bucket, linked, &refusals).await?;
        Ok(completed)
    }

    async fn ask_all(
        &self,
        bucket: &Bucket,
        linked: &Linked,
        found: Vec<Found>,
    ) -> Result<Vec<Told>, Failure> {
        let heads = found.into_iter().map(|found| self.complete_one(bucket, linked, found));
        let told: Vec<Option<Told>> =
            stream::iter(heads).buffered(HEADS_OF_PAGE_MAX).try_collect().await?;
        Ok(told.into_iter().flatten().collect())
    }

    async fn complete_one(
        &self,
        bucket: &Bucket,
        linked: &Linked,
        found: Found,
    ) -> Result<Option<Told>, Failure> {
        let _turn = self.turns.of(linked.link).head().await?;
        let key = key_of(&linked.prefix, found.name());
        if *found.kind() == ImportKind::Directory {
            return directory(bucket, &format!("{key}/"), found).await.map(Some);
        }
        match bucket.head(&key).await {
            Ok(head) => {
                let name = found.name().clone();
                if self.is_late(linked, &name, &key, &head).await? {
                    return Ok(None);
                }
                probe::object(bucket, &key, &name, &head, linked).await.map(Some)
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Ok(Some((found, Some(Refusal::of(&key, error)?)))),
        }
    }

    /// Whether the object is an older version of the file that has its name here: an upload of that
    /// arrived after it had been given up. The next export goes on from it.
    async fn is_late(
        &self,
        linked: &Linked,
        name: &FileName,
        key: &str,
        head: &Head,
    ) -> Result<bool, Failure> {
        if head.metadata.value(EXPORT_ID_KEY).is_none() {
            return Ok(false);
        }
        let (directory, name) = (linked.directory, name.clone());
        let query = self.environment.read(move |view| {
            let entry = tree::entry(view, directory, &name).map_err(broken)?;
            entry.map(|entry| tree::named(view, &entry).map_err(broken)).transpose()
        });
        let Some(inode) = query.await?.filter(is_ahead) else { return Ok(false) };
        let own = OwnMark::of(&*self.environment, inode.id, linked.link, key).await?;
        Ok(own.has_made(&head.metadata))
    }
}
