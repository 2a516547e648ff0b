//! The metadata server on a simulated disk that loses, tears and reorders what was not synced, and
//! that stops at any step of log, snapshot and marker.
//!
//! Whatever happens, a start finds a state that was acknowledged, or one operation more, and none
//! older than what was promised last: after a kill the newest, after a loss of power the last that
//! was synced. The store is what snapshot and log give, and no id is given out twice.
//!
//! What is done is either a change of a name, of which a model knows that has nothing of the server
//! (`history`); or any command, mostly of sessions that open, write, cut, close and remove files,
//! and that end when they are silent. In either case the log has what was asked for and answered,
//! and the store what that makes (`ledger`). Below it is a store in memory that forgets as sled may
//! (`stores`), one of a real engine that is behind the log, ahead of what is left of it, damaged or
//! gone (`folders`), or one of a real engine that writes to the same disk as the log does, through
//! the kernel, and stops at any of its writes (`mounted`). Such stores are also tested without a
//! server (`engines`).
//!
//! A failure prints its seed: `MILLRACE_TEST_SEED=N cargo test -p millrace-metadata-server --test
//! server power` runs it again.

mod below;
mod disk;
mod engines;
mod folders;
mod ledger;
mod mounted;
mod names;
mod process;
mod reads;
mod served;
mod stores;
mod syncs;
mod world;

use std::{
    cell::Cell,
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use below::{Below, Place};
use disk::{Ending, Lie};
use folders::Left;
use ledger::Ledger;
use millrace_metadata_server::{
    apply,
    command::{Command, Envelope},
    engine::{
        Core, EngineSettings,
        marker::Marker,
        snapshots::{self, Purpose, Taking},
    },
    log::{self, LogError},
    namespace::tree,
    ops,
    snapshot::{kept, load::load},
    store::{MetaStore as _, StoreError, keys, memory::MemoryStore, records::SessionRecord},
};
use millrace_protocol::session::{Operation, RenewTicket};
use millrace_runtime::Random;
use millrace_types::{ErrorKind, Failure, InodeId, LogIndex, SessionId};
use names::{State, create, remove, rename};
use served::can_mount;
use tempfile::TempDir;
use world::World;

use crate::{
    chance::{for_each_seed, percent, pick},
    commands::Commands,
    engine::{CLUSTER, Contents, ON_DISK, Server, contents, settings},
    hosts::client,
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

/// What is done between the ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Names of one directory are changed.
    Names,
    /// What sessions do, and all else that there is a command for.
    Commands,
}

/// What became of a command.
enum Said {
    /// It was executed, or had been.
    Done,
    Refused(Failure),
    /// The run has ended with it.
    Nothing,
}

#[test]
fn every_start_finds_what_was_promised_whenever_the_run_before_ended() {
    for_each_seed(200, |random| {
        let starts =
            Story::new(random, Fault::Nothing, Work::Names, Place::Memory).run(12).unwrap();
        assert!(starts > 0, "some starts come to their end");
    });
}

/// One seed of four has a real engine below.
#[test]
fn every_start_finds_the_commands_that_were_promised_whatever_became_of_the_store() {
    let starts = Cell::new(0);
    for_each_seed(200, |random| {
        let place = match percent(&random, 25) {
            true => Place::Folder(*pick(&random, &ON_DISK).unwrap()),
            false => Place::Memory,
        };
        let mut story = Story::new(random, Fault::Nothing, Work::Commands, place);
        starts.set(starts.get() + story.run(6).unwrap());
    });
    assert!(starts.get() > 0, "some starts come to their end");
}

/// The disk stops among the writes of the store too.
#[test]
fn a_server_with_a_mounted_store_finds_what_was_promised_whenever_the_run_before_ended() {
    if !can_mount() {
        return;
    }
    let starts = Cell::new(0);
    for_each_seed(70, |random| {
        for work in [Work::Names, Work::Commands] {
            let random = Random::seeded(random.number());
            let kind = *pick(&random, &ON_DISK).unwrap();
            let mut story = Story::new(random, Fault::Nothing, work, Place::Disk(kind));
            let started = story.run(6);
            let started = started.unwrap_or_else(|error| panic!("{kind:?}, {work:?}: {error}"));
            starts.set(starts.get() + started);
        }
    });
    assert!(starts.get() > 0, "some starts come to their end");
}

#[test]
fn a_disk_that_lies_and_a_wrong_order_of_steps_are_noticed() {
    for fault in [Fault::Disk(Lie::Names), Fault::Disk(Lie::Bytes), Fault::Order] {
        for work in [Work::Names, Work::Commands] {
            let noticed = (1..=40).any(|seed| {
                // What is broken so may also break an assertion of the server.
                let run = || Story::new(Random::seeded(seed), fault, work, Place::Memory).run(12);
                !matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(_)))
            });
            assert!(noticed, "{fault:?} under {work:?}");
        }
    }
}

/// Runs of one server, one after another on one disk.
struct Story {
    random: Random,
    fault: Fault,
    world: World,
    below: Below,
    server: Server,
    boots: u32,
    /// Whether a start may say that the log could have lost something.
    may_doubt: bool,
    /// What was answered, whatever is done.
    ledger: Ledger,
    /// Makes what is done, unless it is changes of names.
    commands: Option<Arc<Mutex<Commands>>>,
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
    fn new(random: Random, fault: Fault, work: Work, place: Place) -> Self {
        let dir = TempDir::new().unwrap();
        let lie = match fault {
            Fault::Disk(lie) => lie,
            _ => Lie::Nothing,
        };
        let of_disk = match place {
            // Threads of the engine draw from it, at any time.
            Place::Disk(_) => Random::seeded(random.number()),
            _ => random.clone(),
        };
        let world = World::new(of_disk, lie);
        let below = Below::new(place, &world, dir.path(), random.clone());
        let (settings, time) = settings(&dir.path().join("metadata"), place.kind());
        let settings = EngineSettings {
            segment_bytes: 1 << 10,
            // By hand alone: then a seed is one order of steps.
            snapshot_bytes: u64::MAX,
            sync_interval: Duration::from_secs(3600),
            files: Arc::new(world.clone()),
            stores: Some(below.stores()),
            random: random.clone(),
            ..settings
        };
        let commands = (work == Work::Commands).then(|| Commands::new(random.clone()));
        Self {
            random,
            fault,
            world,
            below,
            server: Server::stopped(settings, time),
            boots: 0,
            may_doubt: false,
            ledger: Ledger::default(),
            commands: commands.map(|commands| Arc::new(Mutex::new(commands))),
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
            let of_store = if matches!(self.below, Below::Mounted(_)) { 3 } else { 1 };
            self.world.end_after(self.random.within(0..steps * of_store));
            match self.server.try_begin() {
                Ok(()) => {
                    started += 1;
                    self.look()?;
                    self.work()?;
                }
                Err(_) if self.world.is_over() => {}
                Err(error) => return Err(format!("run {run} does not start: {error}")),
            }
            self.end()?;
        }
        Ok(started)
    }

    /// Ends the run in one of three ways.
    fn end(&mut self) -> Result<(), String> {
        let in_order = !self.world.is_over() && percent(&self.random, 20);
        let ran = self.server.is_running();
        if in_order && ran && self.server.try_stop().is_ok() {
            self.synced = self.history.len() - 1;
            self.ledger.handle_all_synced();
        } else {
            self.world.cut();
            if self.server.is_running() {
                // Nothing that it does now reaches the disk.
                drop(self.server.try_stop());
            }
        }
        if ran {
            self.note()?;
        }
        let power = percent(&self.random, 50);
        let ending = if power { Ending::Power } else { Ending::Kill };
        self.world.end(ending);
        let is_noticed = self.end_store(ending, ran)?;
        if power {
            self.floor = self.floor.min(self.synced);
            self.ledger.handle_loss_of_power();
            self.may_doubt = true;
            self.boots += u32::from(is_noticed);
        }
        Ok(())
    }

    /// Whether the next start may be told that the machine has gone down: it must be where the
    /// store is not what the engine had written at some moment. Where it is, also a start that
    /// takes itself for one after a kill has to see that the store may be ahead of the log.
    fn end_store(&mut self, ending: Ending, ran: bool) -> Result<bool, String> {
        let left = match &self.below {
            Below::Lossy(stores) => {
                stores.end(ending);
                return Ok(true);
            }
            Below::Folders(folders) => {
                let marker = Marker::load(&self.world, &self.server.settings.dir);
                let marker = marker.map_err(|error| error.to_string())?;
                let is_clean = marker.is_some_and(|marker| marker.clean);
                folders.end(ending, ran, is_clean)
            }
            Below::Mounted(mounted) => mounted.end(ending, ran),
        };
        self.may_doubt |= left == Left::Wreck;
        Ok(left != Left::All || percent(&self.random, 60))
    }

    /// Reads what has come to the log.
    fn note(&mut self) -> Result<(), String> {
        self.ledger.note(&self.world.in_the_kernel(), &self.server.log_dir())
    }

    /// Looks at what a start has found.
    fn look(&mut self) -> Result<(), String> {
        let Some(_held) = self.world.hold() else { return Ok(()) };
        let (found, shown, last) = self
            .server
            .turn(|core| (names::of_root(core), contents(core.view()), core.last_index()));
        if self.commands.is_none() {
            self.look_at_names(found)?;
        }
        let rebuilt = rebuilt(&self.world, &self.server.settings.dir)?;
        if shown != rebuilt {
            return Err("the store shows something else than snapshot and log".to_owned());
        }
        let synced = self.server.log_state().synced;
        let (kernel, log) = (self.world.in_the_kernel(), self.server.log_dir());
        self.ledger.look(&kernel, &log, &shown, [last, synced])?;
        let doubt =
            self.server.turn(|core| core.distrusted()).map_err(|error| error.to_string())?;
        if let (false, Some(doubt)) = (self.may_doubt, doubt) {
            return Err(format!("a kill makes nobody doubt, but: {}", doubt.reason));
        }
        Ok(())
    }

    fn look_at_names(&mut self, found: State) -> Result<(), String> {
        let mut allowed = self.history[self.floor..].iter().chain(&self.asked);
        if !allowed.any(|state| *state == found) {
            let (count, least) = (found.len(), self.history[self.floor].len());
            return Err(format!("{count} names that were never so; promised were {least}"));
        }
        // Everything that a start finds is synced by it.
        self.history = vec![found];
        (self.asked, self.floor, self.synced) = (None, 0, 0);
        Ok(())
    }

    /// Has things done, syncs and takes snapshots until the run ends, or for a while.
    fn work(&mut self) -> Result<(), String> {
        let mut taking: Option<Taking> = None;
        let most = if self.commands.is_some() { 60 } else { 120 };
        for _ in 0..self.random.within(1..most) {
            if self.world.is_over() {
                return Ok(());
            }
            match self.random.within(0..10) {
                0 => {
                    let synced = self.server.turn(|core| core.syncer().sync_all().is_ok());
                    if synced {
                        self.synced = self.history.len() - 1;
                        self.ledger.handle_synced(self.server.log_state().synced);
                    }
                }
                1..=3 => self.snapshot(&mut taking)?,
                4 if self.commands.is_some() && percent(&self.random, 40) => self.be_silent()?,
                _ => self.change()?,
            }
        }
        Ok(())
    }

    /// One step of a snapshot.
    fn snapshot(&mut self, taking: &mut Option<Taking>) -> Result<(), String> {
        let place = snapshots::Place::of(&self.server.settings);
        let Some(mut present) = taking.take() else {
            *taking = Taking::begin(self.server.handle(), &place, Purpose::Recovery).ok();
            return Ok(());
        };
        match present.step() {
            Ok(true) => *taking = Some(present),
            Ok(false) => {
                // What the log loses behind it was seen.
                self.note()?;
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
        Ok(())
    }

    fn change(&mut self) -> Result<(), String> {
        match self.commands.clone() {
            Some(commands) => self.execute_any(commands),
            None => self.change_name(),
        }
    }

    /// Has a command executed, and keeps what was said of it.
    fn give(&mut self, operation: Option<Operation>, command: Command) -> Result<Said, String> {
        let asked = (operation, command.clone());
        let given = self.server.try_turn(move |core| {
            let before = core.last_index();
            let said = core.execute(operation, command);
            Ok((said, before, core.last_index()))
        });
        let (said, before, last) = given.map_err(|failure| failure.to_string())?;
        match said {
            Ok(outcome) => {
                // Otherwise it is an operation that was executed before.
                if last > before {
                    self.ledger.handle_answer(last, asked, outcome);
                }
                self.ledger.handle_synced(self.server.log_state().synced);
                Ok(Said::Done)
            }
            Err(_) if self.world.is_over() => {
                self.ledger.handle_no_answer(asked);
                Ok(Said::Nothing)
            }
            Err(failure) => Ok(Said::Refused(failure)),
        }
    }

    /// One command of any kind; many are refused.
    fn execute_any(&mut self, commands: Arc<Mutex<Commands>>) -> Result<(), String> {
        let Some(held) = self.world.hold() else { return Ok(()) };
        let next =
            self.server.turn(move |core| commands.lock().unwrap().next_of_clients(core.view()));
        drop(held);
        // Whether a start doubts is looked at.
        if matches!(next.command, Command::Distrust(_) | Command::Trust) {
            return Ok(());
        }
        self.server.time.advance(next.pause);
        match self.give(next.operation, next.command)? {
            Said::Refused(failure) if failure.kind == ErrorKind::Disk => {
                Err(format!("refused: {failure}"))
            }
            _ => Ok(()),
        }
    }

    /// More than a lease passes, in which some sessions ask for tickets. The others end.
    fn be_silent(&mut self) -> Result<(), String> {
        let alive = self.random.within(0..2);
        for _ in 0..SILENCE_S {
            self.server.time.advance(Duration::from_secs(1));
            let looked = self.server.try_turn(move |core| {
                let renewed = renew(core, alive);
                core.tick()?;
                Ok((renewed.and_then(|renewed| ended(core, renewed)), core.last_index()))
            });
            match looked {
                Ok((Ok(Some(session)), _)) => {
                    return Err(format!("{session} has a ticket, and ended"));
                }
                Ok((Ok(None), last)) => self.ledger.handle_written(last),
                _ if self.world.is_over() => return Ok(()),
                Ok((Err(error), _)) => return Err(format!("sessions are not to be read: {error}")),
                Err(failure) => return Err(format!("nobody is looked after: {failure}")),
            }
        }
        Ok(())
    }

    /// One change of a name.
    fn change_name(&mut self) -> Result<(), String> {
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
        match self.give(None, command)? {
            Said::Done => {
                self.history.push(state);
                // A kill loses nothing that was acknowledged.
                self.floor = self.history.len() - 1;
            }
            Said::Nothing => self.asked = Some(state),
            Said::Refused(failure) => return Err(format!("refused: {failure}")),
        }
        Ok(())
    }
}

impl Drop for Story {
    /// A test that fails has ended its server before its disk goes.
    fn drop(&mut self) {
        self.world.cut();
        if self.server.is_running() {
            drop(self.server.try_stop());
        }
    }
}

/// Longer than a lease with the error of clocks.
const SILENCE_S: u32 = 40;

/// Renews every second session, if it gets a ticket; which those are.
fn renew(core: &mut Core, alive: u64) -> Result<Vec<SessionId>, StoreError> {
    let sessions = tree::scan::<SessionRecord>(core.view(), &keys::sessions(), usize::MAX)?;
    let sessions = sessions
        .into_iter()
        .filter_map(|(key, record)| Some((SessionId(keys::number_at(&key, 1)?), record.host)));
    let mut renewed = Vec::new();
    for (session, host) in sessions.filter(|(session, _)| session.0 % 2 == alive) {
        let client = ops::Client { host, ..client(1) };
        if ops::session::renew(core, &client, &RenewTicket { session }).is_ok() {
            renewed.push(session);
        }
    }
    Ok(renewed)
}

/// One of these sessions that is not there any more.
fn ended(core: &Core, sessions: Vec<SessionId>) -> Result<Option<SessionId>, StoreError> {
    for session in sessions {
        if core.view().get(&keys::session(session))?.is_none() {
            return Ok(Some(session));
        }
    }
    Ok(None)
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
