//! Directories have the times of their marks.

use std::{fs, time::Duration};

use millrace_protocol::{
    admin::{AttributeSource, JobKind, SetLinkOptions},
    cluster::LinkMode,
};
use millrace_types::{InodeId, Timestamp};

use super::server::{ROOT, World};
use crate::{
    command::{Command, SetAttributes, SetTime},
    hydration::Environment as _,
};

const PAST: Timestamp = Timestamp(1_234_567_007);

impl World {
    async fn modified(&self, path: &str) -> Timestamp {
        self.find(path).await.unwrap().modified
    }

    async fn set_attributes(&self, inode: InodeId, set: SetAttributes) {
        let set = SetAttributes { inode, caller: Some(ROOT), ..set };
        self.server.execute(Command::SetAttributes(set), false).await.unwrap();
    }

    /// A bucket with an empty directory and one with a file, both with marks, and `/again` where
    /// all of it comes back.
    async fn with_marks() -> Self {
        let world = Self::new(LinkMode::ImportExport).await;
        world.server.pass(Duration::from_secs(3600));
        let modified = Some(SetTime::At(PAST));
        for (name, mode) in [("empty", 0o755), ("private", 0o700)] {
            let inode = world.make_directory(&format!("/data/{name}")).await;
            if mode == 0o700 {
                world.write("/data/private/model", b"weights").await;
            }
            let set = SetAttributes { mode: Some(mode), modified, ..Default::default() };
            world.set_attributes(inode, set).await;
        }
        world.export("/data").await;
        world.link_at("/again", LinkMode::Import).await.unwrap();
        let request = SetLinkOptions {
            path: b"/again".to_vec(),
            refresh_seconds: Some(0),
            attributes: Some(AttributeSource::Objects),
        };
        world.hydration.set_link_options(&request).await.unwrap();
        world
    }
}

#[tokio::test]
async fn an_imported_directory_has_the_time_of_its_mark_whatever_comes_into_it_from_the_bucket() {
    for is_looked_up_first in [true, false] {
        let world = World::with_marks().await;
        if is_looked_up_first {
            assert_eq!(world.modified("/again/private").await, PAST);
        }
        world.job(JobKind::Import, "/again").await;
        for path in ["/again/empty", "/again/private"] {
            assert_eq!(world.modified(path).await, PAST, "{path}");
        }
        assert_eq!(world.find("/again/private/model").await.unwrap().size, 7);
        world.put("private/more", b"new");
        world.job(JobKind::Import, "/again").await;
        assert_eq!(world.find("/again/private/more").await.unwrap().size, 3);
        assert_eq!(world.modified("/again/private").await, PAST, "it changed in the bucket");
        world.write("/again/private/made", b"here").await;
        assert!(world.modified("/again/private").await > PAST, "and here");
    }
}

#[tokio::test]
async fn a_directory_with_the_time_of_its_mark_goes_with_its_bucket_unless_it_was_changed_here() {
    let world = World::with_marks().await;
    world.job(JobKind::Import, "/again").await;
    let kept = world.find("/again/empty").await.unwrap().id;
    let mode = Some(0o711);
    world.set_attributes(kept, SetAttributes { mode, ..Default::default() }).await;
    for key in ["empty", "private"] {
        fs::remove_dir_all(world.object(key)).unwrap();
    }
    world.put("other", b"so that it is no bucket that is away");
    world.job(JobKind::Import, "/again").await;
    assert!(world.find("/again/private").await.is_err(), "all of it came from the bucket");
    assert_eq!(world.find("/again/empty").await.unwrap().mode, 0o711);
}
