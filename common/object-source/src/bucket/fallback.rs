//! What is made of other operations where a kind of bucket has none of its own.

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use millrace_types::MIB;

use super::len_of;
use crate::{Error, Head, Tag};

/// The largest part that is sent from memory where it cannot be streamed.
const HELD_LEN_MAX: u64 = 64 * MIB;

/// Deletes the object that marks a directory, if it is empty. Tells whether it is gone.
///
/// # Errors
/// [`Error::NotFound`] when there was none.
pub(super) async fn unmark(
    head: Result<Head, Error>,
    delete: impl AsyncFnOnce(&Tag) -> Result<(), Error>,
) -> Result<bool, Error> {
    let version = head?.version;
    if version.size != 0 {
        return Ok(false);
    }
    match delete(&version.tag).await {
        Ok(()) => Ok(true),
        Err(Error::Changed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The `len` bytes of a body.
pub(super) async fn held<S>(body: S, len: u64) -> Result<Vec<Bytes>, Error>
where
    S: Stream<Item = Result<Bytes, Error>>,
{
    if len > HELD_LEN_MAX {
        return Err(Error::Unsupported {
            message: format!("a part of {len} bytes is too large for this kind of bucket"),
        });
    }
    let pieces: Vec<Bytes> = body.try_collect().await?;
    match len_of(&pieces) {
        read if read == len => Ok(pieces),
        read => Err(Error::invalid(format!("a part of {len} bytes came as {read}"))),
    }
}
