//! Extended attributes.
//!
//! `security.*` and POSIX ACLs are refused as not supported rather than answered as missing:
//! `ls -l` then stops asking after the first file, which is ten times faster.

use millrace_protocol::{
    metadata::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, InodeId};

use crate::fs::FileSystem;

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
        check_offered(&name)?;
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
        let reply = self.cluster.ask(&ListXattrs { caller, inode }).await?;
        let mut names = Vec::new();
        for name in reply.names {
            names.extend_from_slice(&name);
            names.push(0);
        }
        Ok(names)
    }

    /// Sets one attribute.
    ///
    /// # Errors
    /// As [`Self::xattr`].
    pub(crate) async fn set_xattr(
        &self,
        caller: Caller,
        inode: InodeId,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), Failure> {
        check_offered(&name)?;
        let request = |operation| SetXattr {
            caller: caller.clone(),
            operation,
            inode,
            name: name.clone(),
            value: value.clone(),
            mode,
        };
        self.change(request, &[], Some(inode)).await?;
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
        check_offered(&name)?;
        let request = |operation| RemoveXattr {
            caller: caller.clone(),
            operation,
            inode,
            name: name.clone(),
        };
        self.change(request, &[], Some(inode)).await?;
        Ok(())
    }
}

/// Whether the kernel may ask at all; answered without the server.
pub(crate) fn check_offered(name: &[u8]) -> Result<(), Failure> {
    let refused = name.starts_with(b"security.") || name.starts_with(b"system.posix_acl_");
    if refused { Err(ErrorKind::NotSupported.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_labels_and_acls_are_not_supported_and_the_rest_is_asked_for() {
        for name in [&b"security.capability"[..], b"system.posix_acl_access"] {
            assert_eq!(check_offered(name).map_err(|f| f.kind), Err(ErrorKind::NotSupported));
        }
        assert!(check_offered(b"user.comment").is_ok());
    }
}
