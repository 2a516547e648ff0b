//! From a server's answer, or the lack of one, to an [`Error`] with a sentence.

use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;

use super::{
    address::Address,
    checksum,
    purpose::{Purpose, told_right},
    signed::Ask,
};
use crate::{
    Error, Tag, tls,
    transport::{asks_to_wait, cause, chain, innermost, no_bucket_answers, said},
};

/// S3's error document.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Document {
    code: String,
    message: String,
    region: Option<String>,
    /// With `RequestTimeTooSkewed`.
    server_time: Option<String>,
}

/// Takes an entity tag out of an answer that must have one.
pub(super) fn tag(tag: Option<&str>) -> Result<Tag, Error> {
    let missing = || Error::unavailable("the bucket's answer has no usable entity tag");
    Tag::new(tag.ok_or_else(missing)?).map_err(|_| missing())
}

/// An answer that refuses.
pub(super) fn refusal(
    ask: &Ask<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    address: &Address,
) -> Error {
    let mut document: Document = quick_xml::de::from_reader(body).unwrap_or_default();
    if document.region.is_none() {
        let header = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
        document.region = header.map(str::to_owned);
    }
    let bucket = address.bucket();
    let endpoint = address.endpoint();
    let key = ask.key.unwrap_or_default();
    if let Some(error) = tls::wanted(endpoint, status, body) {
        return error;
    }
    match (status, document.region.as_deref()) {
        (_, Some(region)) if region != address.region() && !region.is_empty() => Error::Denied {
            message: format!(
                "the bucket {bucket} is in the region {region}, not {}: name it with --region",
                address.region()
            ),
        },
        (status, _) if status.is_redirection() => Error::unavailable(format!(
            "{endpoint} sends requests for the bucket {bucket} elsewhere: name its region or \
             endpoint"
        )),
        // Its answers have no body.
        (StatusCode::NOT_FOUND, _) if ask.method == Method::HEAD => {
            Error::NotFound { key: key.to_owned() }
        }
        (StatusCode::BAD_REQUEST, _) if ask.method == Method::HEAD => {
            bad_head(&format!("the bucket {bucket} at {endpoint}"), key)
        }
        _ => {
            let purpose = Purpose::of(&ask.method, ask.key, &ask.query);
            let bucket = format!("the bucket {bucket} at {endpoint}");
            by_code(status, &document, &bucket, key, purpose)
        }
    }
}

/// What HEAD of an object gets that its owner has encrypted, and with no word of that. Nor is there
/// a word of what else makes a request a bad one.
fn bad_head(bucket: &str, key: &str) -> Error {
    Error::Denied {
        message: format!(
            "{bucket} refuses to tell of {key:?} (400): if it is encrypted with a key of its \
             owner's (SSE-C), it cannot be had; if not, check the credentials and the region"
        ),
    }
}

fn by_code(
    status: StatusCode,
    document: &Document,
    bucket: &str,
    key: &str,
    purpose: Purpose,
) -> Error {
    let key = key.to_owned();
    let is_damage = ["BadDigest", "XAmzContentChecksumMismatch"].contains(&document.code.as_str());
    if !is_damage && checksum::is_refused_in(&document.message) {
        return Error::Unsupported { message: format!("{bucket}: {}", document.message) };
    }
    if purpose == Purpose::Read && wants_owners_key(document) {
        return Error::Unsupported {
            message: format!(
                "{bucket}: {key:?} is encrypted with a key that only its owner has (SSE-C), and \
                 cannot be read"
            ),
        };
    }
    match document.code.as_str() {
        "NoSuchBucket" => {
            return Error::NoBucket {
                message: format!("{bucket} does not exist: check its name and the endpoint"),
            };
        }
        "NoSuchUpload" => return Error::NoUpload { key },
        "NoSuchKey" => return Error::NotFound { key },
        "PreconditionFailed" => return Error::Changed { key },
        "InvalidObjectState" => {
            return Error::Unsupported {
                message: format!("{bucket}: {key:?} is archived and must be restored first"),
            };
        }
        "SlowDown" | "ConditionalRequestConflict" | "OperationAborted" => {
            return Error::Busy { message: format!("{bucket} asks to wait ({})", document.code) };
        }
        "InvalidAccessKeyId" => {
            return denied(bucket, "does not know the access key: check the credentials", document);
        }
        "SignatureDoesNotMatch" => {
            return denied(bucket, "says that the secret key is wrong", document);
        }
        "RequestTimeTooSkewed" => {
            let time = document.server_time.as_deref();
            let time = time.map_or_else(String::new, |time| format!(", there it is {time}"));
            let what = format!("says that this host's clock is wrong{time}: set it");
            return denied(bucket, &what, document);
        }
        "NotImplemented" => {
            return Error::Unsupported { message: format!("{bucket}: {}", document.message) };
        }
        "ExpiredToken" => return denied(bucket, "says that the credentials expired", document),
        _ => {}
    }
    match status {
        StatusCode::NOT_FOUND if document.code.is_empty() => no_bucket_answers(bucket),
        StatusCode::NOT_FOUND => Error::NotFound { key },
        StatusCode::PRECONDITION_FAILED => Error::Changed { key },
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
            let needs = told_right(&document.message)
                .map_or_else(|| purpose.needs().to_owned(), |right| format!("it takes {right}"));
            let what = format!("refuses access: check the credentials and their policy: {needs}");
            denied(bucket, &what, document)
        }
        status if asks_to_wait(status) || status == StatusCode::CONFLICT => {
            Error::Busy { message: format!("{bucket} asks to wait ({status})") }
        }
        status => Error::unavailable(format!(
            "{bucket} answers {status} {} {}",
            document.code, document.message
        )),
    }
}

/// Whether a server says of an object that it takes a key of its owner's, which came with it and
/// has to come with each read (SSE-C). It says so in words alone: these are of AWS, which MinIO has
/// too, and of SeaweedFS.
fn wants_owners_key(document: &Document) -> bool {
    const WORDS: [&str; 2] = [
        "stored using a form of Server Side Encryption",
        "Server Side Encryption with Customer provided keys must provide",
    ];
    let is_bad = ["InvalidRequest", "InvalidArgument"].contains(&document.code.as_str());
    is_bad && WORDS.iter().any(|words| document.message.contains(words))
}

/// Whether an answer says that the same request will be refused again, however often it is sent.
pub(super) fn is_final(status: StatusCode, body: &[u8]) -> bool {
    // The bytes may have suffered on their way, or come too slowly.
    const TRANSIENT: [&str; 5] = [
        "BadDigest",
        "IncompleteBody",
        "InternalError",
        "RequestTimeout",
        "XAmzContentChecksumMismatch",
    ];
    let document: Document = quick_xml::de::from_reader(body).unwrap_or_default();
    // A conflict is with somebody who writes the same object at this moment.
    let may_end = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT].contains(&status);
    status.is_client_error()
        && !asks_to_wait(status)
        && !may_end
        && !TRANSIENT.contains(&document.code.as_str())
}

fn denied(bucket: &str, what: &str, document: &Document) -> Error {
    let said = [document.code.as_str(), document.message.as_str()].join(": ");
    let said = said.trim_matches([':', ' ']);
    let message = if said.is_empty() {
        format!("{bucket} {what}")
    } else {
        format!("{bucket} {what} ({said})")
    };
    Error::Denied { message }
}

/// An error of object_store about a key that was to be read.
pub(super) fn translate(error: object_store::Error, key: &str) -> Error {
    translate_of(error, key, Purpose::Read)
}

fn translate_of(error: object_store::Error, key: &str, purpose: Purpose) -> Error {
    use object_store::Error as Store;
    // What there is to say of credentials that cannot be had was said where they come from.
    if let Some(own) = cause::<Error>(&error) {
        return own.clone();
    }
    // What refuses to go on with an interrupted body comes wrapped as a generic error.
    if let Store::Generic { source, .. } = error {
        return match source.downcast::<Store>() {
            Ok(inner) => translate_of(*inner, key, purpose),
            Err(source) => {
                let error = Store::Generic { store: "S3", source };
                let chain = chain(&error);
                generic(&error, &chain, &embedded_document(&chain), key, purpose)
            }
        };
    }
    let key_owned = key.to_owned();
    let chain = chain(&error);
    let document = embedded_document(&chain);
    match &error {
        Store::NotFound { .. } => {
            by_code(StatusCode::NOT_FOUND, &document, "the bucket", key, purpose)
        }
        Store::Precondition { .. } => Error::Changed { key: key_owned },
        Store::AlreadyExists { .. } if chain.contains("409") && !document.code.is_empty() => {
            by_code(StatusCode::CONFLICT, &document, "the bucket", key, purpose)
        }
        Store::AlreadyExists { .. } | Store::NotModified { .. } => {
            Error::Changed { key: key_owned }
        }
        Store::PermissionDenied { .. } => {
            by_code(StatusCode::FORBIDDEN, &document, "the bucket", key, purpose)
        }
        Store::Unauthenticated { .. } if document.code.is_empty() => {
            Error::Denied { message: innermost(&error) }
        }
        Store::Unauthenticated { .. } => {
            by_code(StatusCode::UNAUTHORIZED, &document, "the bucket", key, purpose)
        }
        Store::InvalidPath { .. } => Error::invalid(error.to_string()),
        Store::NotSupported { .. } | Store::NotImplemented { .. } => {
            Error::Unsupported { message: error.to_string() }
        }
        _ => generic(&error, &chain, &document, key, purpose),
    }
}

/// The same of HEAD, whose answers have no body: 404 is all that a bucket says of what it has not,
/// and all that a proxy says of a bucket that it has lost.
pub(super) fn translate_head(error: object_store::Error, key: &str) -> Error {
    match error {
        object_store::Error::NotFound { .. } => Error::NotFound { key: key.to_owned() },
        other if cause::<Error>(&other).is_some() => translate(other, key),
        other if chain(&other).contains("status code: 400") => bad_head("the bucket", key),
        other => translate(other, key),
    }
}

/// The same of the end of an upload, where "not found" speaks of that and not of the object.
pub(super) fn translate_upload(error: object_store::Error, key: &str) -> Error {
    match translate_of(error, key, Purpose::Abort) {
        Error::NotFound { key } => Error::NoUpload { key },
        other => other,
    }
}

/// object_store keeps the status of other failures only in words.
fn generic(
    error: &object_store::Error,
    chain: &str,
    document: &Document,
    key: &str,
    purpose: Purpose,
) -> Error {
    if chain.contains("missing `e_tag`") || chain.contains("does not match") {
        return Error::Changed { key: key.to_owned() };
    }
    if !document.code.is_empty() {
        let wait =
            ["503", "429"].iter().any(|code| chain.contains(&format!("status code: {code}")));
        let status =
            if wait { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::INTERNAL_SERVER_ERROR };
        return by_code(status, document, "the bucket", key, purpose);
    }
    let lower = chain.to_ascii_lowercase();
    let wait = lower.contains("status code: 503") || lower.contains("status code: 429");
    if wait {
        Error::Busy { message: "the bucket asks to wait".to_owned() }
    } else {
        Error::unavailable(format!("its server does not answer: {}", said(error)))
    }
}

fn embedded_document(chain: &str) -> Document {
    let from = chain.find("<Error>");
    let to = chain.find("</Error>").map(|at| at + "</Error>".len());
    match (from, to) {
        (Some(from), Some(to)) if from < to => {
            quick_xml::de::from_str(&chain[from..to]).unwrap_or_default()
        }
        _ => Document::default(),
    }
}

#[cfg(test)]
mod tests;
