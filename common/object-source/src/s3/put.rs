//! Bodies that are in memory: small objects, and parts. They are signed and sent here, because
//! object_store sends no CRC32C.

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use millrace_types::Crc32c;

use super::{
    S3, answer,
    checksum::{self, Sort},
    signed::Ask,
};
use crate::{Condition, Error, Metadata, Stored, Tag, UploadId, parts::about_upload};

/// What user metadata goes under.
pub(super) const METADATA_PREFIX: &str = "x-amz-meta-";

/// Bytes to be sent.
#[derive(Debug)]
pub(super) struct Body {
    /// They, one after the other.
    pub(super) pieces: Vec<Bytes>,
    /// Their SHA-256, where it is signed.
    pub(super) digest: Option<Vec<u8>>,
    checksum: Crc32c,
}

impl Body {
    /// TLS already guards the bytes; over plain HTTP their digest is signed instead.
    fn new(pieces: Vec<Bytes>, is_plain_http: bool) -> Self {
        let checksum = pieces.iter().fold(Crc32c::EMPTY, |sum, piece| sum.append(piece));
        let digest = is_plain_http.then(|| {
            let mut context = Context::new(&SHA256);
            pieces.iter().for_each(|piece| context.update(piece));
            context.finish().as_ref().to_vec()
        });
        Self { pieces, digest, checksum }
    }
}

impl S3 {
    pub(crate) async fn put_small(
        &self,
        key: &str,
        body: Vec<Bytes>,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<Stored, Error> {
        let mut headers = condition_headers(condition)?;
        headers.extend(metadata_headers(metadata)?);
        headers.extend(self.encryption.clone());
        let ask = Ask {
            method: Method::PUT,
            key: Some(key),
            query: Vec::new(),
            headers,
            body: Bytes::new(),
        };
        let sort = match condition {
            Condition::None => Sort::Put,
            Condition::Absent => Sort::PutIfAbsent,
            Condition::Matches(_) => Sort::PutIfMatches,
        };
        self.put(sort, ask, body).await
    }

    pub(crate) async fn put_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        body: Vec<Bytes>,
    ) -> Result<Tag, Error> {
        let number = number.to_string();
        let ask = Ask {
            method: Method::PUT,
            key: Some(key),
            query: vec![("partNumber", &number), ("uploadId", upload.as_str())],
            headers: HeaderMap::new(),
            body: Bytes::new(),
        };
        let stored = self.put(Sort::Part, ask, body).await;
        Ok(stored.map_err(|error| about_upload(error, key))?.tag)
    }

    async fn put(&self, sort: Sort, mut ask: Ask<'_>, pieces: Vec<Bytes>) -> Result<Stored, Error> {
        let body = Body::new(pieces, self.address.is_plain_http());
        let plain = ask.clone();
        checksum::tell(&mut ask.headers, body.checksum);
        let (with, without) = (self.put_once(&ask, &body), self.put_once(&plain, &body));
        self.checksums.either(sort, with, without).await
    }

    async fn put_once(&self, ask: &Ask<'_>, body: &Body) -> Result<Stored, Error> {
        let key = ask.key.unwrap_or_default();
        let check = |headers: &HeaderMap| checksum::check_stored(headers, body.checksum, key);
        let headers = self.signer.send_body(ask, body, check).await?;
        let is_checked = checksum::stored_in(&headers) == Some(body.checksum);
        Ok(Stored { tag: tag_of(&headers)?, is_checked })
    }
}

pub(super) fn tag_of(headers: &HeaderMap) -> Result<Tag, Error> {
    answer::tag(headers.get(header::ETAG).and_then(|value| value.to_str().ok()))
}

pub(super) fn condition_headers(condition: &Condition) -> Result<HeaderMap, Error> {
    let (name, value): (HeaderName, HeaderValue) = match condition {
        Condition::None => return Ok(HeaderMap::new()),
        Condition::Absent => (header::IF_NONE_MATCH, HeaderValue::from_static("*")),
        Condition::Matches(tag) => {
            let value = HeaderValue::from_str(tag.as_str());
            let value = value.map_err(|_| Error::invalid("an entity tag that cannot be sent"))?;
            (header::IF_MATCH, value)
        }
    };
    Ok(HeaderMap::from_iter([(name, value)]))
}

pub(super) fn metadata_headers(metadata: &Metadata) -> Result<HeaderMap, Error> {
    let pair = |(key, value): (&str, &str)| {
        let name = HeaderName::from_bytes(format!("{METADATA_PREFIX}{key}").as_bytes()).ok()?;
        Some((name, HeaderValue::from_str(value).ok()?))
    };
    let pairs: Option<HeaderMap> = metadata.iter().map(pair).collect();
    pairs.ok_or_else(|| Error::invalid("user metadata that cannot be sent"))
}
