//! `gs://` with the bytes in a real server: the contract on SeaweedFS behind a front that adds what
//! it has not, and what becomes of who goes to it without that front.

use futures::{StreamExt, stream};
use millrace_object_source::{Condition, Error, Metadata, RequestClass, Tag};
use millrace_tests::google::{BUCKET, GoogleFront};

use crate::{
    contract,
    google::{open, settings},
};

#[tokio::test]
async fn the_contract_holds_on_generations_where_another_server_has_the_bytes() {
    let (front, dir) = (GoogleFront::start().unwrap(), tempfile::tempdir().unwrap());
    let settings = settings(|account, path| front.write_key(account, path).unwrap(), dir.path());
    let bucket = open(&settings, &front.endpoint(), BUCKET, "writer");
    let other = open(&settings, &front.endpoint(), BUCKET, "writer");
    contract::holds(&bucket, &other, "").await;
    contract::holds(&bucket, &other, "a b/c/").await;
    let none = Metadata::default();
    let puts = stream::iter(0..1_100).map(async |at| {
        let key = format!("many/{at:06}");
        bucket.put_small(&key, Vec::new(), &none, &Condition::Absent).await.unwrap();
    });
    puts.buffer_unordered(8).collect::<Vec<()>>().await;
    contract::pages(&bucket, "many/", 1_100).await;
    contract::begins_behind_names(&bucket, "many/", 1_100).await;
    assert_eq!(bucket.counters().requests(RequestClass::Other), 0);
    // What others put there is another version, and what was put here they have.
    let tag = bucket.head("many/000007").await.unwrap().version.tag;
    put(&front, "many/000007", "theirs");
    let read = bucket.get_range("many/000007", 0..1, &tag).await;
    assert!(matches!(read, Err(Error::Changed { .. })), "{read:?}");
    let condition = Condition::Matches(bucket.head("many/000007").await.unwrap().version.tag);
    bucket.put_small("many/000007", vec!["ours".into()], &none, &condition).await.unwrap();
    assert_eq!(get(&front, "many/000007"), "ours");
    let refused = open(&settings, &front.endpoint(), BUCKET, "reader").check("", true).await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
}

/// SeaweedFS takes requests of Google's form, passes over the conditions on generations, and tells
/// none. So nothing that is asked of it there succeeds by mistake but a deletion, which needs a tag
/// that it never told: a link to it is refused, or of no use, and nobody takes one version of an
/// object for another.
#[tokio::test]
async fn a_server_without_generations_is_no_bucket_of_google() {
    let (front, dir) = (GoogleFront::start().unwrap(), tempfile::tempdir().unwrap());
    let settings = settings(|account, path| front.write_key(account, path).unwrap(), dir.path());
    let (endpoint, name) = front.behind();
    let bucket = open(&settings, &endpoint, name, "anonymous");
    put(&front, "dir/key", "theirs");
    assert!(bucket.has_below("dir/").await.unwrap());
    let listed = bucket.list_directory("dir/", None).await.map(drop);
    let (head, checked) = (bucket.head("dir/key").await.map(drop), bucket.check("", true).await);
    for error in [listed, head, checked].map(Result::unwrap_err) {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("names no generation"), "{error}");
    }
    let tag = Tag::new("1763970000000001").unwrap();
    let read = bucket.get_range("dir/key", 0..6, &tag).await;
    assert!(matches!(read, Err(Error::Changed { .. })), "{read:?}");
    let whole = bucket.get_whole("dir/key", 6, &tag).await;
    assert!(matches!(whole, Err(Error::Changed { .. })), "{whole:?}");
    let (none, body) = (Metadata::default(), vec!["ours".into()]);
    let error = bucket.put_small("dir/key", body, &none, &Condition::Absent).await.unwrap_err();
    assert!(error.is_unclear() && error.to_string().contains("names no generation"), "{error:?}");
    assert_eq!(get(&front, "dir/key"), "ours", "the condition was passed over");
    bucket.delete("dir/key", &tag).await.unwrap();
    assert!(!bucket.has_below("dir/").await.unwrap(), "here too");
}

fn put(front: &GoogleFront, key: &str, body: &str) {
    let put = "client.put_object(Bucket=sys.argv[2], Key=sys.argv[3], Body=sys.argv[4].encode())";
    front.script(put, &[front.behind().1, key, body]).unwrap();
}

fn get(front: &GoogleFront, key: &str) -> String {
    let get = "found = client.get_object(Bucket=sys.argv[2], Key=sys.argv[3])\n\
        print(found['Body'].read().decode())";
    front.script(get, &[front.behind().1, key]).unwrap().trim().to_owned()
}
