//! Sockets, FIFOs and device nodes: every mount shows what they are, and the kernel of the host on
//! which they are used serves them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use millrace_tests::cluster::{Cluster, Wish};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, makedev, mkfifoat, mknodat},
    io::Errno,
};

fn two_mounts() -> Result<(Cluster, PathBuf, PathBuf)> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    Ok((cluster, one, two))
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

/// Opens one end of a FIFO without waiting for the other.
fn end(path: &Path, write: bool) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(!write).write(write).custom_flags(flags).open(path)
}

#[test]
fn a_socket_is_one_on_every_mount_and_served_where_it_was_bound() -> Result<()> {
    let (_cluster, one, two) = two_mounts()?;
    let (here, there) = (one.join("socket"), two.join("socket"));
    let listener = UnixListener::bind(&here)?;
    for path in [&here, &there] {
        let found = fs::symlink_metadata(path)?;
        ensure!(found.file_type().is_socket() && found.len() == 0, "{}", path.display());
    }
    ensure!(errno(UnixListener::bind(&there)) == Some(Errno::ADDRINUSE), "the name is taken");
    let mut client = UnixStream::connect(&here)?;
    let (mut server, _) = listener.accept()?;
    client.write_all(b"asked")?;
    let mut heard = [0; 5];
    server.read_exact(&mut heard)?;
    ensure!(&heard == b"asked");
    let refused = errno(UnixStream::connect(&there));
    ensure!(refused == Some(Errno::CONNREFUSED), "nobody listens on that host: {refused:?}");

    fs::remove_file(&there)?;
    let gone = errno(UnixStream::connect(&here));
    ensure!(gone == Some(Errno::NOENT), "its name is gone on both: {gone:?}");
    server.write_all(b"still")?;
    client.read_exact(&mut heard)?;
    ensure!(&heard == b"still", "who was connected stays so");
    let again = UnixListener::bind(&here)?;
    UnixStream::connect(&here)?;
    again.accept()?;
    fs::remove_file(&here)?;
    ensure!(!there.exists());
    Ok(())
}

#[test]
fn a_fifo_passes_bytes_within_a_host_and_holds_none() -> Result<()> {
    let (_cluster, one, two) = two_mounts()?;
    let (here, there) = (one.join("pipe"), two.join("pipe"));
    mkfifoat(CWD, &here, Mode::from_raw_mode(0o640))?;
    for path in [&here, &there] {
        let found = fs::symlink_metadata(path)?;
        ensure!(found.file_type().is_fifo() && found.mode() & 0o7777 == 0o640);
    }
    let mut reader = end(&here, false)?;
    let mut writer = end(&here, true)?;
    writer.write_all(b"through")?;
    let mut heard = [0; 7];
    reader.read_exact(&mut heard)?;
    ensure!(&heard == b"through");
    let alone = errno(end(&there, true));
    ensure!(alone == Some(Errno::NXIO), "nobody reads on that host: {alone:?}");
    drop(writer);
    ensure!(reader.read(&mut heard)? == 0, "the end, for there is no writer any more");
    ensure!(fs::symlink_metadata(&there)?.len() == 0);
    fs::remove_file(&there)?;
    ensure!(!here.exists());
    Ok(())
}

#[test]
fn a_device_node_keeps_its_number_and_opens_only_where_the_mount_allows_it() -> Result<()> {
    let (cluster, one, two) = two_mounts()?;
    let mode = Mode::from_raw_mode(0o666);
    let (null, disk) = (makedev(1, 3), makedev(259, 70_000));
    mknodat(CWD, one.join("null"), FileType::CharacterDevice, mode, null)?;
    mknodat(CWD, one.join("disk"), FileType::BlockDevice, mode, disk)?;
    for mount in [&one, &two] {
        let found = fs::symlink_metadata(mount.join("null"))?;
        ensure!(found.file_type().is_char_device() && found.rdev() == null);
        let found = fs::symlink_metadata(mount.join("disk"))?;
        ensure!(found.file_type().is_block_device() && found.rdev() == disk);
        let refused = errno(File::open(mount.join("null")));
        ensure!(refused == Some(Errno::ACCESS), "mounts are nodev by default: {refused:?}");
    }
    cluster.mount_as("devices", &cluster.dir().join("client.pem"), "dev")?.ok()?;
    let path = cluster.mount_named("devices").join("null");
    let mut device = OpenOptions::new().read(true).write(true).open(path)?;
    device.write_all(b"nothing keeps this")?;
    ensure!(device.read(&mut [0; 16])? == 0, "it is the kernel's");
    drop(device);
    fs::remove_file(two.join("null"))?;
    ensure!(!one.join("null").exists());
    Ok(())
}
