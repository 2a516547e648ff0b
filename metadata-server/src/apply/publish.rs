//! Makes files that their makers have written before anybody else heard of them.

use std::time::Duration;

use millrace_protocol::metadata::FileKind;
use millrace_types::{ChangeCount, ErrorKind};

use super::{
    ApplyError, Transaction,
    create::{add, file_body, new_inode},
    inline,
};
use crate::{
    command::{Outcome, Publish},
    namespace::{Body, Inode, permission, tree},
};

/// How long before the command a file may have been made: as long as a mount waits for servers that
/// are away, by default.
const MADE_BEFORE_MAX: Duration = Duration::from_secs(600);

/// Makes a file with its bytes, which live in its inode or are at the targets. Nothing may have its
/// name, and nothing its id.
pub(super) fn publish(
    tx: &mut Transaction<'_>,
    publish: &Publish,
    bytes: Option<&[u8]>,
) -> Result<Outcome, ApplyError> {
    let create = &publish.create;
    let parent = tx.inode(create.parent)?;
    parent.directory()?;
    permission::check(tx, &create.caller, &parent, permission::Access::Search)?;
    if tree::entry(tx, parent.id, &create.name)?.is_some() {
        return Err(ErrorKind::Exists.into());
    }
    add(tx, create, parent, 0, |tx, _, _| build(tx, publish, bytes))
}

fn build(
    tx: &mut Transaction<'_>,
    publish: &Publish,
    bytes: Option<&[u8]>,
) -> Result<Inode, ApplyError> {
    let Publish { create, layout, .. } = publish;
    // An id that was given to somebody has been reserved.
    let is_reserved = create.inode < tx.file_system()?.inode_limit;
    if !is_reserved || tree::find(tx, create.inode)?.is_some() {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let mut file = file_body(layout.checked()?);
    if let Some(bytes) = bytes {
        inline::check(bytes, publish.end)?;
        inline::put(tx, create.inode, &mut file, bytes)?;
    }
    let body = Body::File(Box::new(file));
    let owner = (create.caller.uid, create.caller.gid);
    let mut inode = new_inode(tx, create.inode, FileKind::Regular, owner, body);
    inode.mode = create.mode & permission::MODE_MAX;
    let earliest = tx.time.minus(MADE_BEFORE_MAX);
    let made_at = publish.made_at.clamp(earliest, tx.time);
    let written_at = publish.written_at.map(|at| at.clamp(made_at, tx.time));
    inode.size = publish.end;
    inode.born = made_at;
    inode.accessed = made_at;
    inode.modified = written_at.unwrap_or(made_at);
    inode.changed = tx.time;
    inode.change_count = ChangeCount(1);
    super::commit::check_size(inode.file()?, publish.end)?;
    Ok(inode)
}
