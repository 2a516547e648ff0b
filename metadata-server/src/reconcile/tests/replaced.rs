//! An import gives a file new content while the old one is fetched, and a check runs.

use millrace_protocol::{
    capability::Origin,
    cluster::{Bucket, LinkMode},
};
use millrace_types::{LinkId, Timestamp};

use super::*;
use crate::{
    command::{AddLink, ImportEntries, ImportEntry, ImportKind},
    engine::Handle,
};

/// The object's version at the beginning and how often it is replaced while the check runs.
const REPLACED: u32 = 2;

/// Answers of targets in one check of this world, and some more.
const ANSWERS: usize = 12;

const CHUNKS: u32 = 5;

/// What the bucket lists: one object in this version.
fn listing(inode: InodeId, version: u32) -> Command {
    let origin = Origin {
        link: LinkId(1),
        key: "object".to_owned(),
        size: u64::from(CHUNKS) * CHUNK,
        tag: format!("{version}"),
        modified: Timestamp::default(),
    };
    let entry = ImportEntry {
        name: FileName::parse(b"object").unwrap(),
        inode,
        seed: 1,
        mode: 0o644,
        uid: 0,
        gid: 0,
        modified: Timestamp::default(),
        kind: ImportKind::File(origin),
    };
    Command::ImportEntries(ImportEntries { directory: InodeId::ROOT, entries: vec![entry] })
}

/// A linked root with one file, of which some of the first content has been fetched.
async fn imported(world: &World) -> InodeId {
    let link = AddLink {
        directory: InodeId::ROOT,
        bucket: Bucket {
            url: "file:///bucket".to_owned(),
            endpoint: None,
            region: None,
            credentials: None,
        },
        prefix: String::new(),
        mode: LinkMode::Import,
    };
    world.execute(Command::AddLink(link)).await.unwrap();
    let inode = world.lost_id().await;
    world.execute(listing(inode, 1)).await.unwrap();
    for chunk in 0..CHUNKS - 1 {
        world.shelf.put(world.place(inode, chunk).await, inode, 1, chunk);
    }
    inode
}

/// The object becomes another one; the file follows, and both contents are fetched: of the new one
/// everything, of the old one what was on its way when the targets freed it.
async fn replace(shelf: &Shelf, engine: &Handle, inode: InodeId, generation: u32) {
    let follow = listing(inode, generation);
    engine.turn(move |core| core.execute(None, follow)).await.unwrap();
    for target in TARGETS {
        let freed = Command::Reclaimed { target, through: u64::MAX };
        engine.turn(move |core| core.execute(None, freed)).await.unwrap();
    }
    let places = shelf.places(inode);
    shelf.chunks.lock().unwrap().retain(|(_, at), _| {
        at.inode != inode || at.generation.0 + 1 != generation || at.chunk.0 == 0
    });
    for chunk in 0..CHUNKS {
        let target = places.get(&chunk).copied().unwrap_or(TARGETS[0]);
        shelf.put(target, inode, generation, chunk);
    }
}

impl Shelf {
    /// On which target each chunk of an inode is.
    fn places(&self, inode: InodeId) -> BTreeMap<u32, TargetId> {
        let chunks = self.chunks.lock().unwrap();
        let of_inode = chunks.keys().filter(|(_, at)| at.inode == inode);
        of_inode.map(|(target, at)| (at.chunk.0, *target)).collect()
    }
}

/// Runs a check in which the object is replaced before the answers with these numbers; returns the
/// contents of the file that were queued for freeing, and how many chunks were said to be missing.
async fn check_while_replaced(before: [usize; REPLACED as usize]) -> (Vec<u32>, u64) {
    let world = World::new().await;
    let inode = imported(&world).await;
    // A file behind it, so that the list goes on over several pages.
    world.file("behind", 4).await;
    let mut generation = 1;
    for answer in 0..ANSWERS {
        let times = before.iter().filter(|number| **number == answer).count();
        let (shelf, engine) = (Arc::clone(&world.shelf), world.engine.handle().clone());
        let first = generation + 1;
        generation += u32::try_from(times).unwrap();
        let last = generation;
        world.meanwhile(async move {
            for generation in first..=last {
                replace(&shelf, &engine, inode, generation).await;
            }
        });
    }
    assert_eq!(generation, 1 + REPLACED);
    let report = world.check().await;
    assert_eq!(report.state, FsckState::Done, "{report:?}");
    assert!(report.targets.iter().all(|target| target.not_checked.is_none()), "{report:?}");
    let mut queued = Vec::new();
    for target in TARGETS {
        for (of, generation) in world.queue(target).await {
            assert_eq!(of, inode, "nothing else is freed");
            queued.push(generation);
        }
    }
    (queued, report.missing.chunks)
}

#[tokio::test]
async fn whenever_the_object_is_replaced_only_contents_before_the_newest_are_freed() {
    let mut freed = 0;
    for first in 0..ANSWERS {
        for second in first..ANSWERS {
            let (queued, missing) = check_while_replaced([first, second]).await;
            assert_eq!(missing, 0, "the bucket backs all of it");
            let newest = 1 + REPLACED;
            assert!(queued.iter().all(|generation| *generation < newest), "{queued:?}");
            freed += queued.len();
        }
    }
    assert!(freed > ANSWERS, "the checks did find what was left behind: {freed}");
}
