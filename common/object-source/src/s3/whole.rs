//! Small objects fetched whole, and checked before anybody sees a byte of them.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use backon::Retryable;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};

use super::{
    S3,
    checksum::{self, Sort, Verdict, verify},
    signed::Ask,
};
use crate::{Error, Tag, bucket::whole::first_of};

/// What is known of the entity tags of one bucket.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// One was the MD5 of its object.
    are_digests: AtomicBool,
    /// One was surely not, and none was ever.
    are_not: AtomicBool,
}

/// The object that is wanted.
struct Wanted<'a> {
    key: &'a str,
    size: u64,
    tag: &'a Tag,
    /// What the last bytes had for an MD5 that are not those of the tag.
    unlike: Mutex<Option<[u8; 16]>>,
}

impl S3 {
    /// All bytes of an object that has `size` of them, where `room` makes room for them once they
    /// come; nothing where it makes none. It is asked again when they have to be.
    pub(crate) async fn get_whole<B, F>(
        &self,
        key: &str,
        size: u64,
        tag: &Tag,
        room: &(impl Fn() -> F + Sync),
    ) -> Result<Option<B>, Error>
    where
        B: AsMut<[u8]> + Send,
        F: Future<Output = Option<B>> + Send,
    {
        let mut headers = HeaderMap::new();
        let sent = HeaderValue::from_str(tag.as_str());
        let sent = sent.map_err(|_| Error::invalid("an entity tag that cannot be sent"))?;
        headers.insert(header::IF_MATCH, sent);
        let (query, body) = (Vec::new(), Bytes::new());
        let plain = Ask { method: Method::GET, key: Some(key), query, headers, body };
        let mut ask = plain.clone();
        checksum::ask_for(&mut ask.headers);
        let wanted = Wanted { key, size, tag, unlike: Mutex::new(None) };
        let with = self.get_checked(&ask, &wanted, room);
        let without = self.get_checked(&plain, &wanted, room);
        self.told_checksums.either(Sort::Get, with, without).await
    }

    async fn get_checked<B, F>(
        &self,
        ask: &Ask<'_>,
        wanted: &Wanted<'_>,
        room: &(impl Fn() -> F + Sync),
    ) -> Result<Option<B>, Error>
    where
        B: AsMut<[u8]> + Send,
        F: Future<Output = Option<B>> + Send,
    {
        let once = || async {
            let (headers, body) = self.signer.open(ask).await?;
            // A server that knows no conditions sends whatever it has.
            let told = headers.get(header::ETAG).and_then(|value| value.to_str().ok());
            if told != Some(wanted.tag.as_str()) {
                return Err(Error::Changed { key: wanted.key.to_owned() });
            }
            let Some(mut bytes) = room().await else { return Ok(None) };
            let into = first_of(&mut bytes, wanted.size)?;
            self.signer.read_into(body, into, wanted.key).await?;
            self.check(&headers, wanted, into)?;
            Ok(Some(bytes))
        };
        let again = self.signer.while_time_is(Error::is_transient);
        once.retry(self.signer.backoff()).when(again).await
    }

    /// Whether the bytes are those that the bucket has.
    fn check(&self, headers: &HeaderMap, wanted: &Wanted<'_>, bytes: &[u8]) -> Result<(), Error> {
        match verify(headers, wanted.tag, self.checks_tags(), bytes) {
            Verdict::Tagged => self.tags.are_digests.store(true, Ordering::Relaxed),
            Verdict::Right | Verdict::Unknown => {}
            Verdict::Wrong => return Err(damaged(wanted.key)),
            Verdict::Unlike(digest) => {
                let mut last = wanted.unlike.lock().unwrap_or_else(PoisonError::into_inner);
                if last.replace(digest) != Some(digest) {
                    return Err(damaged(wanted.key));
                }
                // The same bytes twice: no accident on the way does that.
                self.tags.note_other(wanted.key);
            }
        }
        Ok(())
    }

    /// Over TLS no byte changes on the way unnoticed.
    fn checks_tags(&self) -> bool {
        self.address.is_plain_http() && !self.tags.are_not.load(Ordering::Relaxed)
    }
}

impl Tags {
    fn note_other(&self, key: &str) {
        tracing::warn!(key, "an entity tag looks like the MD5 of an object and is not");
        if !self.are_digests.load(Ordering::Relaxed) {
            self.are_not.store(true, Ordering::Relaxed);
        }
    }
}

fn damaged(key: &str) -> Error {
    Error::unavailable(format!("the bytes of {key:?} arrived damaged: they have another checksum"))
}
