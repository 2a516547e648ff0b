//! Whether this host can use the bucket, in words.

use super::{Bucket, Kind};
use crate::{Error, Trial, Untried, object::check_prefix, trial};

impl Bucket {
    /// Finds out whether this host can list `prefix`, and with `write` whether it can begin an
    /// upload there. Repeats nothing and takes at most
    /// [`Settings::check_timeout`](crate::Settings::check_timeout).
    ///
    /// # Errors
    /// As [`Self::try_out`].
    pub async fn check(&self, prefix: &str, write: bool) -> Result<(), Error> {
        self.try_out(prefix, Trial { write, ..Trial::default() }).await.map(drop)
    }

    /// Finds out whether the bucket can be reached, whatever it answers then: also who refuses
    /// access, or knows no such bucket, is there. Asks once, for credentials if need be and for a
    /// page of `prefix`, and takes at most
    /// [`Settings::check_timeout`](crate::Settings::check_timeout).
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is no answer, or none of a bucket; [`Error::Busy`] when it
    /// can do nothing now. Of `file://` [`Error::NoBucket`] when the directory is not there, or
    /// another one than before is: so a file system looks that is not mounted.
    ///
    /// # Cancellation
    /// As [`Self::try_out`].
    pub async fn answers(&self, prefix: &str) -> Result<(), Error> {
        check_prefix(prefix)?;
        match &self.kind {
            Kind::S3(s3) => Box::pin(trial::answers(&**s3, prefix)).await,
            Kind::Google(google) => Box::pin(trial::answers(&**google, prefix)).await,
            Kind::Azure(azure) => Box::pin(trial::answers(&**azure, prefix)).await,
            Kind::Directory(directory) => directory.answers(self.check_timeout).await,
        }
    }

    /// Finds out whether this host can list `prefix`, and do what else is to be tried; tells what
    /// could not be tried. Otherwise as [`Self::check`]. Nothing that is there is changed, and
    /// nothing is left behind unless what begins is allowed and what ends it is not.
    ///
    /// # Errors
    /// A sentence that says what is wrong: name not found, connection refused, no TLS, certificate
    /// not trusted, no credentials, which step is refused and the right that it takes, another
    /// region, no such bucket or directory, a file system that hangs.
    ///
    /// # Cancellation
    /// On `file://` a thread goes on until the file system answers; trials after it wait for that.
    pub async fn try_out(&self, prefix: &str, trial: Trial) -> Result<Vec<Untried>, Error> {
        check_prefix(prefix)?;
        match &self.kind {
            Kind::S3(s3) => Box::pin(trial::try_out(&**s3, prefix, trial)).await,
            Kind::Google(google) => Box::pin(trial::try_out(&**google, prefix, trial)).await,
            Kind::Azure(azure) => Box::pin(trial::try_out(&**azure, prefix, trial)).await,
            Kind::Directory(directory) => directory.try_out(trial, self.check_timeout).await,
        }
    }
}
