//! What every request to Azure carries, and what its refusals mean.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, response::Parts};
use object_store::{azure::AzureAuthorizer, client::HttpRequest};
use serde::Deserialize;

use super::{address::Address, keys::Keys};
use crate::{
    Error, Tag, tls,
    transport::{asks_to_wait, innermost, no_bucket_answers},
    web::{Ask, Dialect},
};

/// The language of Blob Storage.
#[derive(Debug)]
pub(super) struct Azure {
    keys: Arc<Keys>,
    address: Address,
}

/// The error document.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Document {
    code: String,
    message: String,
    /// Why a request is not taken for who it says it is of. Never repeated: it may say what was
    /// signed.
    authentication_error_detail: String,
}

/// The version of the protocol: the one that object_store signs for.
const VERSION: (&str, &str) = ("x-ms-version", "2023-11-03");

/// The entity tag of an answer that must have one.
pub(super) fn tag_in(headers: &HeaderMap) -> Result<Tag, Error> {
    tag(headers.get(header::ETAG).and_then(|value| value.to_str().ok()))
}

/// An entity tag with quotes, as headers have it; listings leave them out.
pub(super) fn tag(told: Option<&str>) -> Result<Tag, Error> {
    let missing = || Error::unavailable("the container's answer has no usable entity tag");
    let told = told.filter(|text| !text.is_empty()).ok_or_else(missing)?;
    let quoted = if told.contains('"') { told.to_owned() } else { format!("\"{told}\"") };
    Tag::new(quoted).map_err(|_| missing())
}

impl Azure {
    pub(super) fn new(keys: Arc<Keys>, address: Address) -> Self {
        Self { keys, address }
    }
}

#[async_trait]
impl Dialect for Azure {
    async fn authorize(&self, request: &mut HttpRequest) -> Result<(), Error> {
        request.headers_mut().insert(VERSION.0, HeaderValue::from_static(VERSION.1));
        let Some(credential) = self.keys.credential().await? else { return Ok(()) };
        AzureAuthorizer::new(&credential, self.keys.account().unwrap_or_default())
            .try_authorize(request)
            .map_err(|error| Error::Denied {
                message: format!("the request cannot be signed: {}", innermost(&error)),
            })
    }

    fn refusal(&self, head: &Parts, body: &[u8], ask: &Ask) -> Error {
        let mut document = document_in(body);
        let told = head.headers.get("x-ms-error-code");
        if let Some(code) = told.and_then(|code| code.to_str().ok()) {
            code.clone_into(&mut document.code);
        }
        let container = self.address.container();
        if let Some(error) = tls::wanted(self.address.base(), head.status, body) {
            return error;
        }
        let place = format!("the container {container} at {}", self.address.base());
        by_code(head.status, &document, &place, ask)
    }
}

/// What a request needs: the permission of a signature, and the action of a role.
fn needs(ask: &Ask) -> &'static str {
    match *ask.method() {
        Method::GET | Method::HEAD if ask.has_parameter("restype") => {
            "listing needs l in a signature (SAS), or a role with blobs/read"
        }
        Method::GET | Method::HEAD => {
            "reading needs r in a signature (SAS), or a role with blobs/read"
        }
        Method::DELETE => "deleting needs d in a signature (SAS), or a role with blobs/delete",
        _ => "writing needs c and w in a signature (SAS), or a role with blobs/write",
    }
}

fn document_in(body: &[u8]) -> Document {
    // Azure puts a mark before its documents.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    quick_xml::de::from_reader(body).unwrap_or_default()
}

fn by_code(status: StatusCode, document: &Document, place: &str, ask: &Ask) -> Error {
    let key = ask.key().to_owned();
    let code = document.code.as_str();
    match (code, status) {
        ("ContainerNotFound" | "ContainerBeingDeleted" | "ContainerDisabled", _) => {
            Error::NoBucket {
                message: format!("{place} does not exist: check its name, account and endpoint"),
            }
        }
        // Said to who has no credentials, also of what is not public.
        ("ResourceNotFound", _) => Error::NoBucket {
            message: format!("{place} does not exist or is not public: check name and credentials"),
        },
        // Blocks that no list may name any more: another list or put came first.
        ("InvalidBlockList", _) => Error::NoUpload { key },
        ("ConditionNotMet" | "BlobAlreadyExists" | "UnauthorizedBlobOverwrite", _)
        | (_, StatusCode::PRECONDITION_FAILED) => Error::Changed { key },
        ("BlobArchived", _) => Error::Unsupported {
            message: format!("{place}: {key:?} is archived and must be restored first"),
        },
        ("BlobUsesCustomerSpecifiedEncryption", _) => Error::Unsupported {
            message: format!("{place}: {key:?} is encrypted with a key that only its owner has"),
        },
        ("SnapshotsPresent" | "BlobImmutableDueToPolicy" | "InvalidBlobType", _) => {
            Error::Unsupported {
                message: format!(
                    "{place} refuses that for {key:?} for good ({code}): what kind of blob it is, \
                     its snapshots or a policy forbid it"
                ),
            }
        }
        ("AuthenticationFailed", _) if is_about_time(document) => {
            denied(place, "says that this host's clock is wrong: set it", document)
        }
        ("AuthenticationFailed" | "InvalidAuthenticationInfo", _) => denied(
            place,
            "does not accept the credentials: check account, key or signature, and the clock",
            document,
        ),
        ("NoAuthenticationInformation" | "PublicAccessNotPermitted", _) => {
            denied(place, "wants credentials", document)
        }
        (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            let needs = needs(ask);
            let what = format!("refuses access: check the key, signature or role: {needs}");
            denied(place, &what, document)
        }
        ("BlobNotFound", _) => Error::NotFound { key },
        // Azure's own word comes with its code, in a header, and so to HEAD too.
        ("", StatusCode::NOT_FOUND) => no_bucket_answers(place),
        ("ServerBusy", _) | (_, StatusCode::CONFLICT) => {
            Error::Busy { message: format!("{place} asks to wait ({status} {code})") }
        }
        (_, status) if asks_to_wait(status) => {
            Error::Busy { message: format!("{place} asks to wait ({status})") }
        }
        (_, status) => {
            let said = first_line(&document.message);
            Error::unavailable(format!("{place} answers {status} {code} {said}"))
        }
    }
}

/// The service says it in the detail, other servers in the message.
fn is_about_time(document: &Document) -> bool {
    let said = [&document.message, &document.authentication_error_detail];
    said.iter().any(|said| said.contains("date header") || said.contains("Date header"))
}

/// What follows are the request's id and time, and what was signed.
fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default().trim()
}

fn denied(place: &str, what: &str, document: &Document) -> Error {
    let said = [document.code.as_str(), first_line(&document.message)].join(": ");
    let said = said.trim_matches([':', ' ']);
    let message = if said.is_empty() {
        format!("{place} {what}")
    } else {
        format!("{place} {what} ({said})")
    };
    Error::Denied { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str, message: &str) -> Error {
        let (code, message) = (code.to_owned(), message.to_owned());
        let document = Document { code, message, ..Document::default() };
        by_code(StatusCode::from_u16(status).unwrap(), &document, "the container c", &ask())
    }

    fn ask() -> Ask {
        Ask::new(Method::GET, "http://h/c/k".to_owned(), "k")
    }

    #[test]
    fn each_refusal_says_what_the_caller_must_do() {
        assert!(matches!(refused(404, "BlobNotFound", ""), Error::NotFound { .. }));
        assert!(matches!(refused(404, "", ""), Error::Unavailable { .. }));
        assert!(matches!(refused(404, "ResourceNotFound", ""), Error::NoBucket { .. }));
        assert!(matches!(refused(404, "ContainerNotFound", ""), Error::NoBucket { .. }));
        assert!(matches!(refused(412, "ConditionNotMet", ""), Error::Changed { .. }));
        assert!(matches!(refused(409, "BlobAlreadyExists", ""), Error::Changed { .. }));
        assert!(matches!(refused(400, "InvalidBlockList", ""), Error::NoUpload { .. }));
        assert!(matches!(refused(503, "ServerBusy", ""), Error::Busy { .. }));
        assert!(matches!(refused(500, "InternalError", ""), Error::Unavailable { .. }));
        assert!(matches!(refused(409, "PublicAccessNotPermitted", ""), Error::Denied { .. }));
        for code in ["SnapshotsPresent", "BlobImmutableDueToPolicy", "InvalidBlobType"] {
            let error = refused(409, code, "");
            assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
            assert!(error.to_string().contains(code) && error.to_string().contains("\"k\""));
        }
        assert!(matches!(refused(409, "BlobBeingRehydrated", ""), Error::Busy { .. }));
        let encrypted = refused(409, "BlobUsesCustomerSpecifiedEncryption", "");
        assert!(matches!(encrypted, Error::Unsupported { .. }), "{encrypted:?}");
        let old = "Request date header too old: 'Tue, 24 Nov 2026 11:00:00 GMT'";
        for (status, code, message, word) in [
            (403, "AuthenticationFailed", old, "clock is wrong"),
            (403, "AuthenticationFailed", "", "check account, key"),
            (403, "AuthorizationPermissionMismatch", "", "role"),
        ] {
            let error = refused(status, code, message);
            assert!(matches!(error, Error::Denied { .. }), "{error:?}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn what_was_signed_is_not_repeated() {
        let message = "Server failed to authenticate the request.\nRequestId:1\nsignature s3cr3t";
        let error = refused(403, "AuthenticationFailed", message).to_string();
        assert!(error.contains("failed to authenticate") && !error.contains("s3cr3t"), "{error}");
    }

    /// As the service answers, with a detail.
    fn not_authenticated(detail: &str) -> String {
        let body = format!(
            "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><Error>\
             <Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request. \
             Make sure the value of Authorization header is formed correctly including the \
             signature.\nRequestId:5d1d2c3e-901e-0012-3456-7a8b9c000000\n\
             Time:2026-11-24T11:45:59.1234567Z</Message>\
             <AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail></Error>"
        );
        let document = document_in(body.as_bytes());
        let error = by_code(StatusCode::FORBIDDEN, &document, "the container c", &ask());
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        error.to_string()
    }

    #[test]
    fn a_clock_that_is_wrong_is_told_from_a_signature_that_is() {
        let told =
            not_authenticated("Request date header too old: 'Tue, 24 Nov 2026 11:00:00 GMT'");
        assert!(told.contains("clock is wrong"), "{told}");
        let told = not_authenticated(
            "The MAC signature found in the HTTP request 's3cr3t=' is not the same as any computed \
             signature. Server used following string to sign: 'GET\n\nx-ms-date:Tue, 24 Nov 2026 \
             11:45:59 GMT\nx-ms-version:2023-11-03\n/account/c/k'.",
        );
        assert!(told.contains("check account, key") && told.contains("to authenticate"), "{told}");
        assert!(!told.contains("s3cr3t") && !told.contains("x-ms-date"), "{told}");
    }

    #[test]
    fn a_tag_is_the_same_with_and_without_quotes() {
        assert_eq!(tag(Some("0x8DB")).unwrap(), tag(Some("\"0x8DB\"")).unwrap());
        assert!(tag(Some("")).is_err() && tag(None).is_err());
    }
}
