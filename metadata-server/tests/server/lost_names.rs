//! A loss of power takes what was not synced from the log. What a client or a target has heard of
//! before must not be given to anything else afterwards: here the names of contents.

use std::{collections::BTreeSet, time::Duration};

use millrace_metadata_server::{
    command::{self, Command},
    engine::{EngineSettings, StoreKind},
    ops,
};
use millrace_protocol::{
    capability::Content,
    cluster::LogPoint,
    metadata::{InodeReply, NewNode, OpenMode, SetAttributes},
    session::{Caller, CheckLog},
};
use millrace_types::{ErrorKind, InodeId, LogIndex};
use tempfile::TempDir;

use crate::{
    engine::{Server, settings},
    hosts::{Host, register_targets},
    replay::{cut_back, leave_marker},
};

/// A server that syncs its log only when somebody waits for it, and a host with a file.
struct World {
    server: Server,
    host: Host,
    file: InodeId,
    _dir: TempDir,
}

/// What names a content for targets.
type Name = (u32, u32);

fn name_of(content: &Content) -> Name {
    (content.generation.0, content.write_epoch.0)
}

fn shown(reply: &InodeReply) -> Name {
    assert!(reply.capability.is_some());
    name_of(reply.content.as_ref().unwrap())
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (settings, time) = settings(&dir.path().join("metadata"), StoreKind::Memory);
        let settings = EngineSettings { sync_interval: Duration::from_secs(3600), ..settings };
        let server = Server::start_with(settings, time);
        register_targets(&server);
        let mut host = Host::open(&server, 1);
        let file = host.make(&server, InodeId::ROOT, "file", NewNode::Regular).unwrap();
        let mut world = Self { server, host, file: file.attributes.inode, _dir: dir };
        // Not the first content any more, so that truncating it makes another.
        world.resize(100).unwrap();
        world.sync();
        world
    }

    fn sync(&self) {
        let written = self.server.log_state().written;
        self.server.turn(move |core| core.syncer().sync_all()).unwrap();
        assert!(self.server.log_state().synced >= written);
    }

    fn resize(&mut self, size: u64) -> Result<InodeReply, ErrorKind> {
        let request = SetAttributes { size: Some(size), ..set_nothing(&mut self.host, self.file) };
        self.host.run(&self.server, request, ops::set_attributes::set)
    }

    /// Executes a change of size whose own answer is still on its way.
    fn raise(&mut self, size: u64) {
        let command = Command::SetAttributes(command::SetAttributes {
            caller: Some(Caller::ROOT),
            inode: self.file,
            mode: None,
            uid: None,
            gid: None,
            size: Some(size),
            accessed: None,
            modified: None,
            make_sparse: false,
        });
        self.server.try_turn(move |core| core.execute(None, command)).unwrap();
    }

    fn truncating_open(&mut self) -> Result<InodeReply, ErrorKind> {
        let request = self.host.open_write(self.file, true);
        self.host.run(&self.server, request, ops::open::open)
    }

    /// The machine goes down: what is not synced is gone, with the sessions' knowledge of it.
    fn lose_power(&mut self) {
        let synced = self.server.log_state().synced;
        self.server.stop();
        cut_back(&self.server.settings.dir, synced);
        leave_marker(&self.server.settings, "another boot");
        self.server.begin();
        // Numbers of operations that were lost are free again.
        self.host.sequence += 1000;
    }
}

fn set_nothing(host: &mut Host, inode: InodeId) -> SetAttributes {
    SetAttributes {
        caller: Caller::ROOT,
        operation: host.operation(),
        inode,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        accessed: None,
        modified: None,
        open: false,
        make_sparse: false,
    }
}

#[test]
fn a_content_that_a_client_heard_of_is_never_named_again_after_a_loss_of_power() {
    let mut world = World::new();
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        let reply = match round % 2 {
            0 => world.truncating_open().unwrap(),
            _ => world.resize(0).unwrap(),
        };
        assert!(seen.insert(shown(&reply)), "{seen:?} and again {:?}", shown(&reply));
        world.lose_power();
        let reply = world.host.show(&world.server, world.file).unwrap();
        assert!(seen.contains(&shown(&reply)), "the client heard of a content that is gone");
        // So that each round replaces something.
        world.resize(100 + round).unwrap();
        world.sync();
    }
}

/// A shrink is told to the targets before its own answer; everybody else must not hear of its epoch
/// before either.
#[test]
fn nobody_hears_of_a_content_or_epoch_that_another_made_before_it_is_synced() {
    for size in [50, 0] {
        let mut world = World::new();
        let other = Host::open(&world.server, 2);
        world.sync();
        let before = world.server.log_state();
        world.raise(size);
        assert_eq!(world.server.log_state().synced, before.synced, "nobody has heard of it");
        let heard = other.show(&world.server, world.file).unwrap();
        assert!(world.server.log_state().synced > before.synced, "{size}: {:?}", shown(&heard));
        world.lose_power();
        let found = world.host.show(&world.server, world.file).unwrap();
        assert_eq!(shown(&found), shown(&heard), "{size}");
    }
}

/// Opens, lookups and commits are answered from memory while nothing was raised.
#[test]
fn what_names_no_new_content_waits_for_no_sync() {
    let mut world = World::new();
    let synced = |world: &World| -> LogIndex { world.server.log_state().synced };
    let before = synced(&world);
    let request = world.host.open_write(world.file, false);
    world.host.run(&world.server, request, ops::open::open).unwrap();
    world.resize(4096).unwrap();
    world.host.make(&world.server, InodeId::ROOT, "another", NewNode::Regular).unwrap();
    let mut request = world.host.open_write(world.file, false);
    request.mode = OpenMode::Read;
    world.host.run(&world.server, request, ops::open::open).unwrap();
    world.host.lookup(&world.server, InodeId::ROOT, "file").unwrap();
    assert_eq!(synced(&world), before);
    // A raise elsewhere concerns only who hears of it.
    let other = world.host.lookup(&world.server, InodeId::ROOT, "another").unwrap();
    world.raise(0);
    world.host.show(&world.server, other.attributes.inode).unwrap();
    assert_eq!(synced(&world), before);
    world.host.show(&world.server, world.file).unwrap();
    assert!(synced(&world) > before);
}

/// Who compares no more than the last index takes what others have changed since for its own.
#[test]
fn a_client_hears_that_what_it_saw_is_lost_also_when_the_log_has_gone_on_since() {
    let mut world = World::new();
    let kept_of = |world: &World, seen| {
        let answer = world.host.run(&world.server, CheckLog { seen }, ops::session::check_log);
        answer.unwrap().kept
    };
    let knows = |world: &World, seen: LogPoint| seen.index <= kept_of(world, seen);
    let point = |world: &World, index| LogPoint {
        incarnation: world.server.turn(|core| core.incarnation()),
        index,
    };
    let kept = point(&world, world.server.log_state().synced);
    world.resize(4096).unwrap();
    let lost = point(&world, world.server.log_state().written);
    assert!(lost.index > kept.index, "nobody has waited for a sync");
    assert!(knows(&world, kept) && knows(&world, lost));

    world.lose_power();
    for size in 0..100 {
        world.resize(8192 + size).unwrap();
    }
    let newest = point(&world, world.server.log_state().written);
    assert!(newest.index > lost.index);
    assert!(knows(&world, kept) && !knows(&world, lost));
    assert_eq!(kept_of(&world, lost), kept.index, "nothing before that is lost");
    let other = LogPoint { incarnation: !newest.incarnation, ..kept };
    assert_eq!(kept_of(&world, other), LogIndex(0), "there was no such life");
    // What survives a kill is no loss.
    world.server.restart();
    assert!(knows(&world, kept) && !knows(&world, lost) && knows(&world, newest));
}
