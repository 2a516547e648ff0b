//! What hid the names of a directory goes behind it.

use std::ops::Bound;

use millrace_protocol::cluster::LinkMode;
use millrace_types::InodeId;

use super::{
    moved::{list, names, remove},
    server::World,
};
use crate::{
    command::BATCH_MAX,
    hydration::Environment,
    store::{View, borrow, keys, prefix_end},
};

/// Records of a directory's whiteouts.
async fn left(world: &World, directory: InodeId) -> usize {
    let count = move |view: &dyn View| {
        let tables = [keys::whiteouts(directory), keys::moved_files(directory)];
        let found = tables.map(|table| {
            let end = prefix_end(&table);
            view.scan(Bound::Included(&table), borrow(&end), usize::MAX).unwrap().len()
        });
        Ok(found.iter().sum::<usize>())
    };
    world.server.read(count).await.unwrap()
}

#[tokio::test]
async fn what_hid_the_names_of_a_removed_directory_goes_behind_it_also_after_a_restart() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let files = BATCH_MAX * 3 / 5;
    for number in 0..files {
        world.put(&format!("sub/{number:04}"), b"1");
    }
    let directory = list(&world, "/data/sub").await;
    for number in 0..files {
        remove(&world, &format!("/data/sub/{number:04}"), false).await;
    }
    remove(&world, "/data/sub", true).await;
    assert_eq!(left(&world, directory).await, 2 * files);
    world.restart();
    world
        .run_beside(async {
            while left(&world, directory).await > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    list(&world, "/data").await;
    assert!(names(&world, "/data").await.is_empty(), "it stays removed");
}
