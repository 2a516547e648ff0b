//! Which boot of the machine this is.

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
