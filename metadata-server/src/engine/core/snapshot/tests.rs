//! What a run that is short of memory means to those who have time.

use millrace_protocol::{metadata::NewNode, session::Caller};
use millrace_runtime::{Clock, Random, VirtualTime};
use millrace_types::{ClusterId, FileName, InodeId};
use tempfile::TempDir;

use super::*;
use crate::{
    command::{Command, Create},
    engine::{
        pressure::STALLED,
        startup::{StoreKind, open},
    },
};

/// What a run may keep in memory: less than half of what the store holds.
const MEMORY_MAX: usize = 256 << 10;

/// A core whose clock only the test moves.
struct World {
    core: Core,
    time: VirtualTime,
    patience: Patience,
    made: u32,
    _dir: TempDir,
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (clock, time) = Clock::manual(Timestamp::from_parts(1_800_000_000, 0));
        let settings = EngineSettings {
            store: StoreKind::Memory,
            reserve_bytes: 0,
            clock,
            random: Random::seeded(7),
            ..EngineSettings::new(dir.path().join("metadata"), ClusterId([7; 16]))
        };
        let core = open(settings).unwrap();
        let patience = core.patience();
        let mut world = Self { core, time, patience, made: 0, _dir: dir };
        for _ in 0..3_000 {
            world.make();
        }
        world
    }

    fn make(&mut self) {
        self.made += 1;
        let name = format!("name{:06}", self.made);
        let create = Create {
            caller: Caller::ROOT,
            parent: InodeId::ROOT,
            name: FileName::parse(name.as_bytes()).unwrap(),
            node: NewNode::Symlink(vec![b'x'; 100]),
            mode: 0o777,
            inode: self.core.new_inode_id().unwrap(),
            seed: 0,
            open: None,
            exclusive: true,
        };
        self.core.execute(None, Command::Create(create)).unwrap();
    }

    /// Begins a snapshot, and changes so much that it is short of memory.
    fn press(&mut self) -> LogIndex {
        let index = self.core.begin_snapshot(Purpose::Recovery).unwrap();
        assert!(!self.patience.is_asked());
        self.core.snapshots.run = Some(Run::within(MEMORY_MAX, index, None));
        while !self.patience.is_asked() {
            self.make();
            assert!(self.core.snapshots.run.is_some(), "it is told in time");
        }
        index
    }
}

#[test]
fn who_has_time_waits_until_the_snapshot_has_got_ahead() {
    let mut world = World::new();
    let index = world.press();
    let mut pieces = 0;
    while !world.core.snapshot_piece(index).unwrap().is_empty() {
        pieces += 1;
    }
    assert!(pieces > 0 && !world.patience.is_asked());
}

#[test]
fn nobody_waits_for_a_snapshot_that_has_ended_or_gets_no_further() {
    let mut world = World::new();
    world.press();
    world.core.end_snapshot("the disk is full");
    assert!(!world.patience.is_asked());

    world.press();
    world.time.advance(STALLED);
    world.core.tick().unwrap();
    assert!(!world.patience.is_asked(), "nobody fetches from it");

    world.press();
    while world.core.snapshots.run.is_some() {
        world.make();
    }
    assert!(!world.patience.is_asked(), "programs have overrun it");
}
