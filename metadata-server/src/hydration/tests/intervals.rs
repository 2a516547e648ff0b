//! Links that are listed again by themselves.

use std::time::Duration;

use millrace_protocol::{
    cluster::LinkMode,
    refresh::{REFRESH_INTERVAL_SECONDS_MAX, RefreshInterval, SetRefreshInterval},
};
use millrace_types::{ErrorKind, InodeId};

use super::server::World;
use crate::{
    hydration::Environment,
    namespace::{Body, tree},
};

const EVERY: Duration = Duration::from_secs(60);

async fn set(world: &World, every_seconds: Option<u32>) -> Vec<RefreshInterval> {
    let request = SetRefreshInterval { path: b"/data".to_vec(), every_seconds };
    world.hydration.set_refresh_interval(&request).await.unwrap()
}

/// Lists a directory, as a look into it does.
async fn list(world: &World, path: &str) -> InodeId {
    let id = world.find(path).await.unwrap().id;
    world.hydration.importer.whole(id).await.unwrap();
    id
}

/// Whether the tree has this name, without asking the bucket.
async fn has(world: &World, path: &str) -> bool {
    let path = path.to_owned();
    let query = move |view: &dyn crate::store::View| {
        Ok(tree::resolve(view, InodeId::ROOT, path.as_bytes()).is_ok())
    };
    world.server.read(query).await.unwrap()
}

/// Runs everything that goes by itself until so many rounds have ended.
async fn rounds(world: &World, directories: u64) {
    let done = async {
        loop {
            let all = world.hydration.list_refresh_intervals().await.unwrap();
            let one = &all[0];
            if one.directories >= directories && !one.running && one.ended.is_some() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(done).await;
}

#[tokio::test]
async fn listed_directories_are_listed_again_by_themselves_and_others_are_not() {
    let world = World::new(LinkMode::ReadOnly).await;
    for key in ["a/one", "a/deep/one", "never/one"] {
        world.put(key, b"1");
    }
    for path in ["/data", "/data/a", "/data/a/deep"] {
        list(&world, path).await;
    }
    assert_eq!(set(&world, Some(60)).await.len(), 1);
    for key in ["two", "a/two", "a/deep/two", "never/two"] {
        world.put(key, b"2");
    }
    rounds(&world, 0).await;
    assert!(!has(&world, "/data/two").await, "what was listed a moment ago is left alone");
    world.server.pass(EVERY);
    rounds(&world, 3).await;
    for path in ["/data/two", "/data/a/two", "/data/a/deep/two"] {
        assert!(has(&world, path).await, "{path}");
    }
    let never = world.find("/data/never").await.unwrap();
    let Body::Directory(body) = &never.body else { panic!("a directory") };
    assert_eq!(body.linked.as_ref().unwrap().listed, None);
    let told = &world.hydration.list_refresh_intervals().await.unwrap()[0];
    assert_eq!((told.every_seconds, told.directories, told.failed), (60, 3, 0));
}

#[tokio::test]
async fn a_bucket_that_is_away_is_told_and_the_next_round_goes_on() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("one", b"1");
    list(&world, "/data").await;
    set(&world, Some(60)).await;
    let away = world.bucket_dir.path().with_extension("away");
    std::fs::rename(world.bucket_dir.path(), &away).unwrap();
    world.server.pass(EVERY);
    rounds(&world, 0).await;
    let told = &world.hydration.list_refresh_intervals().await.unwrap()[0];
    assert_eq!((told.directories, told.failed), (0, 1));
    assert!(told.failure.is_some() && has(&world, "/data/one").await);
    std::fs::rename(&away, world.bucket_dir.path()).unwrap();
    world.put("two", b"2");
    world.server.pass(EVERY);
    rounds(&world, 1).await;
    assert!(has(&world, "/data/two").await);
}

#[tokio::test]
async fn an_interval_has_limits_and_ends_with_its_link() {
    let world = World::new(LinkMode::ReadOnly).await;
    for bad in [0, 9, REFRESH_INTERVAL_SECONDS_MAX + 1] {
        let request = SetRefreshInterval { path: b"/data".to_vec(), every_seconds: Some(bad) };
        let refused = world.hydration.set_refresh_interval(&request).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{bad}");
    }
    assert_eq!(set(&world, Some(10)).await.len(), 1);
    assert!(set(&world, None).await.is_empty());
    set(&world, Some(10)).await;
    let remove = millrace_protocol::admin::RemoveLink { path: b"/data".to_vec(), discard: false };
    world.hydration.remove_link(&remove).await.unwrap();
    assert!(world.hydration.list_refresh_intervals().await.unwrap().is_empty());
}
