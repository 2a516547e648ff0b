//! The contract on Azure's Blob Storage, by Azurite, and what only its blocks can do wrong.

use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use futures::{StreamExt, stream};
use millrace_object_source::{
    Bucket, Condition, Error, HeldPart, LinkSpec, Metadata, PosixAttributes, RequestClass,
    Settings, Trial, Untried,
};
use millrace_tests::azurite::{ACCOUNT, Azurite, CONTAINER};

use crate::{contract, scripted::refusing};

fn settings(azurite: &Azurite, dir: &Path) -> Settings {
    let (key, name) = (azurite.key(), "azure_storage_account_name");
    let text = format!(
        "[writer]\n{name} = {ACCOUNT}\nazure_storage_account_key = {key}\n\
         [wrong-key]\n{name} = {ACCOUNT}\nazure_storage_account_key = Z3Vlc3M=\n\
         [no-key]\n{name} = {ACCOUNT}\n\
         [odd-key]\n{name} = {ACCOUNT}\nazure_storage_account_key = hunter2!\n"
    );
    let path = dir.join("credentials");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Settings { credentials_file: Some(path), retries_max: 2, ..Settings::default() }
}

fn open(settings: &Settings, endpoint: &str, container: &str, credentials: &str) -> Bucket {
    let url = format!("az://{container}");
    let spec = LinkSpec::new(&url, Some(endpoint), None, Some(credentials)).unwrap();
    Bucket::open(&spec, settings).unwrap()
}

/// One test for all, so that one server serves them: it takes seconds to start.
#[tokio::test]
async fn the_contract_holds_on_azure_and_refusals_are_told_in_words() {
    let (azurite, dir) = (Azurite::start().unwrap(), tempfile::tempdir().unwrap());
    let settings = settings(&azurite, dir.path());
    let writer = || open(&settings, &azurite.endpoint(), CONTAINER, "writer");
    let bucket = writer();
    contract::holds(&bucket, &writer(), "").await;
    contract::holds(&bucket, &writer(), "a b/c/").await;
    assert_eq!(bucket.counters().requests(RequestClass::Other), 0);
    many_keys(&bucket).await;
    metadata_is_there_under_other_names(&azurite, &bucket).await;
    marks_of_uploads_are_no_files(&bucket).await;
    uploads_to_one_key_do_not_mix(&bucket, &writer()).await;
    refusals(&settings, &azurite.endpoint()).await;
}

async fn many_keys(bucket: &Bucket) {
    let puts = stream::iter(0..5_100).map(|at| async move {
        let key = format!("many/{at:06}");
        let none = Metadata::default();
        bucket.put_small(&key, Vec::new(), &none, &Condition::None).await.unwrap();
    });
    puts.buffer_unordered(16).collect::<Vec<()>>().await;
    contract::pages(bucket, "many/", 5_100).await;
}

async fn metadata_is_there_under_other_names(azurite: &Azurite, bucket: &Bucket) {
    let attributes = PosixAttributes { mode: Some(0o100_640), uid: Some(7), ..Default::default() };
    let metadata = attributes.to_metadata(Some("mark")).unwrap();
    bucket.put_small("named", vec!["x".into()], &metadata, &Condition::Absent).await.unwrap();
    let told = azurite.ask("HEAD", "named", &[], &[], b"").unwrap().head;
    for line in ["x-ms-meta-file_permissions: 0100640", "x-ms-meta-goog_reserved_posix_uid: 7"] {
        assert!(told.contains(line), "{told}");
    }
    let digit = Metadata::new([("1st".to_owned(), "x".to_owned())]).unwrap();
    let put = bucket.put_small("digit", vec![], &digit, &Condition::None).await;
    assert!(matches!(put, Err(Error::Invalid { .. })), "{put:?}");
}

async fn marks_of_uploads_are_no_files(bucket: &Bucket) {
    let id = bucket.create_upload("begun/key", &Metadata::default()).await.unwrap();
    let page = bucket.list_directory("begun/", None).await.unwrap();
    assert!(page.entries.is_empty() && page.skipped == 0, "{page:?}");
    assert!(!bucket.has_below("begun/").await.unwrap());
    let mark = format!("begun/.key.millrace-{}", id.as_str());
    assert!(matches!(bucket.head(&mark).await, Err(Error::NotFound { .. })));
    let put = bucket.put_small(&mark, vec![], &Metadata::default(), &Condition::None).await;
    assert!(matches!(put, Err(Error::Invalid { .. })), "{put:?}");
    bucket.abort_upload("begun/key", &id).await.unwrap();
}

async fn uploads_to_one_key_do_not_mix(bucket: &Bucket, other: &Bucket) {
    let none = Metadata::default();
    let mut uploads = Vec::new();
    for (bucket, body) in [(bucket, "ours"), (other, "theirs")] {
        let id = bucket.create_upload("both", &none).await.unwrap();
        let part = bucket.put_part("both", &id, 1, 0, vec![body.into()]).await.unwrap();
        let held = HeldPart { part: part.clone(), digest: None };
        assert_eq!(bucket.list_parts("both", &id).await.unwrap(), [held]);
        uploads.push((id, part));
    }
    let (theirs, part) = uploads.remove(1);
    let tag = other.complete_upload("both", &theirs, &[part], &Condition::Absent).await.unwrap();
    assert_eq!(contract::read(bucket, "both", 0, 6, &tag).await, b"theirs");
    let (ours, part) = uploads.remove(0);
    let done = bucket.complete_upload("both", &ours, &[part], &Condition::Absent).await;
    assert!(matches!(done, Err(Error::Changed { .. } | Error::NoUpload { .. })), "{done:?}");
    bucket.abort_upload("both", &ours).await.unwrap();
    assert_eq!(contract::read(bucket, "both", 0, 6, &tag).await, b"theirs");
    assert!(bucket.list_uploads("both").await.unwrap().is_empty());
}

async fn refusals(settings: &Settings, endpoint: &str) {
    let writer = open(settings, endpoint, CONTAINER, "writer");
    let all = Trial { read: true, write: true, delete: true, uploads: true };
    assert_eq!(writer.try_out("some/where/", all).await, Ok(vec![Untried::NothingToRead]));
    assert_eq!(writer.try_out("", all).await, Ok(Vec::new()));
    let refused = async |container: &str, credentials: &str| {
        let bucket = open(settings, endpoint, container, credentials);
        bucket.check("", false).await.unwrap_err()
    };
    let error = refused(CONTAINER, "wrong-key").await;
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("check the key"), "{error}");
    let error = refused("nowhere", "writer").await;
    assert!(matches!(error, Error::NoBucket { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    let (_socket, closed) = refusing();
    let error = open(settings, &closed, CONTAINER, "writer").check("", false).await.unwrap_err();
    assert!(error.to_string().contains("connection refused"), "{error}");
    for (section, word) in [("no-key", "needs either"), ("odd-key", "no base64")] {
        let spec = LinkSpec::new("az://data", Some(endpoint), None, Some(section)).unwrap();
        let error = Bucket::open(&spec, settings).unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains("hunter2"), "{error}");
    }
    let spec = LinkSpec::new("az://data", Some(endpoint), None, Some("anonymous")).unwrap();
    let error = Bucket::open(&spec, settings).unwrap_err().to_string();
    assert!(error.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
}
