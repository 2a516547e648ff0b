//! The same log gives the same store: in memory, on sled and on a merge tree, running through,
//! after a restart, by another engine, and rebuilt from a store that is missing, behind, or ahead
//! of the log.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use millrace_metadata_server::{
    command::{Command, Opener, Outcome},
    engine::{EngineSettings, StoreKind, marker::Marker},
    files::MachineFiles,
    log::{record, segment},
    namespace::{Body, ObjectState, tree},
    store::{
        Batch, View, keys,
        records::{self as store_records, OpenRecord, Record as _},
    },
};
use millrace_runtime::Random;
use millrace_types::{ErrorKind, InodeId, LogIndex};
use tempfile::TempDir;

use crate::{
    chance::{for_each_seed, stretched},
    commands::{Commands, Given},
    engine::{CLUSTER, Contents, ON_DISK, Server, copy, rebuilt, records},
    hosts::Host,
};

/// Commands between two looks at the stores.
const COMMANDS_A_STAGE: usize = 800;

/// Two engines that are given the same: one keeps its store in memory, one on disk.
struct Pair {
    memory: Server,
    disk: Server,
    commands: Option<Commands>,
    _dir: TempDir,
}

#[test]
fn both_stores_hold_the_same_however_they_came_to_it() {
    for_each_store(|random, store| {
        let mut pair = Pair::start(random.clone(), store);
        pair.go_on("running through");
        let early = pair.copy_of_store();
        pair.restart("after a restart");
        pair.go_on("going on");

        pair.stop();
        replace(&early, &pair.disk.store_dir());
        pair.begin("with a store that is behind");
        pair.go_on("going on from a store that was behind");

        pair.stop();
        fs::remove_dir_all(pair.disk.store_dir()).unwrap();
        pair.begin("with a store that is gone");
        pair.go_on("going on from a store that was gone");

        pair.stop();
        let lost = 1 + random.within(0..400);
        pair.each(|server| lose_last(&server.settings, lost));
        pair.begin("with a store that is ahead");
        pair.go_on("going on from a store that was ahead");

        pair.stop();
        pair.each(|server| leave_marker(&server.settings, "another boot"));
        pair.begin("after a loss of power");
        pair.go_on("going on after a loss of power");
    });
}

/// Both engines on disk in turn.
pub(crate) fn for_each_store(test: impl Fn(Random, StoreKind)) {
    ON_DISK.into_iter().for_each(|store| for_each_seed(1, |random| test(random, store)));
}

/// Its counts have another version.
#[test]
fn a_store_of_an_older_program_is_made_anew() {
    for store in ON_DISK {
        let dir = TempDir::new().unwrap();
        let mut server = Server::start(&dir.path().join("metadata"), store);
        server.stop();
        overwrite(&server, keys::file_system());
        server.begin();
        server.contents().assert_equal(&rebuilt(&server.log_dir()), "after the start");
    }
}

/// Damage shows when it is read. The server then makes the store anew, and so does the next start,
/// although the machine has not gone down in between.
#[test]
fn a_damaged_store_is_made_anew_by_the_running_server_and_by_the_next_start() {
    for (restart, store) in ON_DISK.into_iter().flat_map(|store| [(false, store), (true, store)]) {
        let dir = TempDir::new().unwrap();
        let mut server = Server::start(&dir.path().join("metadata"), store);
        server.stop();
        overwrite(&server, keys::inode(InodeId::ROOT));
        server.begin();
        let host = Host::open(&server, 1);
        let damaged = host.show(&server, InodeId::ROOT).unwrap_err();
        assert_eq!(damaged, ErrorKind::Disk);
        assert!(server.turn(|core| core.broken().is_some()), "nothing is changed any more");
        if restart {
            server.restart();
        } else {
            server.try_turn(|core| core.tick()).unwrap();
        }
        assert!(host.show(&server, InodeId::ROOT).is_ok());
        server.contents().assert_equal(&rebuilt(&server.log_dir()), "made anew");
    }
}

/// Puts what is no record there, with the server stopped.
fn overwrite(server: &Server, key: Vec<u8>) {
    let mut store = server.open_store();
    let mut batch = Batch::default();
    batch.put(key, vec![1; 60]);
    store.commit(&batch).unwrap();
    store.checkpoint().unwrap();
}

#[test]
fn a_store_that_cannot_be_opened_is_made_anew() {
    for_each_store(|random, store| {
        let mut pair = Pair::start(random, store);
        pair.go_on("running through");
        pair.stop();
        pair.disk.spoil_store();
        pair.begin("with a store that does not open");
    });
}

impl Pair {
    /// Both go on from one log, so that they have the same signing keys.
    fn start(random: Random, store: StoreKind) -> Self {
        let dir = TempDir::new().unwrap();
        let paths = [dir.path().join("memory"), dir.path().join("disk")];
        let mut first = Server::start(&paths[0], StoreKind::Memory);
        first.stop();
        copy(&paths[0], &paths[1]);
        let [memory, disk] = paths;
        let mut pair = Self {
            memory: Server::start(&memory, StoreKind::Memory),
            disk: Server::start(&disk, store),
            commands: Some(Commands::new(random)),
            _dir: dir,
        };
        pair.doubt();
        pair
    }

    fn each(&mut self, mut visit: impl FnMut(&mut Server)) {
        visit(&mut self.memory);
        visit(&mut self.disk);
    }

    fn stop(&mut self) {
        self.each(Server::stop);
    }

    fn begin(&mut self, what: &str) {
        self.each(Server::begin);
        self.doubt();
        self.check(what);
    }

    /// A store on disk that was made anew is a reason for doubt, and one in memory is none.
    fn doubt(&mut self) {
        let (ahead, reason) =
            self.disk.turn(|core| (core.last_index(), core.distrusted().unwrap()));
        self.memory.turn(move |core| {
            if core.last_index() < ahead {
                let reason = reason.expect("nothing else is logged at a start").reason;
                core.execute(None, Command::Distrust(reason)).unwrap();
            }
        });
    }

    fn restart(&mut self, what: &str) {
        self.stop();
        self.begin(what);
    }

    /// Makes commands in front of the one store, gives them to the other, and compares.
    fn go_on(&mut self, what: &str) {
        let mut commands = self.commands.take().expect("it was put back");
        let time = self.memory.time.clone();
        let (commands, given, outcomes) = self.memory.turn(move |core| {
            let (mut given, mut outcomes) = (Vec::new(), Vec::new());
            let mut written = BTreeSet::new();
            for _ in 0..stretched(COMMANDS_A_STAGE) {
                let next: Given = commands.next(core.view());
                time.advance(next.pause);
                let writes = written_by(core.view(), &next.command);
                let before = core.last_index();
                let outcome = execute(core, &next);
                // One whose number was used before is answered as that was, and does nothing.
                if outcome.is_ok() && core.last_index() > before {
                    written.extend(writes);
                    what_was_written_is_not_clean(core.view(), &next.command, &mut written);
                }
                outcomes.push(outcome);
                given.push(next);
            }
            (commands, given, outcomes)
        });
        self.commands = Some(commands);
        let time = self.disk.time.clone();
        let again = self.disk.turn(move |core| {
            let execute = |next: &Given| {
                time.advance(next.pause);
                execute(core, next)
            };
            given.iter().map(execute).collect::<Vec<_>>()
        });
        assert!(outcomes == again, "{what}: both answer the same");
        self.check(what);
    }

    fn check(&self, what: &str) {
        let (memory, disk) = (self.memory.contents(), self.disk.contents());
        memory.assert_equal(&disk, what);
        only_open_files_may_be_unwritten(&memory, what);
        memory.assert_equal(&rebuilt(&self.memory.log_dir()), what);
        let logs = (records(&self.memory.log_dir()), records(&self.disk.log_dir()));
        assert!(logs.0 == logs.1, "{what}: the logs hold the same");
    }

    fn copy_of_store(&mut self) -> PathBuf {
        self.stop();
        let early = self.disk.settings.dir.with_file_name("early");
        copy(&self.disk.store_dir(), &early);
        self.each(Server::begin);
        early
    }
}

/// What is remembered of a file that nobody has written yet goes with its last writer.
fn only_open_files_may_be_unwritten(store: &Contents, what: &str) {
    let written = |(key, value): &&(Vec<u8>, Vec<u8>)| {
        key[0] == keys::OPENS && OpenRecord::decode(value).unwrap().writes > 0
    };
    let written = store.0.iter().filter(written).map(|(key, _)| keys::number_at(key, 1));
    let written: BTreeSet<_> = written.collect();
    let table = keys::pristine(InodeId(0))[0];
    for (key, _) in store.0.iter().filter(|(key, _)| key[0] == table) {
        assert!(written.contains(&keys::number_at(key, 1)), "{what}: nobody writes {key:?}");
    }
}

/// Files of which a command says that they were written, or does not say that they were not.
fn written_by(view: &dyn View, command: &Command) -> Vec<InodeId> {
    let is_open = |session, id: &InodeId| {
        let open = store_records::read::<OpenRecord>(view, &keys::open(*id, session)).unwrap();
        open.is_some_and(|open| open.writes > 0)
    };
    match command {
        Command::Commit(commit) => vec![commit.inode],
        Command::CloseWrite(Opener { session, inode }) if is_open(*session, inode) => vec![*inode],
        Command::CloseSession(session) => {
            let opens = tree::scan::<OpenRecord>(view, &[keys::OPENS], usize::MAX).unwrap();
            let own = opens.iter().filter(|(key, open)| {
                open.writes > 0 && keys::number_at(key, 9) == Some(session.0)
            });
            own.filter_map(|(key, _)| keys::number_at(key, 1).map(InodeId)).collect()
        }
        Command::CloseWrites { session, inodes } => {
            inodes.iter().copied().filter(|id| is_open(*session, id)).collect()
        }
        _ => Vec::new(),
    }
}

/// No close that says that nothing was written hides what others have said. `written` are files
/// that somebody wrote, or may have, since they were last like their objects.
fn what_was_written_is_not_clean(
    view: &dyn View,
    command: &Command,
    written: &mut BTreeSet<InodeId>,
) {
    let is_clean = |id: &InodeId| match tree::find(view, *id).unwrap().map(|inode| inode.body) {
        Some(Body::File(file)) => {
            matches!(file.state, ObjectState::Clean | ObjectState::Exported)
        }
        _ => false,
    };
    if let Command::CloseUnwritten { inodes, .. } = command {
        let hidden = inodes.iter().find(|id| written.contains(id) && is_clean(id));
        assert_eq!(hidden, None, "it was written");
    }
    written.retain(|id| !is_clean(id));
}

fn execute(
    core: &mut millrace_metadata_server::engine::Core,
    given: &Given,
) -> Result<Outcome, ErrorKind> {
    let result = core.execute(given.operation, given.command.clone());
    result.map_err(|failure| {
        assert!(failure.kind != ErrorKind::Disk, "{failure} at {given:?}");
        failure.kind
    })
}

/// Takes the last `count` records from the log, as a loss of power does with what was not synced,
/// and leaves the marker of a killed server of this boot: the store is then trusted until it shows
/// too much.
fn lose_last(settings: &EngineSettings, count: u64) {
    let dir = &settings.dir;
    let last = records(&dir.join("log")).last().unwrap().0;
    cut_back(dir, LogIndex(last.0.saturating_sub(count).max(3)));
    leave_marker(settings, &millrace_metadata_server::engine::marker::present_boot().unwrap());
}

/// Takes every record behind `keep` from the log.
pub(crate) fn cut_back(dir: &Path, keep: LogIndex) {
    let segments = segment::list(&MachineFiles, &dir.join("log")).unwrap();
    for (first, path) in segments {
        if first > keep {
            fs::remove_file(path).unwrap();
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let head = segment::Head::read(&bytes, first, CLUSTER).unwrap();
        let mut at = head.len;
        while let Ok((header, body)) = record::decode(&bytes[at..], head.secret) {
            if header.index > keep {
                break;
            }
            at += record::HEADER_LEN + body.len();
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(at as u64).unwrap();
    }
    assert_eq!(records(&dir.join("log")).last().unwrap().0, keep);
}

pub(crate) fn leave_marker(settings: &EngineSettings, boot: &str) {
    let (boot, store) = (boot.to_owned(), settings.store.name().to_owned());
    let marker = Marker { boot, store, clean: false, last: LogIndex(0) };
    marker.save(&MachineFiles, &settings.dir).unwrap();
}

fn replace(from: &Path, to: &Path) {
    fs::remove_dir_all(to).unwrap();
    copy(from, to);
}
