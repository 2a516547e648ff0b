//! Operations on names: every one is a request to the metadata server, which checks the caller.

use millrace_protocol::{
    metadata::{
        Attributes, Create, GetInode, Lookup, MakeLink, NewNode, Remove, Rename, RenameMode,
    },
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use crate::fs::FileSystem;

impl FileSystem {
    /// Finds a name.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn lookup(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName,
    ) -> Result<Attributes, Failure> {
        let reply = self.cluster.ask(&Lookup { caller, parent, name }).await?;
        self.present(reply)
    }

    /// Makes a directory, link or node: anything but a file that is opened at once.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn make_node(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName,
        node: NewNode,
        mode: u16,
    ) -> Result<Attributes, Failure> {
        let reply = self
            .cluster
            .change(|operation| Create {
                caller: caller.clone(),
                operation,
                parent,
                name: name.clone(),
                node: node.clone(),
                mode,
                open: false,
                exclusive: true,
            })
            .await?;
        self.present(reply)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn link(
        &self,
        caller: Caller,
        inode: InodeId,
        parent: InodeId,
        name: FileName,
    ) -> Result<Attributes, Failure> {
        let reply = self
            .cluster
            .change(|operation| MakeLink {
                caller: caller.clone(),
                operation,
                inode,
                parent,
                name: name.clone(),
            })
            .await?;
        self.present(reply)
    }

    /// Removes a name: a directory's or any other.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn remove(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName,
        directory: bool,
    ) -> Result<(), Failure> {
        self.cluster
            .change(|operation| Remove {
                caller: caller.clone(),
                operation,
                parent,
                name: name.clone(),
                directory,
            })
            .await?;
        Ok(())
    }

    /// Moves a name.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn rename(
        &self,
        caller: Caller,
        source: (InodeId, FileName),
        target: (InodeId, FileName),
        mode: RenameMode,
    ) -> Result<(), Failure> {
        self.cluster
            .change(|operation| Rename {
                caller: caller.clone(),
                operation,
                source_parent: source.0,
                source_name: source.1.clone(),
                target_parent: target.0,
                target_name: target.1.clone(),
                mode,
            })
            .await?;
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for anything else, and what the server answers.
    pub(crate) async fn read_link(
        &self,
        caller: Caller,
        inode: InodeId,
    ) -> Result<Vec<u8>, Failure> {
        let reply = self.cluster.ask(&GetInode { caller, session: None, inode }).await?;
        reply.symlink.ok_or_else(|| ErrorKind::InvalidArgument.into())
    }
}
