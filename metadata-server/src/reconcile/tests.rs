//! Whole checks: a real engine, and targets that list what the test put on them.

mod replaced;
mod standing;

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use millrace_protocol::{
    cluster::{LogPoint, LogWitness, RegisterHost, TargetReport},
    fsck::{
        ContentPosition, ContentsPage, FSCK_FINDINGS_MAX, FsckKind, ListContents, ListedContent,
    },
    metadata::NewNode,
    session::{Caller, Role},
    target::{ContentName, Presence, PresenceReply, Present},
};
use millrace_types::{
    ByteLen, ChunkIndex, ClusterId, ContentGeneration, FileName, HostId, InodeId, LogIndex,
    SessionId, TargetId, WriteEpoch,
};

use super::*;
use crate::{
    command::{Command, Commit, Create, Outcome, ReclaimOrphans, Remove, SetAttributes},
    engine::{Core, Engine, EngineSettings, StoreKind},
    leases::{Table, table::Limits},
    namespace::tree,
    ops::{self, Client},
    store::records::ReclaimRecord,
};

const HOST: HostId = HostId([1; 16]);
const TARGETS: [TargetId; 2] = [TargetId([1; 8]), TargetId([2; 8])];
const CHUNK: u64 = 8 << 20;
const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new() };

/// What is on the targets, listed a few chunks at a time.
#[derive(Default)]
struct Shelf {
    chunks: Mutex<BTreeMap<(TargetId, ContentPosition), u64>>,
    /// Answers until one fails; 0: none does.
    fails_after: AtomicU32,
    /// What happens before each of the next answers.
    meanwhile: Mutex<VecDeque<Meanwhile>>,
}

/// Something that comes in between.
type Meanwhile = Pin<Box<dyn Future<Output = ()> + Send>>;

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shelf")
    }
}

/// Chunks of a page: contents go on over several pages.
const PAGE: usize = 3;

#[async_trait]
impl Targets for Shelf {
    async fn list(&self, _: HostId, request: ListContents) -> Result<ContentsPage, Failure> {
        self.go_on().await;
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
        self.go_on().await;
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
    async fn go_on(&self) {
        let next = self.meanwhile.lock().unwrap().pop_front();
        if let Some(next) = next {
            next.await;
        }
    }

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
        world.turn(|core| ops::cluster::register(core, &client(), &register())).await;
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

    /// Lets something happen before one of the next answers of a target.
    fn meanwhile(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shelf.meanwhile.lock().unwrap().push_back(Box::pin(work));
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
        self.check_as(all()).await
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

/// A check of all targets.
fn all() -> StartFsck {
    StartFsck { targets: Vec::new(), report_only: false, free_many: false }
}

fn register() -> RegisterHost {
    let report = |id| TargetReport {
        id,
        capacity: ByteLen(1 << 40),
        used: ByteLen(0),
        inode_max: InodeId(0),
        loss_count: 0,
        bad_blocks: 0,
        blank: false,
    };
    RegisterHost {
        addresses: vec!["127.0.0.1:7000".to_owned()],
        host_name: "store-1".to_owned(),
        targets: TARGETS.map(report).to_vec(),
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
    let request = StartFsck { targets: vec![TARGETS[0]], ..all() };
    let report = world.check_as(request).await;
    assert_eq!(report.targets.len(), 1);
    assert_eq!(report.targets[0].not_checked.as_deref(), Some("the target went away"));
    assert_eq!((report.missing.contents, report.orphans.contents), (0, 0), "{report:?}");
    assert!(world.queue(TARGETS[0]).await.is_empty());
}

#[tokio::test]
async fn nothing_is_said_to_be_well_before_mounts_have_said_what_they_are_making() {
    let world = World::new().await;
    world.file("file", 3).await;
    let lost = world.lost_id().await;
    world.shelf.put(TARGETS[0], lost, 1, 0);
    world
        .turn(|core| {
            core.leases = Table::after_restart(Limits::default(), [SessionId(99)]);
            Ok(())
        })
        .await;
    let report = world.check().await;
    let whys: Vec<_> = report.targets.iter().map(|target| target.not_checked.as_deref()).collect();
    assert!(whys.iter().all(|why| why.is_some_and(|why| why.contains("try again"))), "{whys:?}");
    world
        .turn(|core| {
            core.leases.handle_end(SessionId(99));
            Ok(())
        })
        .await;
    assert_eq!(world.check().await.orphans.contents, 1);
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
    let report = world.check_as(StartFsck { report_only: true, ..all() }).await;
    assert_eq!((report.orphans.contents, report.queued.contents), (1, 0));
    assert!(world.queue(TARGETS[0]).await.is_empty());
}

#[tokio::test]
async fn many_orphans_are_held_back_until_an_operator_says_that_they_may_go() {
    let world = World::new().await;
    let freely = u32::try_from(free::freed_freely(0)).unwrap();
    let abandoned = world.lost_id().await;
    for chunk in 0..freely {
        world.shelf.put(TARGETS[0], abandoned, 1, chunk);
    }
    let one_more = world.lost_id().await;
    world.shelf.put(TARGETS[0], one_more, 1, 0);
    let few = world.lost_id().await;
    world.shelf.put(TARGETS[1], few, 1, 0);
    let told = world.check_as(StartFsck { report_only: true, ..all() }).await;
    assert!(told.targets[0].held_back.is_some(), "an operator learns it beforehand: {told:?}");
    let report = world.check().await;
    assert_eq!((report.orphans.contents, report.queued.contents), (3, 1), "{report:?}");
    let why = report.targets[0].held_back.as_deref().unwrap();
    assert!(why.contains("257 of its 257 chunks") && why.contains("--free-many"), "{why}");
    assert_eq!((&report.targets[1].held_back, report.targets[1].orphans.chunks), (&None, 1));
    assert!(world.queue(TARGETS[0]).await.is_empty());
    assert_eq!(world.queue(TARGETS[1]).await, [(few, 1)]);
    let problems = world.turn(|core| Ok(core.noted_problems().to_vec())).await;
    assert!(problems.iter().any(|problem| problem.contains("--free-many")), "{problems:?}");
    let report = world.check_as(StartFsck { free_many: true, ..all() }).await;
    assert_eq!((report.queued.chunks, &report.targets[0].held_back), (257, &None));
    assert_eq!(world.queue(TARGETS[0]).await, [(abandoned, 1), (one_more, 1)]);
}

#[tokio::test]
async fn many_findings_of_one_kind_hide_none_of_another() {
    let world = World::new().await;
    for _ in 0..2 * FSCK_FINDINGS_MAX {
        let lost = world.lost_id().await;
        world.shelf.put(TARGETS[0], lost, 1, 0);
    }
    let inode = world.file("needed", 2).await;
    world.shelf.take(inode, 1);
    let report = world.check().await;
    let of_kind = |kind| report.findings.iter().filter(move |finding| finding.kind == kind);
    assert_eq!(of_kind(FsckKind::Orphan).count(), FSCK_FINDINGS_MAX);
    let missing: Vec<_> = of_kind(FsckKind::Missing).map(|found| found.path.as_deref()).collect();
    assert_eq!(missing, [Some(&b"/needed"[..])]);
    let orphans = u64::try_from(2 * FSCK_FINDINGS_MAX).unwrap();
    assert_eq!((report.orphans.contents, report.queued.contents), (orphans, orphans));
}

#[test]
fn the_brake_is_a_hundredth_of_a_target_and_never_less_than_what_a_few_clients_leave_behind() {
    assert_eq!(
        [0, 1000, 25_600, 25_700, 10_000_000].map(free::freed_freely),
        [256, 256, 256, 257, 100_000]
    );
}

#[tokio::test]
async fn a_target_that_registers_again_during_the_check_gets_nothing_queued() {
    let world = World::new().await;
    let lost = world.lost_id().await;
    world.shelf.put(TARGETS[0], lost, 1, 0);
    let handle = world.engine.handle().clone();
    // The first look, and the second, of each target; then how large the orphan is.
    for _ in 0..3 {
        world.meanwhile(async {});
    }
    world.meanwhile(async move {
        let again = |core: &mut Core| ops::cluster::register(core, &client(), &register());
        handle.turn(again).await.unwrap();
    });
    let report = world.check().await;
    assert_eq!((report.orphans.contents, report.queued.contents), (1, 0), "{report:?}");
    let why = report.targets[0].not_checked.as_deref().unwrap();
    assert!(why.contains("registered again"), "{why}");
    assert!(world.queue(TARGETS[0]).await.is_empty());
    let report = world.check().await;
    assert!(report.targets[0].not_checked.as_deref().unwrap().contains("command log"));
    let witness = LogWitness { target: TARGETS[0], seen: None };
    world.turn(move |core| core.compare_log(witness)).await;
    assert_eq!(world.check().await.queued.contents, 1);
}

#[tokio::test]
async fn one_check_runs_at_a_time_and_can_be_cancelled() {
    let world = World::new().await;
    let lost = world.lost_id().await;
    world.shelf.put(TARGETS[0], lost, 1, 0);
    world.checks.start(all()).await.unwrap();
    let refused = world.checks.start(all()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InUse);
    world.checks.cancel().await.unwrap();
    world.checks.shared.run_one().await;
    let report = world.checks.show().await.unwrap();
    assert_eq!((report.state, report.queued.contents), (FsckState::Cancelled, 0));
    let unknown = StartFsck { targets: vec![TargetId([9; 8])], ..all() };
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
