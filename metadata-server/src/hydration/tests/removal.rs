//! Links are added only where every host reaches the bucket, and removed only without loss.

use millrace_protocol::{
    admin::{AddLink, LinkStatus, RemoveLink},
    cluster::{Bucket, Link, LinkMode, Links},
    codec::{self, MESSAGE_LEN_MAX},
};
use millrace_types::{ErrorKind, LinkId};

use super::server::{World, bucket_of};
use crate::{
    command::{self, Command, Outcome},
    hydration::{
        environment::Environment as _,
        links::{LINKS_MAX, check_room},
    },
    namespace::ObjectState,
};

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

fn bucket_at(url: String) -> Bucket {
    Bucket { url, endpoint: None, region: None, credentials: None }
}

/// Binds a directory to a bucket that nobody tries, with a name that fills the list.
async fn link_long(world: &World, path: &str) -> LinkId {
    world.make_directory(path).await;
    let directory = world.find(path).await.unwrap().id;
    let bucket = bucket_at(format!("file:///{}", "x".repeat(60_000)));
    let mode = LinkMode::ReadOnly;
    let add = command::AddLink { directory, bucket, prefix: String::new(), mode };
    let added = world.server.execute(Command::AddLink(add), true).await.unwrap();
    let Outcome::Link(id) = added else { panic!("a link") };
    id
}

#[tokio::test]
async fn a_link_for_which_the_list_of_all_has_no_room_is_refused_before_anything_is_made() {
    let world = World::unlinked().await;
    for at in 0..13 {
        link_long(&world, &format!("/long{at}")).await;
    }
    world.link_at("/fits", LinkMode::ReadOnly).await.unwrap();
    let last = link_long(&world, "/last").await;
    let failure = world.link_at("/more", LinkMode::ReadOnly).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::NoSpace, "{failure}");
    assert!(world.find("/more").await.is_err(), "nothing was made");
    world.server.execute(Command::RemoveLink(last), true).await.unwrap();
    world.link_at("/more", LinkMode::ReadOnly).await.unwrap();
}

#[test]
fn the_most_links_fit_into_a_message_and_one_more_is_refused() {
    let bucket = bucket_at("s3://b".to_owned());
    let (path, mode) = (b"/data".to_vec(), LinkMode::ReadOnly);
    let request = AddLink { path: path.clone(), bucket: bucket.clone(), mode };
    let link = |id| LinkStatus { id: LinkId(id), path: path.clone(), bucket: bucket.clone(), mode };
    let mut links: Vec<_> = (0..).map(link).take(LINKS_MAX - 1).collect();
    check_room(links.clone(), &request).unwrap();
    links.push(link(u32::MAX));
    let failure = check_room(links.clone(), &request).unwrap_err();
    assert_eq!(failure.kind, ErrorKind::NoSpace, "{failure}");
    let links =
        links.into_iter().map(|LinkStatus { id, bucket, mode, .. }| Link { id, bucket, mode });
    let len = codec::encode(&Links { version: 1, links: links.collect() }).len();
    assert!(len <= MESSAGE_LEN_MAX, "{len} bytes");
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
    assert!(failure.message.contains("--discard"), "{}", failure.message);
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

#[tokio::test]
async fn a_link_is_not_removed_while_a_file_has_another_name_than_its_object() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("latest", b"before");
    world.find("/data/latest").await.unwrap();
    let rename = world.renaming("/data/latest", "/data/old").await;
    world.server.execute(rename, false).await.unwrap();
    assert_eq!(world.state("/data/old").await, ObjectState::Clean, "as it was imported");
    let request = RemoveLink { path: b"/data".to_vec(), discard: false };
    let failure = world.hydration.remove_link(&request).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    for part in ["1 files", "renamed", "/data/old", "--discard"] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
    // One that has begun, and was interrupted, goes on: nothing below it has a key any more.
    let link = world.hydration.list_links().await.unwrap()[0].id;
    world.server.execute(Command::BeginLinkRemoval(link), true).await.unwrap();
    world.hydration.remove_link(&request).await.unwrap();
    assert_eq!(world.find("/data").await.unwrap().size, 0);
}
