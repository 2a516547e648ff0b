//! Whether something is gone: said by the bucket itself, and by nothing that stands in its place.
//!
//! An answer to HEAD has no body. So a proxy that has lost its route, a bucket that was deleted and
//! an object that is not there all say 404 and no more. And what a file system leaves that is not
//! mounted is an empty directory. Who takes something away because it is gone asks here: what HEAD
//! does not find, a listing must not show, which only the bucket can give. So a listing also tells
//! whether there is anything where HEAD is refused.

use super::{Bucket, Kind};
use crate::{
    Error, Head, ObjectVersion,
    object::{check_key, check_prefix},
};

impl Bucket {
    /// What is at a key; `None` when there surely is nothing. Costs a second request where HEAD
    /// finds nothing, but on Azure, which tells by a code of its own what it does not find.
    ///
    /// # Errors
    /// Those of access; [`Error::NoBucket`] and [`Error::Unavailable`] when nothing is found, and
    /// the bucket does not answer or contradicts itself.
    pub async fn look(&self, key: &str) -> Result<Option<Head>, Error> {
        match self.head(key).await {
            Ok(head) => Ok(Some(head)),
            Err(Error::NotFound { .. }) => {
                let _permit = self.limits.acquire(0).await?;
                self.check_absent(key).await.map(|()| None)
            }
            Err(error) => Err(error),
        }
    }

    /// The version that a listing shows at a key, by one request that asks for little more than
    /// that; `None` when it shows none. For keys whose HEAD, which tells more, is refused.
    ///
    /// # Errors
    /// Those of access.
    pub async fn listed(&self, key: &str) -> Result<Option<ObjectVersion>, Error> {
        check_key(key)?;
        let _permit = self.limits.acquire(0).await?;
        match &self.kind {
            Kind::S3(s3) => s3.listed(key).await,
            Kind::Google(google) => Box::pin(google.listed(key)).await,
            Kind::Azure(azure) => Box::pin(azure.listed(key)).await,
            Kind::Directory(directory) => directory.listed(key).await,
        }
    }

    /// Whether surely nothing lies below `prefix` (which ends in `/`), and it is no directory.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub async fn is_gone_below(&self, prefix: &str) -> Result<bool, Error> {
        check_prefix(prefix)?;
        if self.has_below(prefix).await? {
            return Ok(false);
        }
        match &self.kind {
            // That was a listing.
            Kind::S3(_) | Kind::Google(_) | Kind::Azure(_) => Ok(true),
            Kind::Directory(directory) => {
                let _permit = self.limits.acquire(0).await?;
                directory.lacks(prefix).await
            }
        }
    }

    /// Refuses to believe that nothing is at a key, or that a prefix has no mark, unless it is so.
    /// To be called with a permit.
    pub(super) async fn check_absent(&self, key: &str) -> Result<(), Error> {
        let is_there = match &self.kind {
            Kind::S3(s3) => s3.lists(key).await?,
            Kind::Google(google) => Box::pin(google.lists(key)).await?,
            // It has said so.
            Kind::Azure(_) => false,
            Kind::Directory(directory) => !directory.lacks(key).await?,
        };
        if is_there {
            return Err(Error::unavailable(format!(
                "the bucket contradicts itself: it says that there is no {key:?}, and has it"
            )));
        }
        Ok(())
    }
}
