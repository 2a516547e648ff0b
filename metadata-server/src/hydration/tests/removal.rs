//! Links are added only where every host reaches the bucket, and removed only without loss.

use millrace_protocol::{
    admin::{AddLink, JobKind, JobState, LinkStatus, Removal, RemoveLink},
    cluster::{Bucket, Link, LinkMode, Links},
    codec::{self, MESSAGE_LEN_MAX},
    metadata::NewNode,
};
use millrace_types::{ErrorKind, FileName, InodeId, LinkId};

use super::server::{ROOT, World, bucket_of, writing};
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
    // Nor does it go when the removal has begun: it may have been renamed behind the first look,
    // and another file been exported to its key.
    let link = world.hydration.list_links().await.unwrap()[0].id;
    world.server.execute(Command::BeginLinkRemoval(link), true).await.unwrap();
    let failure = world.hydration.remove_link(&request).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    for part in ["/data/old", "renamed since", "--discard"] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
    world.find("/data/old").await.unwrap();
    world.hydration.remove_link(&RemoveLink { discard: true, ..request }).await.unwrap();
    assert_eq!(world.find("/data").await.unwrap().size, 0);
}

/// What makes a name in a directory, and the inode that it leads to.
async fn making(world: &World, parent: InodeId, name: &[u8], node: NewNode) -> (Command, InodeId) {
    let inode = world.server.reserve_inodes(1).await.unwrap()[0];
    let create = command::Create {
        caller: ROOT,
        parent,
        name: FileName::parse(name).unwrap(),
        node,
        mode: 0o755,
        inode,
        seed: 0,
        open: None,
        exclusive: true,
    };
    (Command::Create(create), inode)
}

async fn make(world: &World, parent: InodeId, name: &[u8], node: NewNode) -> InodeId {
    let (create, inode) = making(world, parent, name, node).await;
    world.server.execute(create, false).await.unwrap();
    inode
}

/// `/data` with a directory that is empty, and whose removal has begun.
async fn going() -> (World, InodeId) {
    let world = World::new(LinkMode::ImportExport).await;
    let directory = world.make_directory("/data/a").await;
    let link = world.hydration.list_links().await.unwrap()[0].id;
    world.server.execute(Command::BeginLinkRemoval(link), true).await.unwrap();
    (world, directory)
}

async fn remove(world: &World, discard: bool) -> Result<(), millrace_types::Failure> {
    let request = RemoveLink { path: b"/data".to_vec(), discard };
    world.hydration.remove_link(&request).await
}

async fn assert_gone(world: &World) {
    assert!(world.hydration.list_links().await.unwrap().is_empty());
    assert_eq!(world.find("/data").await.unwrap().size, 0);
}

#[tokio::test]
async fn a_link_is_removed_with_names_that_no_key_can_have_and_all_below_them() {
    let world = World::new(LinkMode::ImportExport).await;
    let top = world.find("/data").await.unwrap().id;
    let odd = make(&world, top, b"\xff", NewNode::Directory).await;
    make(&world, odd, b"file", NewNode::Regular).await;
    let below = make(&world, odd, b"below", NewNode::Directory).await;
    // More than are looked at at once.
    for at in 0..70 {
        make(&world, below, format!("{at}").as_bytes(), NewNode::Regular).await;
    }
    let failure = remove(&world, false).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    assert!(failure.message.contains("71 files"), "{}", failure.message);
    remove(&world, true).await.unwrap();
    assert_gone(&world).await;
}

#[tokio::test]
async fn another_link_below_a_name_that_no_key_can_have_is_to_be_removed_first() {
    let world = World::new(LinkMode::ImportExport).await;
    let top = world.find("/data").await.unwrap().id;
    let odd = make(&world, top, b"\xff", NewNode::Directory).await;
    let inner = make(&world, odd, b"inner", NewNode::Directory).await;
    let bucket = bucket_of(world.bucket_dir.path());
    let mode = LinkMode::ReadOnly;
    let add = command::AddLink { directory: inner, bucket, prefix: String::new(), mode };
    world.server.execute(Command::AddLink(add), true).await.unwrap();
    let failure = remove(&world, true).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    assert!(failure.message.contains(r"/data/\xff/inner"), "{}", failure.message);
    let request = RemoveLink { path: b"/data/\xff/inner".to_vec(), discard: true };
    world.hydration.remove_link(&request).await.unwrap();
    remove(&world, true).await.unwrap();
    assert_gone(&world).await;
}

#[tokio::test]
async fn a_removal_that_was_interrupted_goes_on_after_a_restart_by_itself() {
    let mut world = World::new(LinkMode::ImportExport).await;
    for name in ["a/one", "a/b/two", "three"] {
        world.put(name, b"1");
    }
    let job = world.job(JobKind::Import, "/data").await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    let link = world.hydration.list_links().await.unwrap()[0].id;
    world.server.execute(Command::BeginLinkRemoval(link), true).await.unwrap();
    world.restart();
    run_to_its_end(&world).await;
    assert!(world.object("a/one").exists(), "the bucket stays as it is");
}

/// Runs what goes by itself until no link is left.
async fn run_to_its_end(world: &World) {
    let gone = world.run_beside(async {
        while !world.hydration.list_links().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    });
    gone.await;
    assert_gone(world).await;
}

#[tokio::test]
async fn a_removal_that_gives_files_up_goes_on_with_that_after_a_restart() {
    let mut world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/a").await;
    world.write("/data/a/new", b"1").await;
    let link = world.hydration.list_links().await.unwrap()[0].id;
    assert!(world.hydration.list_removals().await.unwrap().is_empty());
    world.server.troubles.pressed.send_replace(true);
    // It has begun by the time it is held up.
    tokio::select! {
        ended = remove(&world, true) => panic!("nothing holds it up: {ended:?}"),
        () = world.server.troubles.held_up.notified() => {}
    }
    world.server.troubles.pressed.send_replace(false);
    world.restart();
    world.find("/data/a/new").await.unwrap();
    let told = world.hydration.list_removals().await.unwrap();
    assert_eq!(told, [Removal { link, discard: true }]);
    run_to_its_end(&world).await;
}

#[tokio::test]
async fn who_is_at_work_on_a_removal_gives_up_what_somebody_gives_up_meanwhile() {
    let (world, _) = going().await;
    world.write("/data/a/new", b"1").await;
    let is_given_up = async || world.hydration.list_removals().await.unwrap()[0].discard;
    assert!(!is_given_up().await);
    let troubles = &world.server.troubles;
    troubles.pressed.send_replace(true);
    let let_on = async {
        troubles.held_up.notified().await;
        while !is_given_up().await {
            tokio::task::yield_now().await;
        }
        troubles.pressed.send_replace(false);
    };
    let ends = tokio::join!(remove(&world, false), remove(&world, true), let_on);
    assert_eq!(ends, (Ok(()), Ok(()), ()));
    assert_gone(&world).await;
}

#[tokio::test]
async fn what_is_written_while_a_link_is_being_removed_is_named_and_stays_unless_given_up() {
    let (world, _) = going().await;
    let file = world.write("/data/a/new", b"1").await;
    for _ in 0..2 {
        let failure = remove(&world, false).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::InUse);
        for part in ["/data/a/new", "copy it out", "--discard"] {
            assert!(failure.message.contains(part), "{}", failure.message);
        }
    }
    assert_eq!(world.find("/data/a/new").await.unwrap().id, file);
    remove(&world, true).await.unwrap();
    assert_gone(&world).await;
}

#[tokio::test]
async fn a_name_that_is_made_between_a_look_and_what_it_led_to_does_not_end_a_removal() {
    let (world, directory) = going().await;
    let (late, _) = making(&world, directory, b"late", NewNode::Regular).await;
    world.server.troubles.before_forgotten.lock().unwrap().push(late);
    remove(&world, true).await.unwrap();
    assert_gone(&world).await;

    let (world, directory) = going().await;
    let (late, _) = making(&world, directory, b"late", NewNode::Regular).await;
    world.server.troubles.before_forgotten.lock().unwrap().push(late);
    let failure = remove(&world, false).await.unwrap_err();
    assert!(failure.message.contains("/data/a/late"), "{}", failure.message);
    world.find("/data/a/late").await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_written_or_replaced_between_a_look_and_what_it_led_to_stays() {
    for is_replaced in [false, true] {
        let world = World::new(LinkMode::ImportExport).await;
        world.put("file", b"1");
        let file = world.find("/data/file").await.unwrap().id;
        let meanwhile = if is_replaced {
            let top = world.find("/data").await.unwrap().id;
            let (create, _) = making(&world, top, b"new", NewNode::Regular).await;
            vec![create, world.renaming("/data/new", "/data/file").await]
        } else {
            writing(file).to_vec()
        };
        *world.server.troubles.before_forgotten.lock().unwrap() = meanwhile;
        let failure = remove(&world, false).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::InUse);
        assert!(failure.message.contains("/data/file"), "{}", failure.message);
        let left = world.find("/data/file").await.unwrap().id;
        assert_eq!(left == file, !is_replaced);
        remove(&world, true).await.unwrap();
        assert_gone(&world).await;
    }
}

#[tokio::test]
async fn a_file_of_several_names_goes_with_its_link_although_its_first_name_goes_before() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("a/first", b"1");
    let file = world.find("/data/a/first").await.unwrap().id;
    world.make_directory("/data/b").await;
    world.hard_link(file, "/data/b", "second").await;
    remove(&world, false).await.unwrap();
    assert_gone(&world).await;
}

#[tokio::test]
async fn a_removal_that_takes_long_keeps_no_other_waiting() {
    let mut world = World::new(LinkMode::ImportExport).await;
    world.link_at("/other", LinkMode::ImportExport).await.unwrap();
    let mut path = "/data".to_owned();
    for _ in 0..20 {
        path.push_str("/a");
        world.make_directory(&path).await;
    }
    world.make_directory("/other/a").await;
    for link in world.hydration.list_links().await.unwrap() {
        world.server.execute(Command::BeginLinkRemoval(link.id), true).await.unwrap();
    }
    world.restart();
    let troubles = &world.server.troubles;
    troubles.pressed.send_replace(true);
    let left = world.run_beside(async {
        let left = loop {
            let links = world.hydration.list_links().await.unwrap();
            if links.len() < 2 {
                break links;
            }
            // One step of the one that has waited longest.
            troubles.let_on.notify_one();
            tokio::task::yield_now().await;
        };
        troubles.pressed.send_replace(false);
        while !world.hydration.list_links().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        left
    });
    assert_eq!(left.await[0].path, b"/data", "the other one had less to remove");
    assert_gone(&world).await;
}

#[tokio::test]
async fn two_who_remove_a_link_at_a_time_both_hear_of_its_end() {
    let (world, _) = going().await;
    let troubles = &world.server.troubles;
    troubles.pressed.send_replace(true);
    // The first one has begun by then, and the other waits for it.
    let let_on = async {
        troubles.held_up.notified().await;
        troubles.pressed.send_replace(false);
    };
    let ends = tokio::join!(remove(&world, false), remove(&world, true), let_on);
    assert_eq!(ends, (Ok(()), Ok(()), ()));
    assert_gone(&world).await;
}

#[tokio::test]
async fn a_directory_that_was_never_listed_does_not_look_empty_while_its_link_goes() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("one", b"1");
    let link = world.hydration.list_links().await.unwrap()[0].id;
    world.server.execute(Command::BeginLinkRemoval(link), true).await.unwrap();
    let top = world.find("/data").await.unwrap().id;
    let failure = world.hydration.before_list(top, 0).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    assert!(failure.message.contains("being removed"), "{}", failure.message);
    let name = FileName::parse(b"one").unwrap();
    let failure = world.hydration.before_lookup(top, &name).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    remove(&world, false).await.unwrap();
    assert_gone(&world).await;
}
