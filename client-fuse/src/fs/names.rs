//! Operations on names: changes are requests to the metadata server, which checks the caller;
//! lookups are answered from what leases cover, where they can be.

use std::time::Instant;

use millrace_protocol::{
    lease::{ListEntries, ListFrom},
    metadata::{
        Attributes, Coverage, Create, DIRECTORY_PAGE_MAX, MakeLink, NewNode, Remove, Rename,
        RenameMode,
    },
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use crate::fs::{FileSystem, kernel_names::Shown};

/// The mode of what is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewMode {
    /// Permission bits.
    pub(crate) mode: u16,
    /// Permission bits that are taken away unless a default access control list of the directory
    /// stands in the place of this.
    pub(crate) umask: u16,
}

impl FileSystem {
    /// Finds a name, if leases cover it and what it leads to. The kernel is not left to keep that
    /// there is none.
    pub(crate) fn lookup_kept(
        &self,
        caller: &Caller,
        parent: InodeId,
        name: &FileName,
    ) -> Option<Result<Shown, Failure>> {
        let found = self.may_answer(caller).then(|| self.names.find(parent, name))??;
        let Some(inode) = found else {
            return Some(Err(ErrorKind::NotFound.into()));
        };
        // In this order: who takes the attributes back after this has the name expire too, and
        // nothing is written down of what cannot be shown.
        let kind = self.kind_kept(inode)?;
        let keep_name = self.keep_name(parent, name, (inode, kind));
        let mut shown = self.attributes_kept(caller, inode)?;
        shown.keep.name = keep_name;
        Some(Ok(shown))
    }

    /// Finds a name at the server; of one who walks through the directory, with those behind it.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn lookup(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName,
    ) -> Result<Attributes, Failure> {
        if let Some(found) = self.found_after_change(&caller, parent, &name).await {
            return Ok(found);
        }
        if self.may_answer(&caller)
            && let Some(window) = self.ahead.handle_miss(parent, &name, Instant::now())
            && let Some(found) = self.lookup_page(&caller, parent, &name, window).await
        {
            return Ok(found);
        }
        match self.find_name(&caller, parent, &name).await? {
            Some(reply) => self.present(reply),
            None => {
                self.ahead.handle_absent(parent);
                self.look_whole(&caller, parent, &name).await;
                Err(ErrorKind::NotFound.into())
            }
        }
    }

    /// What a name leads to, where that is known, and shown by a change that is under way here: a
    /// directory in which programs make files is looked up again for each of them.
    async fn found_after_change(
        &self,
        caller: &Caller,
        parent: InodeId,
        name: &FileName,
    ) -> Option<Attributes> {
        let inode = self.names.find(parent, name)??;
        let shown = self.attributes_after_change(caller, inode).await?;
        (self.names.find(parent, name)? == Some(inode)).then_some(shown)
    }

    /// A name was not there, and that is covered. Whoever asks for several of these, or makes them,
    /// asks for more: all names of a directory that has few are fetched, which answers that.
    async fn look_whole(&self, caller: &Caller, parent: InodeId, name: &FileName) {
        let is_covered = self.names.find(parent, name) == Some(None);
        if !is_covered || !self.absent.handle_absent(parent, Instant::now()) {
            return;
        }
        let request = |session| ListEntries {
            caller: caller.clone(),
            session,
            inode: parent,
            from: ListFrom::Cookie(0),
            entries_max: DIRECTORY_PAGE_MAX,
        };
        // Who may not list it goes on to ask for each name.
        let is_whole = self.list_entries(request).await.is_ok_and(|page| page.last);
        self.absent.handle_listed(parent, is_whole, Instant::now());
    }

    /// Finds a name with a page of the directory that begins there. Nothing where that fails: then
    /// the name is asked for alone.
    async fn lookup_page(
        &self,
        caller: &Caller,
        parent: InodeId,
        name: &FileName,
        window: u32,
    ) -> Option<Attributes> {
        let request = |session| ListEntries {
            caller: caller.clone(),
            session,
            inode: parent,
            from: ListFrom::Name(name.clone()),
            entries_max: window,
        };
        let page = self.list_entries(request).await.ok()?;
        let (first, last) = (page.entries.first()?, page.entries.last()?);
        self.ahead.handle_page(parent, first.entry.cookie, last.entry.cookie);
        if page.coverage == Coverage::None {
            self.ahead.handle_barren(parent, Instant::now());
        }
        let attributes = &first.entry.attributes;
        // Of an open file more must be known than is listed.
        let usable = first.entry.name == *name && self.files.find(attributes.inode).is_none();
        usable.then(|| attributes.clone())
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
        mode: NewMode,
    ) -> Result<Attributes, Failure> {
        let request = |operation| Create {
            caller: caller.clone(),
            operation,
            parent,
            name: name.clone(),
            node: node.clone(),
            mode: mode.mode,
            open: false,
            exclusive: true,
        };
        let (reply, lease) = self.make_name(request, (parent, &name), mode.umask).await?;
        if let Some(lease) = lease {
            self.names.keep_attributes(reply.attributes.clone(), lease);
        }
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
        let request = |operation| MakeLink {
            caller: caller.clone(),
            operation,
            inode,
            parent,
            name: name.clone(),
        };
        let reply = self.change(request, &[(parent, &name)], Some(inode)).await?;
        self.names.keep_name((parent, name), Some(inode), None);
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
        let request = |operation| Remove {
            caller: caller.clone(),
            operation,
            parent,
            name: name.clone(),
            directory,
        };
        self.remove_name(request, (parent, &name)).await
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
        let request = |operation| Rename {
            caller: caller.clone(),
            operation,
            source_parent: source.0,
            source_name: source.1.clone(),
            target_parent: target.0,
            target_name: target.1.clone(),
            mode,
        };
        let names = [(source.0, &source.1), (target.0, &target.1)];
        let covered = self.covered(&names);
        let replaced = self.names.last_seen(target.0, &target.1);
        let changing = self.changing(&names, None);
        self.before_rename(names, covered).await;
        self.change_during(changing, request).await?;
        let moved = self.names.hint(source.0, &source.1);
        let other = match mode {
            RenameMode::Exchange => self.names.hint(target.0, &target.1),
            RenameMode::Replace | RenameMode::NoReplace => None,
        };
        if mode == RenameMode::Replace {
            self.handle_removal(replaced);
        }
        self.names.keep_name(source, other, None);
        self.names.keep_name(target, moved, None);
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
        let (mut reply, _) = self.show_inode(&caller, inode).await?;
        self.note_read(&mut reply.attributes);
        reply.symlink.ok_or_else(|| ErrorKind::InvalidArgument.into())
    }
}
