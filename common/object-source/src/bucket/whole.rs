//! Small objects, fetched whole: nobody sees a byte of them before all of them are checked.

use std::future::{Future, ready};

use bytes::Bytes;
use futures::TryStreamExt;

use super::{Bucket, Kind};
use crate::{
    Error, Tag,
    object::{WHOLE_LEN_MAX, check_key},
};

impl Bucket {
    /// All bytes of one version of an object of `size` bytes, [`WHOLE_LEN_MAX`] at most. On S3 and
    /// GCS they are checked against the bucket's checksum of the object: its CRC32C if it tells
    /// one, else, on S3 over plain HTTP, its entity tag if that can be an MD5. Damaged ones are
    /// asked for again. (An entity tag that is no MD5 but looks like one is found by that: the
    /// bytes come the same twice.)
    ///
    /// # Errors
    /// [`Error::Changed`] when the object is another version by now.
    pub async fn get_whole(&self, key: &str, size: u64, if_match: &Tag) -> Result<Bytes, Error> {
        check(key, size)?;
        let len = usize::try_from(size).unwrap_or_default();
        let room = || ready(Some(vec![0; len]));
        let whole = self.get_whole_into(key, size, if_match, &room).await?;
        Ok(whole.map(Bytes::from).unwrap_or_default())
    }

    /// The same into the first `size` bytes of what `room` gives, which is asked for it when the
    /// answer begins, or, on GCS, when all of it has come. Nothing where it gives nothing. It is
    /// asked anew when the bytes have to be; what it gave before is dropped then.
    ///
    /// # Errors
    /// As [`Self::get_whole`]; [`Error::Invalid`] for what has fewer bytes.
    pub async fn get_whole_into<B, F>(
        &self,
        key: &str,
        size: u64,
        if_match: &Tag,
        room: &(impl Fn() -> F + Sync),
    ) -> Result<Option<B>, Error>
    where
        B: AsMut<[u8]> + Send,
        F: Future<Output = Option<B>> + Send,
    {
        check(key, size)?;
        match &self.kind {
            _ if size == 0 => Ok(room().await),
            Kind::S3(s3) => {
                let _permit = self.limits.acquire(size).await?;
                let mut whole = Box::pin(s3.get_whole(key, size, if_match, room)).await?;
                if let Some(whole) = &mut whole {
                    self.counters.receive(first_of(whole, size)?.len());
                }
                Ok(whole)
            }
            Kind::Google(google) => {
                let permit = self.limits.acquire(size).await?;
                let bytes = Box::pin(google.get_whole(key, size, if_match)).await?;
                self.counters.receive(bytes.len());
                // All have come: no request is open.
                drop(permit);
                let Some(mut whole) = room().await else { return Ok(None) };
                first_of(&mut whole, size)?.copy_from_slice(&bytes);
                Ok(Some(whole))
            }
            Kind::Azure(_) | Kind::Directory(_) => {
                let mut body = self.get_range(key, 0..size, if_match).await?;
                let Some(mut whole) = room().await else { return Ok(None) };
                let mut rest = first_of(&mut whole, size)?;
                while let Some(piece) = body.try_next().await? {
                    // No more come than were asked for, and no fewer.
                    let room = rest.split_off_mut(..piece.len()).expect("a range has its length");
                    room.copy_from_slice(&piece);
                }
                Ok(Some(whole))
            }
        }
    }
}

fn check(key: &str, size: u64) -> Result<(), Error> {
    check_key(key)?;
    if size > WHOLE_LEN_MAX {
        return Err(Error::invalid(format!("{size} bytes are too many for one piece")));
    }
    Ok(())
}

/// The place of an object in what there is room for it.
pub(crate) fn first_of(room: &mut impl AsMut<[u8]>, size: u64) -> Result<&mut [u8], Error> {
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    let room = room.as_mut().get_mut(..len);
    room.ok_or_else(|| Error::invalid(format!("there is no room for {size} bytes")))
}
