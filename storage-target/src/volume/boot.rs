//! Which boot of the machine this is, and which attachment of a disk.

use std::{fs, io};

use millrace_types::ClusterId;

use crate::format::batch::BootId;

/// The id of the running kernel's boot.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn boot_id() -> io::Result<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    // The same shape as a cluster id: sixteen bytes in hexadecimal.
    let id = ClusterId::parse(&digits).map_err(io::Error::other)?;
    Ok(BootId(id.0))
}

/// The same for one attachment of a disk: what a disk that has been away since had not synced may
/// be gone, although the machine goes on.
pub(crate) fn with_attachment(boot: BootId, attachment: Option<u64>) -> BootId {
    let mixed = u128::from_le_bytes(boot.0) ^ u128::from(attachment.unwrap_or(0));
    BootId(mixed.to_le_bytes())
}
