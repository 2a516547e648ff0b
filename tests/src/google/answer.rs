//! Documents and headers.

use std::{fmt::Write as _, io};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Response, StatusCode,
    body::Frame,
    header::{self, HeaderName, HeaderValue},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::store::{Object, Page, Refusal, Upload, tag_of};

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that breaks off.
pub(super) fn cut(bytes: Bytes) -> Body {
    let broken = io::Error::from(io::ErrorKind::ConnectionReset);
    let frames = [Ok(Frame::data(bytes)), Err(broken)];
    BodyExt::boxed_unsync(StreamBody::new(stream::iter(frames)))
}

pub(super) fn answer(status: u16, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).expect("a status of ours");
    *answer.headers_mut() = headers;
    answer
}

pub(super) fn refusal((status, code): Refusal) -> Response<Body> {
    let text = format!(
        "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code>\
         <Message>It is refused.</Message><Details>A test's own server.</Details></Error>"
    );
    answer(status, HeaderMap::new(), whole(text))
}

pub(super) fn document(text: String) -> Response<Body> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    answer(200, headers, whole(text))
}

/// What every answer about an object tells.
pub(super) fn headers_of(object: &Object) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: String| {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_str(&value);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.insert(name, value);
        }
    };
    let modified = jiff::Timestamp::try_from(object.modified).unwrap_or_default();
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    add("etag", tag_of(&object.body));
    add("last-modified", printer.timestamp_to_rfc9110_string(&modified).unwrap_or_default());
    add("x-goog-generation", object.generation.to_string());
    add("x-goog-stored-content-length", object.body.len().to_string());
    add("x-goog-hash", checksum_of(&object.body));
    for (name, value) in &object.metadata {
        add(&format!("x-goog-meta-{name}"), value.clone());
    }
    headers
}

/// How the header tells the bytes that it is about.
pub(super) fn checksum_of(body: &[u8]) -> String {
    format!("crc32c={}", STANDARD.encode(crc32c::crc32c(body).to_be_bytes()))
}

fn encoded(key: &str) -> String {
    utf8_percent_encode(key, NON_ALPHANUMERIC).to_string()
}

pub(super) fn listing(page: &Page) -> String {
    let mut text = String::from("<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>");
    let mut add = |piece: String| text.push_str(&piece);
    add("<EncodingType>url</EncodingType>".to_owned());
    add(format!("<IsTruncated>{}</IsTruncated>", page.next.is_some()));
    if let Some(next) = &page.next {
        let token = STANDARD.encode(next);
        add(format!("<NextContinuationToken>{token}</NextContinuationToken>"));
    }
    for (key, object) in &page.objects {
        let modified = jiff::Timestamp::try_from(object.modified).unwrap_or_default();
        add(format!(
            "<Contents><Key>{}</Key><Generation>{}</Generation><MetaGeneration>1</MetaGeneration>\
             <LastModified>{modified}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
            encoded(key),
            object.generation,
            tag_of(&object.body).replace('"', "&quot;"),
            object.body.len(),
        ));
    }
    for prefix in &page.prefixes {
        add(format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", encoded(prefix)));
    }
    text.push_str("</ListBucketResult>");
    text
}

pub(super) fn parts(upload: &Upload) -> String {
    let mut text = String::from("<ListPartsResult><IsTruncated>false</IsTruncated>");
    for (number, body) in &upload.parts {
        let tag = tag_of(body).replace('"', "&quot;");
        let len = body.len();
        let written = write!(
            text,
            "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag><Size>{len}</Size></Part>"
        );
        written.expect("text takes text");
    }
    text.push_str("</ListPartsResult>");
    text
}

pub(super) fn uploads<'u>(uploads: impl Iterator<Item = (&'u String, &'u Upload)>) -> String {
    let mut text = String::from(
        "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>\
         <EncodingType>url</EncodingType>",
    );
    for (id, upload) in uploads {
        let key = encoded(&upload.key);
        let written = write!(text, "<Upload><Key>{key}</Key><UploadId>{id}</UploadId></Upload>");
        written.expect("text takes text");
    }
    text.push_str("</ListMultipartUploadsResult>");
    text
}
