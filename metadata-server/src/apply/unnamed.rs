//! Files that are made without a name, as `O_TMPFILE` has it, and how they get one.
//!
//! Such a file is kept by its open alone: it goes with the last close, or with the session. One
//! that may get a name is marked; what has lost its last name is not, and never gets one again.

use millrace_protocol::{metadata::FileKind, session::Operation};
use millrace_types::{ErrorKind, LinkId};

use super::{
    ApplyError, Transaction, acl,
    create::{file_body, inherit_group, new_inode},
    layout, open,
};
use crate::{
    command::{CreateUnnamed, Opener, Outcome},
    namespace::{Body, Inode, permission},
    store::{View as _, keys, records::OpenRecord},
};

/// Makes a file without a name and opens it for writing.
pub(super) fn create(
    tx: &mut Transaction<'_>,
    create: &CreateUnnamed,
) -> Result<Outcome, ApplyError> {
    let directory = tx.inode(create.directory)?;
    permission::check_add(tx, &create.caller, &directory)?;
    tx.check_names_writable(&directory)?;
    let layout = layout::place(tx, &directory.directory()?.defaults, create.seed)?;
    let body = Body::File(Box::new(file_body(layout)));
    let owner = (create.caller.uid, create.caller.gid);
    let mut inode = new_inode(tx, create.inode, FileKind::Regular, owner, body);
    inode.mode = create.mode & permission::MODE_MAX;
    inode.links = 0;
    inode.accounting = directory.accounting;
    inherit_group(&mut inode, &directory, &create.caller);
    acl::inherit(tx, &directory, &mut inode, create.umask)?;
    tx.put_inode(&inode);
    tx.change_file_system(|fs| fs.inodes += 1)?;
    if create.nameable {
        let link = tx.link_of(&directory)?.map(|(link, _)| link);
        tx.put_bytes(keys::nameable(inode.id), mark(link));
    }
    open::register_writer(tx, Opener { session: create.session, inode: inode.id })?;
    Ok(Outcome::Inode(inode.id))
}

/// Checks that a file without a name may get one in `directory`: it was made so, and whoever asks
/// has it open.
pub(super) fn check_nameable(
    tx: &Transaction<'_>,
    inode: &Inode,
    directory: &Inode,
    operation: Option<Operation>,
) -> Result<(), ApplyError> {
    let Some(made) = tx.get(&keys::nameable(inode.id))? else {
        return Err(ErrorKind::NotFound.into());
    };
    let session = operation.ok_or(ErrorKind::NotFound)?.session;
    let open: Option<OpenRecord> = tx.read(&keys::open(inode.id, session))?;
    if open.is_none_or(|open| open.writes == 0) {
        return Err(ErrorKind::NotFound.into());
    }
    let link = tx.link_of(directory)?.map(|(link, _)| link);
    if inode.accounting != directory.accounting || made != mark(link) {
        return Err(ErrorKind::CrossDevice.into());
    }
    Ok(())
}

/// The realm that a file was made in: it is not named in another.
fn mark(link: Option<LinkId>) -> Vec<u8> {
    link.map(|link| link.0.to_be_bytes().to_vec()).unwrap_or_default()
}
