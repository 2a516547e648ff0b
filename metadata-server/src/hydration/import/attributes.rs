//! What only HEAD tells of listed names: owner, mode, time, and which objects are symbolic links.
//!
//! Asked for links that say so, and only of names that are new or changed. One request for each.

use futures::{StreamExt, TryStreamExt, stream};
use millrace_object_source::{Bucket, Error, PosixAttributes};
use millrace_types::{ErrorKind, Failure};

use super::{Environment, ImportKind, Importer, Linked, entries::Found, key_of, probe};

/// Names of one listing that are asked for at the same time.
const HEADS_MAX: usize = 32;

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
            stream::iter(heads).buffered(HEADS_MAX).try_collect().await?;
        Ok(completed.into_iter().flatten().collect())
    }

    async fn complete_one(
        &self,
        bucket: &Bucket,
        linked: &Linked,
        found: Found,
    ) -> Result<Option<Found>, Failure> {
        let _permit = self.probes.acquire().await.map_err(|_| ErrorKind::Cancelled)?;
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
                probe::object(bucket, &key, &name, &head, linked).await.map(Some)
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
