//! What every bucket behind HTTP has in common: answers that do not come, and when to ask again.

use std::{
    error::Error as StdError,
    io::{self, ErrorKind},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backon::ExponentialBuilder;
use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};

use crate::{Error, Settings, tls};

/// The pauses between the attempts of one request.
pub(crate) fn backoff(settings: &Settings) -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(5))
        .with_max_times(settings.retries_max)
        .with_total_delay(Some(settings.retry_timeout))
        .with_jitter()
}

/// The status that says: later.
pub(crate) fn asks_to_wait(status: StatusCode) -> bool {
    matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
}

/// Whether a body is an error document, whatever the status said.
pub(crate) fn is_error(body: &[u8]) -> bool {
    let start = &body[..body.len().min(256)];
    String::from_utf8_lossy(start).contains("<Error>")
}

/// Whether a server says in words that it did not begin what it was asked for: what stands between
/// says 503 too, also of what it has handed on.
pub(crate) fn is_refused(status: StatusCode, body: &[u8]) -> bool {
    let start = &body[..body.len().min(256)];
    let says_so = || String::from_utf8_lossy(start).contains("SlowDown");
    status == StatusCode::TOO_MANY_REQUESTS || (asks_to_wait(status) && says_so())
}

/// What 404 means to anything but HEAD when nothing says what was not found. No bucket answers so,
/// but what stands before one and has lost it, such as a proxy without a route.
pub(crate) fn no_bucket_answers(place: &str) -> Error {
    Error::unavailable(format!(
        "{place} does not answer: something before it says 404, and not what is missing"
    ))
}

/// No answer at all to a change of so many bytes, in the time that so many may take.
#[derive(Debug, thiserror::Error)]
#[error("{len} bytes were taken too slowly: no answer within {seconds} s")]
pub(crate) struct TooSlow {
    pub(crate) len: u64,
    pub(crate) seconds: u64,
}

/// No answer at all.
pub(crate) fn unreachable(error: &HttpError, endpoint: &str) -> Error {
    if let Some(slow) = cause::<TooSlow>(error) {
        return Error::unavailable(format!(
            "{endpoint}: {slow}: check how busy it is, and the line to it"
        ));
    }
    Error::unavailable(format!("cannot reach {endpoint}: {}", why(error, endpoint)))
}

/// Why no answer came, in words that go on behind the endpoint.
pub(crate) fn why(error: &HttpError, endpoint: &str) -> String {
    if let Some(words) = tls::failure(error) {
        return words;
    }
    // Neither has a type of its own.
    let chain = chain(error).to_ascii_lowercase();
    if chain.contains("dns error") || chain.contains("failed to lookup address") {
        return "its name cannot be resolved: check the endpoint and this host's DNS".to_owned();
    }
    if endpoint.starts_with("http://") && chain.contains("invalid http version") {
        return tls::NO_HTTP.to_owned();
    }
    let kinds = || causes(error).filter_map(|error| error.downcast_ref()).map(io::Error::kind);
    if kinds().any(|kind| kind == ErrorKind::ConnectionRefused) {
        return "nobody listens there (connection refused): check the endpoint".to_owned();
    }
    let hangs_up = |kind| matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
    let is_greeting = endpoint.starts_with("https://") && error.kind() == HttpErrorKind::Connect;
    if is_greeting && kinds().any(hangs_up) {
        return tls::HANGS_UP.to_owned();
    }
    if error.kind() == HttpErrorKind::Timeout {
        return "no answer in time: check the address, routes and firewalls".to_owned();
    }
    innermost(error)
}

/// What an error says: of TLS in words with what to do, otherwise its deepest cause.
pub(crate) fn said(error: &(dyn StdError + 'static)) -> String {
    tls::failure(error).unwrap_or_else(|| innermost(error))
}

/// Why object_store has no credentials: who gives them is away or busy, or will not.
pub(crate) fn no_credentials(error: &object_store::Error) -> Error {
    let why = said(error);
    match causes(error).any(may_pass) {
        true => Error::unavailable(format!("no credentials: who gives them is away: {why}")),
        false => Error::Denied { message: format!("no credentials: {why}") },
    }
}

/// The same with what to do about it where there never were any.
pub(crate) fn with_hint(error: Error, hint: &str) -> Error {
    match error {
        Error::Denied { message } => Error::Denied { message: format!("{message}: {hint}") },
        Error::Unavailable { message } => Error::unavailable(format!("{message}: {hint}")),
        other => other,
    }
}

/// Whether an error of object_store says that there was no answer, or none but that the server
/// cannot give one now.
fn may_pass(error: &(dyn StdError + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<HttpError>() {
        return error.kind() != HttpErrorKind::Decode;
    }
    told_status(error).is_some_and(|(status, _)| is_passing(status))
}

/// The status of an answer that object_store keeps only in words, and these.
pub(crate) fn told_status(error: &(dyn StdError + 'static)) -> Option<(StatusCode, String)> {
    let words = error.to_string();
    let told = words.strip_prefix("Server returned non-2xx status code: ")?;
    Some((told.get(..3)?.parse().ok()?, told.to_owned()))
}

/// Whether a status says that the server cannot give an answer now.
pub(crate) fn is_passing(status: StatusCode) -> bool {
    let asks = asks_to_wait(status) || status == StatusCode::REQUEST_TIMEOUT;
    asks || status.is_server_error()
}

/// The error itself or the first of its causes that is of a kind.
pub(crate) fn cause<'a, T: StdError + 'static>(
    error: &'a (dyn StdError + 'static),
) -> Option<&'a T> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// An error and all its causes.
pub(crate) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // What an error of I/O is made of counts for the error itself, and is no source of it.
        let made_of = error.downcast_ref().and_then(io::Error::get_ref);
        made_of.map_or_else(|| error.source(), |inner| Some(inner as &(dyn StdError + 'static)))
    })
}

/// The words of an error and of all its causes.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// The words of the deepest cause: those above it repeat it or say less.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// What the name of a key begins with that nobody uses.
pub(crate) const PROBE_NAME: &str = ".millrace-check-";

/// A key that nobody uses; nothing is ever stored there.
pub(crate) fn probe_key(prefix: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}{PROBE_NAME}{:x}", now.as_nanos())
}
