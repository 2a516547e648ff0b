//! What is tried of a bucket, and what a person is told who may do some of the steps only.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use millrace_object_source::{Bucket, Error, LinkSpec, Settings, Trial, Untried};

use crate::scripted::{Answer, Scripted, Seen};

const ALL: Trial = Trial { read: true, write: true, delete: true, uploads: true };
const READ: Trial = Trial { read: true, write: false, delete: false, uploads: false };

/// A key and its size.
type Listed = (&'static str, u64);

/// A server whose listings, of all kinds, show these keys. What `answer` has no answer to is
/// allowed, as far as it may be of what is not there.
fn bucket(
    keys: &'static [Listed],
    answer: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static,
) -> Scripted {
    Scripted::start(move |seen| {
        if let Some(answer) = answer(seen) {
            return answer;
        }
        let headers = vec![("ETag", "\"1\"".to_owned()), ("x-goog-generation", "7".to_owned())];
        let body = match step(seen) {
            Step::List if seen.path.contains("restype=container") => azure_listing(keys),
            Step::List => listing(keys),
            Step::ListUploads => "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>\
                 </ListMultipartUploadsResult>"
                .to_owned(),
            Step::Begin => {
                let id = "<UploadId>u</UploadId>";
                format!("<InitiateMultipartUploadResult>{id}</InitiateMultipartUploadResult>")
            }
            // Of what is not there no version is the right one.
            Step::Delete if has_condition(seen) => {
                return Answer::refusal(412, "PreconditionFailed", "m");
            }
            Step::Read | Step::Put | Step::Abort | Step::Delete => String::new(),
        };
        Answer { status: 200, headers, body, ..Answer::default() }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    List,
    ListUploads,
    Read,
    Begin,
    Put,
    Abort,
    Delete,
}

fn has_condition(seen: &Seen) -> bool {
    let conditions = ["if-match", "x-goog-if-generation-match"];
    conditions.iter().any(|name| seen.headers.contains_key(*name))
}

fn step(seen: &Seen) -> Step {
    match seen.method.as_str() {
        "GET" if seen.path.contains("uploads=") => Step::ListUploads,
        "GET" if seen.path.contains("list") => Step::List,
        "GET" => Step::Read,
        "POST" => Step::Begin,
        "PUT" => Step::Put,
        "DELETE" if seen.path.contains("uploadId") => Step::Abort,
        "DELETE" => Step::Delete,
        other => panic!("no check sends {other}"),
    }
}

fn listing(keys: &[Listed]) -> String {
    let contents = keys.iter().map(|(key, size)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-24T11:45:59Z</LastModified>\
             <ETag>\"1\"</ETag><Size>{size}</Size><Generation>7</Generation></Contents>"
        )
    });
    let contents: String = contents.collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>")
}

fn azure_listing(keys: &[Listed]) -> String {
    let blobs = keys.iter().map(|(key, size)| {
        format!(
            "<Blob><Name>{key}</Name><Properties>\
             <Last-Modified>Tue, 24 Nov 2026 11:45:59 GMT</Last-Modified><Etag>0x1</Etag>\
             <Content-Length>{size}</Content-Length></Properties></Blob>"
        )
    });
    let blobs: String = blobs.collect();
    format!("<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>")
}

fn settings(dir: &Path) -> Settings {
    let path = dir.join("credentials");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).mode(0o600).open(&path).unwrap();
    let text = "[azure]\nazure_storage_account_name = a\nazure_storage_account_key = Z3Vlc3M=\n";
    file.write_all(text.as_bytes()).unwrap();
    Settings { credentials_file: Some(path), retries_max: 2, ..Settings::default() }
}

fn open(url: &str, server: &Scripted) -> Bucket {
    let dir = tempfile::tempdir().unwrap();
    let credentials = if url.starts_with("az://") { "azure" } else { "anonymous" };
    let spec = LinkSpec::new(url, Some(&server.endpoint), None, Some(credentials)).unwrap();
    Bucket::open(&spec, &settings(dir.path())).unwrap()
}

async fn refused(url: &str, trial: Trial, which: Step) -> String {
    let server = bucket(&[("p/a", 5)], move |seen| {
        (step(seen) == which).then(|| Answer::refusal(403, "AccessDenied", "m"))
    });
    let error = open(url, &server).try_out("p/", trial).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{url} {which:?}: {error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_step_that_is_refused_is_told_with_the_right_that_it_takes() {
    for (url, which, words) in [
        ("s3://data", Step::List, "listing needs s3:ListBucket"),
        ("s3://data", Step::Read, "reading needs s3:GetObject"),
        ("s3://data", Step::Begin, "writing needs s3:PutObject"),
        ("s3://data", Step::Abort, "needs s3:AbortMultipartUpload"),
        ("s3://data", Step::Delete, "deleting needs s3:DeleteObject"),
        ("gs://data", Step::List, "listing needs storage.objects.list"),
        ("gs://data", Step::Read, "reading needs storage.objects.get"),
        ("gs://data", Step::Begin, "needs storage.multipartUploads.create"),
        ("gs://data", Step::Abort, "needs storage.multipartUploads.abort"),
        ("gs://data", Step::Delete, "deleting needs storage.objects.delete"),
        ("az://data", Step::List, "listing needs l in a signature"),
        ("az://data", Step::Read, "reading needs r in a signature"),
        ("az://data", Step::Put, "writing needs c and w in a signature"),
        ("az://data", Step::Delete, "deleting needs d in a signature"),
    ] {
        let said = refused(url, ALL, which).await;
        assert!(said.contains("refuses access") && said.contains(words), "{url}: {said}");
    }
}

#[tokio::test]
async fn who_may_not_list_uploads_is_told_which_right_that_takes_and_can_use_the_bucket() {
    for (url, answer, words) in [
        ("s3://data", (403, "AccessDenied"), "needs s3:ListBucketMultipartUploads (AccessDenied"),
        ("gs://data", (403, "AccessDenied"), "needs storage.multipartUploads.list (AccessDenied"),
        ("s3://data", (501, "NotImplemented"), "no such list"),
    ] {
        let server = bucket(&[("p/a", 5)], move |seen| {
            let (status, code) = answer;
            (step(seen) == Step::ListUploads).then(|| Answer::refusal(status, code, "no such list"))
        });
        let untried = open(url, &server).try_out("p/", ALL).await.unwrap();
        let [told @ Untried::Uploads { .. }] = &untried[..] else { panic!("{url}: {untried:?}") };
        let said = told.to_string();
        assert!(said.starts_with("uploads that are left behind cannot be found"), "{url}: {said}");
        assert!(said.contains(words), "{url}: {said}");
        let listed = server.seen().into_iter().filter(|seen| step(seen) == Step::ListUploads);
        let listed: Vec<_> = listed.collect();
        assert!(listed.len() == 1 && listed[0].path.contains("prefix=p%2F"), "{url}: {listed:?}");
    }
    // What is no answer is a failure, as with every other step; and who does not export needs none.
    let server = bucket(&[("p/a", 5)], |seen| {
        (step(seen) == Step::ListUploads).then(|| Answer::document("<html>login</html>"))
    });
    let error = open("s3://data", &server).try_out("p/", ALL).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(open("s3://data", &server).try_out("p/", READ).await, Ok(Vec::new()));
    // Azure has one list of both.
    let server = bucket(&[("p/a", 5)], |_| None);
    assert_eq!(open("az://data", &server).try_out("p/", ALL).await, Ok(Vec::new()));
}

#[tokio::test]
async fn who_may_list_and_not_read_is_told_so_only_where_reading_is_tried() {
    for url in ["s3://data", "gs://data", "az://data"] {
        let server = bucket(&[("p/a", 5)], |seen| {
            (step(seen) == Step::Read).then(|| Answer::refusal(403, "AccessDenied", "m"))
        });
        let bucket = open(url, &server);
        bucket.check("p/", false).await.unwrap();
        assert!(server.seen().iter().all(|seen| step(seen) == Step::List), "{url}");
        let error = bucket.try_out("p/", READ).await.unwrap_err();
        assert!(error.to_string().contains("refuses access"), "{url}: {error}");
    }
}

#[tokio::test]
async fn what_is_read_is_the_beginning_of_the_first_object_of_a_file() {
    const KEYS: &[Listed] = &[
        ("p/", 0),
        ("p/.a.millrace-0123456789abcdef", 5),
        ("p/.millrace-check-17f", 5),
        ("p//odd", 5),
        ("p/empty", 0),
        ("p/object", 100),
        ("p/other", 100),
    ];
    for url in ["s3://data", "gs://data", "az://data"] {
        let server = bucket(KEYS, |_| None);
        assert_eq!(open(url, &server).try_out("p/", READ).await, Ok(Vec::new()), "{url}");
        let reads: Vec<_> =
            server.seen().into_iter().filter(|seen| step(seen) == Step::Read).collect();
        let [read] = &reads[..] else { panic!("{url}: one read of {reads:?}") };
        assert!(read.path.ends_with("/data/p/object"), "{url}: {read:?}");
        let told = |name: &str| read.headers.get(name).map(String::as_str);
        assert_eq!(told("range"), Some("bytes=0-63"), "{url}");
        // As reads are sent: of the version that was listed.
        assert!(has_condition(read), "{url}: {read:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_tried_is_told_and_is_no_failure() {
    for url in ["s3://data", "gs://data", "az://data"] {
        for keys in [&[][..], &[("p/", 0)]] {
            let server = bucket(keys, |_| None);
            let untried = open(url, &server).try_out("p/", READ).await.unwrap();
            assert_eq!(untried, [Untried::NothingToRead], "{url}");
        }
        assert!(Untried::NothingToRead.to_string().contains("nothing there to read"));
        // One that has gone since says nothing.
        let server = bucket(&[("p/gone", 5), ("p/there", 5)], |seen| {
            let is_gone = seen.path.contains("p/gone");
            let code = if seen.path.starts_with("/a/") { "BlobNotFound" } else { "NoSuchKey" };
            is_gone.then(|| Answer::refusal(404, code, "m"))
        });
        assert_eq!(open(url, &server).try_out("p/", READ).await, Ok(Vec::new()), "{url}");
    }
    let archived = |key: &'static str| {
        move |seen: &Seen| {
            let is_it = step(seen) == Step::Read && seen.path.contains(key);
            is_it.then(|| Answer::refusal(403, "InvalidObjectState", "m"))
        }
    };
    let server = bucket(&[("p/cold", 5), ("p/warm", 5)], archived("p/cold"));
    assert_eq!(open("s3://data", &server).try_out("p/", READ).await, Ok(Vec::new()));
    let server = bucket(&[("p/cold", 5)], archived("p/cold"));
    let untried = open("s3://data", &server).try_out("p/", READ).await.unwrap();
    let [Untried::Reading { why }] = &untried[..] else { panic!("{untried:?}") };
    assert!(why.contains("archived"), "{why}");
}

/// The deletions that a check of everything sends to a server that answers them so.
async fn deletions(
    answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
) -> (Result<Vec<Untried>, Error>, Vec<Seen>) {
    let server =
        bucket(&[("p/a", 5)], move |seen| (step(seen) == Step::Delete).then(|| answer(seen)));
    let tried = open("s3://data", &server).try_out("p/", ALL).await;
    let seen = server.seen().into_iter().filter(|seen| step(seen) == Step::Delete).collect();
    (tried, seen)
}

#[tokio::test]
async fn deleting_is_tried_of_what_is_not_there_and_leaves_nothing() {
    for (status, code) in [(412, "PreconditionFailed"), (404, "NoSuchKey")] {
        let (tried, seen) = deletions(move |_| Answer::refusal(status, code, "m")).await;
        assert_eq!(tried, Ok(Vec::new()), "{code}");
        let [one] = &seen[..] else { panic!("{code}: {seen:?}") };
        assert!(one.path.starts_with("/data/p/.millrace-check-"), "{one:?}");
        assert!(has_condition(one), "no server deletes what is there: {one:?}");
    }
    // Without a condition something might stay.
    let (tried, seen) = deletions(|_| Answer::refusal(501, "NotImplemented", "If-Match")).await;
    assert_eq!((tried, seen.len()), (Ok(vec![Untried::Deleting]), 1));
    // A server that passes over the condition, and keeps versions.
    let (tried, seen) = deletions(|_| Answer {
        status: 204,
        headers: vec![
            ("x-amz-delete-marker", "true".to_owned()),
            ("x-amz-version-id", "v1".to_owned()),
        ],
        ..Answer::default()
    })
    .await;
    assert_eq!(tried, Ok(Vec::new()));
    let [first, second] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(second.path, format!("{}?versionId=v1", first.path));
    // One that keeps none.
    let (tried, seen) = deletions(|_| Answer { status: 204, ..Answer::default() }).await;
    assert_eq!((tried, seen.len()), (Ok(Vec::new()), 1));
}
