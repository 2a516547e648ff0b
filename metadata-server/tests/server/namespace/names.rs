//! Random requests that make, move and remove names.

use millrace_metadata_server::ops;
use millrace_protocol::{
    metadata::{
        Create, CreateMasked, CreateUnnamed, FileKind, Lookup, MakeLink, NewNode, Remove, Rename,
        RenameMode,
    },
    session::Caller,
};
use millrace_types::ErrorKind;

use super::Test;
use crate::chance::{percent, pick};

impl Test {
    pub(super) fn create(&mut self) {
        let host = self.host();
        let node = match self.random.within(0..20) {
            0..6 => NewNode::Directory,
            6 => NewNode::Symlink(b"../elsewhere".to_vec()),
            7 => NewNode::Symlink(Vec::new()),
            8 => NewNode::Fifo,
            9 => NewNode::BlockDevice(0x0803),
            _ => NewNode::Regular,
        };
        let modes = [0o755, 0o777, 0o1777, 0o2775, 0o6755, 0o600, 0o640];
        let request = Create {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            parent: self.inode(FileKind::Directory),
            name: self.name(),
            node,
            mode: *pick(&self.random, &modes).unwrap(),
            open: percent(&self.random, 30),
            exclusive: percent(&self.random, 50),
        };
        let umask = *pick(&self.random, &[0, 0, 0o022, 0o077]).unwrap();
        let got = match umask {
            0 => self.run(host, &request, ops::create::create),
            umask => {
                let masked = CreateMasked { create: request.clone(), umask };
                self.run(host, &masked, ops::create::create_masked)
            }
        };
        let made = got.as_ref().ok().map(|reply| reply.attributes.inode);
        let known: Vec<_> = self.model.nodes.keys().copied().collect();
        let want = self.model.create(&request, umask, made);
        if let (Ok(id), false) = (&want, want.as_ref().is_ok_and(|id| known.contains(id))) {
            assert!(!self.gone.contains(id), "{id} is given a second time");
        }
        self.expect_inode(want, got, &format!("{request:?}"));
    }

    pub(super) fn create_unnamed(&mut self) {
        let host = self.host();
        let request = CreateUnnamed {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            directory: self.inode(FileKind::Directory),
            mode: *pick(&self.random, &[0o600, 0o666, 0o2770]).unwrap(),
            umask: *pick(&self.random, &[0, 0o022]).unwrap(),
            nameable: percent(&self.random, 80),
        };
        let got = self.run(host, &request, ops::create::create_unnamed);
        let made = got.as_ref().ok().map(|reply| reply.attributes.inode);
        let want = self.model.create_unnamed(&request, made);
        self.expect_inode(want, got, &format!("{request:?}"));
    }

    pub(super) fn make_link(&mut self) {
        let host = self.host();
        let unnamed = self.model.nodes.iter().filter(|(_, node)| node.nameable);
        let unnamed: Vec<_> = unnamed.map(|(id, _)| *id).collect();
        let inode = match pick(&self.random, &unnamed) {
            Some(inode) if percent(&self.random, 40) => *inode,
            _ => self.inode(FileKind::Regular),
        };
        let request = MakeLink {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            inode,
            parent: self.inode(FileKind::Directory),
            name: self.name(),
        };
        let got = self.run(host, &request, ops::create::make_link);
        let want = self.model.make_link(&request);
        self.expect_inode(want, got, &format!("{request:?}"));
    }

    pub(super) fn remove(&mut self) {
        let host = self.host();
        let (parent, name) = self.place();
        let known = self.model.nodes.get(&parent).and_then(|_| self.model.find(parent, &name));
        let is_directory =
            known.is_some_and(|id| self.model.nodes[&id].kind == FileKind::Directory);
        let request = Remove {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            parent,
            name,
            directory: is_directory ^ percent(&self.random, 10),
        };
        let got = self.run(host, &request, ops::remove::remove).map(drop);
        assert_eq!(got, self.model.remove(&request), "{request:?}");
        self.gone.extend(known.filter(|id| !self.model.nodes.contains_key(id)));
    }

    pub(super) fn rename(&mut self) {
        let host = self.host();
        let (source_parent, source_name) = self.place();
        let (target_parent, target_name) = match percent(&self.random, 50) {
            true => self.place(),
            false => (self.inode(FileKind::Directory), self.name()),
        };
        let modes =
            [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
        let request = Rename {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            source_parent,
            source_name,
            target_parent,
            target_name,
            mode: *pick(&self.random, &modes).unwrap(),
        };
        let replaced = self.model.nodes.get(&target_parent);
        let replaced = replaced.and_then(|_| self.model.find(target_parent, &request.target_name));
        let got = self.run(host, &request, ops::rename::rename).map(drop);
        assert_eq!(got, self.model.rename(&request), "{request:?}");
        self.gone.extend(replaced.filter(|id| !self.model.nodes.contains_key(id)));
    }

    pub(super) fn lookup(&mut self) {
        let host = self.host();
        let (parent, name) = self.place();
        let request = Lookup { caller: self.caller(), parent, name };
        let got = self.run(host, &request, ops::lookup::lookup);
        let want = self
            .model
            .directory(parent)
            .and_then(|_| self.model.may_search(&request.caller, parent))
            .and_then(|()| self.model.find(parent, &request.name).ok_or(ErrorKind::NotFound));
        self.expect_inode(want, got, &format!("{request:?}"));
    }

    pub(super) fn show(&mut self) {
        let host = self.host();
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Symlink];
        let id = self.inode(*pick(&self.random, &kinds).unwrap());
        let got = self.hosts[host].show(&self.server, id);
        let want = self.model.node(id).map(|_| id);
        self.expect_inode(want, got, "stat");
    }

    pub(super) fn read_directory(&mut self) {
        let id = self.inode(FileKind::Directory);
        if percent(&self.random, 20) && !self.listing {
            self.listing = true;
            self.list_while_it_changes(id);
            self.listing = false;
        } else {
            let caller: Caller = self.caller();
            self.list(id, &caller);
        }
    }
}
