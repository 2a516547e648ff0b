//! A target in a directory, in an image file and on a loop device: what opening makes, refuses and
//! remembers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

#[path = "power/loop_device.rs"]
mod loop_device;

use std::{
    env,
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    time::Duration,
};

use bytes::Bytes;
use millrace_storage_target::{
    disk::{BufferPool, DiskEngine, PlaceError},
    format::batch::BootId,
    volume::{Authority, EngineError, WriteRequest},
    volume::{OpenError, PlaceOptions, Volume},
};
use millrace_types::{
    ByteLen, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, MIB, SessionId, TargetId, WriteEpoch, WriteNumber,
};

use loop_device::LoopDevice;

/// Bytes of one write.
const PIECE: usize = 1 << 20;

/// Bytes of a region, by which a target grows.
const REGION: u64 = 32 * MIB;

fn options(path: &Path, capacity: Option<u64>) -> PlaceOptions {
    PlaceOptions {
        path: path.to_owned(),
        cluster: ClusterId([9; 16]),
        new_target: Some(TargetId([7; 8])),
        capacity: capacity.map(ByteLen),
        disk_engine: DiskEngine::Auto,
        sync_interval: Duration::from_secs(3600),
        boot: BootId([1; 16]),
        cache_bytes: 1 << 20,
    }
}

async fn open(path: &Path, capacity: Option<u64>) -> Result<Volume, OpenError> {
    Volume::open_at(&options(path, capacity), BufferPool::new(32 << 20)).await
}

async fn write(volume: &Volume, index: u64) -> Result<(), EngineError> {
    let bytes = vec![u8::try_from(index % 251).unwrap(); PIECE];
    let request = WriteRequest {
        key: key(index),
        offset: 0,
        checksum: Crc32c::of(&bytes),
        body: vec![Bytes::from(bytes)],
        group_epoch: GroupEpoch(1),
        write_epoch: WriteEpoch(0),
        chunk_size: 1 << 20,
        backed: 0,
        session: SessionId(0),
        number: WriteNumber(0),
        authority: Authority::default(),
    };
    volume.write(request).await.map(drop)
}

async fn assert_holds(volume: &Volume, index: u64) {
    let snapshot = volume.snapshot(key(index), 0..16).await.unwrap();
    let loaded = volume.load(&snapshot, 0, 256).await.unwrap();
    assert!(loaded.bytes.iter().all(|&byte| u64::from(byte) == index % 251), "chunk {index}");
}

fn key(index: u64) -> ChunkKey {
    ChunkKey {
        inode: InodeId(1),
        generation: ContentGeneration(1),
        index: ChunkIndex(u32::try_from(index).unwrap()),
        copy: CopyIndex(0),
    }
}

/// Writes until the target is full; returns how many chunks it has taken.
async fn fill(volume: &Volume) -> u64 {
    for index in 0.. {
        match write(volume, index).await {
            Ok(()) => {}
            Err(EngineError::NoSpace) => return index,
            Err(error) => panic!("chunk {index}: {error}"),
        }
    }
    unreachable!("some chunk does not fit")
}

#[tokio::test]
async fn a_directory_grows_with_what_is_written_up_to_its_capacity() {
    let home = tempfile::tempdir().unwrap();
    let capacity = 17 * MIB + 3 * REGION;
    let volume = open(home.path(), Some(capacity)).await.unwrap();
    let store = home.path().join("store");
    let blank = volume.statistics();
    assert!(blank.blank);
    assert_eq!(blank.capacity, ByteLen(3 * REGION - 8 * MIB));
    assert_eq!(blank.used.0 + blank.free.0, blank.capacity.0);
    assert_eq!(fs::metadata(&store).unwrap().len(), 17 * MIB + REGION, "one region for a start");
    let chunks = fill(&volume).await;
    assert_eq!(fs::metadata(&store).unwrap().len(), capacity);
    let full = volume.statistics();
    assert!(full.free.0 < PIECE as u64, "{full:?}");
    assert_eq!(full.used.0 + full.free.0, full.capacity.0);
    assert_eq!(chunks, blank.free.0 / MIB, "what was promised is what there is");
    drop(volume);
    // A kill: everything is there, and the figures are the same.
    let volume = open(home.path(), Some(capacity)).await.unwrap();
    assert_eq!(volume.statistics().used, full.used);
    for index in 0..chunks {
        assert_holds(&volume, index).await;
    }
    volume.close().await.unwrap();
}

#[tokio::test]
async fn a_later_setting_raises_the_capacity_or_bounds_what_is_taken() {
    let home = tempfile::tempdir().unwrap();
    let [one, two, three] = [1, 2, 3].map(|regions| 17 * MIB + regions * REGION);
    let volume = open(home.path(), Some(one)).await.unwrap();
    let chunks = fill(&volume).await;
    let loss_count = volume.loss_count();
    volume.close().await.unwrap();
    drop(volume);
    let volume = open(home.path(), Some(three)).await.unwrap();
    assert_eq!(volume.statistics().capacity, ByteLen(3 * REGION - 8 * MIB));
    assert_eq!(volume.loss_count(), loss_count, "more room is no loss");
    write(&volume, chunks).await.unwrap();
    volume.close().await.unwrap();
    drop(volume);
    // Two regions are in use by now, and no third one is taken.
    let volume = open(home.path(), Some(one)).await.unwrap();
    assert_eq!(volume.statistics().capacity, ByteLen(2 * REGION - 8 * MIB));
    fill(&volume).await;
    assert_eq!(fs::metadata(home.path().join("store")).unwrap().len(), two);
    drop(volume);
    // Without a setting it is what the file system has.
    let volume = open(home.path(), None).await.unwrap();
    assert!(volume.statistics().capacity.0 > 3 * REGION);
    assert_holds(&volume, chunks).await;
}

#[tokio::test]
async fn an_image_has_the_length_that_it_has() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("image");
    let image = File::create(&path).unwrap();
    image.set_len(48 * MIB).unwrap();
    let error = open(&path, None).await.unwrap_err();
    assert!(matches!(error, OpenError::Place(PlaceError::TooSmall { .. })), "{error}");
    assert!(error.to_string().contains("needs 49"), "{error}");
    image.set_len(81 * MIB).unwrap();
    let volume = open(&path, None).await.unwrap();
    let blank = volume.statistics();
    assert_eq!(blank.capacity, ByteLen(2 * REGION - 8 * MIB));
    let in_use = open(&path, None).await.unwrap_err();
    assert!(matches!(in_use, OpenError::Place(PlaceError::InUse { .. })), "{in_use}");
    assert!(in_use.to_string().contains(path.to_str().unwrap()), "{in_use}");
    let chunks = fill(&volume).await;
    assert_eq!(chunks, blank.free.0 / MIB);
    assert_eq!(fs::metadata(&path).unwrap().len(), 81 * MIB);
    volume.close().await.unwrap();
    // The next one may have it while this one is still there for readers.
    let next = open(&path, None).await.unwrap();
    assert_holds(&next, chunks - 1).await;
    drop((next, volume));
    // Cut off, it is refused by name.
    image.set_len(50 * MIB).unwrap();
    let error = open(&path, None).await.unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert!(error.to_string().contains("cut off"), "{error}");
}

#[tokio::test]
async fn another_clusters_disk_and_a_blank_one_for_a_known_target_are_refused_and_not_changed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("image");
    let image = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
    image.set_len(81 * MIB).unwrap();
    let mut expecting = options(&path, None);
    expecting.new_target = None;
    let error = Volume::open_at(&expecting, BufferPool::new(0)).await.unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("is blank"), "{error}");

    let volume = open(&path, None).await.unwrap();
    write(&volume, 3).await.unwrap();
    volume.close().await.unwrap();
    drop(volume);
    // Copy B is damaged, which its own cluster would mend.
    image.write_all_at(&[0; 4096], 32 * 4096).unwrap();
    let before = fs::read(&path).unwrap();
    let mut other = options(&path, None);
    other.cluster = ClusterId([8; 16]);
    let error = Volume::open_at(&other, BufferPool::new(0)).await.unwrap_err().to_string();
    let names = [ClusterId([8; 16]).to_string(), ClusterId([9; 16]).to_string()];
    assert!(names.iter().all(|name| error.contains(name)), "{error}");
    assert!(fs::read(&path).unwrap() == before, "not a byte is another one");
    assert_holds(&open(&path, None).await.unwrap(), 3).await;
}

#[tokio::test]
async fn a_wiped_image_becomes_a_new_target_although_an_old_journal_lies_there() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("image");
    let image = File::create(&path).unwrap();
    image.set_len(81 * MIB).unwrap();
    let volume = open(&path, None).await.unwrap();
    write(&volume, 3).await.unwrap();
    drop(volume);
    image.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    let volume = open(&path, None).await.unwrap();
    assert!(volume.statistics().blank);
    let snapshot = volume.snapshot(key(3), 0..1).await.unwrap();
    assert_eq!(snapshot.page_count(0), 0, "nothing of the old target comes back");
}

#[tokio::test]
async fn a_file_system_without_room_is_no_damage_and_goes_on_when_it_has_some() {
    let home = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::tmpfs(home.path(), 100) else { return };
    // The setting is more than there is.
    let volume = open(home.path(), Some(17 * MIB + 4 * REGION)).await.unwrap();
    let blank = volume.statistics();
    assert_eq!(blank.capacity, ByteLen(4 * REGION - 8 * MIB));
    assert_eq!(blank.free, ByteLen(2 * REGION - 8 * MIB - blank.used.0), "one more fits");
    let chunks = fill(&volume).await;
    assert_eq!(chunks, blank.free.0 / MIB, "what was promised is what there is");
    assert!(volume.statistics().free.0 < MIB);
    assert!(!volume.has_failed());
    mounted.resize(200);
    assert!(volume.statistics().free.0 > REGION, "it is seen at once");
    write(&volume, chunks).await.unwrap();
    drop(volume);
    let volume = open(home.path(), Some(17 * MIB + 4 * REGION)).await.unwrap();
    for index in 0..=chunks {
        assert_holds(&volume, index).await;
    }
    volume.close().await.unwrap();
}

#[tokio::test]
async fn a_file_system_on_a_device_is_refused_by_name_until_it_is_wiped() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("image");
    File::create(&image).unwrap().set_len(81 * MIB).unwrap();
    let Some(device) = LoopDevice::attach(&image) else { return };
    let makers = [("mkfs.ext4", "an ext2, ext3 or ext4 file system"), ("mkswap", "swap space")];
    for (maker, name) in makers {
        let made = Command::new(maker).arg(&device.0).output().unwrap();
        assert!(made.status.success(), "{maker}: {made:?}");
        let before = fs::read(&device.0).unwrap();
        let error = open(&device.0, None).await.unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.to_string().contains(device.0.to_str().unwrap()), "{error}");
        assert!(fs::read(&device.0).unwrap() == before, "nothing is changed");
        let disk = OpenOptions::new().write(true).open(&device.0).unwrap();
        disk.write_all_at(&vec![0; 1 << 20], 0).unwrap();
        disk.sync_all().unwrap();
    }
    let volume = open(&device.0, None).await.unwrap();
    assert_eq!(volume.statistics().capacity, ByteLen(2 * REGION - 8 * MIB));
    write(&volume, 1).await.unwrap();
    let in_use = open(&device.0, None).await.unwrap_err();
    assert!(matches!(in_use, OpenError::Place(PlaceError::InUse { .. })), "{in_use}");
    drop(volume);
    let volume = open(&device.0, None).await.unwrap();
    assert_holds(&volume, 1).await;
    volume.close().await.unwrap();
}

/// A file system of its own, unmounted when it is dropped.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    /// `None` where nobody may mount and `MILLRACE_TEST_WITHOUT_MOUNTS` is set, which is said.
    #[expect(clippy::print_stderr, reason = "who reads the test's output learns what was skipped")]
    fn tmpfs(at: &'a Path, mib: u32) -> Option<Self> {
        let size = format!("size={mib}m");
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        if done.as_ref().is_ok_and(|done| done.status.success()) {
            return Some(Self(at));
        }
        let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_MOUNTS").is_some();
        assert!(may_lack, "no file system can be mounted here: {done:?}");
        eprintln!("SKIPPED: no file system can be mounted here: {done:?}");
        None
    }

    fn resize(&self, mib: u32) {
        let size = format!("remount,size={mib}m");
        let done = Command::new("mount").args(["-o", &size]).arg(self.0).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Mounted<'_> {
    #[expect(clippy::print_stderr, reason = "a mount that stays must be seen")]
    fn drop(&mut self) {
        // What is still open in it goes with the process.
        let done = Command::new("umount").arg("--lazy").arg(self.0).status();
        if !done.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}
