//! Answers that have no end: in bytes, and in time. And changes that take their time.

use std::{net::TcpListener, time::Duration};

use bytes::Bytes;
use millrace_object_source::{
    Bucket, Condition, Error, LinkSpec, Metadata, PartPlace, Settings, Tag, UploadId,
};

use crate::scripted::{Answer, Scripted, Seen, Tail};

const PATIENCE: Duration = Duration::from_secs(30);

fn open(server: &Scripted, settings: Settings) -> Bucket {
    open_at("s3", &server.endpoint, settings)
}

fn open_at(scheme: &str, endpoint: &str, settings: Settings) -> Bucket {
    let url = format!("{scheme}://data");
    let spec = LinkSpec::new(&url, Some(endpoint), None, Some("anonymous")).unwrap();
    Bucket::open(&spec, &settings).unwrap()
}

/// The ways on which requests leave: object_store's own, those signed here, and streamed parts.
#[derive(Debug, Clone, Copy)]
enum Way {
    Range,
    Whole,
    Abort,
    Put,
    Part,
}

const WAYS: [Way; 5] = [Way::Range, Way::Whole, Way::Abort, Way::Put, Way::Part];

async fn go(bucket: &Bucket, way: Way) -> Result<(), Error> {
    let (tag, upload) = (Tag::new("tag").unwrap(), UploadId::new("u").unwrap());
    match way {
        Way::Range => bucket.get_range("key", 0..5, &tag).await.map(drop),
        Way::Whole => bucket.get_whole("key", 5, &tag).await.map(drop),
        Way::Abort => bucket.abort_upload("key", &upload).await,
        Way::Put => {
            let (body, metadata) = (vec![Bytes::from("bytes")], Metadata::default());
            bucket.put_small("key", body, &metadata, &Condition::None).await.map(drop)
        }
        Way::Part => {
            let place = PartPlace { number: 1, offset: 0, len: 5 };
            let read = || futures::stream::iter([Ok(Bytes::from("bytes"))]);
            bucket.put_part_streamed("key", &upload, place, read).await.map(drop)
        }
    }
}

#[tokio::test]
async fn of_an_error_document_without_end_a_mebibyte_is_taken() {
    let refusal = |_: &Seen| Answer {
        tail: Tail::Flood,
        ..Answer::refusal(403, "AccessDenied", "not for you")
    };
    let server = Scripted::start(refusal);
    let bucket = open(&server, Settings::default());
    for way in WAYS {
        let refused = go(&bucket, way).await;
        assert!(matches!(refused, Err(Error::Denied { .. })), "{way:?}: {refused:?}");
        // What lies in the kernel's buffers counts, too.
        let flooded = server.flooded();
        assert!(flooded < 64 * 1024 * 1024, "{way:?}: {flooded} bytes");
    }
}

#[tokio::test]
async fn what_a_change_is_answered_with_has_an_end_however_well_it_went() {
    let server = Scripted::start(|_: &Seen| Answer { tail: Tail::Flood, ..Answer::stored() });
    let bucket = open(&server, Settings { retries_max: 0, ..Settings::default() });
    for way in [Way::Put, Way::Part] {
        let ended = go(&bucket, way).await;
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{way:?}: {ended:?}");
        let flooded = server.flooded();
        assert!(flooded < 128 * 1024 * 1024, "{way:?}: {flooded} bytes");
    }
}

#[tokio::test]
async fn an_answer_that_drips_is_given_up_however_steadily() {
    let tail = Tail::Drip(Duration::from_millis(10));
    let server = Scripted::start(move |seen: &Seen| match seen.method.as_str() {
        "GET" => Answer { tail, ..Answer::refusal(400, "InvalidRequest", "no") },
        _ => Answer { tail, ..Answer::stored() },
    });
    // Never silent for so long, and not for ten times as long either.
    let read_timeout = Duration::from_millis(100);
    let bucket = open(&server, Settings { read_timeout, retries_max: 0, ..Settings::default() });
    // A streamed part has a limit of its own, from its beginning on.
    let ways = [Way::Range, Way::Whole, Way::Abort, Way::Put];
    let dripping = ways.map(|way| {
        let bucket = &bucket;
        async move {
            let ended = tokio::time::timeout(PATIENCE, go(bucket, way)).await;
            let ended = ended.unwrap_or_else(|_| panic!("{way:?} never ends"));
            assert!(matches!(ended, Err(Error::Unavailable { .. })), "{way:?}: {ended:?}");
        }
    });
    futures::future::join_all(dripping).await;
}

/// Puts a body of so many bytes.
async fn put(bucket: &Bucket, len: usize) -> Result<(), Error> {
    let (body, metadata) = (vec![Bytes::from(vec![7; len])], Metadata::default());
    bucket.put_small("key", body, &metadata, &Condition::None).await.map(drop)
}

fn impatient() -> Settings {
    let read_timeout = Duration::from_millis(100);
    Settings { read_timeout, retries_max: 0, ..Settings::default() }
}

#[tokio::test]
async fn a_body_that_is_taken_slowly_has_time_that_grows_with_its_length() {
    for scheme in ["s3", "gs"] {
        // What is not read yet lies in the kernel: the answer is what takes so long.
        let server = Scripted::start_slow(Duration::from_millis(100), |_: &Seen| {
            let mut answer = Answer::stored();
            answer.headers.push(("x-goog-generation", "1".to_owned()));
            answer
        });
        let bucket = open_at(scheme, &server.endpoint, impatient());
        put(&bucket, 1024 * 1024).await.unwrap();
        let upload = match scheme {
            "gs" => UploadId::new("0123456789abcdef.u").unwrap(),
            _ => UploadId::new("u").unwrap(),
        };
        let body = vec![Bytes::from(vec![7; 1024 * 1024])];
        bucket.put_part("key", &upload, 1, 0, body).await.unwrap();
        let lens: Vec<_> = server.seen().iter().map(|seen| seen.body.len()).collect();
        assert_eq!(lens, [1024 * 1024; 2], "{scheme}: each is sent once");
    }
}

#[tokio::test]
async fn a_bucket_that_takes_nothing_is_given_up_and_told_from_one_that_is_not_there() {
    // Connections are made by the kernel, and nobody reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    for scheme in ["s3", "gs"] {
        let bucket = open_at(scheme, &endpoint, impatient());
        let ended = tokio::time::timeout(PATIENCE, put(&bucket, 65_536)).await;
        let error = ended.unwrap_or_else(|_| panic!("{scheme} never ends")).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{scheme}: {error:?}");
        let told = error.to_string();
        assert!(told.contains("65536 bytes were taken too slowly"), "{scheme}: {told}");
        let none = Metadata::default();
        let ended = tokio::time::timeout(PATIENCE, bucket.create_upload("key", &none)).await;
        let error = ended.unwrap_or_else(|_| panic!("{scheme} never ends")).unwrap_err();
        assert!(error.to_string().contains("no answer in time"), "{scheme}: {error}");
    }
}
