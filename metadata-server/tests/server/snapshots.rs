//! Snapshots under load, the log that is shortened behind them, and starts from what is left.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_metadata_server::{
    engine::{
        EngineSettings, StartError, StoreKind,
        snapshots::{Place, Purpose, Taking},
    },
    files::MachineFiles,
    log::{record, segment},
    snapshot::{kept, load::load},
    store::memory::MemoryStore,
};
use millrace_runtime::Random;
use millrace_types::{ErrorKind, LogIndex};
use tempfile::TempDir;

use crate::{
    chance::for_each_seed,
    commands::Commands,
    engine::{CLUSTER, Contents, ENGINES, Server, applied, contents, copy, records_from, settings},
    replay::{cut_back, for_each_store, leave_marker},
};

/// An engine with everything that ever stood in its log.
struct Witnessed {
    server: Server,
    commands: Option<Commands>,
    records: Vec<(LogIndex, Vec<u8>)>,
    _dir: TempDir,
}

impl Witnessed {
    fn start(random: Random, store: StoreKind) -> Self {
        let dir = TempDir::new().unwrap();
        let (settings, time) = settings(&dir.path().join("metadata"), store);
        let settings = EngineSettings { segment_bytes: 4 << 10, ..settings };
        let server = Server::start_with(settings, time);
        let mut witnessed =
            Self { server, commands: Some(Commands::new(random)), records: Vec::new(), _dir: dir };
        witnessed.look();
        witnessed
    }

    /// Remembers what the log has got.
    fn look(&mut self) {
        let next = self.records.last().map_or(LogIndex(1), |(last, _)| last.next());
        self.records.extend(records_from(&self.server.log_dir(), next));
    }

    /// Executes so many commands, some of which are refused.
    fn go_on(&mut self, count: u64) {
        let mut commands = self.commands.take().unwrap();
        let time = self.server.time.clone();
        self.commands = Some(self.server.turn(move |core| {
            for _ in 0..count {
                let next = commands.next(core.view());
                time.advance(next.pause);
                if let Err(failure) = core.execute(next.operation, next.command.clone()) {
                    assert!(failure.kind != ErrorKind::Disk, "{failure} at {next:?}");
                }
            }
            commands
        }));
        self.look();
    }

    fn begin_snapshot(&self) -> Taking {
        let place = Place::of(&self.server.settings);
        Taking::begin(self.server.handle(), &place, Purpose::Recovery).unwrap()
    }

    fn snapshot(&self) -> LogIndex {
        let mut taking = self.begin_snapshot();
        while taking.step().unwrap() {}
        taking.keep().unwrap()
    }

    /// What every record up to `index` gives.
    fn contents_at(&self, index: LogIndex) -> Contents {
        let count = self.records.iter().take_while(|(at, _)| *at <= index).count();
        applied(&self.records[..count])
    }

    fn check(&mut self, what: &str) {
        self.look();
        let last = self.records.last().unwrap().0;
        self.server.contents().assert_equal(&self.contents_at(last), what);
    }

    fn first_record(&self) -> LogIndex {
        segment::list(&MachineFiles, &self.server.log_dir()).unwrap()[0].0
    }

    fn snapshots(&self) -> Vec<LogIndex> {
        kept::list(&MachineFiles, &self.server.snapshot_dir()).unwrap()
    }

    fn snapshot_path(&self, index: LogIndex) -> PathBuf {
        kept::path(&self.server.snapshot_dir(), index)
    }

    /// Two snapshots, and a log that begins behind the first record.
    fn shorten(&mut self) {
        for _ in 0..3 {
            self.go_on(300);
            self.snapshot();
        }
        self.go_on(100);
        assert!(self.first_record() > LogIndex(1), "the head of the log is gone");
    }
}

fn loaded(dir: &Path, index: LogIndex) -> Contents {
    let mut store = MemoryStore::default();
    load(&MachineFiles, dir, index, CLUSTER, &mut store).unwrap();
    contents(&store)
}

#[test]
fn a_snapshot_that_is_taken_under_load_is_the_state_at_its_index() {
    for store in ENGINES {
        for_each_seed(1, |random| {
            let mut witnessed = Witnessed::start(random.clone(), store);
            witnessed.go_on(1_500);
            for _ in 0..4 {
                let index = witnessed.records.last().unwrap().0;
                let mut taking = witnessed.begin_snapshot();
                let mut pieces = 0;
                loop {
                    witnessed.go_on(random.within(1..200));
                    if !taking.step().unwrap() {
                        break;
                    }
                    pieces += 1;
                }
                assert!(pieces > 0 && taking.keep().unwrap() == index);
                loaded(&witnessed.server.snapshot_dir(), index)
                    .assert_equal(&witnessed.contents_at(index), "at its index");
                witnessed.check("the server goes on");
            }
            assert_eq!(witnessed.snapshots().len(), kept::KEPT);
        });
    }
}

/// Everything that makes a start build the store anew, without the head of the log.
#[test]
fn a_store_is_made_anew_although_the_head_of_the_log_is_gone() {
    for_each_store(|random, store| {
        let mut witnessed = Witnessed::start(random.clone(), store);
        witnessed.go_on(50);
        witnessed.server.stop();
        let early = witnessed.server.settings.dir.with_file_name("early");
        copy(&witnessed.server.store_dir(), &early);
        witnessed.server.begin();
        witnessed.shorten();

        witnessed.server.stop();
        fs::remove_dir_all(witnessed.server.store_dir()).unwrap();
        witnessed.server.begin();
        witnessed.check("missing");

        witnessed.shorten();
        witnessed.server.stop();
        fs::remove_dir_all(witnessed.server.store_dir()).unwrap();
        copy(&early, &witnessed.server.store_dir());
        witnessed.server.begin();
        witnessed.check("so far behind that the log does not reach it");

        witnessed.shorten();
        witnessed.server.stop();
        witnessed.server.spoil_store();
        witnessed.server.begin();
        witnessed.check("damaged");

        witnessed.shorten();
        witnessed.server.stop();
        let lost = LogIndex(witnessed.records.last().unwrap().0.0 - random.within(1..20));
        witnessed.records.retain(|(index, _)| *index <= lost);
        cut_back(&witnessed.server.settings.dir, lost);
        let boot = millrace_metadata_server::engine::marker::present_boot().unwrap();
        leave_marker(&witnessed.server.settings, &boot);
        witnessed.server.begin();
        witnessed.check("ahead of the log");

        witnessed.shorten();
        witnessed.server.stop();
        leave_marker(&witnessed.server.settings, "another boot");
        witnessed.server.begin();
        witnessed.check("after a loss of power");
        witnessed.go_on(200);
        witnessed.check("and it goes on");
    });
}

/// Flips one bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn the_older_snapshot_serves_when_the_newer_is_damaged_and_without_any_the_start_says_so() {
    let mut witnessed = Witnessed::start(Random::seeded(1), StoreKind::Memory);
    witnessed.shorten();
    witnessed.server.stop();
    let [newer, older] = witnessed.snapshots()[..] else { panic!("two are kept") };
    damage(&witnessed.snapshot_path(newer));
    witnessed.server.begin();
    witnessed.check("from the older one");
    assert_eq!(witnessed.snapshots(), [older], "the damaged one does not count any more");

    witnessed.go_on(50);
    let newest = witnessed.snapshot();
    assert_eq!(witnessed.snapshots(), [newest, older]);
    witnessed.server.stop();
    let saved = fs::read(witnessed.snapshot_path(older)).unwrap();
    damage(&witnessed.snapshot_path(newest));
    damage(&witnessed.snapshot_path(older));
    let error = witnessed.server.try_begin().unwrap_err();
    assert!(matches!(error, StartError::NoSnapshot { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&newest.to_string()) && text.contains("is damaged at byte"), "{text}");
    fs::write(witnessed.snapshot_path(older), saved).unwrap();
    witnessed.server.begin();
    witnessed.check("with one put back");
}

#[test]
fn a_log_that_ends_before_a_snapshot_is_refused_and_left_alone() {
    let mut witnessed = Witnessed::start(Random::seeded(2), StoreKind::Memory);
    witnessed.shorten();
    witnessed.server.stop();
    let newest = witnessed.snapshots()[0];
    cut_back(&witnessed.server.settings.dir, LogIndex(newest.0 - 1));
    leave_marker(&witnessed.server.settings, "another boot");
    let error = witnessed.server.try_begin().unwrap_err();
    assert!(matches!(error, StartError::Log(_)), "{error}");
    assert!(error.to_string().contains("were synced and are missing"), "{error}");
}

#[test]
fn what_a_stop_in_the_middle_of_a_snapshot_leaves_is_removed_and_does_not_count() {
    let mut witnessed = Witnessed::start(Random::seeded(3), StoreKind::Lsm);
    witnessed.go_on(200);
    let mut taking = witnessed.begin_snapshot();
    assert!(taking.step().unwrap());
    let unfinished = witnessed.server.snapshot_dir().join("next.new");
    let part = fs::read(&unfinished).unwrap();
    drop(taking);
    assert!(!unfinished.exists(), "given up in order");
    fs::write(&unfinished, part).unwrap();
    witnessed.server.restart();
    assert!(!unfinished.exists());
    witnessed.check("after the start");
    assert!(witnessed.snapshots().is_empty());
}

/// Waits for the snapshot that a look at the deadlines has asked for, if it has.
pub(crate) fn tick_and_wait(server: &Server) {
    server.try_turn(|core| core.tick()).unwrap();
    while server.turn(|core| core.is_snapshot_under_way()) {
        std::thread::yield_now();
    }
}

#[test]
fn the_log_stays_within_bounds_however_long_the_server_goes_on() {
    let dir = TempDir::new().unwrap();
    let (settings, time) = settings(&dir.path().join("metadata"), StoreKind::default());
    let snapshot_bytes = 64 << 10;
    let settings = EngineSettings { segment_bytes: 16 << 10, snapshot_bytes, ..settings };
    let server = Server::start_with(settings, time);
    let mut most = 0;
    for _ in 0..100 {
        crate::trust::go_on(&server, 200);
        tick_and_wait(&server);
        let bytes = server.turn(|core| core.log_bytes());
        most = bytes.max(most);
    }
    let grown = server.turn(|core| core.last_index().0) * record::HEADER_LEN as u64;
    let on_disk: u64 = segment::list(&MachineFiles, &server.log_dir())
        .unwrap()
        .iter()
        .map(|(_, path)| fs::metadata(path).unwrap().len())
        .sum();
    assert_eq!(server.turn(|core| core.log_bytes()), on_disk, "the count is right");
    // Two intervals, what came before a look, and a segment that is not wholly below.
    let bound = 2 * snapshot_bytes + 6 * (16 << 10);
    assert!(grown > 3 * bound && most <= bound, "{most} bytes of {grown}, at most {bound}");
}

#[test]
fn a_server_that_is_started_often_takes_its_snapshot_all_the_same() {
    let dir = TempDir::new().unwrap();
    let (settings, time) = settings(&dir.path().join("metadata"), StoreKind::default());
    let settings = EngineSettings { segment_bytes: 8 << 10, snapshot_bytes: 48 << 10, ..settings };
    let mut server = Server::start_with(settings, time);
    let snapshots = |server: &Server| kept::list(&MachineFiles, &server.snapshot_dir()).unwrap();
    let mut starts = 0;
    while snapshots(&server).is_empty() {
        crate::trust::go_on(&server, 50);
        server.restart();
        tick_and_wait(&server);
        starts += 1;
        assert!(starts < 60);
    }
    assert!(starts > 5, "not before the log has grown");
    // Nothing has grown since.
    tick_and_wait(&server);
    server.time.advance(Duration::from_secs(60));
    tick_and_wait(&server);
    assert_eq!(snapshots(&server).len(), 1);
}
