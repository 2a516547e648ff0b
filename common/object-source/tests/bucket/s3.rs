//! The contract on a real S3 server, and what a person is told when it refuses.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use millrace_object_source::{
    Bucket, Condition, Error, LinkSpec, Metadata, RequestClass, Settings, Trial, Untried,
};

use crate::{contract, moto::Moto, scripted::refusing, weed::Weed};

const CREDENTIALS: &str = "[writer]\naws_access_key_id = writer\n\
     aws_secret_access_key = writer-secret\n\
     [reader]\naws_access_key_id = reader\naws_secret_access_key = reader-secret\n\
     [lister]\naws_access_key_id = lister\naws_secret_access_key = lister-secret\n\
     [wrong-secret]\naws_access_key_id = writer\naws_secret_access_key = guess\n\
     [stranger]\naws_access_key_id = nobody\naws_secret_access_key = guess\n";

pub(crate) fn settings(dir: &Path) -> Settings {
    let path = dir.join("credentials");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    file.write_all(CREDENTIALS.as_bytes()).unwrap();
    Settings { credentials_file: Some(path), retries_max: 2, ..Settings::default() }
}

pub(crate) fn open(settings: &Settings, endpoint: &str, bucket: &str, credentials: &str) -> Bucket {
    let url = format!("s3://{bucket}");
    let spec = LinkSpec::new(&url, Some(endpoint), Some("us-east-1"), Some(credentials)).unwrap();
    Bucket::open(&spec, settings).unwrap()
}

/// One test for all, so that one server serves them: it takes seconds to start.
#[tokio::test]
async fn the_contract_holds_on_s3_and_refusals_are_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let weed = Weed::start();
    let writer = open(&settings, &weed.endpoint(), "data", "writer");
    make_bucket(&writer).await;
    contract::holds(&writer, &open(&settings, &weed.endpoint(), "data", "writer"), "").await;
    contract::holds(&writer, &open(&settings, &weed.endpoint(), "data", "writer"), "a b/c/").await;
    many_keys(&writer).await;
    refusals(&settings, &weed.endpoint()).await;
    assert!(writer.counters().requests(RequestClass::List) > 0);
    assert_eq!(writer.counters().requests(RequestClass::Other), 0);
}

#[tokio::test]
async fn the_contract_holds_on_another_s3_server() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let moto = Moto::start();
    let writer = open(&settings, &moto.endpoint(), "data", "writer");
    let other = open(&settings, &moto.endpoint(), "data", "writer");
    // moto answers 500 to a part of no upload. It ignores which version a completion is to replace,
    // so that there the look before counts.
    contract::holds_but_for_uploads_that_are_over(&writer, &other, "a b/c/").await;
    many_keys(&writer).await;
    let error = open(&settings, &moto.endpoint(), "nowhere", "writer").check("", false).await;
    assert!(matches!(error, Err(Error::NoBucket { .. })), "{error:?}");
}

/// The server makes a bucket at the first upload of an administrator; it answers before its volumes
/// are ready, so the first put is repeated.
pub(crate) async fn make_bucket(writer: &Bucket) {
    let begun = Instant::now();
    loop {
        let body = vec!["x".into()];
        let put = writer.put_small("first", body, &Metadata::default(), &Condition::None).await;
        match put {
            Ok(_) => return,
            // Also when an attempt whose answer was lost has made it: whatever conflicts is busy.
            Err(Error::Unavailable { .. } | Error::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "the server never takes an object");
        // Another process: there is nothing to wait on.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn many_keys(writer: &Bucket) {
    let puts = stream::iter(0..1_100).map(|at| async move {
        let key = format!("many/{at:06}");
        let none = Metadata::default();
        let put = writer.put_small(&key, Vec::new(), &none, &Condition::None);
        put.await.unwrap();
    });
    puts.buffer_unordered(16).collect::<Vec<()>>().await;
    contract::pages(writer, "many/", 1_100).await;
    contract::begins_behind_names(writer, "many/", 1_100).await;
}

async fn refusals(settings: &Settings, endpoint: &str) {
    let all = Trial { read: true, write: true, delete: true, uploads: true };
    let writer = open(settings, endpoint, "data", "writer");
    let untried = writer.try_out("some/where/", all).await.unwrap();
    assert!(untried.contains(&Untried::NothingToRead), "{untried:?}");
    assert!(!writer.try_out("", all).await.unwrap().contains(&Untried::NothingToRead));
    let reader = open(settings, endpoint, "data", "reader");
    let read = Trial { read: true, ..Trial::default() };
    assert_eq!(reader.try_out("", read).await, Ok(Vec::new()));
    let error = reader.try_out("", Trial { write: false, ..all }).await.unwrap_err();
    assert!(error.to_string().contains("deleting needs s3:DeleteObject"), "{error}");
    let lister = open(settings, endpoint, "data", "lister");
    lister.check("", false).await.unwrap();
    let error = lister.try_out("", read).await.unwrap_err();
    assert!(error.to_string().contains("reading needs s3:GetObject"), "{error}");
    let denied = |error: &Error| matches!(error, Error::Denied { .. });
    let error = reader.check("", true).await.unwrap_err();
    assert!(denied(&error) && error.to_string().contains("refuses access"), "{error:?}");
    let error =
        open(settings, endpoint, "data", "wrong-secret").check("", false).await.unwrap_err();
    assert!(denied(&error) && error.to_string().contains("secret key is wrong"), "{error:?}");
    let error = open(settings, endpoint, "data", "stranger").check("", false).await.unwrap_err();
    assert!(denied(&error) && error.to_string().contains("access key"), "{error:?}");
    let error = open(settings, endpoint, "data", "anonymous").check("", false).await.unwrap_err();
    assert!(denied(&error), "{error:?}");
    let error = open(settings, endpoint, "nowhere", "writer").check("", false).await.unwrap_err();
    assert!(matches!(error, Error::NoBucket { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    // All of that are answers.
    for (bucket, who) in [("data", "writer"), ("data", "wrong-secret"), ("nowhere", "writer")] {
        assert_eq!(open(settings, endpoint, bucket, who).answers("some/").await, Ok(()), "{who}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let (_socket, endpoint) = refusing();
    let error = open(&settings, &endpoint, "data", "writer").check("", false).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("connection refused"), "{error}");
    let error = open(&settings, &endpoint, "data", "writer").answers("").await.unwrap_err();
    assert!(error.to_string().contains("connection refused"), "{error}");
    let name = "http://no-such-host.invalid";
    let error = open(&settings, name, "data", "writer").check("", false).await.unwrap_err();
    assert!(error.to_string().contains("cannot be resolved"), "{error}");
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { check_timeout: Duration::from_millis(300), ..settings(dir.path()) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let error = open(&settings, &endpoint, "data", "writer").check("", false).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    let error = open(&settings, &endpoint, "data", "writer").answers("").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn what_answers_but_is_no_bucket_is_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok() {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 18\r\n\r\n<html>login</html>";
                stream.write_all(answer).await.unwrap();
            }
        }
    });
    let error = open(&settings, &endpoint, "data", "writer").check("", false).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("malformed"), "{error}");
    let away = open(&settings, &endpoint, "data", "writer").answers("").await;
    assert!(matches!(away, Err(Error::Unavailable { .. })), "{away:?}");
    server.abort();
}

#[tokio::test]
async fn a_bucket_that_asks_to_slow_down_gets_half_as_many_requests_at_a_time_and_then_more() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const SLOW: &[u8] = b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n";
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\netag: \"1\"\r\n\
        last-modified: Tue, 24 Nov 2026 00:00:00 GMT\r\n\r\n";
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { requests_in_flight_max: 8, ..settings(dir.path()) };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut answers = 0;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            while matches!(stream.read(&mut request).await, Ok(1..)) {
                answers += 1;
                stream.write_all(if answers == 1 { SLOW } else { HEAD }).await.unwrap();
            }
        }
    });
    let bucket = open(&settings, &endpoint, "data", "writer");
    assert_eq!(bucket.requests_limit(), 8);
    // Its one repetition is the first good answer of the four that a further request takes.
    bucket.head("key").await.unwrap();
    assert_eq!(bucket.requests_limit(), 4);
    for limit in [4, 4, 5] {
        bucket.head("key").await.unwrap();
        assert_eq!(bucket.requests_limit(), limit);
    }
    server.abort();
}

#[test]
fn credentials_that_are_not_there_are_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let spec = LinkSpec::new("s3://data", None, None, Some("missing")).unwrap();
    let error = Bucket::open(&spec, &settings(dir.path())).unwrap_err();
    assert!(error.to_string().contains("[missing]"), "{error}");
    let error = Bucket::open(&spec, &Settings::default()).unwrap_err();
    assert!(error.to_string().contains("no credentials file"), "{error}");
}
