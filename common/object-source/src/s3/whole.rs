//! Small objects fetched whole, and checked before anybody sees a byte of them.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};

use super::{
    S3,
    checksum::{self, Sort, Verdict, verify},
    signed::Ask,
};
use crate::{Error, Tag};

/// What is known of the entity tags of one bucket.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// One was the MD5 of its object.
    are_digests: AtomicBool,
    /// One was surely not, and none was ever.
    are_not: AtomicBool,
}

impl S3 {
    /// All bytes of an object that has `size` of them.
    pub(crate) async fn get_whole(&self, key: &str, size: u64, tag: &Tag) -> Result<Bytes, Error> {
        let mut headers = HeaderMap::new();
        let sent = HeaderValue::from_str(tag.as_str());
        let sent = sent.map_err(|_| Error::invalid("an entity tag that cannot be sent"))?;
        headers.insert(header::IF_MATCH, sent);
        let (query, body) = (Vec::new(), Bytes::new());
        let plain = Ask { method: Method::GET, key: Some(key), query, headers, body };
        let mut ask = plain.clone();
        checksum::ask_for(&mut ask.headers);
        let with = self.get_checked(&ask, key, size, tag);
        let without = self.get_checked(&plain, key, size, tag);
        self.told_checksums.either(Sort::Get, with, without).await
    }

    async fn get_checked(
        &self,
        ask: &Ask<'_>,
        key: &str,
        size: u64,
        tag: &Tag,
    ) -> Result<Bytes, Error> {
        let unlike = Mutex::new(None);
        let checked = |headers: &HeaderMap, bytes: &Bytes| {
            let told = headers.get(header::ETAG).and_then(|value| value.to_str().ok());
            // A server that knows no conditions sends whatever it has.
            if told != Some(tag.as_str()) {
                return Err(Error::Changed { key: key.to_owned() });
            }
            let len = bytes.len() as u64;
            if len != size {
                return Err(Error::unavailable(format!(
                    "the bucket sends {len} bytes of {key:?}, which has {size}"
                )));
            }
            match verify(headers, tag, self.checks_tags(), bytes) {
                Verdict::Tagged => self.tags.are_digests.store(true, Ordering::Relaxed),
                Verdict::Right | Verdict::Unknown => {}
                Verdict::Wrong => return Err(damaged(key)),
                Verdict::Unlike(digest) => {
                    let mut last = unlike.lock().unwrap_or_else(PoisonError::into_inner);
                    if last.replace(digest) != Some(digest) {
                        return Err(damaged(key));
                    }
                    // The same bytes twice: no accident on the way does that.
                    self.tags.note_other(key);
                }
            }
            Ok(())
        };
        self.signer.send_checked(ask, checked).await
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
