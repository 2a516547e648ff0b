//! The model's rename: replacing, refusing to replace, exchanging.

use millrace_protocol::metadata::{FileKind, Rename, RenameMode};
use millrace_types::{
    ErrorKind::{Exists, InvalidArgument, IsDirectory, NotDirectory, NotEmpty, NotFound},
    FileName, InodeId,
};

use super::model::{Answer, Model};

impl Model {
    pub(super) fn rename(&mut self, request: &Rename) -> Answer<()> {
        let caller = &request.caller;
        let (from, to) = (request.source_parent, request.target_parent);
        self.node(from)?;
        self.node(to)?;
        self.directory(from)?;
        self.directory(to)?;
        self.may_search(caller, from)?;
        self.may_search(caller, to)?;
        let source = self.find(from, &request.source_name).ok_or(NotFound)?;
        let target = self.find(to, &request.target_name);
        if target == Some(source) {
            let refused = request.mode == RenameMode::NoReplace;
            return if refused { Err(Exists) } else { Ok(()) };
        }
        self.may_take(caller, from, source)?;
        self.may_move(request, source, from, to)?;
        match (target, request.mode) {
            (None, RenameMode::Exchange) => return Err(NotFound),
            (Some(_), RenameMode::NoReplace) => return Err(Exists),
            (None, _) => self.may_add(caller, to)?,
            (Some(target), RenameMode::Exchange) => {
                self.may_take(caller, to, target)?;
                self.may_move(request, target, to, from)?;
            }
            (Some(target), RenameMode::Replace) => {
                self.may_take(caller, to, target)?;
                self.may_replace(source, target)?;
            }
        }
        self.move_names(request, source, target);
        Ok(())
    }

    /// A directory does not go into itself, and its `..` is changed by who may write it.
    fn may_move(&self, request: &Rename, id: InodeId, from: InodeId, to: InodeId) -> Answer<()> {
        if self.nodes[&id].kind != FileKind::Directory || from == to {
            return Ok(());
        }
        self.may_write(&request.caller, id)?;
        let mut at = Some(to);
        while let Some(above) = at {
            if above == id {
                return Err(InvalidArgument);
            }
            at = self.parent(above);
        }
        Ok(())
    }

    fn may_replace(&self, source: InodeId, target: InodeId) -> Answer<()> {
        let is_directory = |id: InodeId| self.nodes[&id].kind == FileKind::Directory;
        match (is_directory(source), is_directory(target)) {
            (true, false) => Err(NotDirectory),
            (false, true) => Err(IsDirectory),
            (true, true) if self.size(target) > 0 => Err(NotEmpty),
            _ => Ok(()),
        }
    }

    fn lead_name(&mut self, directory: InodeId, name: &FileName, id: InodeId) {
        let mut names = self.node_mut(directory).names.iter_mut();
        let entry = names.find(|(known, _)| known == name).expect("it was looked up before");
        entry.1 = id;
        self.touch(directory);
    }

    fn move_names(&mut self, request: &Rename, source: InodeId, target: Option<InodeId>) {
        let (from, to) = (request.source_parent, request.target_parent);
        self.mark_changed(source);
        let Some(target) = target else {
            self.take_name(from, &request.source_name);
            return self.add_name(to, &request.target_name, source);
        };
        // A name that is there throughout keeps its place in the listing.
        self.lead_name(to, &request.target_name, source);
        self.mark_changed(target);
        if request.mode == RenameMode::Exchange {
            self.lead_name(from, &request.source_name, target);
        } else {
            self.take_name(from, &request.source_name);
            self.drop_if_unused(target);
        }
    }
}
