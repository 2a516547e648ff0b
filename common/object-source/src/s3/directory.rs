//! The empty objects that mark directories: their keys end in a slash, which object_store's paths
//! cannot, so that these requests are signed here.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use millrace_types::Crc32c;

use super::{
    S3, answer,
    checksum::{self, Sort},
    put::{METADATA_PREFIX, metadata_headers},
    signed::Ask,
};
use crate::{Error, Metadata};

impl S3 {
    /// User metadata of the object `prefix`.
    pub(crate) async fn head_directory(&self, prefix: &str) -> Result<Metadata, Error> {
        let (query, headers, body) = (Vec::new(), HeaderMap::new(), Bytes::new());
        let ask = Ask { method: Method::HEAD, key: Some(prefix), query, headers, body };
        let headers = self.signer.send_for_headers(&ask).await?;
        let pairs = headers.iter().filter_map(|(name, value)| {
            let key = name.as_str().strip_prefix(METADATA_PREFIX)?;
            Some((key.to_owned(), value.to_str().ok()?.to_owned()))
        });
        Ok(Metadata::received(pairs))
    }

    /// Deletes the object `prefix`, if it is empty.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none.
    pub(crate) async fn unmark_directory(&self, prefix: &str) -> Result<bool, Error> {
        let (query, headers, body) = (Vec::new(), HeaderMap::new(), Bytes::new());
        let ask = Ask { method: Method::HEAD, key: Some(prefix), query, headers, body };
        let look = || async {
            let headers = self.signer.send_for_headers(&ask).await?;
            let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
            if text(header::CONTENT_LENGTH).is_some_and(|len| len != "0") {
                return Err(Error::Changed { key: prefix.to_owned() });
            }
            answer::tag(text(header::ETAG))
        };
        match self.delete_seen(prefix, look).await {
            Ok(()) => Ok(true),
            Err(Error::Changed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the empty object `prefix`, unless there is one.
    pub(crate) async fn mark_directory(
        &self,
        prefix: &str,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        let mut headers = metadata_headers(metadata)?;
        headers.extend(self.encryption.clone());
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        let (query, body) = (Vec::new(), Bytes::new());
        let plain = Ask { method: Method::PUT, key: Some(prefix), query, headers, body };
        let mut ask = plain.clone();
        // Buckets that lock objects by default want one with everything.
        checksum::tell(&mut ask.headers, Crc32c::EMPTY);
        let (with, without) = (self.signer.send(&ask), self.signer.send(&plain));
        self.checksums.either(Sort::PutIfAbsent, with, without).await.map(drop)
    }
}
