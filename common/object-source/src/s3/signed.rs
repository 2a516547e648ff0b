//! Requests that object_store does not offer, signed with its authorizer and sent with its client.

use std::{future::poll_fn, time::Instant};

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use futures::{TryStreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderValue, Method, header, response::Parts};
use object_store::{
    PutPayload,
    aws::{AwsAuthorizer, AwsCredentialProvider},
    client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody},
};

use super::{address::Address, answer, put::Body};
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

/// The body of an answer on its way.
pub(super) struct Incoming {
    stream: BoxStream<'static, Result<Bytes, HttpError>>,
    /// That of an object. A long completion may take minutes, over which S3 sends a blank now and
    /// then.
    pace: Option<Pace>,
}

/// Why an attempt failed.
#[derive(Debug)]
struct Failed {
    error: Error,
    /// The server will refuse it again.
    is_final: bool,
    /// The server may have done it, and its answer did not come.
    is_lost: bool,
    /// The server has surely not begun it.
    is_not_begun: bool,
}

impl Failed {
    fn lost(error: Error) -> Self {
        Self { error, is_final: false, is_lost: true, is_not_begun: false }
    }

    /// No answer came. Where nobody was reached, nobody has begun anything either.
    fn unanswered(error: &HttpError, endpoint: &str) -> Self {
        let is_not_begun = error.kind() == HttpErrorKind::Connect;
        Self { is_not_begun, ..Self::lost(transport::unreachable(error, endpoint)) }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, is_final: false, is_lost: false, is_not_begun: false }
    }
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

    /// Sends what each repetition would do once more; repeats only what was surely not begun.
    pub(super) async fn send_new(&self, ask: &Ask<'_>) -> Result<Bytes, Error> {
        let once = || async {
            let request = self.request(ask).await?;
            let (_, bytes) = Box::pin(self.exchange_for(ask, request)).await?;
            Ok::<_, Failed>(bytes)
        };
        let time = self.while_time_is(Error::is_transient);
        let again = |failed: &Failed| failed.is_not_begun && time(&failed.error);
        once.retry(self.backoff).when(again).await.map_err(|failed| failed.error)
    }

    /// As [`Self::send`], for an answer that is in its headers.
    pub(super) async fn send_for_headers(&self, ask: &Ask<'_>) -> Result<HeaderMap, Error> {
        let again = self.while_time_is(Error::is_transient);
        Ok((|| self.exchange(ask)).retry(self.backoff).when(again).await?.0)
    }

    /// Which errors lead to another attempt, of attempts that begin now.
    pub(super) fn while_time_is(&self, when: impl Fn(&Error) -> bool) -> impl Fn(&Error) -> bool {
        let (begun, limit) = (Instant::now(), self.settings.retry_timeout);
        move |error| begun.elapsed() < limit && when(error)
    }

    /// Sends a request with this body instead of its own until an answer comes, at most as often as
    /// the settings say; an answer that `check` finds transiently wrong is asked for again. Not
    /// repeated is what the server refuses for good, nor, under a condition, what it has done with
    /// other bytes, or may have done without anybody hearing of it: that would be refused for its
    /// own effect.
    pub(super) async fn send_body(
        &self,
        ask: &Ask<'_>,
        body: &Body,
        check: impl Fn(&HeaderMap) -> Result<(), Error>,
    ) -> Result<HeaderMap, Error> {
        let conditions = [header::IF_MATCH, header::IF_NONE_MATCH];
        let is_conditional = conditions.iter().any(|name| ask.headers.contains_key(name));
        let once = || async {
            let request = self.request_with(ask, body).await?;
            let (headers, _) = Box::pin(self.exchange_for(ask, request)).await?;
            check(&headers)?;
            Ok(headers)
        };
        let time = self.while_time_is(Error::is_transient);
        let again = |failed: &Failed| {
            let has_effect = failed.is_lost || matches!(failed.error, Error::Damaged { .. });
            let is_settled = failed.is_final || (has_effect && is_conditional);
            !is_settled && time(&failed.error)
        };
        once.retry(self.backoff).when(again).await.map_err(|failed| failed.error)
    }

    pub(super) async fn send_once(&self, ask: &Ask<'_>) -> Result<Bytes, Error> {
        Ok(self.exchange(ask).await?.1)
    }

    /// As [`Self::send_once`], for an answer that is in its headers.
    pub(super) async fn send_once_for_headers(&self, ask: &Ask<'_>) -> Result<HeaderMap, Error> {
        Ok(self.exchange(ask).await?.0)
    }

    async fn exchange(&self, ask: &Ask<'_>) -> Result<(HeaderMap, Bytes), Error> {
        let request = self.request(ask).await?;
        // Boxed, here as there: it is large, and part of every future that waits for a bucket.
        let answer = Box::pin(self.exchange_for(ask, request)).await;
        answer.map_err(|failed| failed.error)
    }

    async fn exchange_for(
        &self,
        ask: &Ask<'_>,
        request: HttpRequest,
    ) -> Result<(HeaderMap, Bytes), Failed> {
        let (head, mut body) = self.answer(request, ask.method == Method::GET).await?;
        let bytes = self.collect(&head, &mut body).await?;
        // S3 begins a long completion with 200 and may end it with an error in the body. The body
        // of an object may look like anything.
        let is_object = ask.method == Method::GET && ask.key.is_some() && ask.query.is_empty();
        if head.status.is_success() && (is_object || !transport::is_error(&bytes)) {
            return Ok((head.headers, bytes));
        }
        Err(self.refused(ask, &head, &bytes))
    }

    /// Asks for an object; its bytes are handed on as they come, to [`Self::read_into`].
    pub(super) async fn open(&self, ask: &Ask<'_>) -> Result<(HeaderMap, Incoming), Error> {
        let request = self.request(ask).await?;
        let opened = async {
            let (head, mut body) = self.answer(request, true).await?;
            if head.status.is_success() {
                return Ok((head.headers, body));
            }
            let bytes = self.collect(&head, &mut body).await?;
            Err(self.refused(ask, &head, &bytes))
        };
        // Boxed as all of them are.
        Box::pin(opened).await.map_err(|failed: Failed| failed.error)
    }

    /// Fills a buffer with exactly what comes.
    pub(super) async fn read_into(
        &self,
        mut body: Incoming,
        into: &mut [u8],
        key: &str,
    ) -> Result<(), Error> {
        let mut len = 0;
        while let Some(piece) = self.piece(&mut body).await.map_err(|failed| failed.error)? {
            if let Some(room) = into.get_mut(len..len + piece.len()) {
                room.copy_from_slice(&piece);
            }
            len += piece.len();
            if len > into.len() {
                break;
            }
        }
        if len == into.len() {
            return Ok(());
        }
        let (at_least, has) = (if len > into.len() { "at least " } else { "" }, into.len());
        Err(Error::unavailable(format!(
            "the bucket sends {at_least}{len} bytes of {key:?}, which has {has}"
        )))
    }

    /// Sends, until an answer begins.
    async fn answer(
        &self,
        request: HttpRequest,
        has_pace: bool,
    ) -> Result<(Parts, Incoming), Failed> {
        let answer = self.client.execute(request).await;
        let answer = answer.map_err(|error| Failed::unanswered(&error, self.address.endpoint()))?;
        let (head, body) = answer.into_parts();
        let pace = has_pace.then(|| Pace::new(self.settings.read_timeout));
        Ok((head, Incoming { stream: body.bytes_stream(), pace }))
    }

    async fn collect(&self, head: &Parts, body: &mut Incoming) -> Result<Bytes, Failed> {
        let mut bytes = BytesMut::with_capacity(announced(&head.headers));
        while let Some(piece) = self.piece(body).await? {
            if bytes.len() + piece.len() > ANSWER_LEN_MAX {
                let long = Error::unavailable("the bucket's answer is longer than any can be");
                return Err(long.into());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// The next of an answer; nothing at its end.
    async fn piece(&self, body: &mut Incoming) -> Result<Option<Bytes>, Failed> {
        let Incoming { stream, pace } = body;
        let next = match pace {
            None => stream.try_next().await,
            Some(pace) => tokio::select! {
                biased;
                next = stream.try_next() => next,
                () = poll_fn(|cx| pace.poll_too_slow(cx)) => {
                    let slow = Error::unavailable("the bucket sends its answer too slowly");
                    return Err(Failed::lost(slow));
                }
            },
        };
        let next = next.map_err(|error| transport::unreachable(&error, self.address.endpoint()));
        let next = next.map_err(Failed::lost)?;
        if let (Some(piece), Some(pace)) = (&next, pace) {
            pace.arrived(piece.len() as u64);
        }
        Ok(next)
    }

    fn refused(&self, ask: &Ask<'_>, head: &Parts, bytes: &Bytes) -> Failed {
        let is_final = answer::is_final(head.status, bytes);
        let is_not_begun = transport::is_refused(head.status, bytes);
        let error = answer::refusal(ask, head.status, &head.headers, bytes, &self.address);
        Failed { error, is_final, is_lost: false, is_not_begun }
    }

    /// Whether there are credentials, or none are needed.
    pub(super) async fn check_credentials(&self) -> Result<(), Error> {
        match &self.credentials {
            None => Ok(()),
            Some(provider) => {
                let got = provider.get_credential().await;
                got.map(drop).map_err(|error| answer::translate(error, ""))
            }
        }
    }

    async fn request(&self, ask: &Ask<'_>) -> Result<HttpRequest, Error> {
        let mut request = self.unsigned(ask, ask.body.clone().into())?;
        if [Method::PUT, Method::POST].contains(&ask.method) {
            // Of no bytes it would not be said, and some servers want it.
            request.headers_mut().insert(header::CONTENT_LENGTH, ask.body.len().into());
        }
        self.authorize(&mut request, None, true).await?;
        Ok(request)
    }

    async fn request_with(&self, ask: &Ask<'_>, body: &Body) -> Result<HttpRequest, Error> {
        let payload = PutPayload::from_iter(body.pieces.iter().cloned());
        let len = HeaderValue::from(payload.content_length());
        let mut request = self.unsigned(ask, payload.into())?;
        // Otherwise it would be sent in chunks, which S3 does not take.
        request.headers_mut().insert(header::CONTENT_LENGTH, len);
        self.authorize_body(&mut request, body.digest.as_deref()).await?;
        Ok(request)
    }

    fn unsigned(&self, ask: &Ask<'_>, body: HttpRequestBody) -> Result<HttpRequest, Error> {
        let url = self.address.url(ask.key, &ask.query);
        let request = http::Request::builder().method(ask.method.clone()).uri(url).body(body);
        let mut request = request
            .map_err(|error| Error::invalid(format!("no address for a request: {error}")))?;
        request.headers_mut().extend(ask.headers.clone());
        Ok(request)
    }

    /// Signs a request whose body is sent apart: by its digest, or not at all.
    pub(super) async fn authorize_body(
        &self,
        request: &mut HttpRequest,
        digest: Option<&[u8]>,
    ) -> Result<(), Error> {
        self.authorize(request, digest, digest.is_some()).await
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
