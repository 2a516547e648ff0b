//! Capacity and use.

use millrace_protocol::metadata::{FileSystemUse, FileSystemUseReply};
use millrace_types::Failure;

use super::{Client, Step};
use crate::engine::Core;

/// What `statfs` shows: the last reports of all targets.
///
/// # Errors
/// [`millrace_types::ErrorKind::Forbidden`] outside of the client's subtree.
pub fn read(
    core: &mut Core,
    client: &Client,
    request: &FileSystemUse,
) -> Result<Step<FileSystemUseReply>, Failure> {
    client.enter(core, request.inode)?;
    let (capacity_bytes, used_bytes) = core.registry.capacity();
    let inodes = core.file_system()?.inodes;
    Ok(Step::Done(FileSystemUseReply { capacity_bytes, used_bytes, inodes }))
}
