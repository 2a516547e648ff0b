//! Parts that are sent while they are read, however large: object_store takes bodies only whole.
//!
//! The request is signed as all others; over plain HTTP the digest of the bytes is part of that, so
//! that they are read once beforehand.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::digest::{Context, SHA256};
use backon::Retryable;
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{HeaderMap, Method, header};
use millrace_types::MIB;
use object_store::client::HttpRequestBody;

use super::{S3, answer, signed::Signer};
use crate::{Counters, Error, RequestClass, Settings, Tag, UploadId, transport};

/// The slowest that a part may be sent on the average, in bytes a second.
const RATE_MIN: u64 = MIB;

/// Sends bodies that are not in memory.
#[derive(Debug)]
pub(super) struct Streamer {
    client: reqwest::Client,
    counters: Arc<Counters>,
    patience: Duration,
}

impl Streamer {
    /// # Errors
    /// When TLS cannot be set up.
    pub(super) fn new(settings: &Settings, counters: Arc<Counters>) -> Result<Self, Error> {
        let client = reqwest::Client::builder()
            .connect_timeout(settings.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| Error::unavailable(format!("no HTTP client: {error}")))?;
        Ok(Self { client, counters, patience: settings.read_timeout })
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
        let once = || async {
            let digest = match self.address.is_plain_http() {
                true => Some(digest(read(), len).await?),
                false => None,
            };
            self.stream_once(key, &query, len, digest.as_deref(), read()).await
        };
        let again = self.signer.while_time_is(Error::is_transient);
        let sent = once.retry(self.signer.backoff()).when(again).await;
        sent.map_err(|error| match error {
            Error::NotFound { key } => Error::NoUpload { key },
            other => other,
        })
    }

    async fn stream_once<S>(
        &self,
        key: &str,
        query: &[(&str, &str)],
        len: u64,
        digest: Option<&[u8]>,
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
        self.signer.authorize_body(&mut request, digest).await?;
        let Streamer { client, counters, patience } = &self.streamer;
        counters.count(RequestClass::Part);
        counters.send(len);
        let limit = *patience + Duration::from_secs(len / RATE_MIN);
        let sent = client
            .put(url)
            .headers(std::mem::take(request.headers_mut()))
            .header(header::CONTENT_LENGTH, len)
            .timeout(limit)
            .body(reqwest::Body::wrap_stream(body))
            .send();
        let failed = |error: reqwest::Error| {
            counters.fail();
            let endpoint = self.address.endpoint();
            Error::unavailable(format!(
                "cannot send to {endpoint}: {}",
                transport::innermost(&error)
            ))
        };
        let answer = sent.await.map_err(failed)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let bytes = answer.bytes().await.map_err(failed)?;
        if !status.is_success() {
            counters.fail();
            return Err(answer::refusal(status, &headers, &bytes, &self.address, key));
        }
        tag_of(&headers)
    }
}

impl Signer {
    /// Signs a request whose body is sent apart: by its digest, or not at all.
    async fn authorize_body(
        &self,
        request: &mut object_store::client::HttpRequest,
        digest: Option<&[u8]>,
    ) -> Result<(), Error> {
        self.authorize(request, digest, digest.is_some()).await
    }
}

fn tag_of(headers: &HeaderMap) -> Result<Tag, Error> {
    answer::tag(headers.get(header::ETAG).and_then(|value| value.to_str().ok()))
}

/// The SHA-256 of what is read.
async fn digest<S>(body: S, len: u64) -> Result<Vec<u8>, Error>
where
    S: Stream<Item = Result<Bytes, Error>>,
{
    let mut context = Context::new(&SHA256);
    let mut read = 0;
    let mut body = std::pin::pin!(body);
    while let Some(piece) = body.try_next().await? {
        context.update(&piece);
        read += piece.len() as u64;
    }
    if read != len {
        return Err(Error::invalid(format!("a part of {len} bytes came as {read}")));
    }
    Ok(context.finish().as_ref().to_vec())
}
