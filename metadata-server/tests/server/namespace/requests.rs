//! Random requests on attributes, contents and the queues of targets.

use millrace_metadata_server::ops::{self, Client};
use millrace_protocol::{
    admin::ClusterStatus,
    cluster::{AcknowledgeReclaim, FetchReclaim},
    metadata::{
        Close, CloseFiles, CloseUnwritten, Commit, FileKind, GetXattr, ListXattrs, Open, OpenMode,
        RemoveXattr, SetAttributes, SetTime, SetXattr, XattrMode,
    },
    session::{Caller, CloseSession, Role},
};
use millrace_types::{ContentGeneration, InodeId, MIB, TargetId, Timestamp, WriteEpoch};

use super::{
    Test,
    acl::{self, ACCESS, DEFAULT},
    steps::Operation,
};
use crate::{
    chance::{percent, pick},
    hosts::{Host, client, run},
};

impl Test {
    /// Makes a request of that kind, and compares its answer.
    pub(super) fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Create => self.create(),
            Operation::CreateUnnamed => self.create_unnamed(),
            Operation::MakeLink => self.make_link(),
            Operation::Remove => self.remove(),
            Operation::Rename => self.rename(),
            Operation::SetAttributes => self.set_attributes(),
            Operation::Open => self.open(),
            Operation::Close => self.close(),
            Operation::Commit => self.commit(),
            Operation::Lookup => self.lookup(),
            Operation::Show => self.show(),
            Operation::ReadDirectory => self.read_directory(),
            Operation::SetXattr => self.set_xattr(),
            Operation::RemoveXattr => self.remove_xattr(),
            Operation::ReadXattr => self.read_xattr(),
            Operation::Free => self.free(),
            Operation::EndSession => self.end_session(),
        }
    }

    /// Lets everybody write into the root.
    pub(super) fn open_root(&mut self) {
        self.model.now = self.server.turn(|core| core.now());
        let mut request = self.changing(0, InodeId::ROOT, Caller::ROOT);
        request.mode = Some(0o777);
        let got = self.run(0, &request, ops::set_attributes::set);
        let want = self.model.set_attributes(&request);
        self.expect_inode(want, got, "chmod of the root");
    }

    fn changing(&mut self, host: usize, inode: InodeId, caller: Caller) -> SetAttributes {
        SetAttributes {
            caller,
            operation: self.hosts[host].operation(),
            inode,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            accessed: None,
            modified: None,
            make_sparse: false,
            open: false,
        }
    }

    fn set_attributes(&mut self) {
        let host = self.host();
        let kind = [FileKind::Regular, FileKind::Regular, FileKind::Directory, FileKind::Fifo];
        let inode = self.inode(*pick(&self.random, &kind).unwrap());
        let caller = self.caller();
        let mut request = self.changing(host, inode, caller);
        let random = &self.random;
        let times = [SetTime::Now, SetTime::At(Timestamp(-1_500_000_000))];
        let id = |ids: &[u32]| percent(random, 60).then(|| *pick(random, ids).unwrap());
        match random.within(0..8) {
            0 => request.mode = pick(random, &[0o777, 0o6770, 0o400, 0o1777]).copied(),
            1 => (request.uid, request.gid) = (id(&[0, 1000, 1001]), id(&[0, 7, 100])),
            2 => request.accessed = pick(random, &times).copied(),
            3 => request.modified = pick(random, &times).copied(),
            4 => request.make_sparse = true,
            _ => {
                let sizes = [0, 1, 4096, 100_000, 20 * MIB, u64::MAX];
                request.size = pick(random, &sizes).copied();
                request.open = percent(random, 50);
            }
        }
        if percent(random, 5) {
            request.mode = Some(0o700);
        }
        let got = self.run(host, &request, ops::set_attributes::set);
        let want = self.model.set_attributes(&request);
        self.expect_inode(want, got, &format!("{request:?}"));
    }

    fn open(&mut self) {
        let host = self.host();
        let inode = self.inode(FileKind::Regular);
        let mode = *pick(&self.random, &[OpenMode::Read, OpenMode::Write]).unwrap();
        let request = Open {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            inode,
            mode,
            truncate: mode == OpenMode::Write && percent(&self.random, 25),
            reopen: false,
        };
        let got = self.run(host, &request, ops::open::open);
        let want = self.model.open(&request);
        self.expect_inode(want, got, &format!("{request:?}"));
    }

    fn close(&mut self) {
        let open = self
            .model
            .nodes
            .iter()
            .filter(|(_, node)| !node.readers.is_empty() || !node.writers.is_empty());
        let open: Vec<_> = open.map(|(id, _)| *id).collect();
        let Some(&inode) = pick(&self.random, &open) else { return };
        let host = self.host();
        let session = self.hosts[host].session;
        let node = &self.model.nodes[&inode];
        let modes = [
            (OpenMode::Read, node.readers.contains_key(&session)),
            (OpenMode::Write, node.writers.contains_key(&session)),
        ];
        let modes: Vec<_> = modes.into_iter().filter(|(_, open)| *open).collect();
        let Some(&(mode, _)) = pick(&self.random, &modes) else { return };
        if mode == OpenMode::Write && percent(&self.random, 50) {
            return self.close_several(host, inode);
        }
        let request = Close { operation: self.hosts[host].operation(), inode, mode };
        self.run(host, &request, ops::open::close).unwrap();
        self.model.close(&request);
        if !self.model.nodes.contains_key(&inode) {
            self.gone.push(inode);
        }
    }

    /// Ends an open for writing, and one of each file besides that the session has open.
    fn close_several(&mut self, host: usize, first: InodeId) {
        let session = self.hosts[host].session;
        let all = self.model.nodes.iter();
        let open = all.filter(|(_, node)| node.writers.contains_key(&session)).map(|(id, _)| *id);
        let inodes: Vec<_> = std::iter::once(first).chain(open).collect();
        let operation = self.hosts[host].operation();
        // To a model that knows no buckets it is the same.
        if percent(&self.random, 50) {
            let request = CloseFiles { operation, inodes: inodes.clone() };
            self.run(host, &request, ops::open::close_files).unwrap();
        } else {
            let request = CloseUnwritten { operation, inodes: inodes.clone() };
            self.run(host, &request, ops::open::close_unwritten).unwrap();
        }
        for inode in inodes {
            self.model.close(&Close { operation, inode, mode: OpenMode::Write });
            if !self.model.nodes.contains_key(&inode) && !self.gone.contains(&inode) {
                self.gone.push(inode);
            }
        }
    }

    fn commit(&mut self) {
        let host = self.host();
        let session = self.hosts[host].session;
        let all = self.model.nodes.iter();
        let open: Vec<_> = all
            .filter(|(_, node)| node.writers.contains_key(&session))
            .map(|(id, _)| *id)
            .collect();
        let inode = match pick(&self.random, &open) {
            Some(inode) if percent(&self.random, 95) => *inode,
            _ => self.inode(FileKind::Regular),
        };
        let version = self.model.nodes.get(&inode).map(|node| (node.generation, node.write_epoch));
        let (generation, write_epoch) =
            version.filter(|_| percent(&self.random, 85)).unwrap_or((1, 1));
        let ends = [0, 10, 5_000, 3 * MIB, 30 * MIB];
        let now = self.model.now;
        let request = Commit {
            operation: self.hosts[host].operation(),
            inode,
            generation: ContentGeneration(generation),
            write_epoch: WriteEpoch(write_epoch),
            end: *pick(&self.random, &ends).unwrap(),
            written_at: pick(&self.random, &[None, Some(now), Some(Timestamp(now.0 + 5))])
                .copied()
                .unwrap(),
            durable: false,
        };
        let got = self.run(host, &request, ops::commit::commit);
        let want = self.model.commit(&request);
        self.expect_inode(want, got, &format!("{request:?}"));
    }

    fn xattr(&self) -> Vec<u8> {
        let capability = &b"security.capability"[..];
        let names: [&[u8]; 8] = [
            capability,
            ACCESS,
            DEFAULT,
            b"user.a",
            b"user.b",
            b"user.",
            b"trusted.c",
            b"system.d",
        ];
        pick(&self.random, &names).unwrap().to_vec()
    }

    fn xattr_kind(&self) -> FileKind {
        *pick(&self.random, &[FileKind::Directory, FileKind::Regular]).unwrap()
    }

    fn set_xattr(&mut self) {
        let host = self.host();
        let lengths = [0, 5, 40_000, 65_536, 65_537];
        let modes = [XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace];
        let name = self.xattr();
        let value = match &name[..] {
            ACCESS | DEFAULT => pick(&self.random, &acl::some()).unwrap().clone(),
            _ => vec![b'v'; *pick(&self.random, &lengths).unwrap()],
        };
        let request = SetXattr {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            inode: self.inode(self.xattr_kind()),
            name,
            value,
            mode: *pick(&self.random, &modes).unwrap(),
        };
        let got = self.run(host, &request, ops::xattr::set).map(drop);
        assert_eq!(got, self.model.set_xattr(&request), "{:?}", request.name);
    }

    fn remove_xattr(&mut self) {
        let host = self.host();
        let request = RemoveXattr {
            caller: self.caller(),
            operation: self.hosts[host].operation(),
            inode: self.inode(self.xattr_kind()),
            name: self.xattr(),
        };
        let got = self.run(host, &request, ops::xattr::remove).map(drop);
        assert_eq!(got, self.model.remove_xattr(&request), "{request:?}");
    }

    fn read_xattr(&mut self) {
        let (host, caller, inode) = (self.host(), self.caller(), self.inode(self.xattr_kind()));
        let request = GetXattr { caller: caller.clone(), inode, name: self.xattr() };
        let got = self.run(host, &request, ops::xattr::get).map(|reply| reply.value);
        assert_eq!(got, self.model.xattr(&caller, inode, &request.name), "{request:?}");
        let request = ListXattrs { caller: caller.clone(), inode };
        let got = self.run(host, &request, ops::xattr::list).map(|reply| reply.names);
        assert_eq!(got, self.model.xattr_names(&caller, inode));
    }

    /// A session ends with all that it has open, and its host begins another.
    fn end_session(&mut self) {
        let host = self.host();
        let Host { client, session, .. } = self.hosts[host].clone();
        run(&self.server, &client, CloseSession { session }, ops::session::close).unwrap();
        let mut gone: Vec<_> = self.model.nodes.keys().copied().collect();
        self.model.end(session);
        gone.retain(|id| !self.model.nodes.contains_key(id));
        self.gone.append(&mut gone);
        self.hosts[host] = Host::open_as(&self.server, client);
    }

    /// Both targets free the first of what they may, and say so.
    fn free(&mut self) {
        self.server.turn(|core| core.syncer().sync_all().unwrap());
        let count = self.random.within(1..40);
        let daemon = Client { role: Role::Target, ..client(200) };
        for number in [1, 2] {
            let target = TargetId([number; 8]);
            let fetch = FetchReclaim { target, entries_max: u32::try_from(count).unwrap() };
            let by = daemon.clone();
            let work = move |core: &mut _| ops::cluster::reclaim(core, &by, &fetch);
            let (batch, _) = self.server.turn(work).unwrap();
            let entries = batch.entries.iter();
            let named: Vec<_> = entries.map(|entry| (entry.inode, entry.generation.0)).collect();
            let first = self.model.freed.iter().take(usize::try_from(count).unwrap());
            assert_eq!(named, first.copied().collect::<Vec<_>>());
            let Some(last) = batch.entries.last() else { continue };
            let done = AcknowledgeReclaim { target, through: last.position };
            run(&self.server, &daemon, done, ops::cluster::acknowledge_reclaim).unwrap();
        }
        let freed = self.model.freed.len().min(usize::try_from(count).unwrap());
        self.model.freed.drain(..freed);
        let admin = Client { role: Role::Admin, ..client(9) };
        let status = run(&self.server, &admin, ClusterStatus {}, ops::admin::status).unwrap();
        assert_eq!(status.reclaim_entries, 2 * self.model.freed.len() as u64);
        assert_eq!(status.inodes, self.model.nodes.len() as u64);
    }
}
