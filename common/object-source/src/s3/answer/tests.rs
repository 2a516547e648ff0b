//! What servers say, and what becomes of it.

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use object_store::aws::AmazonS3Builder;

use super::*;
use crate::{LinkSpec, transport::is_error};

fn address() -> Address {
    let spec = LinkSpec::new("s3://data", Some("http://h:1"), None, None).unwrap();
    Address::new(&spec, "data", &AmazonS3Builder::new()).unwrap()
}

fn refused(status: u16, code: &str) -> Error {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message></Error>");
    let status = StatusCode::from_u16(status).unwrap();
    answered(&Method::GET, status, body.as_bytes())
}

fn answered(method: &Method, status: StatusCode, body: &[u8]) -> Error {
    refusal(&ask(method, Some("k")), status, &HeaderMap::new(), body, &address())
}

fn ask<'a>(method: &Method, key: Option<&'a str>) -> Ask<'a> {
    let (query, headers, body) = (Vec::new(), HeaderMap::new(), bytes::Bytes::new());
    Ask { method: method.clone(), key, query, headers, body }
}

#[test]
fn each_refusal_says_what_the_caller_must_do() {
    assert!(matches!(refused(404, "NoSuchKey"), Error::NotFound { .. }));
    assert!(matches!(refused(404, "NoSuchBucket"), Error::NoBucket { .. }));
    assert!(matches!(refused(404, "NoSuchUpload"), Error::NoUpload { .. }));
    assert!(matches!(refused(412, "PreconditionFailed"), Error::Changed { .. }));
    assert!(matches!(refused(409, "ConditionalRequestConflict"), Error::Busy { .. }));
    assert!(matches!(refused(503, "SlowDown"), Error::Busy { .. }));
    assert!(matches!(refused(200, "SlowDown"), Error::Busy { .. }));
    assert!(matches!(refused(200, "InternalError"), Error::Unavailable { .. }));
    assert!(matches!(refused(500, "InternalError"), Error::Unavailable { .. }));
    for code in ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", ""]
    {
        assert!(matches!(refused(403, code), Error::Denied { .. }), "{code}");
    }
}

#[test]
fn what_takes_its_owners_key_is_told_as_that_and_not_as_a_bad_request() {
    let aws = "The object was stored using a form of Server Side Encryption. The correct \
               parameters must be provided to retrieve the object.";
    let weed = "Requests specifying Server Side Encryption with Customer provided keys must \
                provide the customer key.";
    for (code, message) in [("InvalidRequest", aws), ("InvalidArgument", weed)] {
        let body = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
        // Of a read by ranges object_store keeps the document in words.
        let words = format!("Server returned non-2xx status code: 400 Bad Request: {body}");
        let generic = object_store::Error::Generic { store: "S3", source: words.into() };
        let whole = answered(&Method::GET, StatusCode::BAD_REQUEST, body.as_bytes());
        for error in [whole, translate(generic, "k")] {
            assert!(matches!(error, Error::Unsupported { .. }), "{code}: {error:?}");
            let said = error.to_string();
            assert!(
                said.contains("\"k\" is encrypted with a key that only its owner has"),
                "{said}"
            );
        }
        // What is written takes no key of anybody's: that is another matter.
        let put = answered(&Method::PUT, StatusCode::BAD_REQUEST, body.as_bytes());
        assert!(matches!(put, Error::Unavailable { .. }), "{code}: {put:?}");
    }
    assert!(matches!(refused(400, "InvalidRequest"), Error::Unavailable { .. }));
    // HEAD has no words: both reasons are told.
    let head = answered(&Method::HEAD, StatusCode::BAD_REQUEST, b"");
    assert!(matches!(head, Error::Denied { .. }), "{head:?}");
    assert!(head.to_string().contains("SSE-C"), "{head}");
}

#[test]
fn a_clock_that_is_wrong_is_told_with_the_bucket_s_own_time() {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>\
        <Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the \
        current time is too large.</Message><RequestTime>20261124T091500Z</RequestTime>\
        <ServerTime>2026-11-24T11:45:59Z</ServerTime>\
        <MaxAllowedSkewMilliseconds>900000</MaxAllowedSkewMilliseconds>\
        <RequestId>1</RequestId><HostId>x</HostId></Error>";
    // Of a read object_store keeps the document in words.
    let words = format!("Server returned non-2xx status code: 403 Forbidden: {body}");
    let denied =
        object_store::Error::PermissionDenied { path: "k".to_owned(), source: words.into() };
    let answered = answered(&Method::GET, StatusCode::FORBIDDEN, body.as_bytes());
    for error in [answered, translate(denied, "k")] {
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("this host's clock is wrong"), "{said}");
        assert!(said.contains("there it is 2026-11-24T11:45:59Z: set it"), "{said}");
        assert!(!said.contains("policy"), "no matter of rights: {said}");
    }
    // Not every server says what time it is.
    let said = refused(403, "RequestTimeTooSkewed").to_string();
    assert!(said.contains("this host's clock is wrong: set it"), "{said}");
}

#[test]
fn a_refusal_names_the_right_that_is_missing() {
    let denied = |method: &Method, key, message: &str| {
        let body = format!("<Error><Code>AccessDenied</Code><Message>{message}</Message></Error>");
        let (status, headers) = (StatusCode::FORBIDDEN, HeaderMap::new());
        let error = refusal(&ask(method, key), status, &headers, body.as_bytes(), &address());
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        error.to_string()
    };
    let read = denied(&Method::GET, Some("k"), "Access Denied");
    assert!(read.contains("refuses access") && read.contains("needs s3:GetObject"), "{read}");
    let listed = denied(&Method::GET, None, "Access Denied");
    assert!(listed.contains("listing needs s3:ListBucket ("), "{listed}");
    let message = "User: x is not authorized to perform: kms:Decrypt on resource: y";
    let encrypted = denied(&Method::GET, Some("k"), message);
    assert!(encrypted.contains("it takes kms:Decrypt") && !encrypted.contains("s3:GetObject"));
}

#[test]
fn an_archived_object_is_no_matter_of_credentials() {
    let words = "403: <Error><Code>InvalidObjectState</Code><Message>m</Message></Error>";
    let denied =
        object_store::Error::PermissionDenied { path: "k".to_owned(), source: words.into() };
    for error in [refused(403, "InvalidObjectState"), translate(denied, "k")] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("must be restored first"), "{error}");
    }
}

#[test]
fn head_of_what_its_owner_has_encrypted_is_refused_and_not_to_be_tried_again() {
    let words = "Server returned non-2xx status code: 400 Bad Request: ";
    let bad = object_store::Error::Generic { store: "S3", source: words.into() };
    let refused = answered(&Method::HEAD, StatusCode::BAD_REQUEST, b"");
    for error in [translate_head(bad, "k"), refused] {
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains("SSE-C"), "{error}");
    }
    let error = answered(&Method::GET, StatusCode::BAD_REQUEST, b"");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn another_region_is_named() {
    let headers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-amz-bucket-region"),
        HeaderValue::from_static("eu-west-3"),
    )]);
    let status = StatusCode::MOVED_PERMANENTLY;
    let error = refusal(&ask(&Method::HEAD, None), status, &headers, b"", &address());
    assert!(error.to_string().contains("eu-west-3"), "{error}");
    assert!(error.to_string().contains("--region"), "{error}");
}

#[test]
fn an_answer_that_is_no_document_is_still_a_sentence() {
    for body in [&b""[..], b"\xff\xfe", b"<html>", b"<Error><Code>"] {
        let status = StatusCode::BAD_GATEWAY;
        let error = answered(&Method::GET, status, body);
        assert!(
            matches!(&error, Error::Unavailable { message } if message.contains("502")),
            "{error}"
        );
    }
}

#[test]
fn an_error_inside_a_success_is_found() {
    assert!(is_error(b"<?xml version=\"1.0\"?>\n\n<Error><Code>InternalError</Code></Error>"));
    assert!(!is_error(b"<CompleteMultipartUploadResult><ETag>x</ETag>"));
}

#[test]
fn a_refusal_to_go_on_with_a_body_is_what_it_would_be_at_its_beginning() {
    use object_store::Error as Store;
    let path = || "k".to_owned();
    let told =
        |inner: Store| translate(Store::Generic { store: "S3", source: Box::new(inner) }, "k");
    let error = told(Store::PermissionDenied { path: path(), source: "403".into() });
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let error = told(Store::Precondition { path: path(), source: "412".into() });
    assert!(matches!(error, Error::Changed { .. }), "{error:?}");
    let words = "404: <Error><Code>NoSuchKey</Code></Error>";
    let error = told(Store::NotFound { path: path(), source: words.into() });
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
}

#[test]
fn only_head_may_say_404_without_a_word_of_what_is_missing() {
    use object_store::Error as Store;
    let bare = || Store::NotFound { path: "k".to_owned(), source: "404: no such page".into() };
    assert!(matches!(translate_head(bare(), "k"), Error::NotFound { .. }));
    let error = answered(&Method::HEAD, StatusCode::NOT_FOUND, b"");
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    for body in [&b""[..], b"404 page not found", b"<html>404</html>"] {
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            let error = answered(&method, StatusCode::NOT_FOUND, body);
            assert!(matches!(error, Error::Unavailable { .. }), "{method}: {error:?}");
            assert!(error.to_string().contains("does not answer"), "{error}");
        }
    }
    for error in [translate(bare(), "k"), translate_upload(bare(), "k")] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
}

/// AWS gives back what was signed, the session token in it, and tokens that it does not take.
#[test]
fn what_a_refusal_quotes_of_its_request_is_not_told() {
    for (code, quoted) in [
        (
            "SignatureDoesNotMatch",
            "<AWSAccessKeyId>ASIA1</AWSAccessKeyId>\
             <StringToSign>AWS4-HMAC-SHA256\n20261124T114559Z\nhunter2</StringToSign>\
             <SignatureProvided>hunter2</SignatureProvided>\
             <CanonicalRequest>GET\n/data/k\nx-amz-security-token:hunter2</CanonicalRequest>",
        ),
        ("ExpiredToken", "<Token-0>hunter2</Token-0>"),
        ("InvalidToken", "<Token-0>hunter2</Token-0>"),
    ] {
        let body =
            format!("<Error><Code>{code}</Code><Message>as it says</Message>{quoted}</Error>");
        // Of a read object_store keeps the document in words.
        let words = || format!("Server returned non-2xx status code: 403 Forbidden: {body}");
        let denied =
            object_store::Error::PermissionDenied { path: "k".to_owned(), source: words().into() };
        let generic = object_store::Error::Generic { store: "S3", source: words().into() };
        for error in [
            answered(&Method::GET, StatusCode::FORBIDDEN, body.as_bytes()),
            translate(denied, "k"),
            translate(generic, "k"),
            translate_head(
                object_store::Error::Generic { store: "S3", source: words().into() },
                "k",
            ),
        ] {
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}

#[test]
fn what_was_said_of_keys_that_do_not_come_is_told_and_not_taken_for_the_bucket_s() {
    for own in [
        Error::unavailable("no credentials from somebody: it answers 503 Service Unavailable"),
        Error::Denied { message: "no credentials from somebody: it answers 404".to_owned() },
    ] {
        let wrapped = || object_store::Error::Unauthenticated {
            path: "somebody".to_owned(),
            source: Box::new(own.clone()),
        };
        let nested = object_store::Error::Generic { store: "S3", source: Box::new(wrapped()) };
        for error in
            [translate(wrapped(), "k"), translate_head(wrapped(), "k"), translate(nested, "k")]
        {
            assert_eq!(error, own);
        }
    }
}
