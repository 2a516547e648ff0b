//! Targets whose journal fails, and which are opened again in place.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use millrace_object_source::{Bucket, LinkSpec, Settings};
use millrace_protocol::{
    capability::{self, Content},
    cluster,
    storage::ChunkVersion,
};
use millrace_runtime::Clock;
use millrace_types::{
    ByteLen, ChunkIndex, ChunkSize, ClusterId, ContentGeneration, ErrorKind, Failure, InodeId,
    Layout, LinkId, PoolId, SessionId, TargetId, WriteEpoch, WriteNumber,
};

use super::{
    BLOCK, LAYOUT, OpenError, Options, Volume, assert_holds, key, new_disk, open, options, pattern,
    read, write, write_request,
};
use crate::{
    disk::{BufferPool, DiskEngine, Operation, faulty::Faults, simulated::SimulatedDisk},
    hydration::Hydrator,
    links::Links,
    loop_device::LoopDevice,
    misses::Misses,
    release::{Releaser, Watermarks},
    store::Store,
    view::ChunkView,
    volume::{
        Authority, Blank, EngineError, Origin, PlaceOptions, ScrubActivity, ScrubCommand,
        ScrubSettings, WriteRequest, boot_id,
        reopen::{PAUSES, Pauses, ReopenError},
        sessions::Admission,
    },
};

const NO_PAUSES: Pauses = Pauses { min: Duration::ZERO, max: Duration::ZERO };

const LEN: usize = 3 * 4096;

/// A simulated disk, which may be replaced by another one.
#[derive(Clone, Debug)]
struct Simulated {
    disk: Arc<Mutex<SimulatedDisk>>,
    faults: Faults,
    openings: Arc<AtomicU64>,
}

impl Simulated {
    fn new(disk: &SimulatedDisk) -> Self {
        let disk = Arc::new(Mutex::new(disk.clone()));
        Self { disk, faults: Faults::default(), openings: Arc::default() }
    }

    async fn open(&self) -> Volume {
        let volume = Volume::open(&Origin::open(self).await.unwrap()).await.unwrap();
        volume.lasting(Arc::new(self.clone()), NO_PAUSES)
    }
}

impl Origin for Simulated {
    fn open(&self) -> BoxFuture<'_, Result<Options, OpenError>> {
        let disk = self.disk.lock().unwrap().clone();
        let first = self.openings.fetch_add(1, Ordering::Relaxed) == 0;
        let blank = Blank { target: TargetId([7; 8]), layout: LAYOUT };
        let options = Options {
            disk: self.faults.before(&disk.queue()),
            blank: first.then_some(blank),
            ..options(&disk, 1)
        };
        Box::pin(async move { Ok(options) })
    }
}

async fn until_reopened(volume: &Volume, times: u64) {
    let mut reopened = volume.slot.reopened.subscribe();
    reopened.wait_for(|count| *count >= times).await.unwrap();
}

#[tokio::test]
async fn a_failed_call_is_followed_by_an_engine_that_takes_changes() {
    for operation in [Operation::Write, Operation::Sync] {
        let disk = new_disk(1);
        let origin = Simulated::new(&disk);
        let volume = origin.open().await;
        write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
        volume.sync().await.unwrap();
        write(&volume, key(2, 0), 0, pattern(2, 0, BLOCK)).await;
        origin.faults.fail(operation, 0, libc::EIO);
        let failed = match operation {
            Operation::Sync => volume.sync().await.map(drop),
            _ => volume.write_durably(write_request(key(3, 0), 0, vec![3; LEN])).await.map(drop),
        };
        failed.expect_err("it is refused");
        until_reopened(&volume, 1).await;
        assert!(!volume.has_failed());
        let count = volume.loss_count();
        assert!(count >= 2, "the failed engine may have answered with 1; now it is {count}");
        assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
        // Written, not synced, and not lost by this disk.
        assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, BLOCK)).await;
        volume.write_durably(write_request(key(4, 0), 0, pattern(4, 0, BLOCK))).await.unwrap();
        assert_eq!(volume.loss_count(), count);
        drop(volume);
        let volume = open(&disk).await;
        assert_eq!(volume.loss_count(), count, "a kill changes nothing of it");
        assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
        assert_holds(&volume, key(4, 0), 0, &pattern(4, 0, BLOCK)).await;
    }
}

#[tokio::test]
async fn what_an_operator_asked_of_the_scrub_holds_for_the_next_engine() {
    let origin = Simulated::new(&new_disk(1));
    let volume = origin.open().await;
    let settings = ScrubSettings { bytes_per_second: 1 << 20, ..ScrubSettings::default() };
    volume.start_scrub(settings, Clock::system());
    volume.control_scrub(ScrubCommand::SetRate(5 << 20));
    volume.control_scrub(ScrubCommand::Pause);
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    origin.faults.fail(Operation::Sync, 0, libc::EIO);
    volume.sync().await.expect_err("it is refused");
    until_reopened(&volume, 1).await;
    let status = volume.scrub_status();
    assert_eq!((status.activity, status.bytes_per_second), (ScrubActivity::Paused, 5 << 20));
    volume.control_scrub(ScrubCommand::Resume);
    assert_eq!(volume.scrub_status().activity, ScrubActivity::Waiting);
}

#[tokio::test]
async fn a_snapshot_of_the_failed_engine_reads_nothing_through_the_next_one() {
    let disk = new_disk(1);
    let origin = Simulated::new(&disk);
    let volume = origin.open().await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    let snapshot = volume.snapshot(key(1, 0), 0..1).await.unwrap();
    volume.load(&snapshot, 0, 1).await.unwrap();
    origin.faults.fail(Operation::Sync, 0, libc::EIO);
    volume.sync().await.expect_err("it is refused");
    until_reopened(&volume, 1).await;
    // The next engine does not know of the snapshot, and may use its pages for something else.
    let refused = volume.load(&snapshot, 0, 1).await.map(drop);
    assert!(matches!(refused, Err(EngineError::Disk(_))), "{refused:?}");
    drop(snapshot);
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    assert_eq!(volume.statistics().checksum_failures, 0);
}

/// A volume with a bucket behind it, and the chunk that an object in it backs.
async fn backed(volume: &Arc<Volume>, bytes: &[u8]) -> (Store, ChunkView, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("object"), bytes).unwrap();
    let url = format!("file://{}", home.path().display());
    let spec = LinkSpec::new(&url, None, None, None).unwrap();
    let bucket = Bucket::open(&spec, &Settings::default()).unwrap();
    let version = bucket.head("object").await.unwrap().version;
    let bucket = cluster::Bucket { url, endpoint: None, region: None, credentials: None };
    let mode = cluster::LinkMode::ImportExport;
    let link = cluster::Link { id: LinkId(1), bucket, mode };
    let links = Links::new(Settings::default());
    links.replace(cluster::Links { version: 1, links: vec![link] });
    let origin = capability::Origin {
        link: LinkId(1),
        key: "object".to_owned(),
        size: version.size,
        tag: version.tag.as_str().to_owned(),
        modified: version.modified,
    };
    let content = Content {
        inode: InodeId(7),
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(0),
        layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
        origin: Some(origin),
        origin_length: version.size,
        sparse: false,
    };
    let releaser = Releaser::new(Arc::clone(volume), Watermarks { high: 100, low: 95 });
    let runtime = tokio::runtime::Handle::current();
    let hydrator = Hydrator::new(Arc::clone(volume), links, releaser.clone(), runtime);
    let store = Store::new(Arc::clone(volume), hydrator, releaser, Misses::default());
    (store, ChunkView::new(&content, ChunkIndex(0)), home)
}

/// A client's write of ten bytes within a page, admitted and applied as by the daemon.
async fn send(
    store: &Store,
    view: &ChunkView,
    number: u64,
    byte: u8,
) -> Result<ChunkVersion, Failure> {
    let applied = store.volume().applied_writes();
    let (session, number) = (SessionId(1), WriteNumber(number));
    let Admission::New(running) = applied.admit(session, number, WriteNumber(1)).await else {
        panic!("{number} is new")
    };
    let request = WriteRequest {
        chunk_size: view.chunk_size,
        backed: view.backed,
        session,
        number,
        authority: Authority::default().admitted_by(applied),
        ..write_request(view.key, 100, vec![byte; 10])
    };
    let version = store.write(view, request, false).await?;
    running.applied(version);
    Ok(version)
}

#[tokio::test]
async fn a_write_that_the_failed_engine_has_admitted_is_not_applied_over_later_ones() {
    let origin = Simulated::new(&new_disk(1));
    let volume = Arc::new(origin.open().await);
    let (store, view, _bucket) = backed(&volume, &pattern(9, 0, BLOCK)).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    // What is fetched waits for memory; the next engine has its own.
    let mut held = Vec::new();
    for len in [1 << 20, BLOCK] {
        while let Some(buffer) = volume.pool().acquire(len).now_or_never() {
            held.push(buffer);
        }
    }
    assert_eq!(volume.pool().used_bytes(), volume.pool().budget_bytes());
    let (sender, chunk) = (store.clone(), view.clone());
    let first = tokio::spawn(async move { send(&sender, &chunk, 1, 1).await });
    while store.hydrator().fetches() == 0 {
        tokio::task::yield_now().await;
    }
    origin.faults.fail(Operation::Sync, 0, libc::EIO);
    volume.sync().await.expect_err("it is refused");
    until_reopened(&volume, 1).await;

    // Written as a whole, so that nothing need be fetched for what comes next.
    let whole = WriteRequest {
        chunk_size: view.chunk_size,
        backed: view.backed,
        ..write_request(view.key, 0, pattern(5, 0, BLOCK))
    };
    store.write(&view, whole, false).await.unwrap();
    send(&store, &view, 1, 1).await.unwrap();
    send(&store, &view, 2, 2).await.unwrap();
    drop(held);
    let late = first.await.unwrap().map(drop).map_err(|failure| failure.kind);
    assert_eq!(late, Err(ErrorKind::TicketExpired), "its client sends it again");
    let mut expected = pattern(5, 0, BLOCK);
    expected[100..110].fill(2);
    assert_holds(&volume, view.key, 0, &expected).await;
}

#[test]
fn pauses_grow_until_an_engine_has_lived_for_the_longest() {
    let seconds = Duration::from_secs;
    let (mut last, mut pauses) = (None, Vec::new());
    for lived in [9, 9, 9, 9, 9, 9, 9, 9, 59, 60, 9] {
        let pause = PAUSES.first(last, seconds(lived));
        last = Some(pause);
        pauses.push(pause.as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60, 1, 2]);
}

/// The disk is away, loses what was not synced, and comes back; the process goes on.
#[tokio::test]
async fn a_disk_that_comes_back_without_its_cache_has_older_versions_and_no_mix() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let disk = new_disk(seed);
        let origin = Simulated::new(&disk);
        let volume = origin.open().await;
        write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
        volume.sync().await.unwrap();
        write(&volume, key(1, 0), 0, pattern(2, 0, BLOCK)).await;
        disk.cut_power_in(0);
        volume.sync().await.expect_err("the disk is away");
        while origin.openings.load(Ordering::Relaxed) < 3 {
            tokio::task::yield_now().await;
        }
        assert!(volume.has_failed(), "seed {seed}");
        let refused = volume.write(write_request(key(5, 0), 0, vec![5; LEN])).await;
        refused.expect_err("a change is refused");
        disk.restart();
        until_reopened(&volume, 1).await;
        assert!(volume.loss_count() >= 2, "seed {seed}");
        let found = read(&volume, key(1, 0), 0..1).await.unwrap();
        let is = |version| {
            let expected = pattern(version, 0, BLOCK);
            found.iter().zip(&expected).all(|(found, expected)| *found == Some(*expected))
        };
        assert!(is(1) || is(2), "seed {seed}: neither the older version nor the newer one");
        outcomes.insert(is(2));
        volume.write_durably(write_request(key(1, 0), 0, pattern(3, 0, BLOCK))).await.unwrap();
        disk.restart();
        drop(volume);
        let volume = Volume::open(&options(&disk, 2)).await.unwrap();
        assert_holds(&volume, key(1, 0), 0, &pattern(3, 0, BLOCK)).await;
    }
    assert_eq!(outcomes.len(), 2, "both come up");
}

#[tokio::test]
async fn a_disk_that_only_reads_keeps_its_readers_until_it_writes_again() {
    let disk = new_disk(1);
    let origin = Simulated::new(&disk);
    let volume = origin.open().await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    volume.sync().await.unwrap();
    write(&volume, key(2, 0), 0, pattern(2, 0, BLOCK)).await;
    origin.faults.refuse_changes(Some(libc::EIO));
    volume.sync().await.expect_err("it is refused");
    let calls = origin.faults.calls();
    while origin.faults.calls() < calls + 20 {
        tokio::task::yield_now().await;
    }
    assert!(volume.has_failed());
    assert_eq!(origin.openings.load(Ordering::Relaxed), 1, "its readers keep it");
    for inode in [1, 2] {
        assert_holds(&volume, key(inode, 0), 0, &pattern(inode, 0, BLOCK)).await;
    }
    let failed = volume.shared();
    origin.faults.refuse_changes(None);
    until_reopened(&volume, 1).await;
    let between = failed.disk.sync().await.expect_err("it has ended");
    assert_eq!(between.kind(), ErrorKind::Unavailable, "readers wait for the next engine");
    write(&volume, key(1, 0), 0, pattern(3, 0, BLOCK)).await;
    volume.sync().await.unwrap();
    assert_holds(&volume, key(1, 0), 0, &pattern(3, 0, BLOCK)).await;
}

#[tokio::test]
async fn another_target_or_none_in_its_place_is_refused() {
    let disk = new_disk(1);
    let origin = Simulated::new(&disk);
    let volume = Volume::open(&Origin::open(&origin).await.unwrap()).await.unwrap();
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    volume.sync().await.unwrap();
    let stranger = new_disk(2);
    let blank = Some(Blank { target: TargetId([8; 8]), layout: LAYOUT });
    drop(Volume::open(&Options { blank, ..options(&stranger, 1) }).await.unwrap());
    *origin.disk.lock().unwrap() = stranger;
    let refused = volume.slot.attempt(&origin).await;
    let other = OpenError::OtherTarget { found: TargetId([8; 8]), expected: TargetId([7; 8]) };
    match refused {
        Err(ReopenError::Open(error)) => assert_eq!(error.to_string(), other.to_string()),
        accepted => panic!("{accepted:?}"),
    }
    *origin.disk.lock().unwrap() = new_disk(3);
    let refused = volume.slot.attempt(&origin).await;
    assert!(matches!(refused, Err(ReopenError::Open(OpenError::Blank))), "{refused:?}");
    let refused = volume.write(write_request(key(1, 0), 0, vec![2; LEN])).await;
    assert!(matches!(refused, Err(EngineError::Disk(_) | EngineError::Journal(_))), "{refused:?}");
    *origin.disk.lock().unwrap() = disk;
    volume.slot.attempt(&origin).await.unwrap();
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
}

#[tokio::test]
async fn nobody_waits_for_a_disk_that_cannot_be_opened_and_all_goes_on_when_it_can() {
    let disk = new_disk(1);
    let origin = Simulated::new(&disk);
    let volume = origin.open().await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    volume.sync().await.unwrap();
    write(&volume, key(2, 0), 0, pattern(2, 0, BLOCK)).await;
    *origin.disk.lock().unwrap() = new_disk(3);
    origin.faults.fail(Operation::Sync, 0, libc::EIO);
    volume.sync().await.expect_err("it is refused");
    // Once by the volume at first, and in vain after that.
    while origin.openings.load(Ordering::Relaxed) < 3 {
        tokio::task::yield_now().await;
    }
    let kinds = [
        volume.write(write_request(key(1, 0), 0, vec![2; LEN])).await.map(drop),
        read(&volume, key(1, 0), 0..1).await.map(drop),
        volume.sync().await.map(drop),
    ];
    for refused in kinds {
        assert_eq!(refused.expect_err("the disk is away").kind(), ErrorKind::Disk);
    }
    *origin.disk.lock().unwrap() = disk;
    until_reopened(&volume, 1).await;
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    volume.write_durably(write_request(key(4, 0), 0, pattern(4, 0, BLOCK))).await.unwrap();
}

/// What became of a writer's versions: the newest that was acknowledged as durable, and the newest
/// that was tried.
struct Versions {
    acknowledged: u64,
    tried: u64,
}

/// A file that one writer overwrites again and again, each time durably.
async fn overwrite(volume: &Volume, inode: u64, until: impl Fn() -> bool) -> Versions {
    let mut versions = Versions { acknowledged: 0, tried: 0 };
    loop {
        versions.tried += 1;
        let bytes = pattern(versions.tried, 0, LEN);
        match volume.write_durably(write_request(key(inode, 0), 0, bytes)).await {
            Ok(_) => versions.acknowledged = versions.tried,
            // Pacing only: a refused writer tries again, and does not burn the processor.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        if until() {
            return versions;
        }
    }
}

/// The newest version that was acknowledged is there, or a later one that was tried.
async fn assert_version(volume: &Volume, inode: u64, versions: Versions) {
    let found = read(volume, key(inode, 0), 0..1).await.unwrap();
    let is = |version: u64| {
        let expected = pattern(version, 0, LEN);
        found.iter().zip(&expected).all(|(found, expected)| *found == Some(*expected))
    };
    let Versions { acknowledged, tried } = versions;
    let is_allowed = acknowledged == 0 || (acknowledged..=tried).any(is);
    assert!(is_allowed, "file {inode} is older than version {acknowledged}, or a mix");
}

/// Writes durably where nothing has been written before, until somebody is refused.
async fn append_until_refused(volume: &Volume) {
    for index in 0.. {
        for offset in (0..1 << 20).step_by(BLOCK) {
            let request = write_request(key(20, index), offset, vec![9; LEN]);
            if volume.write_durably(request).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test]
async fn under_load_nothing_acknowledged_as_durable_is_lost() {
    for seed in 0..40 {
        let disk = new_disk(seed);
        let origin = Simulated::new(&disk);
        let volume = origin.open().await;
        disk.set_delays(true);
        let operation = [Operation::Write, Operation::Sync][usize::from(seed % 2 == 0)];
        origin.faults.fail(operation, 10 + seed, libc::EIO);
        let until = || volume.reopened() > 0;
        let writers = (1..=4).map(|inode| overwrite(&volume, inode, until));
        let versions = join_all(writers).await;
        assert!(volume.loss_count() >= 2, "seed {seed}");
        for (inode, versions) in (1..).zip(versions) {
            assert_version(&volume, inode, versions).await;
        }
        assert_eq!(volume.statistics().checksum_failures, 0, "seed {seed}");
    }
}

/// A mounted file system of little room, in memory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, mib: u64) -> Self {
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at);
        assert!(mount.status().unwrap().success(), "tests run as root");
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

/// A loop device over a sparse file whose file system is full: writes to new pages fail with EIO,
/// until something else there is removed.
#[tokio::test]
async fn a_real_device_that_fails_and_recovers_under_load_goes_on_without_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let _small = SmallDisk::mount(home.path(), 48);
    let image = home.path().join("image");
    File::create(&image).unwrap().set_len(96 << 20).unwrap();
    let Some(device) = LoopDevice::attach(&image) else { return };
    let place = PlaceOptions {
        path: device.0.clone(),
        cluster: ClusterId([9; 16]),
        new_target: Some(TargetId([7; 8])),
        capacity: Some(ByteLen(96 << 20)),
        disk_engine: DiskEngine::Auto,
        sync_interval: Duration::from_secs(3600),
        boot: boot_id().unwrap(),
        cache_bytes: 1 << 20,
    };
    let volume = Volume::open_at(&place, BufferPool::new(16 << 20)).await.unwrap();
    let filler = home.path().join("filler");
    let refuse = || {
        // As much as there is room for.
        fs::write(&filler, vec![1; 64 << 20]).expect_err("the file system is full");
    };
    let is_refused = AtomicU64::new(0);
    let until = || {
        if volume.has_failed() && is_refused.fetch_add(1, Ordering::Relaxed) == 0 {
            fs::remove_file(&filler).unwrap();
        }
        volume.reopened() > 0
    };
    let first = overwrite(&volume, 9, || true).await;
    refuse();
    let writers = join_all((1..=8).map(|inode| overwrite(&volume, inode, until)));
    let (versions, ()) = futures::join!(writers, append_until_refused(&volume));
    assert!(is_refused.into_inner() > 0 && !volume.has_failed());
    assert!(volume.loss_count() >= 2);
    assert_version(&volume, 9, first).await;
    for (inode, versions) in (1..).zip(versions) {
        assert_version(&volume, inode, versions).await;
        volume.write_durably(write_request(key(inode, 0), 0, vec![5; LEN])).await.unwrap();
    }
    volume.close().await.unwrap();
    drop(volume);
    let volume = Volume::open_at(&place, BufferPool::new(16 << 20)).await.unwrap();
    assert_holds(&volume, key(1, 0), 0, &[5; LEN]).await;
    drop(volume);
    assert_eq!(PAUSES.min, Duration::from_secs(1), "the time that this test takes");
}
