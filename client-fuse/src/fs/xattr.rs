//! Extended attributes, and among them access control lists.
//!
//! `security.*` and the lists are offered where the mount's options ask for them. Otherwise they
//! are refused as not supported rather than answered as missing: `ls -l` then stops asking after
//! the first file. Where they are offered, most of what is asked for is missing, which
//! `bare` answers.

use millrace_protocol::{
    metadata::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, InodeId};

use super::bucket_xattrs::{check_change, is_of_bucket};
use crate::{
    fs::{FileSystem, durable::Whole},
    settings::MountSettings,
};

/// Which kinds of attributes a mount offers beside the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offered {
    /// POSIX access control lists.
    pub(crate) acl: bool,
    /// `security.*`.
    pub(crate) security: bool,
}

impl Offered {
    /// As the options of a mount say.
    pub(crate) fn by(settings: &MountSettings) -> Self {
        Self { acl: settings.acl, security: settings.security_xattrs }
    }

    /// Whether the kernel may ask for an attribute at all; answered without the server.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`].
    pub(crate) fn check(self, name: &[u8]) -> Result<(), Failure> {
        if self.includes(name) { Ok(()) } else { Err(ErrorKind::NotSupported.into()) }
    }

    /// Whether the kernel asks for more than programs do by themselves.
    pub(super) fn is_any(self) -> bool {
        self.acl || self.security
    }

    fn includes(self, name: &[u8]) -> bool {
        let refused = (!self.security && name.starts_with(b"security."))
            || (!self.acl && name.starts_with(b"system.posix_acl_"));
        !refused
    }
}

impl FileSystem {
    /// Reads one attribute.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for namespaces that are not offered, and what the server
    /// answers.
    pub(crate) async fn xattr(
        &self,
        caller: Caller,
        inode: InodeId,
        name: Vec<u8>,
    ) -> Result<Vec<u8>, Failure> {
        self.offered.check(&name)?;
        self.settle(inode).await?;
        if is_of_bucket(&name) {
            return self.bucket_xattr(caller, inode, &name).await;
        }
        let reply = self.cluster.ask(&GetXattr { caller, inode, name }).await?;
        Ok(reply.value)
    }

    /// The names of all attributes, each followed by a zero byte.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn xattr_names(
        &self,
        caller: Caller,
        inode: InodeId,
    ) -> Result<Vec<u8>, Failure> {
        self.settle(inode).await?;
        let reply = self.cluster.ask(&ListXattrs { caller, inode }).await?;
        let mut names = Vec::new();
        for name in reply.names.into_iter().filter(|name| self.offered.includes(name)) {
            names.extend_from_slice(&name);
            names.push(0);
        }
        Ok(names)
    }

    /// Sets one attribute. What was written before is told to the server before: a program's
    /// capabilities go with a later write, not with an earlier one.
    ///
    /// # Errors
    /// As [`Self::xattr`]; failures of buffered writes.
    pub(crate) async fn set_xattr(
        &self,
        caller: Caller,
        inode: InodeId,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), Failure> {
        self.offered.check(&name)?;
        check_change(&name)?;
        if name.starts_with(b"security.")
            && let Some(file) = self.files.find(inode)
        {
            self.flush_file(&file).await;
            self.commit(&file, false).await?;
        }
        let request = |operation| SetXattr {
            caller: caller.clone(),
            operation,
            inode,
            name: name.clone(),
            value: value.clone(),
            mode,
        };
        let whole = self.files.whole(inode);
        self.change(request, &[], Some(inode)).await?;
        self.handle_unshown_change(inode, whole);
        Ok(())
    }

    /// Removes one attribute.
    ///
    /// # Errors
    /// As [`Self::xattr`].
    pub(crate) async fn remove_xattr(
        &self,
        caller: Caller,
        inode: InodeId,
        name: Vec<u8>,
    ) -> Result<(), Failure> {
        self.offered.check(&name)?;
        check_change(&name)?;
        let request = |operation| RemoveXattr {
            caller: caller.clone(),
            operation,
            inode,
            name: name.clone(),
        };
        let whole = self.files.whole(inode);
        self.change(request, &[], Some(inode)).await?;
        self.handle_unshown_change(inode, whole);
        Ok(())
    }

    /// An attribute has changed, which says nothing of bytes; `whole` was known of these before.
    fn handle_unshown_change(&self, inode: InodeId, whole: Option<Whole>) {
        if let Some(file) = self.files.find(inode) {
            file.state().durable.handle_unshown_change(whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_labels_and_lists_are_offered_where_they_are_asked_for_and_the_rest_everywhere() {
        let (label, list) = (&b"security.capability"[..], &b"system.posix_acl_access"[..]);
        let of = |offered: Offered| {
            [label, list, b"user.comment"]
                .map(|name| offered.check(name).map_err(|failure| failure.kind))
        };
        let refused = Err(ErrorKind::NotSupported);
        assert_eq!(of(Offered::default()), [refused, refused, Ok(())]);
        assert_eq!(of(Offered { acl: true, security: false }), [refused, Ok(()), Ok(())]);
        assert_eq!(of(Offered { acl: false, security: true }), [Ok(()), refused, Ok(())]);
    }
}
