//! Which attachment of a disk this is.

use std::{
    fs::{self, File},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::PathBuf,
};

/// The number under which the kernel has attached the disk that an open file lies on, or that it
/// is: another one each time that a disk comes, the same one for every process meanwhile. `None`
/// where the kernel does not say (before Linux 5.15), or no single disk lies under the file system.
pub(crate) fn attachment_of(file: &File) -> Option<u64> {
    let about = file.metadata().ok()?;
    let device = if about.file_type().is_block_device() { about.rdev() } else { about.dev() };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition comes and goes with its disk.
    let disk = if device.join("partition").exists() { device.join("..") } else { device };
    fs::read_to_string(disk.join("diskseq")).ok()?.trim().parse().ok()
}
