//! The same log gives the same store: in memory and on sled, running through, after a restart, and
//! rebuilt from a store that is missing, behind, or ahead of the log.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use millrace_metadata_server::{
    command::Outcome,
    engine::{StoreKind, marker::Marker},
    log::{record, segment},
};
use millrace_runtime::Random;
use millrace_types::{ErrorKind, LogIndex};
use tempfile::TempDir;

use crate::{
    chance::{for_each_seed, stretched},
    commands::{Commands, Given},
    engine::{Server, rebuilt, records},
    variants::{COMMANDS, command_name},
};

/// Commands between two looks at the stores.
const COMMANDS_A_STAGE: usize = 500;

/// Two engines that are given the same: one keeps its store in memory, one on sled.
struct Pair {
    memory: Server,
    sled: Server,
    commands: Option<Commands>,
    accepted: BTreeSet<&'static str>,
    refused: usize,
    _dir: TempDir,
}

#[test]
fn both_stores_hold_the_same_however_they_came_to_it() {
    for_each_seed(|random| {
        let mut pair = Pair::start(random.clone());
        pair.go_on("running through");
        let early = pair.copy_of_store();
        pair.restart("after a restart");
        pair.go_on("going on");

        pair.stop();
        replace(&early, &pair.sled.store_dir());
        pair.begin("with a store that is behind");
        pair.go_on("going on from a store that was behind");

        pair.stop();
        fs::remove_dir_all(pair.sled.store_dir()).unwrap();
        pair.begin("with a store that is gone");
        pair.go_on("going on from a store that was gone");

        pair.stop();
        let lost = 1 + random.within(0..400);
        pair.each(|server| cut_back(&server.settings.dir, lost));
        pair.begin("with a store that is ahead");
        pair.go_on("going on from a store that was ahead");

        pair.stop();
        pair.each(|server| leave_marker(&server.settings.dir, "another boot"));
        pair.begin("after a loss of power");
        pair.go_on("going on after a loss of power");
        pair.check_coverage();
    });
}

#[test]
fn a_store_that_cannot_be_opened_is_made_anew() {
    for_each_seed(|random| {
        let mut pair = Pair::start(random);
        pair.go_on("running through");
        pair.stop();
        let conf = pair.sled.store_dir().join("conf");
        fs::write(conf, b"no settings of sled").unwrap();
        pair.begin("with a store that does not open");
    });
}

impl Pair {
    /// Both go on from one log, so that they have the same signing keys.
    fn start(random: Random) -> Self {
        let dir = TempDir::new().unwrap();
        let paths = [dir.path().join("memory"), dir.path().join("sled")];
        let mut first = Server::start(&paths[0], StoreKind::Memory);
        first.stop();
        copy(&paths[0], &paths[1]);
        let [memory, sled] = paths;
        Self {
            memory: Server::start(&memory, StoreKind::Memory),
            sled: Server::start(&sled, StoreKind::Sled),
            commands: Some(Commands::new(random)),
            accepted: BTreeSet::new(),
            refused: 0,
            _dir: dir,
        }
    }

    fn each(&mut self, mut visit: impl FnMut(&mut Server)) {
        visit(&mut self.memory);
        visit(&mut self.sled);
    }

    fn stop(&mut self) {
        self.each(Server::stop);
    }

    fn begin(&mut self, what: &str) {
        self.each(Server::begin);
        self.check(what);
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
            for _ in 0..stretched(COMMANDS_A_STAGE) {
                let next: Given = commands.next(core.view());
                time.advance(next.pause);
                outcomes.push(execute(core, &next));
                given.push(next);
            }
            (commands, given, outcomes)
        });
        self.commands = Some(commands);
        for (given, outcome) in given.iter().zip(&outcomes) {
            match outcome {
                Ok(_) => drop(self.accepted.insert(command_name(&given.command))),
                Err(_) => self.refused += 1,
            }
        }
        let time = self.sled.time.clone();
        let again = self.sled.turn(move |core| {
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
        let (memory, sled) = (self.memory.contents(), self.sled.contents());
        memory.assert_equal(&sled, what);
        memory.assert_equal(&rebuilt(&self.memory.log_dir()), what);
        let logs = (records(&self.memory.log_dir()), records(&self.sled.log_dir()));
        assert!(logs.0 == logs.1, "{what}: the logs hold the same");
    }

    fn copy_of_store(&mut self) -> PathBuf {
        self.stop();
        let early = self.sled.settings.dir.with_file_name("early");
        copy(&self.sled.store_dir(), &early);
        self.each(Server::begin);
        early
    }

    /// The run is worth something only if it reached every kind of command.
    fn check_coverage(&self) {
        let missing: Vec<_> = COMMANDS
            .iter()
            .filter(|name| **name != "Format" && !self.accepted.contains(**name))
            .collect();
        assert!(missing.is_empty(), "never executed: {missing:?}");
        assert!(self.refused > 0, "some commands must be refused");
    }
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
fn cut_back(dir: &Path, count: u64) {
    let segments = segment::list(&dir.join("log")).unwrap();
    let last = records(&dir.join("log")).last().unwrap().0;
    let keep = LogIndex(last.0.saturating_sub(count).max(3));
    for (first, path) in segments {
        if first > keep {
            fs::remove_file(path).unwrap();
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let mut at = segment::HEAD_LEN;
        while let Ok((header, body)) = record::decode(&bytes[at..]) {
            if header.index > keep {
                break;
            }
            at += record::HEADER_LEN + body.len();
        }
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(at as u64).unwrap();
    }
    assert_eq!(records(&dir.join("log")).last().unwrap().0, keep);
    leave_marker(dir, &millrace_metadata_server::engine::marker::present_boot().unwrap());
}

fn leave_marker(dir: &Path, boot: &str) {
    let marker = Marker { boot: boot.to_owned(), clean: false, last: LogIndex(0) };
    marker.save(dir).unwrap();
}

fn replace(from: &Path, to: &Path) {
    fs::remove_dir_all(to).unwrap();
    copy(from, to);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
