//! The beginning of an upload: of two that are begun, nobody would ever know the first.

use millrace_object_source::{Bucket, Error, LinkSpec, Metadata, Settings};

use crate::scripted::{Answer, Scripted, Seen, refusing};

const BEGUN: &str =
    "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";

fn open(scheme: &str, endpoint: &str) -> Bucket {
    let url = format!("{scheme}://data");
    let spec = LinkSpec::new(&url, Some(endpoint), None, Some("anonymous")).unwrap();
    let settings = Settings { retries_max: 3, ..Settings::default() };
    Bucket::open(&spec, &settings).unwrap()
}

/// A server that takes an upload the second time, and says something else the first.
fn server(first: impl Fn() -> Answer + Send + Sync + 'static) -> Scripted {
    let times = std::sync::atomic::AtomicU32::new(0);
    Scripted::start(move |_: &Seen| {
        match times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => first(),
            _ => Answer::document(BEGUN),
        }
    })
}

#[tokio::test]
async fn an_upload_is_begun_once_unless_the_bucket_says_that_it_was_not() {
    type First = fn() -> Answer;
    let cases: [(&str, bool, First); 6] = [
        ("the answer is lost", false, Answer::default),
        ("500", false, || Answer::refusal(500, "InternalError", "it may be begun")),
        ("503 of a proxy", false, || Answer { status: 503, ..Answer::default() }),
        ("no document", false, || Answer::document("<html>")),
        ("503", true, || Answer::refusal(503, "SlowDown", "later")),
        ("429", true, || Answer { status: 429, ..Answer::default() }),
    ];
    for scheme in ["s3", "gs"] {
        for (what, is_repeated, first) in cases {
            let server = server(first);
            let bucket = open(scheme, &server.endpoint);
            let begun = bucket.create_upload("key", &Metadata::default()).await;
            let requests = server.seen().len();
            if is_repeated {
                assert!(begun.is_ok() && requests == 2, "{scheme}, {what}: {begun:?}");
                continue;
            }
            let error = begun.unwrap_err();
            assert_eq!(requests, 1, "{scheme}, {what}: {error}");
            // By which callers know that they have to look for it.
            let is_open = matches!(error, Error::Unavailable { .. } | Error::Busy { .. });
            assert!(is_open && error.is_unclear(), "{scheme}, {what}: {error:?}");
        }
    }
}

#[tokio::test]
async fn an_upload_that_reached_nobody_is_begun_once_more() {
    let (_socket, endpoint) = refusing();
    for scheme in ["s3", "gs"] {
        let bucket = open(scheme, &endpoint);
        let error = bucket.create_upload("key", &Metadata::default()).await.unwrap_err();
        assert!(error.to_string().contains("connection refused"), "{error}");
        assert_eq!(bucket.counters().requests_total(), 4, "{scheme}");
    }
}
