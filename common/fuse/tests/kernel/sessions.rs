//! Mounting, unmounting, and what is there before and after.

use std::{ffi::CString, fs, os::fd::AsRawFd as _};

use millrace_fuse_server::{
    Channel, Errno, MountOptions, Session, SessionError, SessionOptions,
    protocol::init::{InitFlags, NEWEST_MINOR, OLDEST_MINOR},
};
use rustix::mount::MountFlags;
use tempfile::TempDir;

use crate::{Mounted, can_mount, is_offered, memory::Memory, mount, options};

fn terms_are_what_was_wished_and_offered(channel: Channel) {
    let directory = TempDir::new().unwrap();
    let Some(session) = mount(Memory::new(0, 0), directory.path(), &options(channel)) else {
        return;
    };
    let terms = *session.terms();
    assert!((OLDEST_MINOR..=NEWEST_MINOR).contains(&terms.minor), "{terms:?}");
    assert!(terms.flags.contains(InitFlags::ASYNC_READ | InitFlags::ATOMIC_O_TRUNC), "{terms:?}");
    assert!(!terms.flags.contains(InitFlags::WRITEBACK_CACHE), "{terms:?}");
    assert_eq!(terms.channel(), channel);
    assert_eq!(terms.flags.and(terms.offered), terms.flags);
    assert_eq!((terms.max_write, terms.max_pages), (1 << 20, 256));
    drop(session);
    fs::write(directory.path().join("below"), b"").unwrap();
}

fn a_mount_in_use_is_busy_and_a_detached_one_lives_until_it_is_not_used(channel: Channel) {
    let Some(mut mounted) = Mounted::new(Memory::new(0, 0), channel) else { return };
    fs::write(mounted.path("file"), b"content").unwrap();
    let open = fs::File::open(mounted.path("file")).unwrap();
    let error = mounted.running().mountpoint().unmount().unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::BUSY));
    mounted.running().mountpoint().detach().unwrap();
    assert!(!mounted.path("file").exists());
    assert_eq!(std::io::read_to_string(&open).unwrap(), "content");
    drop(open);
    mounted.running.take().unwrap().join().unwrap();
}

fn the_mount_of_a_dead_server_is_replaced(channel: Channel) {
    let directory = TempDir::new().unwrap();
    if !can_mount() || !is_offered(channel) {
        return;
    }
    for _ in 0..2 {
        let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = CString::new(data).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount("dead", directory.path(), "fuse", flags, Some(&*data)).unwrap();
    }
    let error = fs::metadata(directory.path()).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOTCONN));
    let session = mount(Memory::new(0, 0), directory.path(), &options(channel)).unwrap();
    let running = session.spawn().unwrap();
    fs::write(directory.path().join("file"), b"").unwrap();
    running.mountpoint().unmount().unwrap();
    running.join().unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left of it");
}

fn the_helper_mounts_as_well(channel: Channel) {
    let directory = TempDir::new().unwrap();
    let helper = std::process::Command::new("fusermount3").arg("-V").output();
    assert!(helper.is_ok() || !can_mount(), "fusermount3 of fuse3 is missing: {helper:?}");
    let options = SessionOptions { through_helper: true, ..options(channel) };
    let Some(session) = mount(Memory::new(0, 0), directory.path(), &options) else { return };
    let running = session.spawn().unwrap();
    fs::write(directory.path().join("file"), b"through the helper").unwrap();
    assert_eq!(fs::read(directory.path().join("file")).unwrap(), b"through the helper");
    running.mountpoint().unmount().unwrap();
    running.join().unwrap();
}

#[test]
fn what_cannot_be_mounted_on_is_named() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    for path in [file, directory.path().join("missing")] {
        let (mount, options) = (MountOptions::new("test"), SessionOptions::default());
        let error = Session::mount(Memory::new(0, 0), &path, &mount, &options).unwrap_err();
        assert!(matches!(error, SessionError::Mountpoint { .. }), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

over_both!(
    terms_are_what_was_wished_and_offered,
    a_mount_in_use_is_busy_and_a_detached_one_lives_until_it_is_not_used,
    the_mount_of_a_dead_server_is_replaced,
    the_helper_mounts_as_well,
);
