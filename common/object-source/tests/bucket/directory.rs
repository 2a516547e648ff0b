//! The contract on a directory, and what only a directory can do wrong.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use futures::TryStreamExt;
use millrace_object_source::{
    Bucket, Condition, Error, LeftOutReason, LinkSpec, Metadata, PartPlace, Settings, Tag, Trial,
    Untried,
};
use millrace_tests::disk::{BreakableDisk, SmallDisk};

use crate::contract;

fn open(root: &Path) -> Bucket {
    let url = format!("file://{}", root.display());
    let spec = LinkSpec::new(&url, None, None, None).unwrap();
    Bucket::open(&spec, &Settings::default()).unwrap()
}

#[tokio::test]
async fn the_contract_holds_in_a_directory() {
    let root = tempfile::tempdir().unwrap();
    contract::holds(&open(root.path()), &open(root.path()), "").await;
    contract::holds(&open(root.path()), &open(root.path()), "below/a prefix/").await;
}

#[tokio::test]
async fn a_large_directory_comes_in_pages() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("many")).unwrap();
    for at in 0..10_500 {
        fs::write(root.path().join(format!("many/{at:06}")), b"").unwrap();
    }
    contract::pages(&open(root.path()), "many/", 10_500).await;
}

#[tokio::test]
async fn links_special_files_and_unreadable_names_are_counted_and_never_followed() {
    use std::os::unix::ffi::OsStrExt;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("plain"), b"plain").unwrap();
    symlink(outside.path().join("secret"), root.path().join("link")).unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    fs::write(root.path().join(odd), b"").unwrap();
    let bucket = open(root.path());
    let page = bucket.list_directory("", None).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    assert_eq!(page.skipped, 3);
    let mut left_out: Vec<_> =
        page.left_out.iter().map(|out| (out.key.as_str(), out.reason)).collect();
    left_out.sort_by_key(|(key, _)| *key);
    let special = LeftOutReason::SpecialFile;
    let odd = ("odd\u{fffd}", LeftOutReason::NotUtf8);
    assert_eq!(left_out, [("link", special), odd, ("out", special)]);
    for key in ["link", "out/secret"] {
        assert!(bucket.head(key).await.is_err(), "{key}");
    }
    assert!(bucket.list_directory("out/", None).await.unwrap().entries.is_empty());
    let none = Metadata::default();
    let put = bucket.put_small("out/new", Vec::new(), &none, &Condition::None);
    assert!(put.await.is_err());
    assert!(!outside.path().join("new").exists());
}

#[tokio::test]
async fn a_file_of_an_uploads_name_is_an_upload_and_a_directory_of_it_is_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let [file, directory] = [".a.millrace-0123456789abcdef", ".b.millrace-0123456789abcdef"];
    fs::write(root.path().join(file), b"bytes").unwrap();
    fs::create_dir(root.path().join(directory)).unwrap();
    fs::write(root.path().join(directory).join("inner"), b"bytes").unwrap();
    let bucket = open(root.path());
    let page = bucket.list_directory("", None).await.unwrap();
    let names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!((names, page.skipped), (vec![directory.to_owned()], 0));
    let below = bucket.list_directory(&format!("{directory}/"), None).await.unwrap();
    assert_eq!(below.entries.len(), 1);
    // Whoever put it there: it is told as an upload to its name.
    let told = bucket.list_uploads_below("", None).await.unwrap().uploads;
    assert_eq!(told.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn a_file_that_changes_under_a_reader_is_an_error_and_no_mix() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("file");
    fs::write(&path, contract::pattern(3 << 20, 1)).unwrap();
    let bucket = open(root.path());
    let version = bucket.head("file").await.unwrap().version;
    let mut body = bucket.get_range("file", 0..version.size, &version.tag).await.unwrap();
    let first = body.try_next().await.unwrap().unwrap();
    assert_eq!(first, contract::pattern(3 << 20, 1)[..first.len()]);
    fs::write(&path, contract::pattern(4 << 20, 2)).unwrap();
    let result = body.try_next().await;
    assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
}

#[tokio::test]
async fn an_unfinished_upload_is_in_no_listing() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    let id = bucket.create_upload("a", &Metadata::default()).await.unwrap();
    assert!(bucket.list_directory("", None).await.unwrap().entries.is_empty());
    let part = bucket.put_part("a", &id, 1, 0, vec!["x".into()]).await.unwrap();
    let missing = millrace_object_source::UploadedPart { number: 2, ..part.clone() };
    let result = bucket.complete_upload("a", &id, &[part.clone(), missing], &Condition::None).await;
    assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
    bucket.complete_upload("a", &id, &[part], &Condition::None).await.unwrap();
    assert_eq!(bucket.list_directory("", None).await.unwrap().entries.len(), 1);
}

/// A file system takes bytes into memory and finds out later that they cannot be stored, as one on
/// a network does when a quota is used up. Who completes the upload may be elsewhere.
#[tokio::test]
async fn a_part_that_cannot_be_stored_after_all_is_an_error() {
    for is_streamed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let room = SmallDisk::mount(place.path().join("room"), "24m").unwrap();
        // The disk says that it is larger than what it is on.
        let (image, root) = (room.path().join("image"), place.path().join("root"));
        let disk = BreakableDisk::mount(image, root.clone(), 256 << 20).unwrap();
        let Some(_disk) = disk else { return };
        let bucket = open(&root);
        let upload = bucket.create_upload("key", &Metadata::default()).await.unwrap();
        let pieces = || (0..48).map(|seed| contract::pattern(1 << 20, seed));
        let read = || futures::stream::iter(pieces().map(Ok));
        let at = PartPlace { number: 1, offset: 0, len: 48 << 20 };
        let part = match is_streamed {
            false => bucket.put_part("key", &upload, 1, 0, pieces().collect()).await,
            true => bucket.put_part_streamed("key", &upload, at, read).await,
        };
        let is_lost = matches!(part, Err(Error::Unavailable { .. } | Error::NoSpace { .. }));
        assert!(is_lost, "{is_streamed}: {part:?}");
    }
}

#[tokio::test]
async fn a_missing_or_wrong_directory_is_told_in_words() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), b"").unwrap();
    open(root.path()).check("", true).await.unwrap();
    for (name, word) in [("missing", "does not exist"), ("file", "no directory")] {
        let error = open(&root.path().join(name)).check("", false).await.unwrap_err();
        assert!(matches!(error, Error::NoBucket { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn whether_files_can_be_read_is_tried_of_one_wherever_it_lies() {
    let root = tempfile::tempdir().unwrap();
    let bucket = open(root.path());
    let all = Trial { read: true, write: true, delete: true, uploads: true };
    assert_eq!(bucket.try_out("", all).await, Ok(vec![Untried::NothingToRead]));
    fs::create_dir_all(root.path().join("a/b")).unwrap();
    symlink("/etc/passwd", root.path().join("link")).unwrap();
    bucket.create_upload("key", &Metadata::default()).await.unwrap();
    assert_eq!(bucket.try_out("", all).await, Ok(vec![Untried::NothingToRead]), "no file yet");
    fs::write(root.path().join("a/b/empty"), b"").unwrap();
    assert_eq!(bucket.try_out("", all).await, Ok(Vec::new()));
}

/// A file system that is mounted at `root`: its directory is moved there and away again.
struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    fn new() -> Self {
        let mount = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(mount.root().join("sub")).unwrap();
        for name in ["one", "two", "sub/file"] {
            fs::write(mount.root().join(name), b"12345").unwrap();
        }
        mount
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn unmount(&self) {
        fs::rename(self.root(), self.dir.path().join("aside")).unwrap();
        fs::create_dir(self.root()).unwrap();
    }

    fn mount(&self) {
        fs::remove_dir_all(self.root()).unwrap();
        fs::rename(self.dir.path().join("aside"), self.root()).unwrap();
    }
}

async fn says_that_nothing_is_gone(bucket: &Bucket, tag: &Tag, word: &str) {
    let range = bucket.get_range("one", 0..5, tag).await.map(drop);
    let refusals = [
        bucket.look("one").await.map(drop),
        bucket.is_gone_below("sub/").await.map(drop),
        bucket.delete("one", tag).await,
        bucket.unmark_directory("sub/").await.map(drop),
        range,
    ];
    for (at, refused) in refusals.into_iter().enumerate() {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::NoBucket { .. }), "{at}: {error:?}");
        assert!(error.to_string().contains(word), "{at}: {error}");
    }
}

#[tokio::test]
async fn where_nothing_is_mounted_nothing_is_gone() {
    let mount = Mount::new();
    let bucket = open(&mount.root());
    let tag = bucket.look("one").await.unwrap().unwrap().version.tag;
    bucket.answers("sub/").await.unwrap();
    mount.unmount();
    says_that_nothing_is_gone(&bucket, &tag, "another directory").await;
    assert!(matches!(bucket.answers("").await, Err(Error::NoBucket { .. })), "it is away");
    // Nor if somebody has put something there, which is seen.
    fs::write(mount.root().join("stray"), b"").unwrap();
    assert!(bucket.look("stray").await.unwrap().is_some());
    says_that_nothing_is_gone(&bucket, &tag, "another directory").await;
    // And nothing is put where nobody would find it.
    let put = bucket.put_small("new", vec![], &Metadata::default(), &Condition::Absent).await;
    assert!(matches!(put, Err(Error::NoBucket { .. })), "{put:?}");
    assert!(matches!(
        bucket.mark_directory("dir/", &Metadata::default()).await,
        Err(Error::NoBucket { .. })
    ));
    mount.mount();
    bucket.answers("").await.unwrap();
    assert!(!bucket.is_gone_below("sub/").await.unwrap());
    fs::remove_file(mount.root().join("two")).unwrap();
    assert_eq!(bucket.look("two").await.unwrap(), None);
    // It may be emptied by those who see it.
    fs::remove_file(mount.root().join("one")).unwrap();
    fs::remove_dir_all(mount.root().join("sub")).unwrap();
    assert_eq!(bucket.look("one").await.unwrap(), None);
    assert!(bucket.is_gone_below("sub/").await.unwrap());
    let read = bucket.get_range("one", 0..5, &tag).await;
    assert!(matches!(read, Err(Error::NotFound { .. })), "{read:?}");
    bucket.delete("one", &tag).await.unwrap();
    assert!(bucket.unmark_directory("sub/").await.unwrap());
}

#[tokio::test]
async fn of_a_directory_that_was_not_seen_before_emptiness_says_nothing() {
    let mount = Mount::new();
    let tag = open(&mount.root()).head("one").await.unwrap().version.tag;
    mount.unmount();
    let bucket = open(&mount.root());
    bucket.check("", true).await.unwrap();
    says_that_nothing_is_gone(&bucket, &tag, "is empty").await;
    // What an upload left behind is nothing.
    bucket.create_upload("new", &Metadata::default()).await.unwrap();
    says_that_nothing_is_gone(&bucket, &tag, "is empty").await;
    assert!(bucket.list_directory("", None).await.unwrap().entries.is_empty());
    fs::write(mount.root().join("right"), b"").unwrap();
    assert_eq!(bucket.look("one").await.unwrap(), None);
    assert!(bucket.is_gone_below("sub/").await.unwrap());
}
