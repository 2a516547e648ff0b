//! The model's extended attributes.

use millrace_protocol::{
    metadata::{FileKind, RemoveXattr, SetXattr, XattrMode},
    session::Caller,
};
use millrace_types::{
    ErrorKind::{Exists, InvalidArgument, NoData, NoSpace, NotPermitted, NotSupported},
    InodeId,
};

use super::{
    acl::{ACCESS, DEFAULT},
    model::{Answer, CAPABILITY, Model},
};

/// Linux's limit for one value, and for the names and values of one inode here.
const VALUE_MAX: usize = 64 << 10;
const ALL_MAX: usize = (64 << 10) + 255;

impl Model {
    pub(super) fn set_xattr(&mut self, request: &SetXattr) -> Answer<()> {
        if matches!(&request.name[..], ACCESS | DEFAULT) {
            let place = (request.inode, &request.name[..]);
            return self.set_list(place, &request.caller, Some(&request.value));
        }
        self.node(request.inode)?;
        if request.name.ends_with(b".") {
            return Err(InvalidArgument);
        }
        self.may_change(&request.caller, request.inode, &request.name)?;
        let xattrs = &self.nodes[&request.inode].xattrs;
        if request.value.len() > VALUE_MAX {
            return Err(NoSpace);
        }
        match (xattrs.contains_key(&request.name), request.mode) {
            (true, XattrMode::Create) => return Err(Exists),
            (false, XattrMode::Replace) => return Err(NoData),
            _ => {}
        }
        let mut after = xattrs.clone();
        after.insert(request.name.clone(), request.value.clone());
        if after.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > ALL_MAX {
            return Err(NoSpace);
        }
        self.nodes.get_mut(&request.inode).unwrap().xattrs = after;
        self.mark_changed(request.inode);
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, request: &RemoveXattr) -> Answer<()> {
        if matches!(&request.name[..], ACCESS | DEFAULT) {
            return self.set_list((request.inode, &request.name), &request.caller, None);
        }
        // The kernel takes it away in the name of whoever changes the file.
        if request.name != CAPABILITY || !self.is_his(&request.caller, request.inode)? {
            self.may_change(&request.caller, request.inode, &request.name)?;
        }
        let node = self.nodes.get_mut(&request.inode).unwrap();
        node.xattrs.remove(&request.name).ok_or(NoData)?;
        self.mark_changed(request.inode);
        Ok(())
    }

    pub(super) fn xattr(&self, caller: &Caller, id: InodeId, name: &[u8]) -> Answer<Vec<u8>> {
        let node = self.node(id)?;
        match name {
            name if name.starts_with(b"user.") => self.may_read(caller, id)?,
            ACCESS | DEFAULT => {}
            name if name.starts_with(b"security.") => {}
            name if name.starts_with(b"trusted.") && caller.uid == 0 => {}
            name if name.starts_with(b"trusted.") => return Err(NoData),
            _ => return Err(NotSupported),
        }
        node.xattrs.get(name).cloned().ok_or(NoData)
    }

    pub(super) fn xattr_names(&self, caller: &Caller, id: InodeId) -> Answer<Vec<Vec<u8>>> {
        let names = self.node(id)?.xattrs.keys();
        let shown = names.filter(|name| caller.uid == 0 || !name.starts_with(b"trusted."));
        Ok(shown.cloned().collect())
    }

    /// Whether somebody owns an inode or may write to it.
    fn is_his(&self, caller: &Caller, id: InodeId) -> Answer<bool> {
        Ok(self.node(id)?.uid == caller.uid || self.may_write(caller, id).is_ok())
    }

    fn may_change(&self, caller: &Caller, id: InodeId, name: &[u8]) -> Answer<()> {
        let kind = self.node(id)?.kind;
        if name.starts_with(b"user.") {
            match kind {
                FileKind::Regular | FileKind::Directory => self.may_write(caller, id),
                _ => Err(NotPermitted),
            }
        } else if name.starts_with(b"trusted.") || name.starts_with(b"security.") {
            if caller.uid == 0 { Ok(()) } else { Err(NotPermitted) }
        } else {
            Err(NotSupported)
        }
    }
}
