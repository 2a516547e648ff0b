//! Deletions of which no answer comes: what is there afterwards may be another's.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use millrace_object_source::{Bucket, Error, LinkSpec, Settings, Tag};

use crate::scripted::{Answer, Scripted};

/// A server that deletes what is there whatever the condition, and says nothing of it the first
/// time; then another object comes.
fn forgetful() -> Scripted {
    let is_other = Arc::new(AtomicBool::new(false));
    Scripted::start(move |seen| match seen.method.as_str() {
        "HEAD" => {
            let tag = if is_other.load(Ordering::Relaxed) { "\"other\"" } else { "\"one\"" };
            let modified = "Tue, 24 Nov 2026 11:45:59 GMT".to_owned();
            let headers = vec![("ETag", tag.to_owned()), ("Last-Modified", modified)];
            Answer { status: 200, headers, ..Answer::default() }
        }
        "DELETE" => match is_other.swap(true, Ordering::Relaxed) {
            false => Answer::default(),
            true => Answer { status: 204, ..Answer::default() },
        },
        other => panic!("nobody sends {other}"),
    })
}

fn open(server: &Scripted) -> Bucket {
    let spec = LinkSpec::new("s3://data", Some(&server.endpoint), None, Some("anonymous"));
    Bucket::open(&spec.unwrap(), &Settings::default()).unwrap()
}

#[tokio::test]
async fn what_came_meanwhile_is_not_deleted_by_a_repetition() {
    let server = forgetful();
    let deleted = open(&server).delete("key", &Tag::new("\"one\"".to_owned()).unwrap()).await;
    assert_eq!(deleted, Err(Error::Changed { key: "key".to_owned() }));
    let methods: Vec<_> = server.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(methods, ["HEAD", "DELETE", "HEAD"]);
}

#[tokio::test]
async fn each_repetition_looks_at_a_directorys_mark_first() {
    let server = forgetful();
    assert_eq!(open(&server).unmark_directory("directory/").await, Ok(true));
    let seen = server.seen();
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["HEAD", "DELETE", "HEAD", "DELETE"]);
    // The condition of the second is what was seen then.
    let conditions = seen.iter().filter(|seen| seen.method == "DELETE");
    let conditions: Vec<_> = conditions.map(|seen| seen.headers["if-match"].as_str()).collect();
    assert_eq!(conditions, ["\"one\"", "\"other\""]);
}
