//! Whole checks: a real engine, and targets that list what the test put on them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use millrace_protocol::{
    cluster::{LogPoint, LogWitness, RegisterHost, TargetReport},
    fsck::{ContentPosition, ContentsPage, FsckKind, ListContents, ListedContent},
    metadata::NewNode,
    session::{Caller, Role},
    target::{ContentName, Presence, PresenceReply, Present},
};
use millrace_types::{
    ByteLen, ChunkIndex, ClusterId, ContentGeneration, FileName, HostId, InodeId, LogIndex,
    TargetId, WriteEpoch,
};

use super::*;
use crate::{
    command::{Command, Commit, Create, Outcome, ReclaimOrphans, Remove, SetAttributes},
    engine::{Core, Engine, EngineSettings, StoreKind},
    namespace::tree,
    ops::{self, Client},
    store::records::ReclaimRecord,
};

const HOST: HostId = HostId([1; 16]);
const TARGETS: [TargetId; 2] = [TargetId([1; 8]), TargetId([2; 8])];
const CHUNK: u64 = 8 << 20;
const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new() };

/// What is on the targets, listed a few chunks at a time.
#[derive(Debug, Default)]
struct Shelf {
    chunks: Mutex<BTreeMap<(TargetId, ContentPosition), u64>>,
    /// Answers until one fails; 0: none does.
    fails_after: AtomicU32,
}

/// Chunks of a page: contents go on over several pages.
const PAGE: usize = 3;

#[async_trait]
impl Targets for Shelf {
    async fn list(&self, _: HostId, request: ListContents) -> Result<ContentsPage, Failure> {
        if self.fails_after.load(Ordering::Relaxed) > 0
            && self.fails_after.fetch_sub(1, Ordering::Relaxed) == 1
        {
            return Err(Failure::new(ErrorKind::Unavailable, "the target went away"));
        }
        let chunks = self.chunks.lock().unwrap();
        let here = chunks.range((request.target, request.from)..);
        let here = here.map(|((target, at), _)| (*target, *at));
        let mut here = here.take_while(|(target, _)| *target == request.target);
        let mut page = ContentsPage::default();
        for (_, at) in here.by_ref().take(PAGE) {
            let content = ContentName { inode: at.inode, generation: at.generation };
            match page.contents.last_mut() {
                Some(last) if last.content == content => last.chunks.push(at.chunk),
                _ => page.contents.push(ListedContent { content, chunks: vec![at.chunk] }),
            }
        }
        page.next = here.next().map(|(_, at)| at);
        Ok(page)
    }

    async fn presence(&self, _: HostId, request: Presence) -> Result<PresenceReply, Failure> {
        let chunks = self.chunks.lock().unwrap();
        let present = |content: &ContentName| {
            let of_content = chunks.iter().filter(|((target, at), _)| {
                *target == request.target
                    && at.inode == content.inode
                    && at.generation == content.generation
            });
            Present { written: ByteLen(of_content.map(|(_, len)| len).sum()), ..Present::default() }
        };
        Ok(PresenceReply { present: request.contents.iter().map(present).collect() })
    }
}

impl Shelf {
    fn put(&self, target: TargetId, inode: InodeId, generation: u32, chunk: u32) {
        let generation = ContentGeneration(generation);
        let at = ContentPosition { inode, generation, chunk: ChunkIndex(chunk) };
        self.chunks.lock().unwrap().insert((target, at), 100);
    }

    fn take(&self, inode: InodeId, chunk: u32) -> TargetId {
        let mut chunks = self.chunks.lock().unwrap();
        let found = |at: &ContentPosition| at.inode == inode && at.chunk.0 == chunk;
        let key = *chunks.keys().find(|(_, at)| found(at)).unwrap();
        chunks.remove(&key);
        key.0
    }
}

struct World {
    _dir: tempfile::TempDir,
    engine: Engine,
    shelf: Arc<Shelf>,
    checks: Reconciliation,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = EngineSettings {
            store: StoreKind::Memory,
            // The passes lie as far apart.
            lease: Duration::from_millis(10),
            clock_error: Duration::from_millis(1),
            ..EngineSettings::new(dir.path().join("state"), ClusterId([7; 16]))
        };
        let engine = Engine::start(settings).unwrap();
        let shelf = Arc::new(Shelf::default());
        let handle = engine.handle().clone();
        let checks = Reconciliation::new(handle, shelf.clone(), FsckSettings::default());
        let world = Self { _dir: dir, engine, shelf, checks };
        let report = |id| TargetReport {
            id,
            capacity: ByteLen(1 << 40),
            used: ByteLen(0),
            inode_max: InodeId(0),
            loss_count: 0,
            bad_blocks: 0,
            blank: false,
        };
        let register = RegisterHost {
            addresses: vec!["127.0.0.1:7000".to_owned()],
            host_name: "store-1".to_owned(),
            targets: TARGETS.map(report).to_vec(),
        };
        world.turn(move |core| ops::cluster::register(core, &client(), &register)).await;
        for target in TARGETS {
            world.turn(move |core| core.compare_log(LogWitness { target, seen: None })).await;
        }
        world
    }

    async fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Core) -> Result<T, Failure> + Send + 'static,
    ) -> T {
        self.engine.handle().turn(work).await.unwrap()
    }

    async fn execute(&self, command: Command) -> Result<Outcome, Failure> {
        self.engine.handle().turn(move |core| core.execute(None, command)).await
    }

    /// An id that was given out for a file of which the log knows nothing.
    async fn lost_id(&self) -> InodeId {
        self.turn(|core| core.new_inode_id()).await
    }

    /// A file of so many chunks, all of them where they belong.
    async fn file(&self, name: &str, chunks: u32) -> InodeId {
        let inode = self.lost_id().await;
        let create = Create {
            caller: ROOT,
            parent: InodeId::ROOT,
            name: FileName::parse(name.as_bytes()).unwrap(),
            node: NewNode::Regular,
            mode: 0o644,
            inode,
            seed: 5,
            open: None,
            exclusive: true,
        };
        self.execute(Command::Create(create)).await.unwrap();
        self.grow(inode, 1, u64::from(chunks) * CHUNK - 7).await;
        for chunk in 0..chunks {
            self.shelf.put(self.place(inode, chunk).await, inode, 1, chunk);
        }
        inode
    }

    async fn grow(&self, inode: InodeId, generation: u32, end: u64) {
        let commit = Commit {
            inode,
            generation: ContentGeneration(generation),
            write_epoch: WriteEpoch(1),
            end,
            written_at: None,
        };
        self.execute(Command::Commit(commit)).await.unwrap();
    }

    async fn place(&self, inode: InodeId, chunk: u32) -> TargetId {
        self.turn(move |core| {
            let inode = tree::inode(core.view(), inode).map_err(|error| core.failure(error))?;
            let layout = inode.file()?.layout;
            let map = core.map().0;
            Ok(map.group(layout.pool(), layout.group(ChunkIndex(chunk))).unwrap().targets[0])
        })
        .await
    }

    /// Runs a check to its end.
    async fn check(&self) -> FsckReport {
        self.check_as(StartFsck { targets: Vec::new(), report_only: false }).await
    }

    async fn check_as(&self, request: StartFsck) -> FsckReport {
        self.checks.start(request).await.unwrap();
        self.checks.shared.run_one().await;
        self.checks.show().await.unwrap()
    }

    async fn queue(&self, target: TargetId) -> Vec<(InodeId, u32)> {
        let queue = self.turn(move |core| {
            tree::scan::<ReclaimRecord>(
                core.view(),
                &crate::store::keys::reclaims_of(target),
                usize::MAX,
            )
            .map_err(|error| core.failure(error.into()))
        });
        let queue = queue.await.into_iter();
        queue.map(|(_, record)| (record.inode, record.generation.0)).collect()
    }
}

fn client() -> Client {
    Client {
        role: Role::Target,
        host: HOST,
        fingerprint: [0; 32],
        subtree: None,
        squash_root: false,
        settled: Vec::new(),
    }
}

fn remove(name: &str) -> Command {
    Command::Remove(Remove {
        caller: ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(name.as_bytes()).unwrap(),
        directory: false,
        readers: Vec::new(),
    })
}

/// Replaces a file's content by an empty one, as if the entries of the queue had been lost.
async fn empty(world: &World, inode: InodeId) {
    let set =
        SetAttributes { caller: Some(ROOT), inode, size: Some(0), ..SetAttributes::default() };
    world.execute(Command::SetAttributes(set)).await.unwrap();
    for target in TARGETS {
        let all = Command::Reclaimed { target, through: u64::MAX };
        world.execute(all).await.unwrap();
    }
}

#[tokio::test]
async fn orphans_are_queued_for_freeing_and_files_are_left_alone() {
    let world = World::new().await;
    let kept = world.file("kept", 9).await;
    let replaced = world.file("replaced", 4).await;
    empty(&world, replaced).await;
    let lost = world.lost_id().await;
    for chunk in 0..8 {
        world.shelf.put(TARGETS[1], lost, 2, chunk);
    }
    world.file("last", 1).await;
    let report = world.check().await;
    assert_eq!(report.state, FsckState::Done, "{report:?}");
    assert_eq!((report.missing.contents, report.misplaced.contents), (0, 0), "{report:?}");
    assert_eq!((report.orphans.chunks, report.orphans.bytes), (12, ByteLen(1200)));
    assert_eq!(report.queued, report.orphans);
    assert_eq!((report.files, report.chunks), (3, 22));
    let named = |target: usize| {
        let of_target = report.findings.iter().filter(move |f| f.target == TARGETS[target]);
        of_target.map(|f| (f.content.inode, f.content.generation.0)).collect::<Vec<_>>()
    };
    for (number, target) in TARGETS.into_iter().enumerate() {
        assert_eq!(world.queue(target).await, named(number));
    }
    assert!(world.queue(TARGETS[1]).await.contains(&(lost, 2)));
    assert!(report.findings.iter().all(|finding| finding.content.inode != kept));
    // They wait in the queue now: they are being freed, and no orphans a second time.
    assert_eq!(world.check().await.orphans.contents, 0);
}

#[tokio::test]
async fn what_waits_in_the_reclaim_queue_is_no_orphan() {
    let world = World::new().await;
    world.file("gone", 5).await;
    world.execute(remove("gone")).await.unwrap();
    let before = world.queue(TARGETS[0]).await;
    let report = world.check().await;
    assert_eq!(report.orphans.contents, 0, "{report:?}");
    assert_eq!(world.queue(TARGETS[0]).await, before);
}

#[tokio::test]
async fn missing_chunks_are_reported_with_the_files_path_and_nothing_is_changed() {
    let world = World::new().await;
    let inode = world.file("results", 6).await;
    let target = world.shelf.take(inode, 5);
    let report = world.check().await;
    assert_eq!((report.missing.contents, report.missing.chunks), (1, 1), "{report:?}");
    assert_eq!(report.missing.bytes, ByteLen(CHUNK - 7));
    let finding = &report.findings[0];
    assert_eq!((finding.kind, finding.target), (FsckKind::Missing, target));
    assert_eq!(finding.path.as_deref(), Some(&b"/results"[..]));
    assert_eq!(finding.first, ChunkIndex(5));
    assert!(world.queue(target).await.is_empty());
    let problems = world.turn(|core| Ok(core.noted_problems().to_vec())).await;
    assert!(problems[0].contains("/results"), "{problems:?}");
    // Put right, the next check has nothing to say.
    world.shelf.put(target, inode, 1, 5);
    assert_eq!(world.check().await.missing.contents, 0);
    assert!(world.turn(|core| Ok(core.noted_problems().to_vec())).await.is_empty());
}

#[tokio::test]
async fn a_target_that_goes_away_is_not_checked_and_lacks_nothing() {
    let world = World::new().await;
    world.file("wide", 30).await;
    world.shelf.chunks.lock().unwrap().clear();
    for chunk in 0..20 {
        let lost = world.lost_id().await;
        world.shelf.put(TARGETS[0], lost, 1, chunk);
    }
    world.shelf.fails_after.store(4, Ordering::Relaxed);
    let request = StartFsck { targets: vec![TARGETS[0]], report_only: false };
    let report = world.check_as(request).await;
    assert_eq!(report.targets.len(), 1);
    assert_eq!(report.targets[0].not_checked.as_deref(), Some("the target went away"));
    assert_eq!((report.missing.contents, report.orphans.contents), (0, 0), "{report:?}");
    assert!(world.queue(TARGETS[0]).await.is_empty());
}

#[tokio::test]
async fn a_doubt_holds_orphans_back_until_an_operator_trusts_the_namespace() {
    let world = World::new().await;
    let lost = world.lost_id().await;
    world.shelf.put(TARGETS[0], lost, 1, 0);
    let seen = Some(LogPoint { incarnation: 99, index: LogIndex(4) });
    let witness = LogWitness { target: TARGETS[0], seen };
    world.turn(move |core| core.compare_log(witness)).await;
    let report = world.check().await;
    assert_eq!((report.orphans.contents, report.queued.contents), (1, 0), "{report:?}");
    assert!(report.distrust.is_some_and(|doubt| doubt.reason.contains("older copy")));
    let orphans = ReclaimOrphans { target: TARGETS[0], contents: vec![name(lost, 1)] };
    let refused = world.execute(Command::ReclaimOrphans(orphans)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotPermitted);
    assert!(world.queue(TARGETS[0]).await.is_empty());
    assert_eq!(world.checks.trust().await.unwrap().distrust, None);
    assert_eq!(world.check().await.queued.contents, 1);
    assert_eq!(world.queue(TARGETS[0]).await, [(lost, 1)]);
}

#[tokio::test]
async fn a_check_that_shall_only_report_frees_nothing() {
    let world = World::new().await;
    let lost = world.lost_id().await;
    world.shelf.put(TARGETS[0], lost, 1, 0);
    let report = world.check_as(StartFsck { targets: Vec::new(), report_only: true }).await;
    assert_eq!((report.orphans.contents, report.queued.contents), (1, 0));
    assert!(world.queue(TARGETS[0]).await.is_empty());
}

#[tokio::test]
async fn one_check_runs_at_a_time_and_can_be_cancelled() {
    let world = World::new().await;
    let lost = world.lost_id().await;
    world.shelf.put(TARGETS[0], lost, 1, 0);
    let all = || StartFsck { targets: Vec::new(), report_only: false };
    world.checks.start(all()).await.unwrap();
    let refused = world.checks.start(all()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InUse);
    world.checks.cancel().await.unwrap();
    world.checks.shared.run_one().await;
    let report = world.checks.show().await.unwrap();
    assert_eq!((report.state, report.queued.contents), (FsckState::Cancelled, 0));
    let unknown = StartFsck { targets: vec![TargetId([9; 8])], report_only: false };
    assert_eq!(world.checks.start(unknown).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(world.check().await.queued.contents, 1);
}

#[tokio::test]
async fn the_command_frees_nothing_that_a_file_has_or_may_get_whatever_it_is_asked() {
    let world = World::new().await;
    let file = world.file("file", 2).await;
    let replaced = world.file("replaced", 2).await;
    empty(&world, replaced).await;
    let limit = world.turn(|core| core.file_system()).await.inode_limit;
    let lost = world.lost_id().await;
    let reclaim = |contents| {
        let orphans = ReclaimOrphans { target: TARGETS[0], contents };
        world.execute(Command::ReclaimOrphans(orphans))
    };
    let live = vec![name(file, 1), name(replaced, 2), name(limit, 1), name(InodeId::ROOT, 1)];
    assert_eq!(reclaim(live).await, Ok(Outcome::Queued(0)));
    assert!(world.queue(TARGETS[0]).await.is_empty());
    let dead = vec![name(replaced, 1), name(lost, 7)];
    assert_eq!(reclaim(dead).await, Ok(Outcome::Queued(2)));
    assert_eq!(world.queue(TARGETS[0]).await, [(replaced, 1), (lost, 7)]);
    let unknown = ReclaimOrphans { target: TargetId([9; 8]), contents: vec![name(lost, 7)] };
    let refused = world.execute(Command::ReclaimOrphans(unknown)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound);
}

fn name(inode: InodeId, generation: u32) -> ContentName {
    ContentName { inode, generation: ContentGeneration(generation) }
}
