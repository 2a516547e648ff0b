//! Parts that are streamed go the way of all requests: through the same proxies, and with an ear
//! for what the bucket says of their number.

use std::{env, process::Command};

use bytes::Bytes;
use millrace_object_source::{
    Bucket, Error, LinkSpec, PartPlace, RequestClass, Settings, UploadId, UploadedPart,
};

use crate::scripted::{Answer, Scripted, Seen};

fn open(endpoint: &str) -> Bucket {
    let spec = LinkSpec::new("s3://data", Some(endpoint), None, Some("anonymous")).unwrap();
    let settings = Settings { requests_in_flight_max: 8, ..Settings::default() };
    Bucket::open(&spec, &settings).unwrap()
}

async fn stream(bucket: &Bucket) -> Result<UploadedPart, Error> {
    let upload = UploadId::new("u").unwrap();
    let place = PartPlace { number: 1, offset: 0, len: 5 };
    let read = || futures::stream::iter([Ok(Bytes::from("bytes"))]);
    bucket.put_part_streamed("key", &upload, place, read).await
}

#[tokio::test]
async fn a_bucket_that_asks_to_slow_down_in_the_middle_of_an_upload_is_heard() {
    let times = std::sync::atomic::AtomicU32::new(0);
    let server = Scripted::start(move |_: &Seen| {
        match times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Answer::refusal(503, "SlowDown", "later"),
            _ => Answer::stored(),
        }
    });
    let bucket = open(&server.endpoint);
    stream(&bucket).await.unwrap();
    assert_eq!(server.seen().len(), 2);
    assert_eq!(bucket.requests_limit(), 4);
    let counters = bucket.counters();
    assert_eq!((counters.requests(RequestClass::Part), counters.failures()), (2, 1));
    assert_eq!(counters.bytes_sent(), 10);
    // The first repetition was a good answer, and three more make a round.
    for limit in [4, 4, 5] {
        stream(&bucket).await.unwrap();
        assert_eq!(bucket.requests_limit(), limit);
    }
}

/// Set for the process that this test starts, because the environment is a process's.
const PROXIED: &str = "MILLRACE_TEST_PROXIED";

#[tokio::test]
async fn streamed_parts_go_through_the_proxy_of_the_environment() {
    if env::var_os(PROXIED).is_some() {
        let bucket = open("http://bucket.invalid");
        assert!(matches!(bucket.head("key").await, Err(Error::NotFound { .. })));
        stream(&bucket).await.unwrap();
        return;
    }
    let server = Scripted::start(|seen: &Seen| match seen.method.as_str() {
        "HEAD" => Answer { status: 404, ..Answer::default() },
        _ => Answer::stored(),
    });
    let name = "streams::streamed_parts_go_through_the_proxy_of_the_environment";
    let mut itself = Command::new(env::current_exe().unwrap());
    itself.args(["--exact", name, "--nocapture"]).env(PROXIED, "1");
    for variable in ["NO_PROXY", "no_proxy", "http_proxy", "ALL_PROXY", "REQUEST_METHOD"] {
        itself.env_remove(variable);
    }
    let output = itself.env("HTTP_PROXY", &server.endpoint).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen = server.seen();
    assert_eq!(seen.iter().map(|seen| &*seen.method).collect::<Vec<_>>(), ["HEAD", "PUT"]);
    for one in seen {
        assert!(one.path.starts_with("http://bucket.invalid/data/key"), "{}", one.path);
    }
}
