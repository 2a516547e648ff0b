//! Requests that object_store does not offer, signed with its authorizer and sent with its client.

use std::{future::poll_fn, time::Instant};

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use http::{HeaderMap, Method, header};
use object_store::{
    aws::{AwsAuthorizer, AwsCredentialProvider},
    client::{HttpClient, HttpRequest, HttpRequestBody},
};

use super::{address::Address, answer};
use crate::{Error, Settings, WHOLE_LEN_MAX, pace::Pace, transport};

/// Signs, sends, repeats.
#[derive(Debug)]
pub(super) struct Signer {
    client: HttpClient,
    credentials: Option<AwsCredentialProvider>,
    address: Address,
    backoff: ExponentialBuilder,
    settings: Settings,
}

/// One request to the bucket or a key in it.
#[derive(Debug, Clone)]
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    pub(super) key: Option<&'a str>,
    pub(super) query: Vec<(&'a str, &'a str)>,
    /// Conditions and the like; signed along.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// The answers here are XML of at most a thousand entries, each with a key of up to 3 KiB encoded.
const ANSWER_LEN_MAX: usize = 16 * 1024 * 1024;

impl Signer {
    pub(super) fn new(
        client: HttpClient,
        credentials: Option<AwsCredentialProvider>,
        address: Address,
        settings: &Settings,
    ) -> Self {
        let backoff = transport::backoff(settings);
        Self { client, credentials, address, backoff, settings: settings.clone() }
    }

    /// Sends until an answer comes, at most as often as the settings say.
    pub(super) async fn send(&self, ask: &Ask<'_>) -> Result<Bytes, Error> {
        let again = self.while_time_is(Error::is_transient);
        (|| self.send_once(ask)).retry(self.backoff).when(again).await
    }

    /// Sends; repeats only what the server refused to begin (slow down).
    pub(super) async fn send_unless_begun(&self, ask: &Ask<'_>) -> Result<Bytes, Error> {
        let refused = self.while_time_is(|error| matches!(error, Error::Busy { .. }));
        (|| self.send_once(ask)).retry(self.backoff).when(refused).await
    }

    /// As [`Self::send`], for an answer that is in its headers.
    pub(super) async fn send_for_headers(&self, ask: &Ask<'_>) -> Result<HeaderMap, Error> {
        let again = self.while_time_is(Error::is_transient);
        Ok((|| self.exchange(ask)).retry(self.backoff).when(again).await?.0)
    }

    /// As [`Self::send`]; an answer that `check` finds transiently wrong is asked for again.
    pub(super) async fn send_checked(
        &self,
        ask: &Ask<'_>,
        check: impl Fn(&HeaderMap, &Bytes) -> Result<(), Error>,
    ) -> Result<Bytes, Error> {
        let once = || async {
            let (headers, bytes) = self.exchange(ask).await?;
            check(&headers, &bytes)?;
            Ok(bytes)
        };
        once.retry(self.backoff).when(self.while_time_is(Error::is_transient)).await
    }

    /// Which errors lead to another attempt, of attempts that begin now.
    pub(super) fn while_time_is(&self, when: impl Fn(&Error) -> bool) -> impl Fn(&Error) -> bool {
        let (begun, limit) = (Instant::now(), self.settings.retry_timeout);
        move |error| begun.elapsed() < limit && when(error)
    }

    pub(super) async fn send_once(&self, ask: &Ask<'_>) -> Result<Bytes, Error> {
        Ok(self.exchange(ask).await?.1)
    }

    async fn exchange(&self, ask: &Ask<'_>) -> Result<(HeaderMap, Bytes), Error> {
        let key = ask.key.unwrap_or_default();
        let request = self.request(ask).await?;
        let answer = self
            .client
            .execute(request)
            .await
            .map_err(|error| transport::unreachable(&error, self.address.endpoint()))?;
        let (head, body) = answer.into_parts();
        let mut stream = body.bytes_stream();
        let mut bytes = BytesMut::with_capacity(announced(&head.headers));
        let mut pace = Pace::new(self.settings.read_timeout);
        // A long completion may take minutes, over which S3 sends a blank now and then.
        let has_pace = ask.method == Method::GET;
        loop {
            let next = tokio::select! {
                biased;
                next = stream.try_next() => next,
                () = poll_fn(|cx| pace.poll_too_slow(cx)), if has_pace => {
                    return Err(Error::unavailable("the bucket sends its answer too slowly"));
                }
            };
            let next =
                next.map_err(|error| transport::unreachable(&error, self.address.endpoint()));
            let Some(piece) = next? else { break };
            pace.arrived(piece.len() as u64);
            if bytes.len() + piece.len() > ANSWER_LEN_MAX {
                return Err(Error::unavailable("the bucket's answer is longer than any can be"));
            }
            bytes.extend_from_slice(&piece);
        }
        let bytes = bytes.freeze();
        // S3 begins a long completion with 200 and may end it with an error in the body. The body
        // of an object may look like anything.
        let is_object = ask.method == Method::GET && ask.key.is_some() && ask.query.is_empty();
        if head.status.is_success() && (is_object || !transport::is_error(&bytes)) {
            return Ok((head.headers, bytes));
        }
        Err(answer::refusal(head.status, &head.headers, &bytes, &self.address, key))
    }

    /// Whether there are credentials, or none are needed.
    pub(super) async fn check_credentials(&self) -> Result<(), Error> {
        match &self.credentials {
            None => Ok(()),
            Some(provider) => {
                let got = provider.get_credential().await;
                got.map(|_| ()).map_err(|error| Error::Denied {
                    message: format!("no credentials: {}", transport::innermost(&error)),
                })
            }
        }
    }

    async fn request(&self, ask: &Ask<'_>) -> Result<HttpRequest, Error> {
        let url = self.address.url(ask.key, &ask.query);
        let mut request = http::Request::builder()
            .method(ask.method.clone())
            .uri(url)
            .body(HttpRequestBody::from(ask.body.clone()))
            .map_err(|error| Error::invalid(format!("no address for a request: {error}")))?;
        request.headers_mut().extend(ask.headers.clone());
        self.authorize(&mut request, None, true).await?;
        Ok(request)
    }

    /// Signs a request; its body too, which has this digest if it is not in the request.
    pub(super) async fn authorize(
        &self,
        request: &mut HttpRequest,
        digest: Option<&[u8]>,
        signs_payload: bool,
    ) -> Result<(), Error> {
        let Some(provider) = &self.credentials else { return Ok(()) };
        let credential =
            provider.get_credential().await.map_err(|error| answer::translate(error, ""))?;
        AwsAuthorizer::new(&credential, "s3", self.address.region())
            .with_sign_payload(signs_payload)
            .try_authorize(request, digest)
            .map_err(|error| answer::translate(error, ""))
    }

    /// How long to wait between attempts.
    pub(super) fn backoff(&self) -> ExponentialBuilder {
        self.backoff
    }
}

/// Bytes of an answer as far as it says so itself, and room is made for at once: growing would copy
/// a small object several times.
fn announced(headers: &HeaderMap) -> usize {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let length = length.and_then(|length| length.parse::<u64>().ok()).unwrap_or(0);
    usize::try_from(length.min(WHOLE_LEN_MAX)).unwrap_or(0)
}
