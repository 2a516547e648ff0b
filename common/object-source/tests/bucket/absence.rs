//! What says 404 and is no bucket: nothing is gone before the bucket itself says so.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use millrace_object_source::{
    Bucket, Condition, Error, LinkSpec, RequestClass, Settings, Tag, UploadId,
};

use crate::scripted::{Answer, Scripted, Seen};

/// What is behind the address of the server, for requests about a key that begins with its name.
#[derive(Debug, Clone, Copy)]
enum Behind {
    /// A bucket without the object.
    Bucket,
    /// One that lists what it does not find.
    Contradiction,
    /// The bucket was deleted.
    Deleted,
    /// A proxy without a route.
    Proxy,
    /// A page for people.
    Login,
}

const ALL: [(&str, Behind); 5] = [
    ("gone", Behind::Bucket),
    ("shown", Behind::Contradiction),
    ("deleted", Behind::Deleted),
    ("proxy", Behind::Proxy),
    ("login", Behind::Login),
];

fn answer(seen: &Seen) -> Answer {
    let (_, behind) = ALL.into_iter().find(|(key, _)| seen.path.contains(key)).unwrap();
    if seen.method == "HEAD" {
        return Answer { status: 404, ..Answer::default() };
    }
    match behind {
        Behind::Proxy => {
            Answer { status: 404, body: "404 page not found".to_owned(), ..Answer::default() }
        }
        Behind::Deleted => Answer::refusal(404, "NoSuchBucket", "there is none"),
        Behind::Login => Answer::document("<html>login</html>"),
        _ if !seen.path.contains("list-type") => Answer::refusal(404, "NoSuchKey", "there is none"),
        Behind::Bucket => listing("gone-too"),
        Behind::Contradiction => listing("shown"),
    }
}

/// Of which more would come.
fn listing(key: &str) -> Answer {
    Answer::document(&format!(
        "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>{key}</Key>\
         <LastModified>2026-11-21T04:10:06Z</LastModified><Size>1</Size></Contents>\
         <NextContinuationToken>more</NextContinuationToken></ListBucketResult>"
    ))
}

fn open(scheme: &str, endpoint: &str) -> Bucket {
    let url = format!("{scheme}://data");
    let spec = LinkSpec::new(&url, Some(endpoint), None, Some("anonymous")).unwrap();
    let settings = Settings { retries_max: 1, ..Settings::default() };
    Bucket::open(&spec, &settings).unwrap()
}

#[tokio::test]
async fn an_object_is_gone_when_head_and_a_listing_say_so_and_not_before() {
    for scheme in ["s3", "gs"] {
        let server = Scripted::start(answer);
        let bucket = open(scheme, &server.endpoint);
        for (key, behind) in ALL {
            assert!(matches!(bucket.head(key).await, Err(Error::NotFound { .. })), "{key}");
            assert_eq!(server.seen().len(), 1, "{key}: HEAD alone costs nothing more");
            let looked = bucket.look(key).await;
            let seen: Vec<_> = server.seen().into_iter().map(|seen| seen.method).collect();
            assert_eq!(seen[..2], ["HEAD", "GET"], "{scheme} {key}");
            let told = || looked.as_ref().unwrap_err().to_string();
            match behind {
                Behind::Bucket => {
                    assert_eq!(looked, Ok(None), "{scheme}");
                    assert_eq!(seen.len(), 2, "{scheme}");
                }
                Behind::Contradiction => assert!(told().contains("contradicts"), "{looked:?}"),
                Behind::Deleted => {
                    assert!(matches!(looked, Err(Error::NoBucket { .. })), "{looked:?}");
                }
                Behind::Proxy => assert!(told().contains("does not answer"), "{looked:?}"),
                Behind::Login => assert!(told().contains("malformed"), "{looked:?}"),
            }
        }
    }
}

/// HEAD is refused, and of one key the listing too.
fn answer_to_listings(seen: &Seen) -> Answer {
    if seen.method == "HEAD" {
        return Answer { status: 403, ..Answer::default() };
    }
    let key = match seen.path.contains("there") {
        true => "there",
        false if seen.path.contains("closed") => {
            return Answer::refusal(403, "AccessDenied", "it may not be listed");
        }
        false => "missing-too",
    };
    Answer::document(&format!(
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>{key}</Key>\
         <LastModified>2026-11-21T04:10:06Z</LastModified><ETag>\"7\"</ETag>\
         <Generation>7</Generation><Size>5</Size></Contents></ListBucketResult>"
    ))
}

#[tokio::test]
async fn the_end_of_an_upload_overwrites_nothing_that_may_not_be_looked_at() {
    let server = Scripted::start(|seen| match seen.method.as_str() {
        "PUT" => Answer::stored(),
        // Whatever it is asked on condition of.
        "POST" => Answer::document(
            "<CompleteMultipartUploadResult><ETag>\"new\"</ETag></CompleteMultipartUploadResult>",
        ),
        _ => answer_to_listings(seen),
    });
    let bucket = open("s3", &server.endpoint);
    let upload = UploadId::new("u").unwrap();
    let (absent, matches) = (Condition::Absent, |tag| Condition::Matches(Tag::new(tag).unwrap()));
    for (key, condition, is_overwritten) in [
        ("there", absent.clone(), false),
        ("there", matches("\"6\""), false),
        ("there", matches("\"7\""), true),
        ("missing", absent.clone(), true),
        ("missing", matches("\"7\""), false),
        // Only the server can tell.
        ("closed", absent, true),
        ("closed", matches("\"7\""), true),
    ] {
        let part = bucket.put_part(key, &upload, 1, 0, vec!["bytes".into()]).await.unwrap();
        server.seen();
        let ended = bucket.complete_upload(key, &upload, &[part], &condition).await;
        let was_sent = server.seen().iter().any(|seen| seen.method == "POST");
        assert_eq!(was_sent, is_overwritten, "{key} {condition:?}");
        match is_overwritten {
            true => assert_eq!(ended.unwrap().as_str(), "\"new\""),
            false => assert!(matches!(ended, Err(Error::Changed { .. })), "{ended:?}"),
        }
    }
}

#[tokio::test]
async fn one_listing_of_a_key_tells_of_it_where_head_is_refused() {
    for (scheme, tag) in [("s3", "\"7\""), ("gs", "7")] {
        let server = Scripted::start(answer_to_listings);
        let bucket = open(scheme, &server.endpoint);
        for key in ["there", "missing", "closed"] {
            let head = bucket.head(key).await;
            assert!(matches!(head, Err(Error::Denied { .. })), "{scheme}: {head:?}");
            server.seen();
            let listed = bucket.listed(key).await;
            let seen: Vec<_> = server.seen().into_iter().map(|seen| seen.method).collect();
            assert_eq!(seen, ["GET"], "{scheme} {key}");
            match key {
                "there" => {
                    let version = listed.unwrap().unwrap();
                    assert_eq!((version.tag.as_str(), version.size), (tag, 5), "{scheme}");
                }
                "missing" => assert_eq!(listed, Ok(None), "{scheme}"),
                _ => assert!(matches!(listed, Err(Error::Denied { .. })), "{scheme}: {listed:?}"),
            }
        }
    }
}

#[tokio::test]
async fn what_is_not_found_by_a_proxy_is_no_object_that_is_gone_to_any_request() {
    for (scheme, tag) in [("s3", "\"1\""), ("gs", "1")] {
        let server = Scripted::start(answer);
        let bucket = open(scheme, &server.endpoint);
        let tag = Tag::new(tag).unwrap();
        let range = bucket.get_range("proxy", 0..5, &tag).await.unwrap_err();
        let whole = bucket.get_whole("proxy", 5, &tag).await.unwrap_err();
        let deleted = bucket.delete("proxy", &tag).await.unwrap_err();
        let unmarked = bucket.unmark_directory("proxy/").await.unwrap_err();
        for error in [range, whole, deleted, unmarked] {
            assert!(matches!(error, Error::Unavailable { .. }), "{scheme}: {error:?}");
            assert!(error.to_string().contains("does not answer"), "{error}");
        }
        assert!(bucket.is_gone_below("proxy/").await.is_err(), "{scheme}");
        let range = bucket.get_range("gone", 0..5, &tag).await.unwrap_err();
        let whole = bucket.get_whole("gone", 5, &tag).await.unwrap_err();
        for error in [range, whole] {
            assert!(matches!(error, Error::NotFound { .. }), "{scheme}: {error:?}");
        }
        bucket.delete("gone", &tag).await.unwrap();
    }
}

/// A container whose refusals have the codes that begin the keys, but for one without any.
fn azure_answer(seen: &Seen) -> Answer {
    let codes = ["BlobNotFound", "ContainerNotFound", "ResourceNotFound"];
    let code = codes.into_iter().find(|code| seen.path.contains(code));
    let headers = code.map(|code| ("x-ms-error-code", code.to_owned())).into_iter().collect();
    Answer { status: 404, headers, ..Answer::default() }
}

fn azure(dir: &Path, endpoint: &str) -> Bucket {
    let path = dir.join("credentials");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    let text = "[a]\nazure_storage_account_name = a\nazure_storage_account_key = a2V5\n";
    file.write_all(text.as_bytes()).unwrap();
    let spec = LinkSpec::new("az://data", Some(endpoint), None, Some("a")).unwrap();
    let settings = Settings { credentials_file: Some(path), retries_max: 1, ..Settings::default() };
    Bucket::open(&spec, &settings).unwrap()
}

#[tokio::test]
async fn azure_says_by_its_code_that_a_blob_is_gone_and_nothing_else_does() {
    let (server, dir) = (Scripted::start(azure_answer), tempfile::tempdir().unwrap());
    let bucket = azure(dir.path(), &server.endpoint);
    assert_eq!(bucket.look("BlobNotFound").await, Ok(None));
    assert_eq!(server.seen().len(), 1);
    assert_eq!(bucket.counters().requests(RequestClass::List), 0);
    for key in ["ContainerNotFound", "ResourceNotFound"] {
        let looked = bucket.look(key).await;
        assert!(matches!(looked, Err(Error::NoBucket { .. })), "{key}: {looked:?}");
    }
    for error in [bucket.look("proxy").await.unwrap_err(), bucket.head("proxy").await.unwrap_err()]
    {
        assert!(error.to_string().contains("does not answer"), "{error:?}");
    }
}
