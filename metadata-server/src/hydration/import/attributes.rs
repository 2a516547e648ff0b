//! What only HEAD tells of listed names: owner, mode, time, and which objects are symbolic links.
//!
//! Asked for links that say so, and only of names that are new or changed. One request for each.

use futures::{StreamExt, TryStreamExt, stream};
use millrace_object_source::{Bucket, EXPORT_ID_KEY, Error, Head, PosixAttributes};
use millrace_types::{ErrorKind, Failure, FileName};

use super::{Environment, ImportKind, Importer, Linked, broken, entries::Found, key_of, probe};
use crate::{
    hydration::own::{OwnMark, is_ahead},
    namespace::tree,
};

/// Names of one page that are asked for at the same time.
const HEADS_OF_PAGE_MAX: usize = 32;

impl<E: Environment> Importer<E> {
    /// Completes found names. One whose object went away meanwhile is left out.
    pub(super) async fn complete(
        &self,
        bucket: &Bucket,
        linked: &Linked,
        found: Vec<Found>,
    ) -> Result<Vec<Found>, Failure> {
        let heads = found.into_iter().map(|found| self.complete_one(bucket, linked, found));
        let completed: Vec<Option<Found>> =
            stream::iter(heads).buffered(HEADS_OF_PAGE_MAX).try_collect().await?;
        Ok(completed.into_iter().flatten().collect())
    }

    async fn complete_one(
        &self,
        bucket: &Bucket,
        linked: &Linked,
        found: Found,
    ) -> Result<Option<Found>, Failure> {
        let _permit = self.heads.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
        let key = key_of(&linked.prefix, found.name());
        if *found.kind() == ImportKind::Directory {
            return match bucket.head_directory(&format!("{key}/")).await {
                Ok(mark) => Ok(Some(found.with_mark(PosixAttributes::from_metadata(&mark)))),
                // Most directories have no object of their own.
                Err(Error::NotFound { .. } | Error::Invalid { .. }) => Ok(Some(found)),
                Err(error) => Err(error.into()),
            };
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
            Err(error) => Err(error.into()),
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
