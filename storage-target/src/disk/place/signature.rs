//! Whether a device or file holds something that is no target's.

use std::{
    fs::File,
    io::{self, Read},
};

use crate::{
    disk::ALIGNMENT,
    format::{
        root::{ROOT_MAGIC, ROOT_SLOTS},
        superblock::{COPIES, MAGIC, ROOTS},
    },
};

/// Bytes looked at: everything of a target but its journal and its regions lies there, and so do
/// the signatures of file systems, partition tables, volume managers and encryption.
pub const HEAD_LEN: usize = 1 << 20;

/// Where others sign: offset, bytes, and who.
const KNOWN: [(usize, &[u8], &str); 16] = [
    (1080, &[0x53, 0xEF], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (65_600, b"_BHRfS_M", "a btrfs file system"),
    (1024, &[0x10, 0x20, 0xF5, 0xF2], "an F2FS file system"),
    (4120, &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA], "a bcachefs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (32_769, b"CD001", "an ISO 9660 file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xBA\xBE", "an encrypted volume (LUKS)"),
    (536, b"LVM2 001", "a physical volume (LVM)"),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], "a member of a RAID (md)"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
    (510, &[0x55, 0xAA], "a partition table or boot sector"),
];

/// What the beginning of a file or device holds if it is neither blank nor a target's.
///
/// # Errors
/// What the system says.
pub(super) fn foreign(file: &File) -> io::Result<Option<&'static str>> {
    let mut head = Vec::new();
    file.take(HEAD_LEN as u64).read_to_end(&mut head)?;
    Ok(name(&head))
}

/// What the first bytes say; `None`: they are blank, or a target's.
#[must_use]
pub fn name(head: &[u8]) -> Option<&'static str> {
    let starts =
        |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|from| from.starts_with(bytes));
    // Before anything else: whoever made a file system over a target has left parts of it.
    if let Some((_, _, what)) = KNOWN.iter().find(|(at, bytes, _)| starts(*at, bytes)) {
        return Some(what);
    }
    let page = |page: u64| usize::try_from(page).expect("within the first MiB") * ALIGNMENT;
    let superblock = COPIES.iter().any(|&copy| starts(page(copy), MAGIC));
    // A target that was being made when the power went has roots alone.
    let root = (0..ROOT_SLOTS).any(|slot| starts(page(ROOTS + slot), ROOT_MAGIC));
    let blank = head.iter().all(|&byte| byte == 0);
    (!superblock && !root && !blank).then_some("data of an unknown kind")
}
