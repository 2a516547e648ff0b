//! Capacity and use.

use std::time::Duration;

use millrace_protocol::metadata::{FileSystemUse, FileSystemUseReply};
use millrace_types::{ErrorKind, Failure, TargetId};

use super::{Client, Step};
use crate::{
    engine::Core,
    store::{
        keys,
        records::{self, TargetRecord},
    },
};

/// What `statfs` shows: the last reports of all targets. One that has not reported since the
/// server's start counts with what it had when it registered, and has nothing free.
///
/// # Errors
/// [`ErrorKind::Forbidden`] outside of the client's subtree; [`ErrorKind::Busy`] right after the
/// server's start, until all targets have reported or had the time to.
pub fn read(
    core: &mut Core,
    client: &Client,
    request: &FileSystemUse,
) -> Result<Step<FileSystemUseReply>, Failure> {
    client.enter(core, request.inode)?;
    let silent: Vec<_> = core.registry.unreported().collect();
    if !silent.is_empty() && core.now().since(core.started()) < REPORTS_USUAL {
        let text = format!("{} targets have not reported since the start", silent.len());
        return Err(Failure::new(ErrorKind::Busy, text).retry_after(PAUSE));
    }
    let (mut capacity_bytes, mut used_bytes) = core.registry.capacity();
    for target in silent {
        let capacity = registered(core, target)?;
        capacity_bytes = capacity_bytes.saturating_add(capacity);
        used_bytes = used_bytes.saturating_add(capacity);
    }
    let inodes = core.file_system()?.inodes;
    Ok(Step::Done(FileSystemUseReply { capacity_bytes, used_bytes, inodes }))
}

/// Bytes that a target could hold when it registered last.
fn registered(core: &mut Core, target: TargetId) -> Result<u64, Failure> {
    let record = records::read::<TargetRecord>(core.view(), &keys::target(target));
    let record = record.map_err(|error| core.failure(error.into()))?;
    Ok(record.map_or(0, |record| record.capacity.0))
}

/// Targets send a heartbeat each second, and look for a server that was away more often.
const REPORTS_USUAL: Duration = Duration::from_secs(3);

/// Until who asks for the use asks again.
const PAUSE: Duration = Duration::from_millis(100);
