//! Programs work on it as on any file system.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    thread,
};

use millrace_fuse_server::{Channel, End, SessionOptions};

use crate::{Mounted, memory::Memory, options};

fn files_directories_and_links_are_what_was_made_of_them(channel: Channel) {
    let Some(mounted) = Mounted::new(Memory::new(0, 0), channel) else { return };
    fs::write(mounted.path("file"), b"hello").unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(mounted.path("file")).unwrap();
    file.write_all(b", world").unwrap();
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"hello, world");
    fs::create_dir_all(mounted.path("a/b/c")).unwrap();
    fs::rename(mounted.path("file"), mounted.path("a/b/file")).unwrap();
    fs::hard_link(mounted.path("a/b/file"), mounted.path("a/link")).unwrap();
    assert_eq!(fs::metadata(mounted.path("a/link")).unwrap().nlink(), 2);
    symlink("b/file", mounted.path("a/symbolic")).unwrap();
    assert_eq!(fs::read(mounted.path("a/symbolic")).unwrap(), b"hello, world");
    fs::set_permissions(mounted.path("a/link"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(mounted.path("a/b/file")).unwrap().mode(), 0o100_600);
    let refused = fs::remove_dir(mounted.path("a/b")).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::DirectoryNotEmpty);
    fs::remove_file(mounted.path("a/b/file")).unwrap();
    assert_eq!(fs::read(mounted.path("a/link")).unwrap(), b"hello, world");
    fs::remove_dir_all(mounted.path("a")).unwrap();
    let missing = fs::metadata(mounted.path("a")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

fn large_files_keep_their_bytes_and_their_holes(channel: Channel) {
    let Some(mounted) = Mounted::new(Memory::new(0, 0), channel) else { return };
    let bytes: Vec<u8> = (0..=250_u8).cycle().take(5_000_000).collect();
    let path = mounted.path("large");
    fs::write(&path, &bytes).unwrap();
    assert!(fs::read(&path).unwrap() == bytes, "5 MB come back as they were");
    let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"far away", (1 << 40) - 8).unwrap();
    file.seek(SeekFrom::Start((1 << 40) - 10)).unwrap();
    let mut end = String::new();
    file.read_to_string(&mut end).unwrap();
    assert_eq!(end, "\0\0far away");
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < 6_000_000);
    file.set_len(3).unwrap();
    assert_eq!(fs::read(&path).unwrap(), &bytes[..3]);
}

fn every_entry_of_a_directory_is_listed_once_while_others_go(channel: Channel) {
    let Some(mounted) = Mounted::new(Memory::new(0, 0), channel) else { return };
    let name = |index: u32| format!("entry-{index:05}");
    for index in 0..3000 {
        fs::write(mounted.path(&name(index)), b"").unwrap();
    }
    let mut seen = BTreeSet::new();
    for (nth, entry) in fs::read_dir(mounted.directory.path()).unwrap().enumerate() {
        if nth == 100 {
            for index in (1..3000).step_by(2) {
                fs::remove_file(mounted.path(&name(index))).unwrap();
            }
        }
        let entry = entry.unwrap().file_name().into_string().unwrap();
        assert!(seen.insert(entry.clone()), "{entry} twice");
    }
    for index in (0..3000).step_by(2) {
        assert!(seen.contains(&name(index)), "{} is missing", name(index));
    }
}

fn every_request_of_many_threads_is_answered_once(channel: Channel) {
    let Some(mounted) = Mounted::new(Memory::new(0, 0), channel) else { return };
    many_threads(mounted);
}

#[test]
fn one_entry_for_each_queue_is_enough_for_who_does_not_wait_for_others() {
    let options = SessionOptions { ring_memory: Some(0), ..options(Channel::Uring) };
    let Some(mounted) = Mounted::with(Memory::new(0, 0), &options) else { return };
    many_threads(mounted);
}

fn many_threads(mut mounted: Mounted<Memory>) {
    thread::scope(|scope| {
        for thread in 0..16_u8 {
            let folder = mounted.path(&format!("thread-{thread}"));
            scope.spawn(move || {
                fs::create_dir(&folder).unwrap();
                for round in 0..50_u8 {
                    let (path, moved) = (folder.join("file"), folder.join("moved"));
                    let bytes = vec![thread + round; 10_000 + usize::from(round)];
                    fs::write(&path, &bytes).unwrap();
                    fs::rename(&path, &moved).unwrap();
                    assert_eq!(fs::read(&moved).unwrap(), bytes);
                    assert_eq!(fs::metadata(&moved).unwrap().len(), bytes.len() as u64);
                    fs::remove_file(&moved).unwrap();
                }
            });
        }
    });
    mounted.running().mountpoint().unmount().unwrap();
    let ended = mounted.running.take().unwrap().join().unwrap();
    assert_eq!(ended.end, End::Unmounted);
    assert_eq!(ended.counts.read, ended.counts.answered);
    assert_eq!((ended.counts.waiting, ended.counts.forgotten), (0, 0));
    assert!(ended.counts.read > 16 * 50 * 5, "{ended:?}");
}

over_both!(
    files_directories_and_links_are_what_was_made_of_them,
    large_files_keep_their_bytes_and_their_holes,
    every_entry_of_a_directory_is_listed_once_while_others_go,
    every_request_of_many_threads_is_answered_once,
);
