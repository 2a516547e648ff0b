//! Exactly once: an operation that is sent again is answered as the first time and not executed
//! again, also after a restart and after a replay of the log.

use std::{fs, time::Duration};

use millrace_metadata_server::{
    engine::StoreKind,
    ops,
    store::{keys, records},
};
use millrace_protocol::{
    metadata::{
        Close, Commit, MakeLink, NewNode, OpenMode, RemoveXattr, SetAttributes, SetXattr, XattrMode,
    },
    session::{Caller, CloseSession, Done},
};
use millrace_types::{ErrorKind, InodeId, LogIndex, SessionId};
use tempfile::TempDir;

use crate::{
    engine::{ON_DISK, Server, rebuilt},
    hosts::{Host, Run, client, name, register_targets},
};

/// A server with one client host.
struct World {
    server: Server,
    host: Host,
    _dir: TempDir,
}

fn world(store: StoreKind) -> World {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&dir.path().join("metadata"), store);
    register_targets(&server);
    let host = Host::open(&server, 1);
    World { server, host, _dir: dir }
}

/// What happens between an operation and its repetition.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Restart,
    /// The store is deleted, so that the log is replayed.
    Rebuild,
}

const MEANWHILES: [Meanwhile; 3] = [Meanwhile::Nothing, Meanwhile::Restart, Meanwhile::Rebuild];

/// Each of them on each engine.
fn meanwhiles() -> impl Iterator<Item = (Meanwhile, StoreKind)> {
    MEANWHILES.into_iter().flat_map(|meanwhile| ON_DISK.map(|store| (meanwhile, store)))
}

impl World {
    fn happen(&mut self, meanwhile: Meanwhile) {
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Restart => self.server.restart(),
            Meanwhile::Rebuild => {
                self.server.stop();
                fs::remove_dir_all(self.server.store_dir()).unwrap();
                self.server.begin();
            }
        }
    }

    /// Sends a request three times; the log takes it once, and the answers are the same.
    fn send<R, T>(&mut self, meanwhile: Meanwhile, request: R, operation: Run<R, T>) -> T
    where
        R: Clone + Send + 'static,
        T: PartialEq + std::fmt::Debug + Send + 'static,
    {
        let before = self.last();
        let first = self.host.run(&self.server, request.clone(), operation).unwrap();
        assert!(self.last() > before, "it is executed once");
        self.happen(meanwhile);
        let before = self.last();
        let second = self.host.run(&self.server, request.clone(), operation).unwrap();
        let third = self.host.run(&self.server, request, operation).unwrap();
        assert_eq!(self.last(), before, "it is not executed again: {meanwhile:?}");
        assert_eq!(second, third);
        if matches!(meanwhile, Meanwhile::Nothing) {
            assert_eq!(first, second);
        }
        second
    }

    fn last(&self) -> LogIndex {
        self.server.turn(|core| core.last_index())
    }

    fn make(&mut self, parent: InodeId, text: &str, node: NewNode) -> InodeId {
        self.host.make(&self.server, parent, text, node).unwrap().attributes.inode
    }
}

#[test]
fn every_kind_of_operation_is_executed_once() {
    for (meanwhile, store) in meanwhiles() {
        let mut world = world(store);
        let create = world.host.create(InodeId::ROOT, "file", NewNode::Regular);
        let file = world.send(meanwhile, create, ops::create::create).attributes.inode;
        let link = MakeLink {
            caller: Caller::ROOT,
            operation: world.host.operation(),
            inode: file,
            parent: InodeId::ROOT,
            name: name("link"),
        };
        let reply = world.send(meanwhile, link, ops::create::make_link);
        assert_eq!(reply.attributes.links, 2);
        let rename = world.host.rename((InodeId::ROOT, "link"), (InodeId::ROOT, "moved"));
        world.send(meanwhile, rename, ops::rename::rename);
        let remove = world.host.remove(InodeId::ROOT, "moved", false);
        world.send(meanwhile, remove, ops::remove::remove);
        assert_eq!(world.host.show(&world.server, file).unwrap().attributes.links, 1);
        writes(&mut world, meanwhile, file);
        attributes(&mut world, meanwhile, file);
        world.server.contents().assert_equal(&rebuilt(&world.server.log_dir()), "in the end");
    }
}

fn writes(world: &mut World, meanwhile: Meanwhile, file: InodeId) {
    let open = world.host.open_write(file, false);
    let opened = world.send(meanwhile, open, ops::open::open);
    let content = opened.content.unwrap();
    assert_eq!(write_opens(world), 1);
    let commit = Commit {
        operation: world.host.operation(),
        inode: file,
        generation: content.generation,
        write_epoch: content.write_epoch,
        end: 100_000,
        written_at: Some(opened.attributes.modified),
        durable: false,
    };
    let reply = world.send(meanwhile, commit, ops::commit::commit);
    assert_eq!(reply.attributes.size, 100_000);
    let shrink = truncate(&mut world.host, file, 10);
    let reply = world.send(meanwhile, shrink, ops::set_attributes::set);
    assert_eq!(reply.content.unwrap().write_epoch, content.write_epoch.next());
    let close = world.host.close_write(file);
    world.send(meanwhile, close, ops::open::close);
    assert_eq!(write_opens(world), 0);
}

fn attributes(world: &mut World, meanwhile: Meanwhile, file: InodeId) {
    let (name, caller) = (b"user.a".to_vec(), Caller::ROOT);
    let set = SetXattr {
        caller: caller.clone(),
        operation: world.host.operation(),
        inode: file,
        name: name.clone(),
        value: b"1".to_vec(),
        mode: XattrMode::Create,
    };
    world.send(meanwhile, set, ops::xattr::set);
    let remove = RemoveXattr { caller, operation: world.host.operation(), inode: file, name };
    world.send(meanwhile, remove, ops::xattr::remove);
}

fn truncate(host: &mut Host, inode: InodeId, size: u64) -> SetAttributes {
    SetAttributes {
        caller: Caller::ROOT,
        operation: host.operation(),
        inode,
        mode: None,
        uid: None,
        gid: None,
        size: Some(size),
        accessed: None,
        modified: None,
        make_sparse: false,
        open: false,
    }
}

fn write_opens(world: &World) -> u32 {
    let session = world.host.session;
    world.server.turn(move |core| {
        let status =
            ops::admin::status(core, &client(9), &millrace_protocol::admin::ClusterStatus {});
        let ops::Step::Done(status) = status.unwrap() else { panic!("a status needs nothing") };
        let of_session = status.sessions.iter().find(|status| status.session == session);
        of_session.expect("the session is known").write_opens
    })
}

/// The directory of a removed name goes before the answer is asked for again.
#[test]
fn a_repetition_is_answered_although_what_it_worked_in_is_gone() {
    let mut world = world(StoreKind::Memory);
    let directory = world.make(InodeId::ROOT, "directory", NewNode::Directory);
    world.make(directory, "file", NewNode::Regular);
    let remove = world.host.remove(directory, "file", false);
    world.host.run(&world.server, remove.clone(), ops::remove::remove).unwrap();
    world.make(directory, "other", NewNode::Regular);
    let rename = world.host.rename((directory, "other"), (InodeId::ROOT, "other"));
    // A client that waits for both answers.
    let (first, second) = (remove.operation.sequence, rename.operation.sequence);
    let mut rename = rename;
    rename.operation = world.host.numbered(second, first);
    world.host.run(&world.server, rename.clone(), ops::rename::rename).unwrap();
    let mut other = Host::open(&world.server, 2);
    let gone = other.remove(InodeId::ROOT, "directory", true);
    other.run(&world.server, gone, ops::remove::remove).unwrap();
    let again = world.host.run(&world.server, rename, ops::rename::rename);
    assert!(matches!(again, Ok(Done { .. })), "{again:?}");
}

#[test]
fn requests_in_flight_may_arrive_in_any_order() {
    let mut world = world(StoreKind::Memory);
    let mut first = world.host.create(InodeId::ROOT, "first", NewNode::Regular);
    let mut second = world.host.create(InodeId::ROOT, "second", NewNode::Regular);
    let (one, two) = (first.operation.sequence, second.operation.sequence);
    // The client waits for both, whichever arrives first.
    first.operation = world.host.numbered(one, one);
    second.operation = world.host.numbered(two, one);
    let before = world.last();
    let late = world.host.run(&world.server, second.clone(), ops::create::create).unwrap();
    let early = world.host.run(&world.server, first.clone(), ops::create::create).unwrap();
    assert_ne!(early.attributes.inode, late.attributes.inode);
    let after = world.last();
    for (request, reply) in [(first, early), (second, late)] {
        let again = world.host.run(&world.server, request, ops::create::create).unwrap();
        assert_eq!(again.attributes, reply.attributes);
    }
    assert_eq!((world.last(), after.0 - before.0), (after, 2));
}

#[test]
fn a_number_that_the_client_does_not_wait_for_any_more_is_never_executed() {
    let mut world = world(StoreKind::Memory);
    let old = world.host.create(InodeId::ROOT, "old", NewNode::Regular);
    world.host.run(&world.server, old.clone(), ops::create::create).unwrap();
    let remove = world.host.remove(InodeId::ROOT, "old", false);
    world.host.run(&world.server, remove, ops::remove::remove).unwrap();
    // A copy of the first request that the network kept back.
    let refused = world.host.run(&world.server, old, ops::create::create);
    assert_eq!(refused.unwrap_err(), ErrorKind::InvalidArgument);
    let gone = world.host.lookup(&world.server, InodeId::ROOT, "old");
    assert_eq!(gone.unwrap_err(), ErrorKind::NotFound);
}

#[test]
fn outcomes_that_nobody_waits_for_are_forgotten() {
    let mut world = world(StoreKind::Memory);
    for number in 0..200 {
        world.make(InodeId::ROOT, &format!("file{number}"), NewNode::Regular);
    }
    let outcomes = keys::outcomes(world.host.session);
    let kept = |world: &World| {
        let outcomes = outcomes.clone();
        let contents = world.server.contents();
        contents.0.iter().filter(|(key, _)| key.starts_with(&outcomes)).count()
    };
    assert_eq!(kept(&world), 1);
    // One slow request holds back 150 outcomes; a jump of the mark lets them all go.
    let slow = world.host.sequence + 1;
    for number in 0..150 {
        let mut create = world.host.create(InodeId::ROOT, &format!("next{number}"), NewNode::Fifo);
        create.operation = world.host.numbered(create.operation.sequence + 1, slow);
        world.host.run(&world.server, create, ops::create::create).unwrap();
    }
    assert_eq!(kept(&world), 150);
    world.host.sequence += 1;
    world.make(InodeId::ROOT, "last", NewNode::Fifo);
    assert_eq!(kept(&world), 1);
}

#[test]
fn an_unknown_session_and_one_of_another_host_are_gone() {
    let mut world = world(StoreKind::Memory);
    let file = world.make(InodeId::ROOT, "file", NewNode::Regular);
    let before = world.last();
    let mut unknown = Host { session: SessionId(99), ..world.host.clone() };
    let mut thief = Host { session: world.host.session, ..Host::open(&world.server, 2) };
    let opened = world.last();
    assert_eq!(opened.0, before.0 + 1);
    for host in [&mut unknown, &mut thief] {
        let server = &world.server;
        let refused = [
            host.make(server, InodeId::ROOT, "new", NewNode::Regular).map(drop),
            {
                let remove = host.remove(InodeId::ROOT, "file", false);
                host.run(server, remove, ops::remove::remove).map(drop)
            },
            {
                let open = host.open_write(file, true);
                host.run(server, open, ops::open::open).map(drop)
            },
            {
                let shrink = truncate(host, file, 0);
                host.run(server, shrink, ops::set_attributes::set).map(drop)
            },
            host.show(server, file).map(drop),
        ];
        assert_eq!(refused, [Err(ErrorKind::SessionGone); 5]);
    }
    assert_eq!(world.last(), opened, "nothing was executed");
}

#[test]
fn the_end_of_a_session_closes_its_files_and_refuses_what_it_still_sends() {
    for (meanwhile, store) in meanwhiles() {
        let mut world = world(store);
        let file = world.make(InodeId::ROOT, "file", NewNode::Regular);
        let open = world.host.open_write(file, false);
        world.host.run(&world.server, open.clone(), ops::open::open).unwrap();
        let remove = world.host.remove(InodeId::ROOT, "file", false);
        world.host.run(&world.server, remove, ops::remove::remove).unwrap();
        assert_eq!(world.host.show(&world.server, file).unwrap().attributes.links, 0);
        let close = CloseSession { session: world.host.session };
        for _ in 0..2 {
            world.host.run(&world.server, close.clone(), ops::session::close).unwrap();
        }
        world.happen(meanwhile);
        let late = world.host.run(&world.server, open, ops::open::open);
        assert_eq!(late.unwrap_err(), ErrorKind::SessionGone);
        let host = Host::open(&world.server, 1);
        assert_ne!(host.session, world.host.session, "a session never comes back");
        assert_eq!(host.show(&world.server, file).unwrap_err(), ErrorKind::Stale);
    }
}

/// Opens for reading are not logged: they are counted in memory, once each.
#[test]
fn an_open_for_reading_is_counted_once() {
    let mut world = world(StoreKind::Memory);
    let file = world.make(InodeId::ROOT, "file", NewNode::Regular);
    let mut open = world.host.open_write(file, false);
    open.mode = OpenMode::Read;
    for _ in 0..3 {
        world.host.run(&world.server, open.clone(), ops::open::open).unwrap();
    }
    let mut other = Host::open(&world.server, 2);
    let remove = other.remove(InodeId::ROOT, "file", false);
    other.run(&world.server, remove, ops::remove::remove).unwrap();
    assert!(world.host.show(&world.server, file).is_ok(), "a reader keeps it");
    let operation = world.host.operation();
    let close = Close { operation, inode: file, mode: OpenMode::Read };
    for _ in 0..2 {
        world.host.run(&world.server, close.clone(), ops::open::close).unwrap();
    }
    assert_eq!(world.host.show(&world.server, file).unwrap_err(), ErrorKind::Stale);
}

/// As through `/proc/self/fd`: the file has no name, and is opened again before it is closed.
#[test]
fn what_has_no_name_is_kept_for_who_opens_it_again() {
    for (meanwhile, store) in meanwhiles() {
        let mut world = world(store);
        let file = world.make(InodeId::ROOT, "file", NewNode::Regular);
        let write = world.host.open_write(file, false);
        world.host.run(&world.server, write, ops::open::open).unwrap();
        let remove = world.host.remove(InodeId::ROOT, "file", false);
        world.host.run(&world.server, remove, ops::remove::remove).unwrap();
        let mut read = world.host.open_write(file, false);
        read.mode = OpenMode::Read;
        world.host.run(&world.server, read, ops::open::open).unwrap();
        let close = world.host.close_write(file);
        world.host.run(&world.server, close, ops::open::close).unwrap();
        world.happen(meanwhile);
        assert!(world.host.show(&world.server, file).is_ok(), "it is read: {meanwhile:?}");
        let operation = world.host.operation();
        let close = Close { operation, inode: file, mode: OpenMode::Read };
        world.host.run(&world.server, close, ops::open::close).unwrap();
        if !matches!(meanwhile, Meanwhile::Nothing) {
            assert!(world.host.show(&world.server, file).is_ok(), "others may be told of yet");
            world.server.pass(Duration::from_secs(100));
            world.host = Host::open(&world.server, 2);
        }
        let gone = world.host.show(&world.server, file);
        assert_eq!(gone.unwrap_err(), ErrorKind::Stale, "{meanwhile:?}");
    }
}

#[test]
fn the_same_request_for_a_session_gives_the_same_session_also_after_a_restart() {
    for (meanwhile, store) in meanwhiles() {
        let mut world = world(store);
        world.happen(meanwhile);
        let again = Host::open(&world.server, 1);
        assert_eq!(again.session, world.host.session);
        let session = again.session;
        let known: Option<records::SessionRecord> = world
            .server
            .turn(move |core| records::read(core.view(), &keys::session(session)).unwrap());
        assert_eq!(known.map(|record| record.host), Some(again.client.host));
    }
}
