//! Files that are fetched before anybody asks for them, because of others that readers waited for.

use std::{collections::BTreeSet, fs::File, sync::atomic::Ordering};

use millrace_protocol::{
    admin::JobKind,
    ahead::{FetchPolicy, LinkFetches, Miss, SetFetchPolicy},
    cluster::LinkMode,
    target::ContentName,
};
use millrace_types::{ChunkIndex, InodeId, LinkId, MIB};

use super::server::World;

/// Files of each of the two directories.
const FILES: usize = 100;

impl World {
    /// Two directories of small files, of which the first also has a large one.
    async fn with_files() -> Self {
        let world = Self::new(LinkMode::ReadOnly).await;
        for directory in ["a", "b"] {
            (0..FILES).for_each(|n| world.put(&format!("{directory}/{n:03}"), b"12345"));
        }
        world.put("a/large", b"");
        let large = File::options().write(true).open(world.object("a/large")).unwrap();
        large.set_len(40 * MIB).unwrap();
        world.job(JobKind::Import, "/data").await;
        world
    }

    /// A target reports that readers waited for some chunks of a file.
    async fn miss(&self, path: &str, chunks: impl IntoIterator<Item = u32>) {
        let content = self.find(path).await.unwrap().content().unwrap();
        let content = ContentName { inode: content.inode, generation: content.generation };
        let miss = |chunk| Miss { content, chunk: ChunkIndex(chunk) };
        let misses: Vec<_> = chunks.into_iter().map(miss).collect();
        self.hydration.note_misses(&misses);
    }

    /// Waits until so many items were fetched ahead.
    async fn fetched(&self, count: usize) -> BTreeSet<InodeId> {
        while self.server.items_of("ahead").len() < count {
            tokio::task::yield_now().await;
        }
        let items = self.server.items_of("ahead");
        assert_eq!(items.len(), count, "and no more");
        items.into_iter().map(|item| item.content.inode).collect()
    }

    async fn set_policy(&self, policy: FetchPolicy) -> Vec<LinkFetches> {
        let request = SetFetchPolicy { path: b"/data".to_vec(), policy };
        self.hydration.set_fetch_policy(&request).await.unwrap()
    }
}

#[tokio::test]
async fn readers_who_wait_in_a_directory_have_its_other_small_files_fetched() {
    let world = World::with_files().await;
    let mut expected = BTreeSet::new();
    for n in 0..FILES {
        expected.insert(world.find(&format!("/data/a/{n:03}")).await.unwrap().id);
    }
    let work = async {
        // One in each says nothing, and large files are no reason.
        world.miss("/data/b/007", [0]).await;
        world.miss("/data/a/large", [0, 1, 2, 3]).await;
        world.miss("/data/a/007", [0]).await;
        world.miss("/data/a/050", [0]).await;
        world.fetched(4).await;
        for n in 60..80 {
            world.miss(&format!("/data/a/{n:03}"), [0]).await;
        }
        assert_eq!(world.fetched(FILES).await, expected);
        // Those who waited already are no reason to begin again, for some seconds.
        world.miss("/data/a/001", [0]).await;
        world.miss("/data/a/002", [0]).await;
        world.miss("/data/b/008", [0]).await;
        world.fetched(FILES + 4).await;
        while world.hydration.list_fetch_policies().await.unwrap()[0].files < FILES as u64 + 4 {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(work).await;
    let told = world.hydration.list_fetch_policies().await.unwrap();
    let (files, bytes) = (FILES as u64 + 4, (FILES as u64 + 4) * 5);
    assert_eq!(told, [LinkFetches { link: LinkId(1), policy: FetchPolicy::Ahead, files, bytes }]);
}

#[tokio::test]
async fn what_is_fetched_behind_a_read_is_what_the_link_says() {
    let mut world = World::with_files().await;
    assert_eq!(world.set_policy(FetchPolicy::Asked).await[0].policy, FetchPolicy::Asked);
    // It holds over a restart.
    world.restart();
    let work = async {
        for n in 0..FILES {
            world.miss(&format!("/data/a/{n:03}"), [0]).await;
        }
        world.miss("/data/a/large", [3]).await;
        // A chunk each, once.
        while world.hydration.ahead.has_news() {
            tokio::task::yield_now().await;
        }
        world.set_policy(FetchPolicy::Chunk).await;
        world.miss("/data/a/large", [4, 4, 1]).await;
        world.fetched(2).await;
        let items = world.server.items_of("ahead");
        let chunks: Vec<_> = items.iter().map(|item| (item.first.0, item.count)).collect();
        assert_eq!(chunks, [(4, 1), (1, 1)]);
        world.set_policy(FetchPolicy::File).await;
        world.miss("/data/a/large", [4]).await;
        while world.server.items_of("ahead").iter().skip(2).map(|item| item.count).sum::<u32>() < 5
        {
            tokio::task::yield_now().await;
        }
    };
    Box::pin(world.run_beside(work)).await;
}

#[tokio::test]
async fn targets_without_room_are_left_alone_for_a_while() {
    let world = World::with_files().await;
    world.server.full.store(true, Ordering::Relaxed);
    let work = async {
        for n in 0..20 {
            world.miss(&format!("/data/a/{n:03}"), [0]).await;
        }
        world.fetched(FILES).await;
        world.server.full.store(false, Ordering::Relaxed);
        for n in 0..FILES {
            world.miss(&format!("/data/b/{n:03}"), [0]).await;
        }
        while world.hydration.ahead.has_news() {
            tokio::task::yield_now().await;
        }
        world.fetched(FILES).await;
    };
    world.run_beside(work).await;
}
