//! Walks over wide and deep trees leave nothing out, or say so.

use std::collections::BTreeSet;

use millrace_protocol::{
    admin::{JobKind, JobState, RemoveLink, StartJob},
    cluster::LinkMode,
    metadata::NewNode,
    selection::{Selection, StartSelected},
};
use millrace_types::{ErrorKind, FileName, InodeId};

use super::server::{ROOT, World};
use crate::{
    command::{self, Command},
    hydration::{
        Environment,
        walk::{Unlisted, Walk},
    },
};

impl World {
    /// Makes directories in another one, whose names are numbers.
    async fn make_directories(&self, parent: InodeId, count: usize) -> Vec<InodeId> {
        let inodes = self.server.reserve_inodes(count).await.unwrap();
        for (at, inode) in inodes.iter().enumerate() {
            let create = command::Create {
                caller: ROOT,
                parent,
                name: FileName::parse(format!("{at:03}").as_bytes()).unwrap(),
                node: NewNode::Directory,
                mode: 0o755,
                inode: *inode,
                seed: 0,
                open: None,
                exclusive: true,
            };
            self.server.execute(Command::Create(create), false).await.unwrap();
        }
        inodes
    }
}

#[tokio::test]
async fn what_lies_deep_below_directories_with_many_others_is_found() {
    const LEVELS: usize = 20;
    let world = World::new(LinkMode::ImportExport).await;
    let mut at = world.make_directory("/data/top").await;
    // Of each page the first one goes on down, and all the others wait.
    for _ in 0..LEVELS {
        at = world.make_directories(at, 256).await[0];
    }
    let path = format!("/data/top{}/file", "/000".repeat(LEVELS));
    world.write(&path, b"new").await;
    let start = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data/top".to_vec() };
    let request = StartSelected { start, selection: Selection::default(), dry_run: true };
    let id = world.hydration.start_selected(b"", &request).await.unwrap().id;
    let job = world.run_until(|job| job.id == id && job.state.is_final()).await;
    assert_eq!((job.state, job.files_total), (JobState::Succeeded, 1), "{:?}", job.failures);
    let request = RemoveLink { path: b"/data".to_vec(), discard: false };
    let refused = world.hydration.remove_link(&request).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InUse);
    assert!(refused.message.contains(&path), "{refused}");
}

#[tokio::test]
async fn directories_that_lie_too_deep_are_failures_and_the_walk_goes_on_behind_them() {
    let world = World::unlinked().await;
    let top = world.make_directory("/top").await;
    let first = world.make_directories(top, 2).await;
    let mut second = world.make_directories(first[0], 2).await;
    world.make_directories(second[0], 1).await;
    second.extend(world.make_directories(first[1], 1).await);
    let mut walk = Walk::new(top, Unlisted::Leave).at_most(2);
    let (mut found, mut failed) = (BTreeSet::new(), Vec::new());
    loop {
        match walk.next(&*world.server, &world.hydration.importer).await {
            Ok(Some(page)) => found.extend(page.into_iter().map(|inode| inode.id)),
            Ok(None) => break,
            Err((directory, failure)) => {
                assert_eq!(failure.kind, ErrorKind::NotSupported);
                let words = format!("{} lies 2 levels down", directory.0);
                assert!(failure.message.contains(&words), "{failure}");
                failed.push((directory, walk.branch().cloned()));
            }
        }
    }
    let everything: BTreeSet<_> = [top].into_iter().chain(first).chain(second.clone()).collect();
    assert_eq!(found, everything, "they themselves are there");
    let branch = |name: &[u8]| Some(FileName::parse(name).unwrap());
    let branches = [branch(b"000"), branch(b"000"), branch(b"001")];
    assert_eq!(failed, second.into_iter().zip(branches).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_walk_knows_in_which_directory_its_next_step_is() {
    let world = World::unlinked().await;
    let top = world.make_directory("/top").await;
    for directory in world.make_directories(top, 3).await {
        world.make_directories(directory, 2).await;
    }
    let mut walk = Walk::new(top, Unlisted::Leave);
    let (mut at, mut found) = (walk.at(), 0);
    while let Some(page) = walk.next(&*world.server, &world.hydration.importer).await.unwrap() {
        for inode in page.iter().filter(|inode| inode.id != top) {
            assert_eq!(inode.parent.as_ref().map(|parent| parent.directory), Some(at));
            found += 1;
        }
        at = walk.at();
    }
    assert_eq!(found, 3 + 3 * 2);
}
