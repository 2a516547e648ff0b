//! What POSIX promises about names, contents, attributes and directories.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::run,
};
use rustix::{fs::statvfs, io::Errno};

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

/// Bytes that tell their own place, so that a piece in the wrong place is seen.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|word| (word ^ (seed << 40)).to_le_bytes());
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(len);
    bytes
}

#[test]
fn names_can_be_made_renamed_linked_and_removed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let root = cluster.mount();
    let (a, b, dir) = (root.join("a"), root.join("b"), root.join("dir"));
    fs::write(&a, "one")?;
    assert_eq!(errno(File::create_new(&a)), Some(Errno::EXIST));
    fs::hard_link(&a, &b)?;
    assert_eq!((fs::metadata(&a)?.nlink(), fs::metadata(&b)?.ino()), (2, fs::metadata(&a)?.ino()));
    fs::remove_file(&a)?;
    assert_eq!((fs::read(&b)?, fs::metadata(&b)?.nlink()), (b"one".to_vec(), 1));

    fs::create_dir(&dir)?;
    fs::write(dir.join("file"), "two")?;
    assert_eq!(errno(fs::remove_dir(&dir)), Some(Errno::NOTEMPTY));
    assert_eq!(errno(fs::rename(&dir, &b)), Some(Errno::NOTDIR));
    assert_eq!(errno(fs::rename(&dir, dir.join("below"))), Some(Errno::INVAL));
    fs::rename(&b, dir.join("file"))?;
    assert_eq!(fs::read(dir.join("file"))?, b"one");
    fs::rename(&dir, root.join("moved"))?;
    assert_eq!(fs::read(root.join("moved/file"))?, b"one");

    symlink("moved/file", root.join("link"))?;
    assert_eq!(fs::read_link(root.join("link"))?, Path::new("moved/file"));
    assert_eq!(fs::read(root.join("link"))?, b"one");
    assert_eq!(errno(fs::read(root.join("missing"))), Some(Errno::NOENT));
    assert_eq!(errno(File::create(root.join("x".repeat(256)))), Some(Errno::NAMETOOLONG));
    fs::write(root.join("x".repeat(255)), "")?;
    fs::remove_dir_all(root.join("moved"))?;
    assert_eq!(errno(fs::read(root.join("link"))), Some(Errno::NOENT));
    Ok(())
}

#[test]
fn a_file_that_is_open_lives_on_after_its_last_name() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("unlinked");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
    file.write_all_at(&pattern(100_000, 1), 0)?;
    fs::remove_file(&path)?;
    let mut read = vec![0; 100_000];
    file.read_exact_at(&mut read, 0)?;
    assert!(read == pattern(100_000, 1));
    assert_eq!(file.metadata()?.nlink(), 0);
    Ok(())
}

#[test]
fn a_name_that_is_replaced_all_the_time_can_always_be_opened() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (root, second) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&second)?;
    let (name, new) = (root.join("name"), root.join("new"));
    fs::write(&name, pattern(5000, 0))?;
    let is_over = AtomicBool::new(false);
    let read = |mount: &Path| -> Result<u64> {
        let mut opens = 0;
        while !is_over.load(Ordering::Relaxed) {
            let bytes = fs::read(mount.join("name"))
                .with_context(|| format!("open {opens} in {}", mount.display()))?;
            let seed = u64::from_le_bytes(*bytes.first_chunk().context("it has bytes")?) >> 40;
            ensure!(bytes == pattern(5000, seed), "neither the old file nor the new one");
            opens += 1;
        }
        Ok(opens)
    };
    let replace = || -> Result<()> {
        for seed in 1..=300 {
            fs::write(&new, pattern(5000, seed))?;
            fs::rename(&new, &name)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let readers = [&root, &root, &second].map(|mount| scope.spawn(move || read(mount)));
        let replaced = replace();
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            let opens = reader.join().map_err(|_| anyhow!("a reader panicked"))??;
            ensure!(opens > 0, "a reader has seen nothing");
        }
        replaced
    })
}

#[test]
fn contents_are_read_as_they_were_written() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("content");
    let whole = pattern(40_000_123, 2);
    fs::write(&path, &whole)?;
    assert!(fs::read(&path)? == whole, "written in one piece");

    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let mut expected = whole;
    let edges = [0, 1, 4_095, 65_535, 65_536, (8 << 20) - 3, 8 << 20, (16 << 20) + 5, 39_999_999];
    for (seed, start) in (3..).zip(edges) {
        let piece = pattern(9_001, seed);
        file.write_all_at(&piece, start as u64)?;
        let end = start + piece.len();
        expected.resize(expected.len().max(end), 0);
        expected[start..end].copy_from_slice(&piece);
    }
    file.sync_all()?;
    assert!(fs::read(&path)? == expected, "overwritten at edges of blocks and chunks");

    OpenOptions::new().append(true).open(&path)?.write_all(b"the end")?;
    expected.extend_from_slice(b"the end");
    assert!(fs::read(&path)? == expected, "appended");
    Ok(())
}

#[test]
fn truncation_and_holes_read_as_zeros() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("holes");
    let file = File::create_new(&path)?;
    file.write_all_at(b"far", 20_000_000)?;
    let bytes = fs::read(&path)?;
    assert_eq!(bytes.len(), 20_000_003);
    assert!(bytes[..20_000_000].iter().all(|byte| *byte == 0) && &bytes[20_000_000..] == b"far");

    file.write_all_at(&pattern(300_000, 1), 0)?;
    file.set_len(100_001)?;
    assert!(fs::read(&path)? == pattern(300_000, 1)[..100_001]);
    file.set_len(200_000)?;
    let mut expected = pattern(300_000, 1)[..100_001].to_vec();
    expected.resize(200_000, 0);
    assert!(fs::read(&path)? == expected, "what was cut off does not come back");
    file.set_len(0)?;
    assert_eq!(fs::read(&path)?.len(), 0);
    File::create(&path)?.write_all(b"new")?;
    assert_eq!(fs::read(&path)?, b"new");
    Ok(())
}

#[test]
fn a_mapped_file_can_be_read_and_changed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("mapped");
    fs::write(&path, pattern(3_000_000, 4))?;
    let script = "import mmap, sys\n\
                  with open(sys.argv[1], 'r+b') as file, mmap.mmap(file.fileno(), 0) as view:\n\
                  \x20   assert view[8:16] == (1 ^ (4 << 40)).to_bytes(8, 'little'), view[:24]\n\
                  \x20   view[1000000:1000006] = b'mapped'\n\
                  \x20   view.flush()\n";
    run("python3", &[&"-c", &script, &path])?.ok()?;
    let mut expected = pattern(3_000_000, 4);
    expected[1_000_000..1_000_006].copy_from_slice(b"mapped");
    assert!(fs::read(&path)? == expected);
    Ok(())
}

#[test]
fn attributes_are_kept() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("attributes");
    fs::write(&path, "12345")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?;
    std::os::unix::fs::chown(&path, Some(1234), Some(4321))?;
    let then = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::open(&path)?.set_times(fs::FileTimes::new().set_modified(then).set_accessed(then))?;
    let metadata = fs::metadata(&path)?;
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
    assert_eq!((metadata.uid(), metadata.gid(), metadata.len()), (1234, 4321, 5));
    assert_eq!(metadata.modified()?, then);
    fs::write(&path, "123456")?;
    assert!(fs::metadata(&path)?.modified()? > then + Duration::from_secs(1));
    Ok(())
}

#[test]
fn a_large_directory_is_listed_whole_and_emptied() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let dir = cluster.mount().join("large");
    fs::create_dir(&dir)?;
    let names: BTreeSet<String> = (0..3_000).map(|index| format!("entry-{index:05}")).collect();
    for name in &names {
        File::create_new(dir.join(name))?;
    }
    let list = || -> io::Result<BTreeSet<String>> {
        let entries = fs::read_dir(&dir)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    assert_eq!(list()?, names);
    // Removing while listing must neither skip nor repeat.
    for entry in fs::read_dir(&dir)? {
        fs::remove_file(entry?.path())?;
    }
    assert!(list()?.is_empty());
    fs::remove_dir(&dir)?;
    Ok(())
}

#[test]
fn the_file_system_tells_its_capacity() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let told = statvfs(cluster.mount())?;
    assert!(told.f_blocks > 0 && told.f_bfree <= told.f_blocks && told.f_namemax == 255);
    let said = run("df", &[&"--output=fstype", &cluster.mount()])?.ok()?;
    assert!(said.contains("fuse.millrace"), "{said}");
    Ok(())
}

#[test]
fn an_empty_read_and_a_read_past_the_end_give_nothing() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("short");
    fs::write(&path, "ab")?;
    let mut file = File::open(&path)?;
    let mut bytes = [0; 16];
    assert_eq!(file.read(&mut [])?, 0);
    assert_eq!(file.read_at(&mut bytes, 1)?, 1);
    assert_eq!(file.read_at(&mut bytes, 2)?, 0);
    assert_eq!(file.read_at(&mut bytes, 1 << 40)?, 0);
    assert_eq!(file.read(&mut bytes)?, 2);
    Ok(())
}
