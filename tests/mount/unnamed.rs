//! Files without a name (`O_TMPFILE`): they get one or go.

use std::{
    fs::{self, File},
    io::Write,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
};

use anyhow::Result;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::wait_for,
};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, linkat, openat},
    io::Errno,
};

fn unnamed(directory: &Path, more: OFlags) -> Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more;
    Ok(File::from(openat(CWD, directory, flags, Mode::from_raw_mode(0o640))?))
}

fn name(file: &File, path: &Path) -> Result<(), Errno> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// How many files the cluster has.
pub(crate) fn inodes(cluster: &Cluster) -> Result<u64> {
    let status = || cluster.json(&["status"]).ok();
    wait_for("a healthy cluster", || status()?["inodes"].as_u64())
}

#[test]
fn a_file_without_a_name_gets_one_once_and_goes_otherwise() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let root = cluster.mount();
    let before = inodes(&cluster)?;
    let mut file = unnamed(&root, OFlags::empty())?;
    file.write_all(&[7; 3_000_000])?;
    assert_eq!((file.metadata()?.nlink(), file.metadata()?.mode() & 0o7777), (0, 0o640));
    assert_eq!(fs::read_dir(&root)?.count(), 0);
    name(&file, &root.join("named"))?;
    file.write_all(b"the end")?;
    assert_eq!(file.metadata()?.nlink(), 1);
    let ino = file.metadata()?.ino();
    drop(file);
    let read = fs::read(root.join("named"))?;
    assert!(read[..3_000_000] == [7; 3_000_000] && &read[3_000_000..] == b"the end");
    assert_eq!(fs::metadata(root.join("named"))?.ino(), ino);
    fs::hard_link(root.join("named"), root.join("again"))?;
    fs::remove_file(root.join("again"))?;

    // What has lost its last name gets none any more, nor what was never to have one.
    let file = File::open(root.join("named"))?;
    fs::remove_file(root.join("named"))?;
    assert_eq!(name(&file, &root.join("named")), Err(Errno::NOENT));
    drop(file);
    let file = unnamed(&root, OFlags::EXCL)?;
    assert_eq!(name(&file, &root.join("named")), Err(Errno::NOENT));
    // The one before goes a little after its last close.
    wait_for("one file without a name", || (inodes(&cluster).ok()? == before + 1).then_some(()))?;
    drop(file);
    wait_for("the end of the file", || (inodes(&cluster).ok()? == before).then_some(()))?;
    assert_eq!(unnamed(&root.join("missing"), OFlags::empty()).err().map(|_| ()), Some(()));
    Ok(())
}

#[test]
fn a_file_without_a_name_outlives_the_server_and_not_its_client() -> Result<()> {
    let lease = ("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned());
    let cluster = Cluster::start(Wish { environment: vec![lease], ..Wish::default() })?;
    let root = cluster.mount();
    let mut kept = unnamed(&root, OFlags::empty())?;
    kept.write_all(b"from before")?;
    kept.sync_all()?;
    cluster.crash("metadata")?;
    kept.write_all(b" and after")?;
    name(&kept, &root.join("kept"))?;
    drop(kept);
    assert_eq!(fs::read(root.join("kept"))?, b"from before and after");

    let before = inodes(&cluster)?;
    let mut lost = unnamed(&root, OFlags::empty())?;
    lost.write_all(&[1; 100_000])?;
    lost.sync_all()?;
    assert_eq!(inodes(&cluster)?, before + 1);
    cluster.daemon("mount-0")?.kill()?;
    wait_for("the end of the client's session", || {
        (inodes(&cluster).ok()? == before).then_some(())
    })?;
    Ok(())
}
