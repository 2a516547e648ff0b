//! Links are added only where every host reaches the bucket, and removed only without loss.

use millrace_protocol::{
    admin::{AddLink, RemoveLink},
    cluster::LinkMode,
};
use millrace_types::ErrorKind;

use super::server::{World, bucket_of};

#[tokio::test]
async fn a_bucket_that_is_not_there_is_refused_at_once_and_the_hosts_are_named() {
    let world = World::unlinked().await;
    let missing = world.object("nowhere");
    let request =
        AddLink { path: b"/x".to_vec(), bucket: bucket_of(&missing), mode: LinkMode::ReadOnly };
    let failure = world.hydration.add_link(&request).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::BucketUnavailable);
    for part in ["the metadata server", "target host storage1", "does not exist"] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
    assert!(world.find("/x").await.is_err(), "nothing was made");
    let mut bad = bucket_of(&missing);
    bad.url = "ftp://x".to_owned();
    let request = AddLink { path: b"/x".to_vec(), bucket: bad, mode: LinkMode::ReadOnly };
    let failure = world.hydration.add_link(&request).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_link_needs_an_empty_directory_of_its_own() {
    let world = World::new(LinkMode::ImportExport).await;
    let failure = world.link(LinkMode::ReadOnly).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    let links = world.hydration.list_links().await.unwrap();
    assert_eq!(links.len(), 1);
    assert_eq!(links[0].path, b"/data");
    world.make_directory("/full").await;
    world.write("/full/file", b"").await;
    let bucket = bucket_of(world.bucket_dir.path());
    let request = AddLink { path: b"/full".to_vec(), bucket, mode: LinkMode::ReadOnly };
    let failure = world.hydration.add_link(&request).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::NotEmpty);
    assert!(failure.message.contains("/full"), "{}", failure.message);
}

#[tokio::test]
async fn a_link_is_removed_with_its_names_but_not_while_files_are_dirty() {
    let world = World::new(LinkMode::ImportExport).await;
    let names = ["a/b/one", "a/two", "three"];
    for name in names {
        world.put(name, b"1");
    }
    for name in names {
        world.find(&format!("/data/{name}")).await.unwrap();
    }
    world.write("/data/a/new", b"1").await;
    let request = |discard| RemoveLink { path: b"/data".to_vec(), discard };
    let failure = world.hydration.remove_link(&request(false)).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    assert!(failure.message.contains("/data/a/new"), "{}", failure.message);
    world.export("/data/a/new").await;
    world.hydration.remove_link(&request(false)).await.unwrap();
    assert_eq!(world.find("/data").await.unwrap().size, 0);
    assert!(world.hydration.list_links().await.unwrap().is_empty());
    assert!(world.object("a/new").exists(), "the bucket stays as it is");
    let failure = world.hydration.remove_link(&request(false)).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::NotFound);
    world.link(LinkMode::ImportExport).await.unwrap();
    world.find("/data/a/b/one").await.unwrap();
    world.write("/data/lost", b"1").await;
    world.hydration.remove_link(&request(true)).await.unwrap();
    assert_eq!(world.find("/data").await.unwrap().size, 0);
}
