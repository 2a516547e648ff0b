//! Stores of real engines by themselves, on a disk that loses power or whose process is killed
//! between any two of their writes. A store that opens holds what some of the first batches made,
//! each as a whole, and none of what was there before is lost at a checkpoint.
//!
//! | store | after a kill | after a loss of power |
//! |-------|--------------|-----------------------|
//! | merge tree | opens | opens; or where names are kept apart, says that it cannot be used |
//! | sled | opens | opens after an end in order; otherwise nobody opens it, and it is made anew |
//!
//! What cannot be used, or is not to be, is made anew and begins with nothing, as the server does.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use millrace_metadata_server::{
    engine::StoreKind,
    store::{MetaStore, StoreError, Stores as _},
};
use millrace_runtime::Random;

use super::{
    disk::{Ending, Keeping, Lie},
    mounted::Mounted,
    served::can_mount,
    world::World,
};
use crate::{
    chance::{for_each_seed, percent},
    engine::ON_DISK,
    killed::{Model, applied, batch},
};

#[test]
fn a_mounted_store_holds_the_first_of_its_batches_as_a_whole_after_any_end() {
    if !can_mount() {
        return;
    }
    let all = Cell::new(Seen::default());
    for_each_seed(30, |random| {
        for kind in ON_DISK {
            let mut trial = Trial::new(Random::seeded(random.number()), kind, Lie::Nothing);
            trial.run(8).unwrap_or_else(|error| panic!("{}: {error}", trial.what()));
            all.set(all.get().with(trial.seen));
        }
    });
    let Seen { opened, cut, refused } = all.get();
    assert!(opened > refused && cut > 0, "{opened} were opened, {refused} refused, {cut} were cut");
}

/// The kill may come between a change and its sync; the next run has nothing to write by itself.
#[test]
fn what_a_mounted_store_shows_after_a_kill_is_there_once_it_has_a_checkpoint() {
    if !can_mount() {
        return;
    }
    for kind in ON_DISK {
        for steps in 0.. {
            let mut trial = Trial::new(Random::seeded(steps), kind, Lie::Nothing);
            let mut store = trial.mounted.open().unwrap();
            trial.commit(&mut *store).unwrap();
            store.checkpoint().unwrap();
            trial.commit(&mut *store).unwrap();
            trial.world.end_after(steps);
            let is_whole = store.checkpoint().is_ok();
            trial.world.cut();
            drop(store);
            trial.end_with(Ending::Kill, false);

            let mut store = trial.open().unwrap();
            trial.look(&*store).unwrap();
            store.checkpoint().unwrap();
            trial.promised = trial.last;
            trial.world.cut();
            drop(store);
            trial.end_with(Ending::Power, true);
            let what = format!("{}, step {steps}", trial.what());
            let store = trial.open().unwrap_or_else(|error| panic!("{what}: {error}"));
            trial.look(&*store).unwrap_or_else(|error| panic!("{what}: {error}"));
            if is_whole {
                break;
            }
        }
    }
}

#[test]
fn a_disk_that_lies_below_a_mounted_store_is_noticed() {
    if !can_mount() {
        return;
    }
    for kind in ON_DISK {
        for lie in [Lie::Names, Lie::Bytes] {
            let noticed = (1..=40).any(|seed| {
                // What is broken so may also break an assertion of the engine.
                let run = || Trial::new(Random::seeded(seed), kind, lie).run(8);
                !matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(())))
            });
            assert!(noticed, "{lie:?} below {kind:?}");
        }
    }
}

/// What has come about.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    /// Stores that were opened, and showed what they had to.
    opened: u32,
    /// Runs that ended at a step of the engine.
    cut: u32,
    /// Stores that said by themselves that they cannot be used.
    refused: u32,
}

impl Seen {
    fn with(self, other: Self) -> Self {
        Self {
            opened: self.opened + other.opened,
            cut: self.cut + other.cut,
            refused: self.refused + other.refused,
        }
    }
}

/// Runs of one store, one after another on one disk.
struct Trial {
    random: Random,
    kind: StoreKind,
    keeping: Keeping,
    world: World,
    mounted: Mounted,
    /// Batches that it has, as far as the present run knows.
    last: u64,
    /// No batch beyond this one was ever begun.
    most: u64,
    /// The next start has at least those up to this one,
    floor: u64,
    /// and this is what a loss of power leaves of that.
    promised: u64,
    /// Whether the next start opens what there is. It makes it anew where that was begun and has
    /// not come to its end; and sled's also after a loss of power, unless the run before it has
    /// ended in order.
    is_trusted: bool,
    /// Since the last store that was usable the power has gone.
    has_lost: bool,
    /// So many openings in a row were cut.
    unopened: u32,
    seen: Seen,
}

impl Trial {
    fn new(random: Random, kind: StoreKind, lie: Lie) -> Self {
        let keeping = if percent(&random, 50) { Keeping::Apart } else { Keeping::Journal };
        // Threads of the engine draw from the disk's own, at any time.
        let world = World::keeping(Random::seeded(random.number()), lie, keeping);
        let mounted = Mounted::new(&world, kind, 0, Random::seeded(0));
        Self {
            random,
            kind,
            keeping,
            world,
            mounted,
            last: 0,
            most: 0,
            floor: 0,
            promised: 0,
            is_trusted: true,
            has_lost: false,
            unopened: 0,
            seen: Seen::default(),
        }
    }

    fn what(&self) -> String {
        format!("{:?}, names {:?}", self.kind, self.keeping)
    }

    fn run(&mut self, runs: u32) -> Result<(), String> {
        for run in 0..runs {
            // Sometimes within an opening.
            let steps = if percent(&self.random, 25) { 20 } else { 600 };
            self.world.end_after(self.random.within(0..steps));
            let in_order = match self.open() {
                Ok(store) => {
                    let in_order = self.use_it(store);
                    in_order.map_err(|error| format!("run {run}: {error}"))?
                }
                Err(_) if self.world.is_over() => {
                    self.unopened += 1;
                    false
                }
                Err(error) => return Err(format!("run {run} does not open: {error}")),
            };
            self.end(in_order);
        }
        Ok(())
    }

    /// Opens what there is; makes it anew where that may be.
    fn open(&mut self) -> Result<Box<dyn MetaStore>, StoreError> {
        if !self.is_trusted {
            return self.make_anew();
        }
        let error = match self.mounted.open() {
            Err(error) if !self.world.is_over() => error,
            opened => return opened,
        };
        let is_allowed = match self.kind {
            StoreKind::Lsm if self.unopened >= OPENINGS_MAX => true,
            StoreKind::Lsm => self.has_lost && self.keeping == Keeping::Apart,
            _ => false,
        };
        if !is_allowed {
            return Err(error);
        }
        self.seen.refused += 1;
        self.make_anew()
    }

    fn make_anew(&mut self) -> Result<Box<dyn MetaStore>, StoreError> {
        // What there was may be removed in part, and show anything.
        (self.floor, self.promised, self.is_trusted) = (0, 0, false);
        let made = self.mounted.create()?;
        (self.most, self.is_trusted, self.has_lost) = (0, true, false);
        Ok(made)
    }

    /// Looks at a store and works on it, until the run ends or it is enough. Whether that was in
    /// order: with a checkpoint at last.
    fn use_it(&mut self, mut store: Box<dyn MetaStore>) -> Result<bool, String> {
        let Some(held) = self.world.hold() else { return Ok(false) };
        self.look(&*store)?;
        drop(held);
        (self.unopened, self.has_lost) = (0, false);
        for _ in 0..self.random.within(0..150) {
            let done = match self.random.within(0..100) {
                0..6 => store.checkpoint().map(|()| self.promised = self.last),
                6 => self.commit_many(&mut *store),
                _ => self.commit(&mut *store),
            };
            match done {
                Ok(()) => {}
                Err(_) if self.world.is_over() => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        let in_order = percent(&self.random, 40) && store.checkpoint().is_ok();
        if in_order {
            self.promised = self.last;
        } else if percent(&self.random, 70) {
            self.world.cut();
        }
        // It may write what it still has.
        drop(store);
        Ok(in_order)
    }

    fn look(&mut self, store: &dyn MetaStore) -> Result<(), String> {
        let shown = applied(store);
        let Self { floor, most, .. } = *self;
        if shown < floor || shown > most {
            return Err(format!("it has {shown} of {most} batches, and was promised {floor}"));
        }
        let mut model = Model::default();
        model.apply(1..=shown);
        if !model.is_in(self.kind, store, shown) {
            return Err(format!("what it shows is not what the first {shown} batches make"));
        }
        (self.last, self.floor) = (shown, shown);
        self.seen.opened += 1;
        Ok(())
    }

    fn commit(&mut self, store: &mut dyn MetaStore) -> Result<(), StoreError> {
        self.most = self.most.max(self.last + 1);
        store.commit(&batch(self.last + 1))?;
        self.last += 1;
        Ok(())
    }

    /// As many as fill the memory that the engine gives them.
    fn commit_many(&mut self, store: &mut dyn MetaStore) -> Result<(), StoreError> {
        (0..400).try_for_each(|_| self.commit(store))
    }

    fn end(&mut self, in_order: bool) {
        self.seen.cut += u32::from(self.world.is_over());
        let ending = if percent(&self.random, 50) { Ending::Power } else { Ending::Kill };
        self.end_with(ending, in_order);
    }

    fn end_with(&mut self, ending: Ending, in_order: bool) {
        let power = ending == Ending::Power;
        self.world.end(ending);
        if power && self.kind == StoreKind::Sled {
            self.is_trusted &= in_order;
        }
        self.has_lost |= power;
        self.floor = if power { self.promised } else { self.floor.max(self.promised) };
        self.mounted.begin();
    }
}

/// Openings of a merge tree that were cut, after which it is not opened any more.
const OPENINGS_MAX: u32 = 2;
