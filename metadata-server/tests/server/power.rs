//! The metadata server on a simulated disk that loses, tears and reorders what was not synced, and
//! that stops at any step of log, snapshot and marker.
//!
//! Whatever happens, a start finds a state that was acknowledged, or one operation more, and none
//! older than what was promised last: after a kill the newest, after a loss of power the last that
//! was synced. The store is what snapshot and log give, and no id is given out twice.
//!
//! A failure prints its seed: `MILLRACE_TEST_SEED=N cargo test -p millrace-metadata-server --test
//! server power` runs it again.

mod stores;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use millrace_metadata_server::{
    apply,
    command::{Command, Create, Envelope, Remove, Rename},
    engine::{
        Core, EngineSettings, StoreKind,
        snapshots::{Place, Purpose, Taking},
    },
    log::{self, LogError},
    snapshot::{kept, load::load},
    store::{
        MetaStore as _, borrow, keys,
        memory::MemoryStore,
        prefix_end,
        records::{Entry, Record as _},
    },
};
use millrace_protocol::{
    metadata::{NewNode, RenameMode},
    session::Caller,
};
use millrace_runtime::Random;
use millrace_types::{FileName, InodeId, LogIndex};
use stores::LossyStores;
use tempfile::TempDir;
use world::{Ending, Lie, World};

use crate::{
    chance::{for_each_seed_of, percent},
    engine::{CLUSTER, Contents, Server, contents, settings},
};

/// What is done wrong on purpose, and must be noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Nothing,
    /// The disk says that it has synced, and has not.
    Disk(Lie),
    /// The log is shortened before the snapshot has its name.
    Order,
}

/// The names of the root directory.
type State = BTreeMap<Vec<u8>, InodeId>;

#[test]
fn every_start_finds_what_was_promised_whenever_the_run_before_ended() {
    for_each_seed_of(200, |random| {
        let starts = Story::new(random, Fault::Nothing).run(12).unwrap();
        assert!(starts > 0, "some starts come to their end");
    });
}

#[test]
fn a_disk_that_lies_and_a_wrong_order_of_steps_are_noticed() {
    for fault in [Fault::Disk(Lie::Names), Fault::Disk(Lie::Bytes), Fault::Order] {
        let noticed = (1..=40).any(|seed| {
            // What is broken so may also break an assertion of the server.
            let run = AssertUnwindSafe(|| Story::new(Random::seeded(seed), fault).run(12));
            !matches!(catch_unwind(run), Ok(Ok(_)))
        });
        assert!(noticed, "{fault:?}");
    }
}

/// Runs of one server, one after another on one disk.
struct Story {
    random: Random,
    fault: Fault,
    world: World,
    stores: LossyStores,
    server: Server,
    boots: u32,
    /// What was acknowledged, from the oldest state that may still be found.
    history: Vec<State>,
    /// What was asked for when the run ended: it may have happened.
    asked: Option<State>,
    /// The first state of the history that a start may find.
    floor: usize,
    /// The one that survives a loss of power.
    synced: usize,
    /// Every id that was given out.
    given: BTreeSet<InodeId>,
    _dir: TempDir,
}

impl Story {
    fn new(random: Random, fault: Fault) -> Self {
        let dir = TempDir::new().unwrap();
        let lie = match fault {
            Fault::Disk(lie) => lie,
            _ => Lie::Nothing,
        };
        let world = World::new(random.clone(), lie);
        let stores = LossyStores::new(random.clone());
        let (settings, time) = settings(&dir.path().join("metadata"), StoreKind::default());
        let settings = EngineSettings {
            segment_bytes: 1 << 10,
            // By hand alone: then a seed is one order of steps.
            snapshot_bytes: u64::MAX,
            sync_interval: std::time::Duration::from_secs(3600),
            files: Arc::new(world.clone()),
            stores: Some(Arc::new(stores.clone())),
            random: random.clone(),
            ..settings
        };
        Self {
            random,
            fault,
            world,
            stores,
            server: Server::stopped(settings, time),
            boots: 0,
            history: vec![State::new()],
            asked: None,
            floor: 0,
            synced: 0,
            given: BTreeSet::new(),
            _dir: dir,
        }
    }

    /// How many starts came to their end, or what is wrong.
    fn run(&mut self, runs: u32) -> Result<u32, String> {
        let mut started = 0;
        for run in 0..runs {
            self.server.settings.boot = Some(format!("boot-{}", self.boots));
            // The first one comes to its end more often than not.
            let steps = if run == 0 { 400 } else { 150 };
            self.world.end_after(self.random.within(0..steps));
            match self.server.try_begin() {
                Ok(()) => {
                    started += 1;
                    self.look()?;
                    self.work()?;
                }
                Err(_) if self.world.is_over() => {}
                Err(error) => return Err(format!("run {run} does not start: {error}")),
            }
            self.end();
        }
        Ok(started)
    }

    /// Ends the run in one of three ways.
    fn end(&mut self) {
        let in_order = !self.world.is_over() && percent(&self.random, 20);
        if in_order && self.server.is_running() && self.server.try_stop().is_ok() {
            self.synced = self.history.len() - 1;
        } else {
            self.world.cut();
            if self.server.is_running() {
                // Nothing that it does now reaches the disk.
                drop(self.server.try_stop());
            }
        }
        let power = percent(&self.random, 50);
        let ending = if power { Ending::Power } else { Ending::Kill };
        if power {
            self.floor = self.floor.min(self.synced);
            self.boots += 1;
        }
        self.world.end(ending);
        self.stores.end(ending);
    }

    /// Looks at what a start has found.
    fn look(&mut self) -> Result<(), String> {
        if self.world.is_over() {
            return Ok(());
        }
        let (found, shown) = self.server.turn(|core| (names(core), contents(core.view())));
        let allowed = self.history[self.floor..].iter().chain(&self.asked);
        let Some(at) = allowed.clone().position(|state| *state == found) else {
            let (count, least) = (found.len(), self.history[self.floor].len());
            return Err(format!("{count} names that were never so; promised were {least}"));
        };
        let rebuilt = rebuilt(&self.world, &self.server.settings.dir)?;
        if shown != rebuilt {
            return Err("the store shows something else than snapshot and log".to_owned());
        }
        // Everything that a start finds is synced by it.
        self.history = vec![allowed.clone().nth(at).cloned().unwrap_or_default()];
        let doubt =
            self.server.turn(|core| core.distrusted()).map_err(|error| error.to_string())?;
        if let (0, Some(doubt)) = (self.boots, doubt) {
            return Err(format!("a kill makes nobody doubt, but: {}", doubt.reason));
        }
        (self.asked, self.floor, self.synced) = (None, 0, 0);
        Ok(())
    }

    /// Changes names, syncs and takes snapshots until the run ends, or for a while.
    fn work(&mut self) -> Result<(), String> {
        let mut taking: Option<Taking> = None;
        for _ in 0..self.random.within(1..120) {
            if self.world.is_over() {
                return Ok(());
            }
            match self.random.within(0..10) {
                0 => {
                    let synced = self.server.turn(|core| core.syncer().sync_all().is_ok());
                    if synced {
                        self.synced = self.history.len() - 1;
                    }
                }
                1..=3 => self.snapshot(&mut taking),
                _ => self.change()?,
            }
        }
        Ok(())
    }

    /// One step of a snapshot.
    fn snapshot(&self, taking: &mut Option<Taking>) {
        let place = Place::of(&self.server.settings);
        let Some(mut present) = taking.take() else {
            *taking = Taking::begin(self.server.handle(), &place, Purpose::Recovery).ok();
            return;
        };
        match present.step() {
            Ok(true) => *taking = Some(present),
            Ok(false) => {
                let through = present.writer().index();
                if self.fault == Fault::Order {
                    while let Ok(true) =
                        self.server.handle().blocking_turn(move |core| core.shorten_log(through))
                    {
                    }
                }
                // It fails when the run ends in it.
                drop(present.keep());
            }
            Err(_) => {}
        }
    }

    /// One change of a name.
    fn change(&mut self) -> Result<(), String> {
        let mut state = self.history.last().cloned().unwrap_or_default();
        let names: Vec<_> = state.keys().cloned().collect();
        let one = |random: &Random| {
            let at = random.within(0..names.len().max(1) as u64);
            names.get(usize::try_from(at).unwrap()).cloned()
        };
        let (kind, old) = (self.random.within(0..4), one(&self.random));
        let new = format!("name-{}", self.random.within(0..60)).into_bytes();
        let command = match (kind, old) {
            (0, Some(old)) => {
                state.remove(&old);
                remove(&old)
            }
            (1, Some(old)) => {
                let inode = state.remove(&old).unwrap();
                state.insert(new.clone(), inode);
                rename(&old, &new)
            }
            _ if state.contains_key(&new) => return Ok(()),
            _ => {
                let Ok(inode) = self.server.try_turn(|core| core.new_inode_id()) else {
                    return Ok(());
                };
                if !self.given.insert(inode) {
                    return Err(format!("{inode} was given out twice"));
                }
                state.insert(new.clone(), inode);
                create(&new, inode)
            }
        };
        match self.server.try_turn(move |core| core.execute(None, command)) {
            Ok(_) => {
                self.history.push(state);
                // A kill loses nothing that was acknowledged.
                self.floor = self.history.len() - 1;
            }
            Err(_) if self.world.is_over() => self.asked = Some(state),
            Err(failure) => return Err(format!("refused: {failure}")),
        }
        Ok(())
    }
}

fn names(core: &Core) -> State {
    let prefix = keys::entries(InodeId::ROOT);
    let end = prefix_end(&prefix);
    let found = core.view().scan(Bound::Included(&prefix), borrow(&end), usize::MAX).unwrap();
    found
        .into_iter()
        .map(|(key, value)| {
            (keys::after(&key, &prefix).to_vec(), Entry::decode(&value).unwrap().inode)
        })
        .collect()
}

/// What the newest snapshot and the log behind it give.
fn rebuilt(world: &World, dir: &Path) -> Result<Contents, String> {
    let mut store = MemoryStore::default();
    let snapshots = dir.join("snapshots");
    let newest = kept::list(world, &snapshots).unwrap().first().copied();
    if let Some(index) = newest {
        load(world, &snapshots, index, CLUSTER, &mut store).map_err(|error| error.to_string())?;
    }
    let from = newest.unwrap_or(LogIndex(0)).next();
    let replayed = log::replay(world, &dir.join("log"), CLUSTER, from, |index, body| {
        let envelope = Envelope::from_bytes(body).unwrap();
        store.commit(&apply::apply(&store, index, &envelope).unwrap().batch).unwrap();
        Ok::<(), LogError>(())
    });
    replayed.map_err(|error| error.to_string())?;
    Ok(contents(&store))
}

fn create(name: &[u8], inode: InodeId) -> Command {
    Command::Create(Create {
        caller: Caller::ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(name).unwrap(),
        node: NewNode::Symlink(b"somewhere".to_vec()),
        mode: 0o777,
        inode,
        seed: 0,
        open: None,
        exclusive: true,
    })
}

fn remove(name: &[u8]) -> Command {
    Command::Remove(Remove {
        caller: Caller::ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(name).unwrap(),
        directory: false,
        readers: Vec::new(),
    })
}

fn rename(from: &[u8], to: &[u8]) -> Command {
    Command::Rename(Rename {
        caller: Caller::ROOT,
        source_parent: InodeId::ROOT,
        source_name: FileName::parse(from).unwrap(),
        target_parent: InodeId::ROOT,
        target_name: FileName::parse(to).unwrap(),
        mode: RenameMode::Replace,
        readers: Vec::new(),
    })
}
