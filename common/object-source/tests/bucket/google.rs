//! The contract on Google's XML API, and what only generations and temporary objects can do wrong.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_object_source::{
    Bucket, Condition, Error, LeftOut, LeftOutReason, LinkSpec, Metadata, Page, PosixAttributes,
    RequestClass, Settings, StoredSymlink, Trial, Untried, UploadId, UploadedPart,
};
use millrace_tests::google::{BUCKET, GoogleServer, READER, Trouble, WRITER};
use millrace_types::MIB;

use crate::{contract, scripted::refusing};

/// Key files of the writer, the reader and a stranger, and a section for each.
pub(crate) fn settings(write_key: impl Fn(&str, &Path), dir: &Path) -> Settings {
    let mut text = String::from("[broken]\ngoogle_service_account = /nowhere/key.json\n");
    for (section, account) in [("writer", WRITER), ("reader", READER), ("stranger", "nobody@x")] {
        let key = dir.join(format!("{section}.json"));
        write_key(account, &key);
        text += &format!("[{section}]\ngoogle_service_account = {}\n", key.display());
    }
    let path = dir.join("credentials");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Settings { credentials_file: Some(path), retries_max: 2, ..Settings::default() }
}

pub(crate) fn open(settings: &Settings, endpoint: &str, bucket: &str, credentials: &str) -> Bucket {
    let url = format!("gs://{bucket}");
    let spec = LinkSpec::new(&url, Some(endpoint), None, Some(credentials)).unwrap();
    Bucket::open(&spec, settings).unwrap()
}

struct World {
    server: GoogleServer,
    settings: Settings,
    bucket: Bucket,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let (server, dir) = (GoogleServer::start().unwrap(), tempfile::tempdir().unwrap());
        let settings =
            settings(|account, path| server.write_key(account, path).unwrap(), dir.path());
        let bucket = open(&settings, &server.endpoint(), BUCKET, "writer");
        Self { server, settings, bucket, dir }
    }

    fn open(&self, credentials: &str) -> Bucket {
        open(&self.settings, &self.server.endpoint(), BUCKET, credentials)
    }

    fn temporary(&self) -> Vec<String> {
        let keys = self.server.keys().into_iter();
        keys.filter(|key| key.contains(".millrace-")).collect()
    }

    /// An upload of one part, which is `body`.
    async fn upload(&self, key: &str, body: &'static [u8]) -> (UploadId, UploadedPart) {
        let id = self.bucket.create_upload(key, &Metadata::default()).await.unwrap();
        let part = self.bucket.put_part(key, &id, 1, 0, vec![body.into()]).await.unwrap();
        (id, part)
    }
}

#[tokio::test]
async fn the_contract_holds_on_generations() {
    let world = World::new();
    contract::holds(&world.bucket, &world.open("writer"), "").await;
    contract::holds(&world.bucket, &world.open("writer"), "a b/c/").await;
    assert_eq!(world.temporary(), [""; 0]);
    assert_eq!(world.server.uploads(), 0);
    assert_eq!(world.bucket.counters().requests(RequestClass::Other), 0);
    for class in [RequestClass::List, RequestClass::Part, RequestClass::Upload, RequestClass::Put] {
        assert!(world.bucket.counters().requests(class) > 0, "{class:?}");
    }
}

#[tokio::test]
async fn a_large_directory_comes_in_pages() {
    let world = World::new();
    let puts = stream::iter(0..2_100).map(|at| {
        world.server.put(&format!("many/{at:06}"), b"");
        world.server.put(&format!("dirs/{at:06}/x"), b"");
    });
    puts.collect::<Vec<()>>().await;
    contract::pages(&world.bucket, "many/", 2_100).await;
    contract::pages(&world.bucket, "dirs/", 2_100).await;
    contract::begins_behind_names(&world.bucket, "many/", 2_100).await;
}

#[tokio::test]
async fn the_same_bytes_put_again_are_another_version() {
    let world = World::new();
    let old = world.server.put("key", b"the same").to_string();
    let tag = world.bucket.head("key").await.unwrap().version.tag;
    assert_eq!(tag.as_str(), old);
    world.server.put("key", b"the same");
    let read = world.bucket.get_range("key", 0..8, &tag).await;
    assert!(matches!(read, Err(Error::Changed { .. })), "{read:?}");
    let whole = world.bucket.get_whole("key", 8, &tag).await;
    assert!(matches!(whole, Err(Error::Changed { .. })), "{whole:?}");
    let condition = Condition::Matches(tag);
    let put = world.bucket.put_small("key", vec![], &Metadata::default(), &condition).await;
    assert!(matches!(put, Err(Error::Changed { .. })), "{put:?}");
    assert_eq!(&world.server.get("key").unwrap()[..], b"the same");
}

#[tokio::test]
async fn attributes_travel_under_googles_keys_and_fsxs() {
    let world = World::new();
    let by_google = [("goog-reserved-posix-mode", "640"), ("goog-reserved-posix-uid", "7")];
    world.server.put_with("by-google", b"x", &by_google);
    let head = world.bucket.head("by-google").await.unwrap();
    let read = PosixAttributes::from_metadata(&head.metadata);
    assert_eq!((read.mode, read.uid), (Some(0o640), Some(7)));
    let attributes = PosixAttributes { mode: Some(0o100_600), uid: Some(5), ..read };
    let metadata = attributes.to_metadata(Some("mark")).unwrap();
    let id = world.bucket.create_upload("by-parts", &metadata).await.unwrap();
    let part = world.bucket.put_part("by-parts", &id, 1, 0, vec!["x".into()]).await.unwrap();
    world.bucket.complete_upload("by-parts", &id, &[part], &Condition::Absent).await.unwrap();
    let told = |name| world.server.metadata("by-parts", name);
    assert_eq!(told("goog-reserved-posix-mode").as_deref(), Some("600"));
    assert_eq!(told("file-owner").as_deref(), Some("5"));
    assert_eq!(told("millrace-export-id").as_deref(), Some("mark"));
}

#[tokio::test]
async fn symbolic_links_of_googles_tools_are_known_and_ours_are_made_for_all_of_them() {
    let world = World::new();
    let mark = ("goog-reserved-file-is-symlink", "true");
    let target = ("gcsfuse_symlink_target", "step-100");
    for (key, body, metadata, expected) in [
        ("gcloud", "step-100", &[mark][..], StoredSymlink::Content),
        ("older-gcsfuse", "", &[target][..], StoredSymlink::Target("step-100")),
        ("newer-gcsfuse", "step-100", &[mark, target][..], StoredSymlink::Content),
    ] {
        world.server.put_with(key, body.as_bytes(), metadata);
        assert_eq!(world.bucket.head(key).await.unwrap().symlink(), Some(expected), "{key}");
    }
    let link = PosixAttributes { mode: Some(0o120_777), ..PosixAttributes::default() };
    let spec = LinkSpec::new("gs://data", None, None, None).unwrap();
    let metadata = link.to_metadata(Some("mark")).unwrap();
    let metadata = metadata.with_symlink_target(b"step-100", spec.location());
    let body = vec!["step-100".into()];
    world.bucket.put_small("ours", body, &metadata, &Condition::Absent).await.unwrap();
    for (name, value) in [mark, target, ("file-permissions", "0120777")] {
        assert_eq!(world.server.metadata("ours", name).as_deref(), Some(value));
    }
    let head = world.bucket.head("ours").await.unwrap();
    assert_eq!(head.symlink(), Some(StoredSymlink::Content));
}

#[tokio::test]
async fn the_mark_of_a_directory_that_has_bytes_is_left_out_and_stays() {
    let world = World::new();
    for (key, body) in [("dir/", "bytes"), ("dir/key", "x"), ("empty/", "")] {
        world.server.put(key, body.as_bytes());
    }
    let page = world.bucket.list_directory("dir/", None).await.unwrap();
    assert_eq!((page.entries.len(), page.skipped), (1, 1));
    let mark = LeftOut { key: "dir/".to_owned(), reason: LeftOutReason::MarkWithBytes };
    assert_eq!(page.left_out, [mark]);
    assert_eq!(world.bucket.list_directory("empty/", None).await.unwrap(), Page::default());
    assert!(!world.bucket.unmark_directory("dir/").await.unwrap());
    world.bucket.mark_directory("dir/", &Metadata::default()).await.unwrap();
    assert_eq!(&world.server.get("dir/").unwrap()[..], b"bytes");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_gone_on_with_and_never_mixed() {
    let world = World::new();
    let body = contract::pattern(usize::try_from(3 * MIB).unwrap(), 1);
    world.server.put("key", &body);
    let tag = world.bucket.head("key").await.unwrap().version.tag;
    world.server.once(Trouble::CutBody(1_000_000));
    world.server.once(Trouble::CutBody(1));
    assert!(contract::read(&world.bucket, "key", 10, 3 * MIB, &tag).await == body[10..]);
    assert_eq!(world.server.troubles_left(), 0);
    world.server.once(Trouble::CutBody(1_000_000));
    let mut read = world.bucket.get_range("key", 0..3 * MIB, &tag).await.unwrap();
    let first = read.try_next().await.unwrap().unwrap();
    assert!(first == body[..first.len()]);
    world.server.put("key", &contract::pattern(body.len(), 2));
    let rest: Result<Vec<_>, _> = read.try_collect().await;
    assert!(matches!(rest, Err(Error::Changed { .. })), "the first version's end is gone");
}

#[tokio::test]
async fn what_arrives_damaged_or_is_put_off_is_asked_for_again() {
    let world = World::new();
    world.server.put("key", b"hello");
    let tag = world.bucket.head("key").await.unwrap().version.tag;
    world.server.once(Trouble::DamagedBody);
    world.server.once(Trouble::SlowDown);
    assert_eq!(&world.bucket.get_whole("key", 5, &tag).await.unwrap()[..], b"hello");
    assert_eq!(world.server.troubles_left(), 0);
    world.server.once(Trouble::SlowDown);
    let none = Metadata::default();
    world.bucket.put_small("new", vec![], &none, &Condition::Absent).await.unwrap();
    for _ in 0..3 {
        world.server.once(Trouble::SlowDown);
    }
    let head = world.bucket.head("key").await;
    assert!(matches!(head, Err(Error::Busy { .. })), "{head:?}");
}

#[tokio::test]
async fn a_temporary_object_is_no_file_and_is_found_and_deleted() {
    let world = World::new();
    let (id, part) = world.upload("dir/key", b"parts").await;
    world.server.once(Trouble::RefusedDelete);
    let condition = Condition::Absent;
    world.bucket.complete_upload("dir/key", &id, &[part], &condition).await.unwrap();
    let left = world.temporary();
    assert_eq!(left.len(), 1, "it could not be deleted");
    let page = world.bucket.list_directory("dir/", None).await.unwrap();
    let names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!((names, page.skipped), (vec!["key".to_owned()], 0));
    let head = world.bucket.head(&left[0]).await;
    assert!(matches!(head, Err(Error::NotFound { .. })), "{head:?}");
    let put =
        world.bucket.put_small(&left[0], vec![], &Metadata::default(), &Condition::None).await;
    assert!(matches!(put, Err(Error::Invalid { .. })), "{put:?}");
    world.server.delete("dir/key");
    assert!(!world.bucket.has_below("dir/").await.unwrap());
    let found = world.bucket.list_uploads("dir/key").await.unwrap();
    assert_eq!(found.len(), 1);
    world.bucket.abort_upload("dir/key", &found[0]).await.unwrap();
    assert_eq!(world.temporary(), [""; 0]);
    // The id that was recorded when the upload began finds it, too.
    let (id, part) = world.upload("dir/key", b"parts").await;
    world.server.once(Trouble::RefusedDelete);
    world.bucket.complete_upload("dir/key", &id, &[part], &condition).await.unwrap();
    world.bucket.abort_upload("dir/key", &id).await.unwrap();
    assert_eq!(world.temporary(), [""; 0]);
    assert_eq!(&world.server.get("dir/key").unwrap()[..], b"parts");
}

#[tokio::test]
async fn a_publication_whose_answer_is_lost_is_unclear_and_leaves_nothing_behind() {
    let world = World::new();
    let (id, part) = world.upload("key", b"parts").await;
    world.server.once(Trouble::LostCopyAnswer);
    let done = world.bucket.complete_upload("key", &id, &[part], &Condition::Absent).await;
    assert!(done.as_ref().is_err_and(Error::is_unclear), "{done:?}");
    assert_eq!(&world.server.get("key").unwrap()[..], b"parts");
    world.bucket.abort_upload("key", &id).await.unwrap();
    assert_eq!(world.temporary(), [""; 0]);
    assert_eq!(&world.server.get("key").unwrap()[..], b"parts", "the object itself stays");
}

#[tokio::test]
async fn refusals_are_told_in_words() {
    let world = World::new();
    let all = Trial { read: true, write: true, delete: true, uploads: true };
    let untried = world.open("writer").try_out("some/where/", all).await.unwrap();
    assert_eq!(untried, [Untried::NothingToRead]);
    assert!(world.server.keys().is_empty() && world.server.uploads() == 0, "nothing is left");
    world.server.put("key", b"body");
    assert_eq!(world.open("writer").try_out("", all).await, Ok(Vec::new()));
    assert_eq!(world.server.keys(), ["key"]);
    let reader = world.open("reader");
    assert_eq!(reader.try_out("", Trial { read: true, ..Trial::default() }).await, Ok(Vec::new()));
    let error = reader.try_out("", Trial { write: false, ..all }).await.unwrap_err();
    assert!(error.to_string().contains("deleting needs storage.objects.delete"), "{error}");
    let refused = async |bucket: Bucket, write| bucket.check("", write).await.unwrap_err();
    for (error, word) in [
        (reader.check("", true).await.unwrap_err(), "refuses access"),
        (refused(world.open("stranger"), false).await, "does not accept the credentials"),
        (refused(world.open("anonymous"), false).await, "does not accept the credentials"),
    ] {
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let nowhere = open(&world.settings, &world.server.endpoint(), "nowhere", "writer");
    let error = refused(nowhere, false).await;
    assert!(matches!(error, Error::NoBucket { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    let (_socket, closed) = refusing();
    for (endpoint, word) in
        [(closed.as_str(), "connection refused"), ("http://no-such-host.invalid", "be resolved")]
    {
        let error = refused(open(&world.settings, endpoint, BUCKET, "writer"), false).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_server_without_tls_behind_https_and_a_silent_one_are_told_in_words() {
    let world = World::new();
    let https = world.server.endpoint().replace("http://", "https://");
    let error = open(&world.settings, &https, BUCKET, "writer").check("", false).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains(&https) && said.contains("write http:// in the endpoint"), "{said}");
    let settings = Settings { check_timeout: Duration::from_millis(300), ..world.settings };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    let error = open(&settings, &silent, BUCKET, "writer").check("", false).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
}

#[tokio::test]
async fn a_key_file_is_read_again_when_it_changes_and_is_never_told() {
    let world = World::new();
    let bucket = world.open("stranger");
    assert!(matches!(bucket.check("", false).await, Err(Error::Denied { .. })));
    world.server.write_key(WRITER, &world.dir.path().join("stranger.json")).unwrap();
    let begun = Instant::now();
    while let Err(error) = bucket.check("", false).await {
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(120), "the new key is never used");
    }
    let spec = |section| LinkSpec::new("gs://data", None, None, Some(section)).unwrap();
    let error = Bucket::open(&spec("broken"), &world.settings).unwrap_err().to_string();
    assert!(error.contains("/nowhere/key.json"), "{error}");
    let key = world.dir.path().join("reader.json");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = Bucket::open(&spec("reader"), &world.settings).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "{\"type\": \"service_account\", \"private_key\": hunter2}").unwrap();
    let error = Bucket::open(&spec("reader"), &world.settings).unwrap_err().to_string();
    assert!(error.contains("no key file") && !error.contains("hunter2"), "{error}");
}
