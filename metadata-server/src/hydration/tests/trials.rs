//! What an operator is told who asks whether hosts can use the bucket of a link.

use std::{fs, sync::atomic::Ordering};

use millrace_protocol::{
    bucket::{SetDeletePropagation, TryLink, TryLinkReply},
    cluster::LinkMode,
};
use millrace_types::ErrorKind;

use super::server::World;

impl World {
    async fn try_link(&self) -> TryLinkReply {
        let request = TryLink { path: b"/data".to_vec() };
        let reply = self.hydration.try_link(&request).await.unwrap();
        let hosts: Vec<_> = reply.hosts.iter().map(|tried| tried.host.as_str()).collect();
        assert_eq!(hosts, ["the metadata server", "target host storage1"]);
        reply
    }

    /// Whether each host tried to delete.
    async fn may_delete(&self) -> Vec<bool> {
        let hosts = self.try_link().await.hosts.into_iter();
        hosts.map(|tried| tried.result.unwrap().deletes).collect()
    }

    /// What each host could not try.
    async fn untried(&self) -> Vec<Vec<String>> {
        let hosts = self.try_link().await.hosts.into_iter();
        hosts.map(|tried| tried.result.unwrap().untried).collect()
    }
}

#[tokio::test]
async fn whether_a_bucket_can_be_read_is_tried_where_there_is_something_to_read() {
    let world = World::new(LinkMode::ReadOnly).await;
    let nothing = "reading was not tried: nothing there to read";
    assert_eq!(world.untried().await, [[nothing]; 2]);
    world.put("sub/file", b"12345");
    assert!(world.untried().await.iter().all(Vec::is_empty));
    // Daemons from before reading was tried say as much as they can.
    world.server.troubles.are_older.store(true, Ordering::Relaxed);
    let untried = world.untried().await;
    assert!(untried[0].is_empty() && untried[1][0].contains("upgrade"), "{untried:?}");
    fs::remove_dir_all(world.bucket_dir.path()).unwrap();
    for tried in world.try_link().await.hosts {
        assert_eq!(tried.result.unwrap_err().kind, ErrorKind::BucketUnavailable, "{}", tried.host);
    }
}

#[tokio::test]
async fn what_a_link_is_for_is_what_is_tried_of_its_bucket() {
    let world = World::new(LinkMode::ReadOnly).await;
    assert_eq!(world.try_link().await.mode, LinkMode::ReadOnly);
    let world = World::new(LinkMode::ImportExport).await;
    assert_eq!(world.try_link().await.mode, LinkMode::ImportExport);
    assert_eq!(world.may_delete().await, [false, false]);
    let on = SetDeletePropagation { path: b"/data".to_vec(), on: true };
    world.hydration.set_delete_propagation(&on).await.unwrap();
    assert_eq!(world.may_delete().await, [true, false], "only the server deletes");
}
