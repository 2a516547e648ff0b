//! Trying a bucket before somebody relies on it: each step once, as it is done later, and in words
//! what is wrong, or could not be tried.

use std::fmt;

use async_trait::async_trait;
use tokio::time::{Instant, timeout_at};

use crate::{
    Error, ObjectVersion, Settings,
    object::check_key,
    temporary::is_temporary,
    transport::{PROBE_NAME, probe_key, with_hint},
};

/// What is tried besides listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trial {
    /// Reading the beginning of the first object that the listing shows.
    pub read: bool,
    /// Beginning an upload, which is given up.
    pub write: bool,
    /// Deleting, of something that is not there.
    pub delete: bool,
    /// Listing the uploads under way, whoever began them: only so is what exports left behind
    /// found.
    pub uploads: bool,
}

/// A step that could not be tried, or that is refused and that nothing depends on. That is no
/// failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untried {
    /// There is nothing to read.
    NothingToRead,
    /// What is there first cannot be read by anybody as it is.
    Reading {
        /// Why.
        why: String,
    },
    /// The server knows no condition on a deletion. Without one, what was put to be deleted would
    /// stay where deleting is refused, and where versions are kept a mark of the deletion would
    /// stay of what never was there.
    Deleting,
    /// Uploads under way cannot be listed. Exports do without, but what they leave behind when they
    /// are cut off is not found by anybody here.
    Uploads {
        /// Why: the right that is missing, or that the server has no such list.
        why: String,
    },
}

impl fmt::Display for Untried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToRead => f.write_str("reading was not tried: nothing there to read"),
            Self::Reading { why } => write!(f, "reading was not tried: {why}"),
            Self::Deleting => f.write_str(
                "deleting was not tried: the server knows no condition on a deletion, without \
                 which something might be left behind",
            ),
            Self::Uploads { why } => {
                write!(f, "uploads that are left behind cannot be found and given up: {why}")
            }
        }
    }
}

/// An object that a listing shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) version: ObjectVersion,
}

/// Keys of the listing that is tried. The first ones may be marks of directories, or what uploads
/// left behind.
pub(crate) const LISTED_KEYS: &str = "100";

/// Objects that are asked for, one after the other, until one can be read: the first ones may have
/// gone since, or be archived.
const READS_MAX: usize = 3;

/// Bytes of an object that are read.
const READ_LEN: u64 = 64;

impl Listed {
    /// Whether a key is that of a file's object: no mark of a directory, no upload's, none that
    /// could be no name.
    pub(crate) fn is_object(key: &str) -> bool {
        let name = key.rsplit('/').next().unwrap_or(key);
        check_key(key).is_ok() && !is_temporary(key) && !name.starts_with(PROBE_NAME)
    }

    /// The value of the header that asks for its first bytes, if it has any.
    pub(crate) fn first_bytes(&self) -> Option<String> {
        let len = self.version.size.min(READ_LEN);
        (len > 0).then(|| format!("bytes=0-{}", len - 1))
    }
}

/// Who gives credentials where more is not known.
pub(crate) const GIVER: &str = "who gives them";

/// The steps, as a kind of bucket does them: once each, without repeating.
#[async_trait]
pub(crate) trait Attempts: Sync {
    /// What to do where there are no credentials.
    const HINT: &'static str;

    /// Whom it asks.
    fn endpoint(&self) -> &str;

    /// Who gives the credentials.
    fn giver(&self) -> &str {
        GIVER
    }

    fn settings(&self) -> &Settings;

    /// Gets credentials. Without any in the environment this asks the cloud's own service for them,
    /// which outside of the cloud nobody answers.
    async fn try_credentials(&self) -> Result<(), Error>;

    /// Lists [`LISTED_KEYS`] keys; returns those that [`Listed::is_object`] finds.
    async fn try_list(&self, prefix: &str) -> Result<Vec<Listed>, Error>;

    /// Reads the first bytes of an object.
    async fn try_read(&self, object: &Listed) -> Result<(), Error>;

    /// Begins an upload and gives it up.
    async fn try_upload(&self, key: &str) -> Result<(), Error>;

    /// Lists uploads under way below a prefix, a page of them at most. Not told apart from
    /// [`Self::try_list`] where that is the same request, with the same right.
    async fn try_list_uploads(&self, _prefix: &str) -> Result<(), Error> {
        Ok(())
    }

    /// Deletes what is not there, so that nothing is left behind; false where that cannot be.
    async fn try_delete(&self, key: &str) -> Result<bool, Error>;
}

/// Tries a bucket within [`Settings::check_timeout`].
pub(crate) async fn try_out<B: Attempts>(
    bucket: &B,
    prefix: &str,
    trial: Trial,
) -> Result<Vec<Untried>, Error> {
    let timeout = bucket.settings().check_timeout;
    let (deadline, seconds) = (Instant::now() + timeout, timeout.as_secs());
    match timeout_at(deadline, bucket.try_credentials()).await {
        Err(_) => {
            let giver = bucket.giver();
            let message = format!("no credentials within {seconds} s from {giver}: {}", B::HINT);
            return Err(Error::Denied { message });
        }
        Ok(Err(error)) => return Err(with_hint(error, B::HINT)),
        Ok(Ok(())) => {}
    }
    timeout_at(deadline, steps(bucket, prefix, trial)).await.map_err(|_| {
        Error::unavailable(format!(
            "cannot reach {}: no answer within {seconds} s: check the address, routes and \
             firewalls",
            bucket.endpoint()
        ))
    })?
}

/// Asks for a page of a listing once, within [`Settings::check_timeout`] with the credentials for
/// it: who gives these is a part of the bucket to whoever waits for that.
///
/// # Errors
/// [`Error::Unavailable`], [`Error::Busy`] when there is no answer, or one that says: later. Any
/// other answer is one.
pub(crate) async fn answers<B: Attempts>(bucket: &B, prefix: &str) -> Result<(), Error> {
    let timeout = bucket.settings().check_timeout;
    let asked = async {
        bucket.try_credentials().await?;
        bucket.try_list(prefix).await.map(drop)
    };
    let asked = tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| {
        let (endpoint, seconds) = (bucket.endpoint(), timeout.as_secs());
        Err(Error::unavailable(format!("no answer of {endpoint} within {seconds} s")))
    });
    match asked {
        Err(error @ (Error::Unavailable { .. } | Error::Busy { .. })) => Err(error),
        _ => Ok(()),
    }
}

async fn steps<B: Attempts>(bucket: &B, prefix: &str, trial: Trial) -> Result<Vec<Untried>, Error> {
    let listed = bucket.try_list(prefix).await?;
    let mut untried = Vec::new();
    if trial.read {
        untried.extend(try_reading(bucket, listed).await?);
    }
    if trial.write {
        bucket.try_upload(&probe_key(prefix)).await?;
    }
    if trial.uploads {
        match bucket.try_list_uploads(prefix).await {
            Ok(()) => {}
            Err(Error::Denied { message } | Error::Unsupported { message }) => {
                untried.push(Untried::Uploads { why: message });
            }
            Err(error) => return Err(error),
        }
    }
    if trial.delete && !bucket.try_delete(&probe_key(prefix)).await? {
        untried.push(Untried::Deleting);
    }
    Ok(untried)
}

async fn try_reading<B: Attempts>(
    bucket: &B,
    mut listed: Vec<Listed>,
) -> Result<Option<Untried>, Error> {
    // Of an empty one no bytes can be asked for.
    listed.sort_by_key(|object| object.version.size == 0);
    let mut untried = Untried::NothingToRead;
    for object in listed.iter().take(READS_MAX) {
        match bucket.try_read(object).await {
            Ok(()) => return Ok(None),
            // Gone or replaced since it was listed.
            Err(Error::NotFound { .. } | Error::Changed { .. }) => {}
            Err(Error::Unsupported { message }) => untried = Untried::Reading { why: message },
            Err(error) => return Err(error),
        }
    }
    Ok(Some(untried))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_a_file_is_read() {
        for key in ["a", "p/a", "p/.hidden", "p/.millrace"] {
            assert!(Listed::is_object(key), "{key}");
        }
        let probe = probe_key("p/");
        for key in ["", "p/", "p//a", "p/../a", "p/.a.millrace-0123456789abcdef", probe.as_str()] {
            assert!(!Listed::is_object(key), "{key}");
        }
    }
}
