//! Random commands that mostly make sense: names, ids and states are picked from what the store
//! shows, so that most are executed, some are refused and a few are repeated.

mod buckets;
mod cluster;
mod names;

use std::{collections::BTreeSet, ops::Bound, time::Duration};

use millrace_metadata_server::{
    command::Command,
    engine::StoreKind,
    namespace::{Inode, tree},
    store::{
        Pair, View, borrow, keys, prefix_end,
        records::{Entry, Record},
    },
};
use millrace_protocol::session::{Caller, Operation};
use millrace_runtime::Random;
use millrace_types::{FileName, HostId, InodeId, SessionId, TargetId};
use tempfile::TempDir;

use crate::{
    chance::{percent, pick},
    engine::Server,
    variants::{COMMANDS, command_name},
};

/// One command as a test gives it to the engine.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// How long the clock goes on before.
    pub(crate) pause: Duration,
    pub(crate) operation: Option<Operation>,
    pub(crate) command: Command,
}

/// Makes commands one after another.
pub(crate) struct Commands {
    random: Random,
    /// The next inode: far above what the engine hands out here.
    next_inode: u64,
    sequence: u64,
    made: u64,
}

/// Makes one kind of command.
type Make = fn(&mut Commands, &dyn View) -> Command;

impl Commands {
    pub(crate) fn new(random: Random) -> Self {
        Self { random, next_inode: 1 << 20, sequence: 0, made: 0 }
    }

    /// The next command, for a store that shows `view`.
    pub(crate) fn next(&mut self, view: &dyn View) -> Given {
        self.next_of(view, Self::any)
    }

    /// The same, mostly of sessions that make, open, write, cut, close and remove files.
    pub(crate) fn next_of_clients(&mut self, view: &dyn View) -> Given {
        match percent(&self.random, 25) {
            true => self.next(view),
            false => self.next_of(view, Self::of_clients),
        }
    }

    fn next_of(&mut self, view: &dyn View, make: Make) -> Given {
        self.made += 1;
        let pause = Duration::from_millis(self.random.within(0..2_000));
        let command = match self.made {
            1..=2 => self.register_host(),
            3..=4 => self.open_session(),
            _ => make(self, view),
        };
        let operation = self.operation(view);
        Given { pause, operation, command }
    }

    fn any(&mut self, view: &dyn View) -> Command {
        let weights: [(u64, Make); 27] = [
            (20, Self::create),
            (6, Self::make_link),
            (12, Self::remove),
            (10, Self::rename),
            (10, Self::set_attributes),
            (7, Self::open_write),
            (6, Self::close_write),
            (2, Self::drop_reader),
            (6, Self::commit),
            (4, Self::set_xattr),
            (2, Self::remove_xattr),
            (2, Self::set_defaults),
            (3, Self::add_link),
            (2, Self::end_link),
            (6, Self::forget_entries),
            (10, Self::import_entries),
            (3, Self::mark_listed),
            (5, Self::job),
            (5, Self::begin_export),
            (5, Self::go_on_with_export),
            (10, Self::changed_bucket),
            (8, Self::of_cluster),
            (4, Self::of_sessions),
            (1, Self::repair),
            (5, Self::note_reads),
            (3, Self::set_pin),
            (5, Self::loss),
        ];
        self.weighted(view, &weights)
    }

    fn of_clients(&mut self, view: &dyn View) -> Command {
        let weights: [(u64, Make); 11] = [
            (17, Self::create),
            (4, Self::make_link),
            (14, Self::remove),
            (5, Self::rename),
            (12, Self::set_attributes),
            (12, Self::open_write),
            (10, Self::close_write),
            (3, Self::drop_reader),
            (14, Self::commit),
            (5, Self::of_sessions),
            (4, Self::of_targets),
        ];
        self.weighted(view, &weights)
    }

    fn weighted(&mut self, view: &dyn View, weights: &[(u64, Make)]) -> Command {
        let mut at = self.random.within(0..weights.iter().map(|(weight, _)| weight).sum());
        for (weight, make) in weights {
            match at.checked_sub(*weight) {
                Some(left) => at = left,
                None => return make(self, view),
            }
        }
        unreachable!("the number is below the sum")
    }

    fn operation(&mut self, view: &dyn View) -> Option<Operation> {
        let session = self.session(view)?;
        if percent(&self.random, 40) {
            return None;
        }
        if percent(&self.random, 90) {
            self.sequence += 1;
        }
        let lowest_pending = self.sequence.saturating_sub(self.random.within(0..20));
        Some(Operation { session, sequence: self.sequence, lowest_pending })
    }

    /// A pair at random whose key begins with `prefix`.
    fn pair(&self, view: &dyn View, prefix: &[u8]) -> Option<Pair> {
        let pairs = view.scan(Bound::Included(prefix), borrow(&prefix_end(prefix)), SEEN_MAX);
        pick(&self.random, &pairs.unwrap()).cloned()
    }

    /// A record at random, with the number behind the table's letter.
    fn record<R: Record>(&self, view: &dyn View, prefix: &[u8]) -> Option<(u64, R)> {
        let (key, value) = self.pair(view, prefix)?;
        Some((keys::number_at(&key, 1).unwrap_or_default(), R::decode(&value).unwrap()))
    }

    /// An inode that satisfies `wanted`, or any.
    fn inode(&self, view: &dyn View, wanted: impl Fn(&Inode) -> bool) -> Inode {
        let all: Vec<_> = tree::scan::<Inode>(view, b"I", SEEN_MAX).unwrap();
        let fit: Vec<_> = all.iter().filter(|(_, inode)| wanted(inode)).collect();
        match pick(&self.random, &fit) {
            Some((_, inode)) => inode.clone(),
            None => pick(&self.random, &all).expect("the root is there").1.clone(),
        }
    }

    fn directory(&self, view: &dyn View) -> InodeId {
        self.inode(view, Inode::is_directory).id
    }

    fn file(&self, view: &dyn View) -> Inode {
        self.inode(view, |inode| inode.file().is_ok())
    }

    /// A name that exists, mostly.
    fn entry(&self, view: &dyn View) -> (InodeId, FileName) {
        match self.pair(view, b"D") {
            Some((key, value)) if percent(&self.random, 95) => {
                let _: Entry = Entry::decode(&value).unwrap();
                let directory = keys::number_at(&key, 1).unwrap();
                (InodeId(directory), FileName::parse(&key[9..]).unwrap())
            }
            _ => (self.directory(view), self.name()),
        }
    }

    /// One of few names, so that they meet.
    fn name(&self) -> FileName {
        let letter = b'a' + u8::try_from(self.random.within(0..12)).unwrap();
        FileName::parse(&[letter]).unwrap()
    }

    fn caller(&self) -> Caller {
        match self.random.within(0..6) {
            0 => Caller { uid: 1000, gid: 100, groups: vec![7] },
            1 => Caller { uid: 1001, gid: 7, groups: vec![] },
            _ => Caller::ROOT,
        }
    }

    fn session(&self, view: &dyn View) -> Option<SessionId> {
        let (key, _) = self.pair(view, b"S")?;
        keys::number_at(&key, 1).map(SessionId)
    }

    /// A session that exists, mostly.
    fn any_session(&self, view: &dyn View) -> SessionId {
        self.session(view).filter(|_| percent(&self.random, 97)).unwrap_or(SessionId(1 << 40))
    }

    fn new_inode(&mut self) -> InodeId {
        self.next_inode += 1;
        InodeId(self.next_inode)
    }

    fn seed(&self) -> u32 {
        u32::try_from(self.random.within(0..1 << 32)).unwrap()
    }

    fn host(&self) -> HostId {
        HostId([u8::try_from(self.random.within(1..4)).unwrap(); 16])
    }

    fn target(&self) -> TargetId {
        TargetId([u8::try_from(self.random.within(1..6)).unwrap(); 8])
    }
}

/// So many records of a table are picked from.
const SEEN_MAX: usize = 400;

/// The runs that draw their commands are worth something only if these are of every kind, some of
/// which come once in two thousand.
#[test]
fn many_commands_are_of_every_kind_and_some_are_refused() {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&dir.path().join("metadata"), StoreKind::Memory);
    let (mut commands, time) = (Commands::new(Random::seeded(1)), server.time.clone());
    let (executed, refused) = server.turn(move |core| {
        let (mut executed, mut refused) = (BTreeSet::new(), 0);
        for _ in 0..10_000 {
            let next = commands.next(core.view());
            time.advance(next.pause);
            let name = command_name(&next.command);
            match core.execute(next.operation, next.command) {
                Ok(_) => drop(executed.insert(name)),
                Err(_) => refused += 1,
            }
        }
        (executed, refused)
    });
    let wanted = COMMANDS.iter().filter(|name| !["Format", "Restored"].contains(name));
    let missing: Vec<_> = wanted.filter(|name| !executed.contains(*name)).collect();
    assert!(missing.is_empty(), "never executed: {missing:?}");
    assert!(refused > 0, "some commands must be refused");
}
