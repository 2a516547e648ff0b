//! A disk that is really full: a small tmpfs under the state directory.
//!
//! What does not fit is refused as such and leaves no trace; what was acknowledged stands; reads go
//! on; and when there is room, so do changes. Mounting needs root: without it these tests fail,
//! unless `MILLRACE_TEST_WITHOUT_MOUNTS` is set: then they say so and pass.

use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use millrace_metadata_server::{
    command::{BeginExport, Command, CompleteExport, Envelope},
    engine::{Core, EngineSettings, StoreKind},
    files::MachineFiles,
    log::{LogError, LogSettings, Writer},
    namespace::{ObjectState, tree},
    ops,
    snapshot::kept,
    store::keys,
};
use millrace_protocol::{
    admin::{ClusterStatus, Health},
    capability::Origin,
    cluster::LogPoint,
    metadata::{CloseUnwritten, NewNode},
    session::Role,
};
use millrace_runtime::Random;
use millrace_types::{ErrorKind, InodeId, JobId, LinkId, LogIndex, Timestamp};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::{
    engine::{CLUSTER, ENGINES, ON_DISK, Server, copy, rebuilt, records_from, settings},
    hosts::{Host, client, register_targets, run},
    snapshots::tick_and_wait,
};

/// A file system in memory of its own size, with a file that fills it up.
struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Nothing when mounting is not permitted here and `MILLRACE_TEST_WITHOUT_MOUNTS` is set.
    fn mount(bytes: u64) -> Option<Self> {
        // Where the script that runs the tests looks for mounts that a killed test has left.
        let parent = env::var_os("MILLRACE_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from);
        let dir = TempDir::new_in(parent).unwrap();
        let size = std::ffi::CString::new(format!("size={bytes},mode=0700")).unwrap();
        match mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), size.as_c_str()) {
            Ok(()) => Some(Self { dir }),
            Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => {
                skipped();
                None
            }
            Err(error) => panic!("cannot mount a tmpfs: {error}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Takes all room but `left` bytes, and never more for a moment: the store is written
    /// meanwhile.
    fn fill_but(&self, left: u64) {
        let mut ballast =
            fs::File::options().create(true).append(true).open(self.path("ballast")).unwrap();
        while self.free() >= left {
            match ballast.write(&[0x55; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn free(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.dir.path()).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    fn make_room(&self) {
        fs::remove_file(self.path("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Detached, because a test that failed may still have files open on it.
        if let Err(error) = unmount(self.dir.path(), UnmountFlags::DETACH) {
            left_behind(&error);
        }
    }
}

#[expect(clippy::print_stderr, reason = "a destructor cannot fail the test")]
fn left_behind(error: &rustix::io::Errno) {
    eprintln!("a tmpfs stays mounted: {error}");
}

#[expect(clippy::print_stderr, reason = "a test that is passed over must not look like a success")]
fn skipped() {
    let may_lack = env::var_os("MILLRACE_TEST_WITHOUT_MOUNTS").is_some();
    assert!(may_lack, "mounting is not permitted here, so no disk can be filled up");
    eprintln!("SKIPPED: mounting is not permitted here, so no disk can be filled up");
}

fn log_settings(dir: &Path, segment_bytes: u64) -> LogSettings {
    LogSettings {
        files: Arc::new(MachineFiles),
        dir: dir.to_owned(),
        cluster: CLUSTER,
        segment_bytes,
        sync_interval: Duration::from_millis(10),
        random: Random::seeded(7),
    }
}

fn bodies(dir: &Path) -> Vec<Vec<u8>> {
    crate::engine::records(dir).into_iter().map(|(_, body)| body).collect()
}

/// Each record is larger than a page, so that the kernel takes a part of it before it says no.
#[test]
fn a_record_that_only_fits_in_part_leaves_no_trace_in_the_log() {
    for segment_bytes in [1 << 30, 64 << 10] {
        let Some(disk) = SmallDisk::mount(2 << 20) else { return };
        let log = disk.path("log");
        let (mut writer, _) = Writer::open(log_settings(&log, segment_bytes), LogIndex(0)).unwrap();
        let mut expected = Vec::new();
        for round in 0..4_u8 {
            disk.fill_but(40_000);
            let full = loop {
                let body = vec![round; 9_000];
                match writer.append(&body) {
                    Ok(_) => expected.push(body),
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, LogError::NoSpace), "{full}");
            assert!(matches!(writer.append(&[0; 9_000]), Err(LogError::NoSpace)));
            assert_eq!(writer.last(), LogIndex(expected.len() as u64));
            assert_eq!(bodies(&log), expected, "round {round}");
            disk.make_room();
            let body = vec![b'r'; 5_000];
            writer.append(&body).unwrap();
            expected.push(body);
        }
        writer.syncer().sync_all().unwrap();
        drop(writer);
        let (_, found) = Writer::open(log_settings(&log, segment_bytes), LogIndex(0)).unwrap();
        assert_eq!((found.last.0, found.torn_bytes), (expected.len() as u64, 0));
        assert_eq!(bodies(&log), expected);
    }
}

/// Something that takes a page of the log.
const LARGE: usize = 4_000;

fn make(server: &Server, host: &mut Host, name: &str) -> Result<InodeId, ErrorKind> {
    let node = NewNode::Symlink(vec![b'x'; LARGE]);
    host.make(server, InodeId::ROOT, name, node).map(|reply| reply.attributes.inode)
}

/// What was made, by name.
type Made = Vec<(String, InodeId)>;

/// Makes names until one is refused.
fn fill(server: &Server, host: &mut Host, made: &mut Made) -> ErrorKind {
    loop {
        let name = format!("file{}", made.len());
        match make(server, host, &name) {
            Ok(inode) => made.push((name, inode)),
            Err(kind) => return kind,
        }
    }
}

fn still_reads(server: &Server, host: &Host, made: &Made) {
    for (name, inode) in made {
        let found = host.lookup(server, InodeId::ROOT, name).unwrap();
        assert_eq!(found.attributes.inode, *inode);
    }
}

/// The same while the disk is full. When sled could not write, which it does when it likes, it may
/// refuse to read too: the store counts as broken then. Whether it has refused anything.
fn refuses_reads(server: &Server, host: &Host, made: &Made) -> bool {
    let mut refuses = false;
    for (name, inode) in made {
        match host.lookup(server, InodeId::ROOT, name) {
            Ok(found) => assert_eq!(found.attributes.inode, *inode),
            Err(kind) => {
                let store = server.settings.store;
                assert_eq!((store, kind), (StoreKind::Sled, ErrorKind::NoSpace), "{name}");
                assert!(server.turn(|core| core.broken().is_some()), "{name}");
                refuses = true;
            }
        }
    }
    refuses
}

/// Whether a status names the disk as what keeps changes from being taken.
fn names_disk(server: &Server) -> bool {
    let operator = ops::Client { role: Role::Admin, ..client(201) };
    let status = run(server, &operator, ClusterStatus {}, ops::admin::status).unwrap();
    let dir = server.settings.dir.display().to_string();
    let names = |problem: &String| problem.contains(&dir) && problem.contains("ENOSPC");
    let named = status.problems.iter().any(names);
    assert!(!named || status.health == Health::Degraded);
    assert_eq!(server.turn(|core| core.takes_no_changes()), named);
    named
}

/// The server itself is what fills the disk: it stops in time.
#[test]
fn changes_are_refused_while_the_store_still_has_room() {
    for store in ENGINES {
        let Some(disk) = SmallDisk::mount(32 << 20) else { return };
        let mut server = Server::start(&disk.path("metadata"), store);
        register_targets(&server);
        let mut host = Host::open(&server, 1);
        let mut made = Vec::new();
        for round in 0..3 {
            disk.fill_but(server.settings.least_reserve() + (1 << 20));
            let full = fill(&server, &mut host, &mut made);
            assert_eq!((full, full.errno()), (ErrorKind::NoSpace, 28), "{store:?}, round {round}");
            let broken = server.turn(|core| core.broken().map(str::to_owned));
            assert_eq!(broken, None, "{store:?}, round {round}");
            still_reads(&server, &host, &made);
            // The store may give some back by itself meanwhile.
            disk.fill_but(server.settings.least_reserve() / 2);
            assert!(names_disk(&server), "{store:?}, round {round}");
            disk.make_room();
            assert!(!names_disk(&server), "{store:?}, round {round}");
            let name = format!("room{round}");
            let inode = make(&server, &mut host, &name).unwrap();
            made.push((name, inode));
        }
        assert!(made.len() > 30, "the disk was filled a little at a time");
        server.contents().assert_equal(&rebuilt(&server.log_dir()), "with room");
        server.restart();
        still_reads(&server, &host, &made);
    }
}

/// Somebody else fills the disk up to its last byte: also what the store has taken and not written
/// yet does not fit then.
#[test]
fn a_server_goes_on_when_there_is_room_again_whatever_the_full_disk_did_to_its_store() {
    for store in ENGINES {
        let Some(disk) = SmallDisk::mount(48 << 20) else { return };
        let mut server = Server::start(&disk.path("metadata"), store);
        register_targets(&server);
        let mut host = Host::open(&server, 1);
        let mut made = Vec::new();
        for round in 0..3 {
            for number in 0..50 {
                let name = format!("round{round}-{number}");
                made.push((name.clone(), make(&server, &mut host, &name).unwrap()));
            }
            disk.fill_but(0);
            let full = fill(&server, &mut host, &mut made);
            assert_eq!((full, full.errno()), (ErrorKind::NoSpace, 28), "{store:?}, round {round}");
            let refuses = refuses_reads(&server, &host, &made);
            disk.make_room();
            server.time.advance(Duration::from_secs(60));
            if refuses {
                // The change below would read too, before it could repair the store.
                server.try_turn(|core| core.tick()).unwrap();
            }
            let name = format!("room{round}");
            made.push((name.clone(), make(&server, &mut host, &name).unwrap()));
            still_reads(&server, &host, &made);
            server.contents().assert_equal(&rebuilt(&server.log_dir()), "with room");
        }
        // What sled had for a full disk it may try to write at its end; the log has all of it.
        drop(server.try_stop());
        wait_until_closed(&disk.path("metadata"));
        server.begin();
        still_reads(&server, &host, &made);
    }
}

/// Waits until this process has nothing open in a directory: sled's threads let go of its files
/// some moments after it was closed, and what they hold takes room also when it is removed.
fn wait_until_closed(dir: &Path) {
    let dir = dir.canonicalize().unwrap();
    let is_open = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let mut files = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        files.any(|file| file.starts_with(&dir))
    };
    let begun = Instant::now();
    while is_open() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} is still open", dir.display());
        thread::yield_now();
    }
}

/// The new store and the old one do not fit together, as where a store on sled goes over.
#[test]
fn the_default_engine_has_the_room_of_the_one_before() {
    let Some(disk) = SmallDisk::mount(160 << 20) else { return };
    let mut server = Server::start(&disk.path("metadata"), StoreKind::Sled);
    register_targets(&server);
    let mut host = Host::open(&server, 1);
    let mut made = Vec::new();
    for number in 0..3_000 {
        let name = format!("file{number}");
        made.push((name.clone(), make(&server, &mut host, &name).unwrap()));
    }
    server.stop();
    let before = server.store_dir();
    wait_until_closed(&before);
    disk.fill_but(1 << 20);
    server.settings.store = StoreKind::default();
    server.begin();
    still_reads(&server, &host, &made);
    assert!(server.store_dir().exists() && !before.exists());
}

/// What a start forgets stands while the log has no room for it: nothing is made of it then.
#[test]
fn a_start_without_room_believes_no_close_that_nothing_was_written() {
    for has_room in [true, false] {
        let Some(disk) = SmallDisk::mount(160 << 20) else { return };
        let mut server = Server::start(&disk.path("metadata"), StoreKind::default());
        register_targets(&server);
        let mut host = Host::open(&server, 1);
        let made = host.make(&server, InodeId::ROOT, "file", NewNode::Regular).unwrap();
        let inode = made.attributes.inode;
        export(&server, inode);
        let open = host.open_write(inode, false);
        host.run(&server, open, ops::open::open).unwrap();
        if !has_room {
            server.stop();
            disk.fill_but(1 << 20);
            server.begin();
            disk.make_room();
            server.time.advance(Duration::from_secs(60));
        }
        let is_remembered =
            move |core: &mut Core| core.view().get(&keys::pristine(inode)).unwrap().is_some();
        assert!(server.turn(is_remembered));
        let request = CloseUnwritten { operation: host.operation(), inodes: vec![inode] };
        host.run(&server, request, ops::open::close_unwritten).unwrap();
        let found = server.turn(move |core| tree::inode(core.view(), inode)).unwrap();
        let expected = if has_room { ObjectState::Exported } else { ObjectState::Dirty };
        assert_eq!(found.file().unwrap().state, expected);
        assert!(!server.turn(is_remembered));
    }
}

/// A tick finds that there is room again, or the first command of the run.
#[test]
fn a_start_that_there_was_no_room_for_is_logged_in_front_of_all_else() {
    for at_a_tick in [true, false] {
        let Some(disk) = SmallDisk::mount(160 << 20) else { return };
        let mut server = Server::start(&disk.path("metadata"), StoreKind::default());
        let last = server.turn(|core| core.last_index());
        server.stop();
        disk.fill_but(1 << 20);
        server.begin();
        let reserve = |server: &Server| {
            server.try_turn(|core| core.execute(None, Command::ReserveIds(InodeId(1)))).map(drop)
        };
        let full = reserve(&server).unwrap_err();
        assert_eq!(full.kind, ErrorKind::NoSpace);
        assert!(server.turn(move |core| core.last_index() == last && !core.is_run_logged()));
        disk.make_room();
        server.time.advance(Duration::from_secs(60));
        if at_a_tick {
            server.try_turn(|core| core.tick()).unwrap();
            assert!(server.turn(|core| core.is_run_logged()));
        }
        reserve(&server).unwrap();
        let commands = records_from(&server.log_dir(), last.next());
        let first = Envelope::from_bytes(&commands[0].1).unwrap();
        assert!(matches!(first.command, Command::BeginRun(_)), "{first:?}");
        let knows = server.try_turn(|core| {
            let (incarnation, index) = (core.incarnation(), core.last_index());
            core.knows(LogPoint { incarnation, index })
        });
        assert!(knows.unwrap());
    }
}

/// Has the targets know of an object of the file.
fn export(server: &Server, inode: InodeId) {
    let (export, link, key) = (7, LinkId(1), "file".to_owned());
    let (job, replaces, part_size) = (JobId(1), None, 8 << 20);
    let begin = BeginExport { inode, job, export, link, key: key.clone(), replaces, part_size };
    let origin = Origin { link, key, tag: "1".to_owned(), size: 0, modified: Timestamp(1) };
    server.turn(move |core| {
        for command in [
            Command::BeginExport(begin),
            Command::CompleteExport(CompleteExport { inode, export, origin }),
            Command::AbortExport { inode, export },
        ] {
            core.execute(None, command).unwrap();
        }
    });
}

/// A snapshot leaves the reserve alone, and the server does not mind that there is none.
#[test]
fn a_disk_without_room_for_a_snapshot_costs_nothing_and_it_is_taken_when_there_is() {
    let Some(disk) = SmallDisk::mount(160 << 20) else { return };
    let (settings, time) = settings(&disk.path("metadata"), StoreKind::default());
    let settings = EngineSettings { snapshot_bytes: 1, ..settings };
    let server = Server::start_with(settings, time);
    register_targets(&server);
    let mut host = Host::open(&server, 1);
    let mut made = Vec::new();
    let snapshots = || kept::list(&MachineFiles, &server.snapshot_dir()).unwrap();
    // Room for changes, and not for what all of them take once more.
    for number in 0..2_000 {
        let name = format!("file{number}");
        made.push((name.clone(), make(&server, &mut host, &name).unwrap()));
    }
    disk.fill_but(server.settings.least_reserve() + (1 << 20));
    tick_and_wait(&server);
    assert!(snapshots().is_empty());
    assert_eq!(fs::read_dir(server.snapshot_dir()).unwrap().count(), 0, "nothing is left of it");
    made.push(("more".to_owned(), make(&server, &mut host, "more").unwrap()));
    disk.make_room();
    tick_and_wait(&server);
    assert!(snapshots().is_empty(), "not before its time");
    server.time.advance(Duration::from_secs(61));
    tick_and_wait(&server);
    assert_eq!(snapshots().len(), 1);
    still_reads(&server, &host, &made);
}

/// Only the store's files lie on the full disk, so that it is the store that fails. The log is the
/// truth: the command that the store could not take is in the one that is made anew.
#[test]
fn a_store_that_fails_is_made_anew_from_the_log_while_the_server_runs() {
    ON_DISK.into_iter().for_each(fail_and_go_on);
}

fn fail_and_go_on(store: StoreKind) {
    let Some(disk) = SmallDisk::mount(160 << 20) else { return };
    let dir = TempDir::new().unwrap();
    let mut server = Server::start(&dir.path().join("metadata"), store);
    server.stop();
    fs::rename(server.store_dir(), dir.path().join("store")).unwrap();
    copy(&dir.path().join("store"), &disk.path("store"));
    symlink(disk.path("store"), server.store_dir()).unwrap();
    server.begin();
    register_targets(&server);
    let mut host = Host::open(&server, 1);
    disk.fill_but(200_000);
    let mut made = Vec::new();
    for number in 0..2_000 {
        let name = format!("file{number}");
        match make(&server, &mut host, &name) {
            Ok(inode) => made.push((name, inode)),
            // What it read first could not be read; the next look at the leases repairs that too.
            Err(kind) => {
                assert_eq!(kind, ErrorKind::NoSpace);
                server.try_turn(|core| core.tick()).unwrap();
            }
        }
        if !server.store_dir().is_symlink() {
            break;
        }
    }
    assert!(!server.store_dir().is_symlink(), "{store:?} does not stand a full disk");
    still_reads(&server, &host, &made);
    server.contents().assert_equal(&rebuilt(&server.log_dir()), "after the repair");
    server.restart();
    still_reads(&server, &host, &made);
}
