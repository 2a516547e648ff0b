use super::*;
use crate::format::superblock::{Layout, Superblock};
use millrace_types::{ClusterId, MIB, TargetId};
use rustix::fs::FlockOperation;
use std::os::unix::fs::MetadataExt;

fn refused(path: &Path, make: bool) -> PlaceError {
    Place::open(path, make).expect_err("refused")
}

#[test]
fn a_directory_gets_a_store_and_is_had_alone() {
    let home = tempfile::tempdir().unwrap();
    assert!(matches!(refused(home.path(), false), PlaceError::NoTarget { .. }));
    assert!(!home.path().join(STORE).exists(), "nothing is made unasked");
    let place = Place::open(home.path(), true).unwrap();
    assert_eq!(place.kind(), PlaceKind::Directory);
    assert!(home.path().join(STORE).exists());
    assert!(place.room_bytes().unwrap() > 0);
    let error = refused(home.path(), false);
    assert!(matches!(error, PlaceError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(home.path().to_str().unwrap()), "{error}");
    place.unlock();
    Place::open(home.path(), false).unwrap();
}

#[test]
fn the_attachment_of_a_disk_is_the_same_for_all_who_open_what_lies_on_it() {
    let home = tempfile::tempdir().unwrap();
    let first = Place::open(home.path(), true).unwrap().attachment();
    // The kernel tells it of a disk, a partition's one level higher; of memory there is none.
    let device = fs::metadata(home.path().join(STORE)).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let is_told = ["diskseq", "../diskseq"].iter().any(|name| device.join(name).exists());
    assert_eq!(first.is_some(), is_told, "{}", device.display());
    assert_eq!(Place::open(home.path(), false).unwrap().attachment(), first);
    let image = home.path().join("image");
    File::create(&image).unwrap().set_len(5 * MIB).unwrap();
    assert_eq!(Place::open(&image, true).unwrap().attachment(), first, "the same disk");
}

fn is_locked(file: &Path) -> bool {
    let file = File::open(file).unwrap();
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// The kernel takes an io_uring apart after its process has ended: what it had under way must not
/// meet what the next process does.
#[test]
fn a_place_stays_locked_until_it_is_let_go_of_or_its_disk_has_ended() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("image");
    File::create(&image).unwrap().set_len(5 * MIB).unwrap();
    let store = home.path().join(STORE);
    let image = image.as_path();
    for (path, file) in [(home.path(), store.as_path()), (image, image)] {
        for engine in [DiskEngine::Blocking, DiskEngine::Auto] {
            let place = Place::open(path, true).unwrap();
            let disk = place.start(engine).unwrap();
            drop(place);
            assert!(is_locked(file), "{} under {engine:?}", path.display());
            drop(disk);
            let place = Place::open(path, true).unwrap();
            let disk = place.start(engine).unwrap();
            assert!(is_locked(file), "{} under {engine:?}", path.display());
            // Reads go on.
            place.unlock();
            assert!(!is_locked(file), "{} under {engine:?}", path.display());
            let next = Place::open(path, true).unwrap();
            drop((place, disk));
            assert!(is_locked(file), "by the next one");
            next.release();
            assert!(!is_locked(file));
        }
    }
}

#[tokio::test]
async fn a_directory_grows_and_an_image_does_not() {
    let home = tempfile::tempdir().unwrap();
    let place = Arc::new(Place::open(home.path(), true).unwrap());
    Arc::clone(&place).grow(4096, 3 * MIB).await.unwrap();
    assert_eq!(place.len_bytes().unwrap(), 3 * MIB);
    let path = home.path().join("image");
    File::create(&path).unwrap().set_len(5 * MIB).unwrap();
    let image = Arc::new(Place::open(&path, true).unwrap());
    assert_eq!((image.kind(), image.len_bytes().unwrap()), (PlaceKind::Image, 5 * MIB));
    assert_eq!(image.room_bytes().unwrap(), 0);
    let grown = Arc::clone(&image).grow(5 * MIB, 6 * MIB).await;
    assert!(matches!(grown, Err(DiskError::NoSpace)));
    assert_eq!(image.len_bytes().unwrap(), 5 * MIB);
    assert!(matches!(refused(&path, true), PlaceError::InUse { .. }));
}

#[test]
fn what_is_no_place_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let missing = home.path().join("nothing");
    assert!(matches!(refused(&missing, true), PlaceError::Missing { .. }));
    assert!(matches!(refused(Path::new("/dev/null"), true), PlaceError::Kind { .. }));
    for name in VERSION_1 {
        let old = tempfile::tempdir().unwrap();
        File::create(old.path().join(name)).unwrap();
        let error = refused(old.path(), true);
        assert!(error.to_string().contains("format version 1"), "{error}");
        assert!(error.to_string().contains(old.path().to_str().unwrap()), "{error}");
        assert!(!old.path().join(STORE).exists());
    }
}

#[test]
fn what_others_have_written_is_never_taken_for_blank() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("image");
    let open = |bytes: &[u8]| {
        let mut head = bytes.to_vec();
        head.resize(2 << 20, 0);
        fs::write(&path, &head).unwrap();
        let opened = Place::open(&path, true).map(drop);
        assert_eq!(fs::read(&path).unwrap(), head, "nothing is changed");
        opened
    };
    open(&[]).unwrap();
    let error = open(&[0, 0, 0, 1]).unwrap_err();
    assert!(error.to_string().contains("wipe its first MiB"), "{error}");
    assert!(open(&[vec![0; HEAD_LAST], vec![1]].concat()).is_err(), "to the last byte");
    open(&[vec![0; HEAD_LAST + 1], vec![1]].concat()).unwrap();
    let layout = Layout::new(1 << 20).unwrap();
    let superblock = |copy| {
        let (cluster, target) = (ClusterId([1; 16]), TargetId([2; 8]));
        Superblock { cluster, target, writes: 1, losses: 0, layout }.encode(copy)
    };
    let own = [superblock(0), vec![0; 31 * 4096], superblock(1)].concat();
    open(&own).unwrap();
    // A file system made over a target leaves the second copy alone.
    let mut over = own;
    over[..4].copy_from_slice(b"XFSB");
    let error = open(&over).unwrap_err();
    assert!(error.to_string().contains("an XFS file system"), "{error}");
}

/// The last byte that is looked at.
const HEAD_LAST: usize = signature::HEAD_LEN - 1;
