//! What is sent to S3 goes with its CRC32C: that is kept by a server that knows it, and no server
//! that does not is any worse for it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use millrace_object_source::{
    Bucket, Condition, Error, Metadata, PartPlace, Stored, Tag, UploadId,
};
use millrace_types::{Crc32c, MIB};
use object_store::{
    aws::{AwsAuthorizer, AwsCredential},
    client::HttpRequestBody,
};

use crate::{
    s3::{make_bucket, open, settings},
    scripted::{Answer, Scripted, Seen},
    weed::Weed,
};

const HEADER: &str = "x-amz-checksum-crc32c";

fn text_of(bytes: &[u8]) -> String {
    STANDARD.encode(Crc32c::of(bytes).0.to_be_bytes())
}

fn pattern(len: u64, seed: u64) -> Bytes {
    (0..len).map(|at| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8).collect()
}

/// What the server has of an object, asked for in a way that this crate has no part in.
async fn stored(weed: &Weed, key: &str) -> String {
    let url = format!("{}/data/{key}", weed.endpoint());
    let request = http::Request::get(&url).header("x-amz-checksum-mode", "ENABLED");
    let mut request = request.body(HttpRequestBody::empty()).unwrap();
    let credential = AwsCredential {
        key_id: "writer".to_owned(),
        secret_key: "writer-secret".to_owned(),
        token: None,
    };
    AwsAuthorizer::new(&credential, "s3", "us-east-1").try_authorize(&mut request, None).unwrap();
    let asked = reqwest::Client::new().get(url).headers(request.headers().clone());
    let answer = asked.send().await.unwrap();
    let told = answer.headers().get(HEADER);
    let told = told.unwrap_or_else(|| panic!("it knows no checksum of {key}: {answer:?}"));
    told.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_that_knows_checksums_keeps_those_of_objects_and_of_uploads() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let weed = Weed::start();
    let bucket = open(&settings, &weed.endpoint(), "data", "writer");
    make_bucket(&bucket).await;
    let (none, pieces) = (Metadata::default(), vec![pattern(70_000, 1), pattern(11, 2)]);
    let put = bucket.put_small("small", pieces.clone(), &none, &Condition::None);
    assert!(put.await.unwrap().is_checked);
    assert_eq!(stored(&weed, "small").await, text_of(&pieces.concat()));
    bucket.put_small("empty", Vec::new(), &none, &Condition::Absent).await.unwrap();
    assert_eq!(stored(&weed, "empty").await, text_of(b""));

    let parts = [pattern(5 * MIB, 3), pattern(5 * MIB, 4), pattern(7, 5)];
    let upload = bucket.create_upload("parts", &none).await.unwrap();
    let first = bucket.put_part("parts", &upload, 1, 0, vec![parts[0].clone()]).await.unwrap();
    let place = PartPlace { number: 2, offset: 5 * MIB, len: 5 * MIB };
    let second = parts[1].clone();
    let read = move || futures::stream::iter([Ok(second.slice(..100)), Ok(second.slice(100..))]);
    let second = bucket.put_part_streamed("parts", &upload, place, read).await.unwrap();
    let third = bucket.put_part("parts", &upload, 3, 10 * MIB, vec![parts[2].clone()]);
    let named = [first, second, third.await.unwrap()];
    bucket.complete_upload("parts", &upload, &named, &Condition::None).await.unwrap();
    assert_eq!(stored(&weed, "parts").await, text_of(&parts.concat()));
}

/// A bucket behind a server that answers so.
fn scripted(
    dir: &Path,
    answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
) -> (Bucket, Scripted) {
    let server = Scripted::start(answer);
    (open(&settings(dir), &server.endpoint, "data", "writer"), server)
}

/// As servers answer that know no checksums: one that refuses the headers in its way, or else.
async fn refused(refusal: fn(&str) -> Answer) {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, server) = scripted(dir.path(), move |seen| match &seen.checksums()[..] {
        [name, ..] => refusal(name),
        [] if seen.method == "POST" => Answer::document(
            "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
        ),
        [] if seen.method == "GET" => Answer { body: "bytes".to_owned(), ..Answer::stored() },
        [] => Answer::stored(),
    });
    let none = Metadata::default();
    let put = || bucket.put_small("key", vec!["bytes".into()], &none, &Condition::Absent);
    let Stored { tag, is_checked } = put().await.unwrap();
    assert!(!is_checked, "nobody has compared anything");
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].headers[HEADER], text_of(b"bytes"));
    assert!(seen.iter().all(|seen| seen.headers["if-none-match"] == "*" && seen.body == b"bytes"));
    put().await.unwrap();
    let upload = bucket.create_upload("key", &none).await.unwrap();
    bucket.put_part("key", &upload, 1, 0, vec!["bytes".into()]).await.unwrap();
    let place = PartPlace { number: 2, offset: 5, len: 5 };
    let read = || futures::stream::iter([Ok(Bytes::from("bytes"))]);
    bucket.put_part_streamed("key", &upload, place, read).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 4, "it is known by now");
    assert!(seen.iter().all(|seen| seen.checksums().is_empty()));
    for asked in [2, 1] {
        assert_eq!(bucket.get_whole("key", 5, &tag).await.unwrap(), "bytes");
        assert_eq!(server.seen().len(), asked, "of fetches it is known by itself");
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_headers_is_sent_none() {
    refused(|name| {
        let message = format!("Unsupported header '{name}' received for this API call.");
        Answer::refusal(400, "InvalidArgument", &message)
    })
    .await;
    refused(|name| {
        let message = format!("Header '{name}' with value 'CRC32C' not implemented");
        Answer::refusal(501, "NotImplemented", &message)
    })
    .await;
    refused(|_| {
        let message = "A header you provided implies functionality that is not implemented";
        Answer::refusal(501, "NotImplemented", message)
    })
    .await;
}

#[tokio::test]
async fn what_else_a_server_does_not_know_says_nothing_of_checksums() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, server) =
        scripted(dir.path(), |seen| match seen.headers.contains_key("if-none-match") {
            true => Answer::refusal(501, "NotImplemented", "If-None-Match is not implemented"),
            false => Answer::stored(),
        });
    let none = Metadata::default();
    let put = async |condition: Condition| {
        bucket.put_small("key", vec!["bytes".into()], &none, &condition).await
    };
    for (sent, why) in [(2, "it may be the checksums"), (1, "it is known by now")] {
        assert!(matches!(put(Condition::Absent).await, Err(Error::Unsupported { .. })));
        assert_eq!(server.seen().len(), sent, "{why}");
    }
    put(Condition::None).await.unwrap();
    assert_eq!(server.seen()[0].checksums(), [HEADER]);
}

#[tokio::test]
async fn a_server_that_knows_neither_checksums_nor_conditions_is_asked_for_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, server) = scripted(dir.path(), |seen| {
        let names = ["if-none-match", "if-match"];
        let is_plain = !names.iter().any(|name| seen.headers.contains_key(*name));
        match is_plain && seen.checksums().is_empty() {
            true => Answer::stored(),
            false => {
                let message = "A header you provided implies functionality that is not implemented";
                Answer::refusal(501, "NotImplemented", message)
            }
        }
    });
    let none = Metadata::default();
    let put = async |condition: Condition| {
        let put = bucket.put_small("key", vec!["bytes".into()], &none, &condition).await;
        (put.is_ok(), server.seen().len())
    };
    let tag = Tag::new("\"tag\"").unwrap();
    for condition in [Condition::Absent, Condition::Matches(tag)] {
        assert_eq!(put(condition.clone()).await, (false, 2), "{condition:?}");
        assert_eq!(put(condition.clone()).await, (false, 1), "{condition:?}");
    }
    // The same words, of what is taken without checksums.
    assert_eq!(put(Condition::None).await, (true, 2));
    assert_eq!(put(Condition::None).await, (true, 1));
    assert_eq!(put(Condition::Absent).await, (false, 1));
}

#[tokio::test]
async fn what_is_refused_for_good_is_sent_once_and_a_lost_answer_never_looks_like_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, server) = scripted(dir.path(), |seen| match seen.path.as_str() {
        path if path.contains("large") => Answer::refusal(400, "EntityTooLarge", "it is too large"),
        path if path.contains("race") => {
            Answer::refusal(409, "ConditionalRequestConflict", "somebody else writes it")
        }
        // The connection ends without an answer.
        _ => Answer::default(),
    });
    let none = Metadata::default();
    let put = async |key: &str, condition: Condition| {
        bucket.put_small(key, vec!["bytes".into()], &none, &condition).await.unwrap_err()
    };
    let error = put("large", Condition::None).await;
    assert!(error.to_string().contains("EntityTooLarge"), "{error}");
    assert_eq!(server.seen().len(), 1);
    let error = put("race", Condition::Absent).await;
    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
    assert_eq!(server.seen().len(), 3, "the other may be done by then");
    let error = put("key", Condition::Absent).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(server.seen().len(), 1, "it may be there");
    put("key", Condition::None).await;
    assert_eq!(server.seen().len(), 3, "sent again as often as the settings say");
}

#[tokio::test]
async fn whichever_request_meets_the_refusal_first_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let answer = |seen: &Seen| match &seen.checksums()[..] {
        [] if seen.method == "GET" => Answer { body: "bytes".to_owned(), ..Answer::stored() },
        [] => Answer::stored(),
        [name, ..] => {
            Answer::refusal(400, "InvalidArgument", &format!("Unsupported header '{name}'"))
        }
    };
    let upload = UploadId::new("u").unwrap();
    let (bucket, server) = scripted(dir.path(), answer);
    let place = PartPlace { number: 1, offset: 0, len: 5 };
    let read = || futures::stream::iter([Ok(Bytes::from("bytes"))]);
    let part = bucket.put_part_streamed("key", &upload, place, read).await.unwrap();
    assert_eq!(server.seen().len(), 2);
    let (bucket, server) = scripted(dir.path(), answer);
    assert_eq!(bucket.get_whole("key", 5, &part.tag).await.unwrap(), "bytes");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_part_of_an_upload_that_was_begun_without_checksums_is_sent_without() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, server) = scripted(dir.path(), |seen| {
        if seen.path.contains("uploadId=old") && !seen.checksums().is_empty() {
            let message = "Checksum Type mismatch occurred, expected checksum Type: null, actual \
                           checksum Type: crc32c";
            return Answer::refusal(400, "InvalidRequest", message);
        }
        Answer::stored()
    });
    let old = UploadId::new("old").unwrap();
    bucket.put_part("key", &old, 1, 0, vec!["bytes".into()]).await.unwrap();
    let place = PartPlace { number: 2, offset: 5, len: 5 };
    let read = || futures::stream::iter([Ok(Bytes::from("bytes"))]);
    bucket.put_part_streamed("key", &old, place, read).await.unwrap();
    assert_eq!(server.seen().len(), 4);
    let new = UploadId::new("new").unwrap();
    bucket.put_part("key", &new, 1, 0, vec!["bytes".into()]).await.unwrap();
    assert_eq!(server.seen()[0].headers[HEADER], text_of(b"bytes"), "this one takes them");
}

#[tokio::test]
async fn a_server_that_wants_the_parts_checksums_at_the_end_is_told_those_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, server) = scripted(dir.path(), |seen| match seen.method.as_str() {
        "PUT" => Answer::stored(),
        "HEAD" => Answer { status: 404, ..Answer::default() },
        "GET" => Answer::document(
            "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber>\
             <ETag>\"tag\"</ETag><Size>5</Size><ChecksumCRC32C>abcdef==</ChecksumCRC32C></Part>\
             </ListPartsResult>",
        ),
        _ if String::from_utf8_lossy(&seen.body).contains("abcdef==") => Answer::document(
            "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag>\
             </CompleteMultipartUploadResult>",
        ),
        _ => Answer::refusal(400, "InvalidPart", "a part has no checksum"),
    });
    let upload = UploadId::new("u").unwrap();
    let part = bucket.put_part("key", &upload, 1, 0, vec!["bytes".into()]).await.unwrap();
    let tag = bucket.complete_upload("key", &upload, &[part], &Condition::Absent).await.unwrap();
    assert_eq!(tag.as_str(), "\"whole\"");
    let seen = server.seen();
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    // It is looked at once whether the condition holds, however often the end is sent.
    assert_eq!(methods, ["PUT", "HEAD", "POST", "GET", "POST"]);
    assert_eq!(seen[4].headers["if-none-match"], "*");
}

#[tokio::test]
async fn the_mark_of_a_directory_has_the_checksum_of_nothing_where_the_bucket_takes_any() {
    let dir = tempfile::tempdir().unwrap();
    let none = Metadata::default();
    // As a bucket answers that locks what is put there for a time.
    let (bucket, server) = scripted(dir.path(), |seen| match &seen.checksums()[..] {
        [] => {
            let message = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object \
                           requests with Object Lock parameters";
            Answer::refusal(400, "InvalidRequest", message)
        }
        _ => Answer::stored(),
    });
    bucket.mark_directory("dir/", &none).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].headers[HEADER], text_of(b""));
    assert_eq!(seen[0].headers["if-none-match"], "*");
    let (bucket, server) = scripted(dir.path(), |seen| match &seen.checksums()[..] {
        [] => Answer::stored(),
        [name, ..] => {
            Answer::refusal(400, "InvalidArgument", &format!("Unsupported header '{name}'"))
        }
    });
    for sent in [2, 1] {
        bucket.mark_directory("dir/", &none).await.unwrap();
        assert_eq!(server.seen().len(), sent, "it takes none, which is known by then");
    }
}

#[tokio::test]
async fn bytes_that_a_server_stored_damaged_are_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let puts = Arc::new(AtomicU32::new(0));
    let (bucket, server) = scripted(dir.path(), move |_| {
        let told = match puts.fetch_add(1, Ordering::Relaxed) {
            0 => text_of(b"bytez"),
            1 => {
                let message = "The provided 'x-amz-checksum' header does not match";
                return Answer::refusal(400, "XAmzContentChecksumMismatch", message);
            }
            2 => text_of(b"bytes"),
            _ => text_of(b"never right"),
        };
        let mut answer = Answer::stored();
        answer.headers.push((HEADER, told));
        answer
    });
    let none = Metadata::default();
    let put = || bucket.put_small("key", vec!["bytes".into()], &none, &Condition::None);
    assert!(put().await.unwrap().is_checked);
    assert_eq!(server.seen().len(), 3);
    let error = put().await.unwrap_err();
    assert!(matches!(&error, Error::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("arrived damaged"), "{error}");
    // What stands there now does not meet the condition any more: that is for the caller.
    server.seen();
    let put = bucket.put_small("key", vec!["bytes".into()], &none, &Condition::Absent);
    assert!(matches!(put.await, Err(Error::Damaged { .. })));
    assert_eq!(server.seen().len(), 1);
}
