//! Parts that are sent while they are read, however large: object_store takes bodies only whole.
//!
//! The request is signed as all others; over plain HTTP the digest of the bytes is part of that. So
//! they are read once beforehand, and for their CRC32C where the bucket takes it. It goes through
//! the same proxies, is counted as others are, and its answer is heard as theirs.

use std::{sync::OnceLock, time::Duration};

use aws_lc_rs::digest::{Context, SHA256};
use backon::Retryable;
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{HeaderMap, Method, header};
use millrace_types::{Crc32c, MIB};
use object_store::client::HttpRequestBody;

use super::{
    S3, answer,
    checksum::{self, Sort},
    put::tag_of,
    signed::Ask,
};
use crate::{
    Error, RequestClass, Settings, Tag, UploadId,
    collect::{TOO_LONG, collect},
    metered::Wire,
    transport,
    web::streaming_client,
};

/// The slowest that a part may be sent on the average, in bytes a second.
const RATE_MIN: u64 = MIB;

/// Sends bodies that are not in memory.
#[derive(Debug)]
pub(super) struct Streamer {
    /// Made when it is needed for the first time, which takes 10 ms.
    client: OnceLock<reqwest::Client>,
    settings: Settings,
    wire: Wire,
    plain_http: bool,
}

impl Streamer {
    pub(super) fn new(settings: &Settings, wire: Wire, plain_http: bool) -> Self {
        Self { client: OnceLock::new(), settings: settings.clone(), wire, plain_http }
    }

    /// # Errors
    /// When TLS cannot be set up.
    fn client(&self) -> Result<&reqwest::Client, Error> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let made = streaming_client(&self.settings, self.plain_http)?;
        // Of two that are made at the same time one is dropped.
        Ok(self.client.get_or_init(|| made))
    }
}

impl S3 {
    pub(crate) async fn put_part_streamed<F, S>(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        len: u64,
        read: F,
    ) -> Result<Tag, Error>
    where
        F: Fn() -> S + Send + Sync,
        S: Stream<Item = Result<Bytes, Error>> + Send + 'static,
    {
        let number = number.to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", upload.as_str())];
        let with = |checksum| self.stream_with(key, &query, len, &read, checksum);
        let once = || self.checksums.either(Sort::Part, with(true), with(false));
        let again = self.signer.while_time_is(Error::is_transient);
        let sent = once.retry(self.signer.backoff()).when(again).await;
        sent.map_err(|error| match error {
            Error::NotFound { key } => Error::NoUpload { key },
            other => other,
        })
    }

    /// Sends a part once, with its checksum or without.
    async fn stream_with<F, S>(
        &self,
        key: &str,
        query: &[(&str, &str)],
        len: u64,
        read: &F,
        has_checksum: bool,
    ) -> Result<Tag, Error>
    where
        F: Fn() -> S + Send + Sync,
        S: Stream<Item = Result<Bytes, Error>> + Send + 'static,
    {
        let (mut headers, mut digest) = (HeaderMap::new(), None);
        if has_checksum || self.address.is_plain_http() {
            let found = digests(read(), len).await?;
            digest = self.address.is_plain_http().then_some(found.sha256);
            if has_checksum {
                checksum::tell(&mut headers, found.crc32c);
            }
        }
        self.stream_once(key, query, len, (headers, digest.as_deref()), read()).await
    }

    async fn stream_once<S>(
        &self,
        key: &str,
        query: &[(&str, &str)],
        len: u64,
        (headers, digest): (HeaderMap, Option<&[u8]>),
        body: S,
    ) -> Result<Tag, Error>
    where
        S: Stream<Item = Result<Bytes, Error>> + Send + 'static,
    {
        let url = self.address.url(Some(key), query);
        let mut request = http::Request::builder()
            .method(Method::PUT)
            .uri(&url)
            .body(HttpRequestBody::empty())
            .map_err(|error| Error::invalid(format!("no address for a request: {error}")))?;
        request.headers_mut().extend(headers);
        self.signer.authorize_body(&mut request, digest).await?;
        let Streamer { settings, wire, .. } = &self.streamer;
        let client = self.streamer.client()?;
        wire.leaves(RequestClass::Part, len);
        let limit = settings.read_timeout + Duration::from_secs(len / RATE_MIN);
        let sent = client
            .put(url)
            .headers(std::mem::take(request.headers_mut()))
            .header(header::CONTENT_LENGTH, len)
            .timeout(limit)
            .body(reqwest::Body::wrap_stream(body))
            .send();
        let failed = |error: reqwest::Error| {
            let endpoint = self.address.endpoint();
            Error::unavailable(format!("cannot send to {endpoint}: {}", transport::said(&error)))
        };
        let sent = sent.await;
        wire.ended(RequestClass::Part, sent.as_ref().ok().map(reqwest::Response::status));
        let answer = sent.map_err(failed)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        // In what is left of the limit, which is for sending and answer together.
        let body = collect(status, answer.bytes_stream()).await.map_err(failed)?;
        let bytes = body.ok_or_else(|| Error::unavailable(TOO_LONG))?;
        if !status.is_success() {
            let (sent, body) = (HeaderMap::new(), Bytes::new());
            let (key, query) = (Some(key), query.to_vec());
            let ask = Ask { method: Method::PUT, key, query, headers: sent, body };
            return Err(answer::refusal(&ask, status, &headers, &bytes, &self.address));
        }
        tag_of(&headers)
    }
}

/// What was found of bytes that were read.
struct Digests {
    sha256: Vec<u8>,
    crc32c: Crc32c,
}

async fn digests<S>(body: S, len: u64) -> Result<Digests, Error>
where
    S: Stream<Item = Result<Bytes, Error>>,
{
    let mut context = Context::new(&SHA256);
    let mut crc32c = Crc32c::EMPTY;
    let mut read = 0;
    let mut body = std::pin::pin!(body);
    while let Some(piece) = body.try_next().await? {
        context.update(&piece);
        crc32c = crc32c.append(&piece);
        read += piece.len() as u64;
    }
    if read != len {
        return Err(Error::invalid(format!("a part of {len} bytes came as {read}")));
    }
    Ok(Digests { sha256: context.finish().as_ref().to_vec(), crc32c })
}
