//! What every request to GCS carries, and what its refusals mean.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, response::Parts};
use object_store::client::HttpRequest;
use serde::Deserialize;

use super::{address::Address, keys::Keys};
use crate::{
    Error, Tag, tls,
    transport::{asks_to_wait, no_bucket_answers},
    web::{Ask, Dialect},
};

/// The language of GCS.
#[derive(Debug)]
pub(super) struct Google {
    keys: Arc<Keys>,
    address: Address,
}

/// The error document.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Document {
    code: String,
    message: String,
    details: String,
}

/// The header that tells a version.
pub(super) const GENERATION: &str = "x-goog-generation";

/// Takes the generation out of an answer that must have one.
pub(super) fn generation(headers: &HeaderMap) -> Result<Tag, Error> {
    tag(headers.get(GENERATION).and_then(|value| value.to_str().ok()))
}

/// A generation as a tag.
pub(super) fn tag(generation: Option<&str>) -> Result<Tag, Error> {
    let told = generation.filter(|text| is_generation(text));
    let missing = || {
        Error::unavailable(
            "the bucket's answer names no generation: is the endpoint Google's XML API?",
        )
    };
    Tag::new(told.ok_or_else(missing)?)
}

/// Whether a text can be a generation.
pub(super) fn is_generation(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit())
}

impl Google {
    pub(super) fn new(keys: Arc<Keys>, address: Address) -> Self {
        Self { keys, address }
    }
}

#[async_trait]
impl Dialect for Google {
    async fn authorize(&self, request: &mut HttpRequest) -> Result<(), Error> {
        // Without it GCS unpacks objects that were stored compressed, and their ranges with them.
        request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        if let Some(token) = self.keys.token().await? {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value = value.map_err(|_| Error::Denied {
                message: "the token that this host was given cannot be sent".to_owned(),
            })?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    fn refusal(&self, head: &Parts, body: &[u8], ask: &Ask) -> Error {
        // Its answers have no body.
        if head.status == StatusCode::NOT_FOUND && ask.is_head() {
            return Error::NotFound { key: ask.key().to_owned() };
        }
        let document: Document = quick_xml::de::from_reader(body).unwrap_or_default();
        let (bucket, endpoint) = (self.address.bucket(), self.address.endpoint());
        if let Some(error) = tls::wanted(endpoint, head.status, body) {
            return error;
        }
        let place = format!("the bucket {bucket} at {endpoint}");
        by_code(head.status, &document, &place, ask)
    }
}

/// What a request needs, with the permission by its name.
fn needs(ask: &Ask) -> &'static str {
    match *ask.method() {
        Method::GET if ask.has_parameter("uploads") => {
            "listing uploads needs storage.multipartUploads.list"
        }
        Method::GET if ask.has_parameter("uploadId") => {
            "listing an upload's parts needs storage.multipartUploads.listParts"
        }
        Method::GET if ask.key().is_empty() => "listing needs storage.objects.list",
        Method::GET | Method::HEAD => "reading needs storage.objects.get",
        Method::DELETE if ask.has_parameter("uploadId") => {
            "giving an upload up needs storage.multipartUploads.abort"
        }
        Method::DELETE => "deleting needs storage.objects.delete",
        Method::POST => {
            "an upload needs storage.multipartUploads.create and storage.objects.create"
        }
        _ => {
            "writing needs storage.objects.create, and storage.objects.delete where something is \
             replaced"
        }
    }
}

fn by_code(status: StatusCode, document: &Document, bucket: &str, ask: &Ask) -> Error {
    let key = ask.key().to_owned();
    let code = document.code.as_str();
    match (code, status) {
        ("NoSuchBucket", _) => Error::NoBucket {
            message: format!("{bucket} does not exist: check its name and the endpoint"),
        },
        ("InvalidBucketName", _) => {
            Error::NoBucket { message: format!("{bucket} has no name that GCS allows") }
        }
        ("NoSuchUpload", _) => Error::NoUpload { key },
        ("NoSuchKey", _) => Error::NotFound { key },
        ("PreconditionFailed" | "NotModified", _) | (_, StatusCode::PRECONDITION_FAILED) => {
            Error::Changed { key }
        }
        ("UserProjectMissing", _) => Error::Unsupported {
            message: format!("{bucket} lets requesters pay, which Millrace does not"),
        },
        ("ResourceIsEncryptedWithCustomerEncryptionKey", _) => Error::Unsupported {
            message: format!("{bucket}: {key:?} is encrypted with a key that only its owner has"),
        },
        ("RequestTimeTooSkewed", _) => {
            denied(bucket, "says that this host's clock is wrong: set it", document)
        }
        (_, StatusCode::UNAUTHORIZED) => denied(
            bucket,
            "does not accept the credentials: check the key file, and this host's clock",
            document,
        ),
        (_, StatusCode::FORBIDDEN) => {
            let what = format!("refuses access: check the account's roles: {}", needs(ask));
            denied(bucket, &what, document)
        }
        ("", StatusCode::NOT_FOUND) => no_bucket_answers(bucket),
        (_, StatusCode::NOT_FOUND) => Error::NotFound { key },
        (_, status) if asks_to_wait(status) || code == "SlowDown" => {
            Error::Busy { message: format!("{bucket} asks to wait ({status})") }
        }
        (_, StatusCode::CONFLICT) => {
            Error::Busy { message: format!("{bucket} asks to wait ({status})") }
        }
        (_, status) if status.is_redirection() => Error::unavailable(format!(
            "{bucket}: the server sends requests elsewhere: check the endpoint"
        )),
        (_, status) => {
            Error::unavailable(format!("{bucket} answers {status} {code} {}", document.message))
        }
    }
}

fn denied(bucket: &str, what: &str, document: &Document) -> Error {
    let said = [&document.code, &document.message, &document.details];
    let said: Vec<_> = said.into_iter().map(|text| text.trim()).collect();
    let said = said.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
    let message = if said.is_empty() {
        format!("{bucket} {what}")
    } else {
        format!("{bucket} {what} ({said})")
    };
    Error::Denied { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> Error {
        let document = Document { code: code.to_owned(), ..Document::default() };
        let ask = Ask::new(Method::GET, "http://h/b/k".to_owned(), "k");
        by_code(StatusCode::from_u16(status).unwrap(), &document, "the bucket b", &ask)
    }

    #[test]
    fn each_request_needs_a_permission_of_its_own() {
        for (method, key, query, permission) in [
            (Method::GET, "", "list-type=2", "storage.objects.list"),
            (Method::GET, "", "prefix=a&uploads=", "storage.multipartUploads.list"),
            (Method::GET, "k", "", "storage.objects.get"),
            (Method::HEAD, "k", "", "storage.objects.get"),
            (Method::GET, "k", "uploadId=x", "storage.multipartUploads.listParts"),
            (Method::POST, "k", "uploads=", "storage.multipartUploads.create"),
            (Method::PUT, "k", "", "storage.objects.create"),
            (Method::DELETE, "k", "uploadId=x", "storage.multipartUploads.abort"),
            (Method::DELETE, "k", "", "storage.objects.delete"),
        ] {
            let ask = Ask::new(method.clone(), format!("http://h/b/k?{query}"), key);
            assert!(needs(&ask).contains(&format!("needs {permission}")), "{method} {query}");
        }
    }

    #[test]
    fn each_refusal_says_what_the_caller_must_do() {
        assert!(matches!(refused(404, "NoSuchKey"), Error::NotFound { .. }));
        assert!(matches!(refused(404, ""), Error::Unavailable { .. }));
        assert!(matches!(refused(404, "NoSuchBucket"), Error::NoBucket { .. }));
        assert!(matches!(refused(404, "NoSuchUpload"), Error::NoUpload { .. }));
        assert!(matches!(refused(412, "PreconditionFailed"), Error::Changed { .. }));
        assert!(matches!(refused(412, ""), Error::Changed { .. }));
        assert!(matches!(refused(429, "SlowDown"), Error::Busy { .. }));
        assert!(matches!(refused(503, "ServiceUnavailable"), Error::Busy { .. }));
        assert!(matches!(refused(500, "InternalError"), Error::Unavailable { .. }));
        assert!(matches!(refused(400, "UserProjectMissing"), Error::Unsupported { .. }));
        let error = refused(400, "ResourceIsEncryptedWithCustomerEncryptionKey");
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("\"k\" is encrypted with a key"), "{error}");
        for (status, word) in [(401, "clock"), (403, "roles")] {
            let error = refused(status, "AccessDenied");
            assert!(matches!(error, Error::Denied { .. }));
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn an_answer_without_a_generation_is_of_no_version() {
        assert!(generation(&HeaderMap::new()).is_err());
        for text in ["", "abc", "\"1\"", "-1", "123456789012345678901"] {
            assert!(tag(Some(text)).is_err(), "{text}");
        }
        assert_eq!(tag(Some("1763970000000001")).unwrap().as_str(), "1763970000000001");
    }
}
