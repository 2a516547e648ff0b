//! Backups: what is in them, and what a cluster is like after one was put back.

use std::{
    fs,
    path::{Path, PathBuf},
};

use millrace_metadata_server::{
    command::{AddJob, Command, CreateUnnamed, Envelope, JobCounts, SetAttributes, UpdateJob},
    engine::{
        Core, EngineSettings, StartError, StoreKind,
        restore::{RestoreError, restore},
        snapshots::{Place, Purpose, Taking},
    },
    files::read_all,
    namespace::{FileBody, tree},
    ops,
    snapshot::kept,
    store::{
        keys,
        records::{FileSystem, JobRecord, KeyRecord},
    },
};
use millrace_protocol::{
    admin::{Job, JobState},
    metadata::NewNode,
    session::Caller,
};
use millrace_types::{ClusterId, HostId, InodeId, JobId, SessionId};
use tempfile::TempDir;

use crate::{
    engine::{CLUSTER, Server, contents, records_from, settings},
    hosts::{Host, register_targets},
    levels::export_job,
    snapshots::tick_and_wait,
};

/// Has a backup made and written to a file.
fn backup(server: &Server, path: &Path) {
    let place = Place::of(&server.settings);
    let mut taking = Taking::begin(server.handle(), &place, Purpose::Backup).unwrap();
    while taking.step().unwrap() {}
    let file = taking.writer().file();
    drop(taking);
    fs::write(path, read_all(&*file).unwrap()).unwrap();
    let left: Vec<_> = fs::read_dir(server.snapshot_dir()).unwrap().collect();
    assert!(left.is_empty(), "a backup leaves nothing on the server's disk");
}

fn settings_of(dir: &Path) -> EngineSettings {
    settings(dir, StoreKind::default()).0
}

fn file_system(core: &mut Core) -> FileSystem {
    core.file_system().unwrap()
}

fn file(core: &Core, inode: InodeId) -> FileBody {
    tree::inode(core.view(), inode).unwrap().file().unwrap().clone()
}

/// A server with some files, stopped; the backup; and where the files are.
struct Backed {
    dir: TempDir,
    server: Server,
    host: Host,
    path: PathBuf,
}

impl Backed {
    fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// With what was done before the backup was made.
    fn with(change: impl FnOnce(&Server, &Host)) -> Self {
        let dir = TempDir::new().unwrap();
        let server = Server::start(&dir.path().join("first"), StoreKind::default());
        register_targets(&server);
        let mut host = Host::open(&server, 1);
        for name in ["a", "b", "c"] {
            host.make(&server, InodeId::ROOT, name, NewNode::Regular).unwrap();
        }
        change(&server, &host);
        let path = dir.path().join("backup");
        backup(&server, &path);
        Self { dir, server, host, path }
    }

    fn second(&self) -> PathBuf {
        self.dir.path().join("second")
    }

    /// The server that goes on from the backup.
    fn restored(&self) -> Server {
        let (settings, time) = settings(&self.second(), StoreKind::default());
        restore(&settings, &self.path).unwrap();
        Server::start_with(settings, time)
    }
}

#[test]
fn a_backup_that_was_put_back_has_every_file_and_gives_out_nothing_twice() {
    let mut backed = Backed::new();
    let (host, server) = (&mut backed.host, &backed.server);
    let a = host.lookup(server, InodeId::ROOT, "a").unwrap().attributes.inode;
    // What is lost: an id, and a generation of a file that the backup has.
    let lost = host.make(server, InodeId::ROOT, "lost", NewNode::Regular).unwrap();
    let before = server.turn(move |core| (file_system(core), file(core, a)));
    backed.server.stop();

    let mut again = backed.restored();
    let mut host = Host::open(&again, 1);
    for name in ["a", "b", "c"] {
        assert!(host.lookup(&again, InodeId::ROOT, name).is_ok(), "{name}");
    }
    assert!(host.lookup(&again, InodeId::ROOT, "lost").is_err());
    let (after, doubt, sessions) = again.turn(|core| {
        let doubt = core.distrusted().unwrap().unwrap().reason;
        (file_system(core), doubt, core.session_counts(HostId([1; 16])).1)
    });
    assert!(doubt.contains("a backup was put back"), "{doubt}");
    assert_eq!(sessions, 1, "those from before have ended");
    assert!(host.session.0 > before.0.next_session.0);
    assert!(after.map_epoch > before.0.map_epoch && after.next_key.0 > before.0.next_key.0 + 100);
    assert!(after.next_job > before.0.next_job && after.next_link > before.0.next_link);
    let new = host.make(&again, InodeId::ROOT, "new", NewNode::Regular).unwrap();
    assert!(new.attributes.inode.0 > lost.attributes.inode.0 + (1 << 31));

    let resize = |size| {
        let caller = Some(Caller::ROOT);
        let set = SetAttributes { caller, inode: a, size: Some(size), ..SetAttributes::default() };
        again.turn(move |core| core.execute(None, Command::SetAttributes(set))).unwrap();
        again.turn(move |core| file(core, a))
    };
    resize(10);
    assert!(resize(5).write_epoch.0 > before.1.write_epoch.0 + 1_000_000);
    assert!(resize(0).generation.0 > before.1.generation.0 + 1_000_000);

    // All of it is in the log: a store that is made anew shows the same.
    let shown = again.contents();
    again.stop();
    fs::remove_dir_all(again.store_dir()).unwrap();
    again.begin();
    let names = |server: &Server| server.turn(|core| contents(core.view()));
    let (old, new) = (shown.0, names(&again).0);
    let files = |pairs: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<_> {
        pairs.into_iter().filter(|(key, _)| b"DIZ".contains(&key[0])).collect()
    };
    assert!(files(old) == files(new));
}

/// What they would write was written after the backup, perhaps, and is newer than what it has.
#[test]
fn jobs_that_a_backup_was_taken_in_the_middle_of_do_not_go_on_after_it() {
    let states = [JobState::Queued, JobState::Running, JobState::Succeeded];
    let asked = AddJob { job: export_job(), caller: Caller::ROOT, root: InodeId::ROOT };
    let counts = JobCounts { files_done: 3, files_total: 7, ..JobCounts::default() };
    let backed = Backed::with(|server, _| {
        for last in 0..states.len() {
            let add = Command::AddJob(asked.clone());
            server.turn(|core| core.execute(None, add)).unwrap();
            for state in states[1..=last].iter().copied() {
                let id = JobId(last as u64 + 1);
                let update = UpdateJob { id, state: Some(state), counts, failures: Vec::new() };
                server.turn(|core| core.execute(None, Command::UpdateJob(update))).unwrap();
            }
        }
    });
    let jobs = |server: &Server| {
        server.turn(|core| {
            let jobs = tree::scan::<JobRecord>(core.view(), &keys::jobs(), usize::MAX).unwrap();
            jobs.into_iter().map(|(_, record)| record.job).collect::<Vec<_>>()
        })
    };
    let states_of = |jobs: &[Job]| jobs.iter().map(|job| job.state).collect::<Vec<_>>();
    assert_eq!(states_of(&jobs(&backed.server)), states);
    let after = jobs(&backed.restored());
    let (cancelled, succeeded) = (JobState::Cancelled, JobState::Succeeded);
    assert_eq!(states_of(&after), [cancelled, cancelled, succeeded]);
    assert!(after.iter().all(|job| job.ended.is_some()));
    assert_eq!((after[1].files_done, after[1].files_total), (3, 7));
}

#[test]
fn a_backup_has_no_secret_and_the_snapshots_of_a_restored_server_are_sound() {
    let mut backed = Backed::new();
    let secret = backed.server.turn(|core| {
        let keys = tree::scan::<KeyRecord>(core.view(), &keys::signing_keys(), 9);
        keys.unwrap()[0].1.secret
    });
    let bytes = fs::read(&backed.path).unwrap();
    assert!(!bytes.windows(32).any(|window| window == secret));
    backed.server.stop();
    let mut again = backed.restored();
    again.settings.snapshot_bytes = 1;
    again.restart();
    tick_and_wait(&again);
    again.stop();
    fs::remove_dir_all(again.store_dir()).unwrap();
    again.begin();
    let host = Host::open(&again, 1);
    assert!(host.lookup(&again, InodeId::ROOT, "b").is_ok());
}

#[test]
fn only_a_sound_backup_of_this_cluster_is_put_and_only_into_an_empty_directory() {
    let mut backed = Backed::new();
    let dir = backed.server.settings.dir.clone();
    backed.server.stop();
    let into_used = restore(&settings_of(&dir), &backed.path).unwrap_err();
    assert!(matches!(into_used, RestoreError::NotEmpty { .. }), "{into_used}");

    let second = settings_of(&backed.second());
    let other = EngineSettings { cluster: ClusterId([9; 16]), ..second.clone() };
    let refused = restore(&other, &backed.path).unwrap_err().to_string();
    assert!(refused.contains(&CLUSTER.to_string()), "{refused}");
    let good = fs::read(&backed.path).unwrap();
    for bad in [&good[..good.len() - 1], b"", b"something else that is long enough for a head...."]
    {
        fs::write(&backed.path, bad).unwrap();
        let refused = restore(&second, &backed.path).unwrap_err();
        assert!(matches!(refused, RestoreError::Backup { .. }), "{refused}");
    }
    assert!(!second.dir.exists(), "nothing was touched");
    fs::write(&backed.path, good).unwrap();
    restore(&second, &backed.path).unwrap();
    let twice = restore(&second, &backed.path).unwrap_err();
    assert!(matches!(twice, RestoreError::NotEmpty { .. }), "{twice}");
}

#[test]
fn a_file_system_of_its_own_is_empty_with_what_it_was_made_with() {
    let mut backed = Backed::new();
    backed.server.stop();
    let found = backed.second().join("lost+found");
    fs::create_dir_all(found.join("#12")).unwrap();
    let refused = restore(&settings_of(&backed.second()), &backed.path).unwrap_err();
    assert!(matches!(refused, RestoreError::NotEmpty { .. }), "{refused}");
    fs::remove_dir(found.join("#12")).unwrap();
    let again = backed.restored();
    let host = Host::open(&again, 1);
    assert!(host.lookup(&again, InodeId::ROOT, "c").is_ok());
    assert!(found.is_dir());
}

#[test]
fn who_writes_after_a_restore_does_so_in_an_epoch_that_no_target_has_seen() {
    let mut backed = Backed::new();
    backed.server.stop();
    let again = backed.restored();
    let mut host = Host::open(&again, 1);
    let a = host.lookup(&again, InodeId::ROOT, "a").unwrap().attributes.inode;
    let mut epochs = vec![again.turn(move |core| file(core, a).write_epoch.0)];
    for _ in 0..2 {
        let open = host.open_write(a, false);
        host.run(&again, open, ops::open::open).unwrap();
        epochs.push(again.turn(move |core| file(core, a).write_epoch.0));
    }
    assert!(epochs[1] > epochs[0] + 1_000_000, "a target may have been told of a later one");
    assert_eq!(epochs[2], epochs[1], "once is enough");
}

#[test]
fn a_file_with_holes_keeps_its_epoch_so_that_what_was_dropped_since_is_no_hole() {
    let mut backed = Backed::with(|server, host| {
        let a = host.lookup(server, InodeId::ROOT, "a").unwrap().attributes.inode;
        let set = SetAttributes { inode: a, make_sparse: true, ..SetAttributes::default() };
        server.turn(move |core| core.execute(None, Command::SetAttributes(set))).unwrap();
    });
    backed.server.stop();
    let again = backed.restored();
    let mut host = Host::open(&again, 1);
    let a = host.lookup(&again, InodeId::ROOT, "a").unwrap().attributes.inode;
    let before = again.turn(move |core| file(core, a));
    let open = host.open_write(a, false);
    host.run(&again, open, ops::open::open).unwrap();
    let after = again.turn(move |core| file(core, a));
    assert!(before.sparse && after.sparse);
    assert_eq!(after.write_epoch, before.write_epoch, "targets refuse it where they know a later");
}

#[test]
fn a_restore_that_was_stopped_is_not_started_from_and_can_be_run_again() {
    let mut backed = Backed::new();
    backed.server.stop();
    let (settings, time) = settings(&backed.second(), StoreKind::default());
    restore(&settings, &backed.path).unwrap();
    // As it is just before its end, and with a part of the log.
    fs::write(settings.dir.join("restoring"), b"").unwrap();
    for entry in fs::read_dir(settings.dir.join("log")).unwrap() {
        fs::write(entry.unwrap().path(), b"part").unwrap();
    }
    let mut server = Server::stopped(settings.clone(), time);
    let refused = server.try_begin().unwrap_err();
    assert!(matches!(refused, StartError::HalfRestored(_)), "{refused}");
    restore(&settings, &backed.path).unwrap();
    server.begin();
    let host = Host::open(&server, 1);
    assert!(host.lookup(&server, InodeId::ROOT, "c").is_ok());
}

/// Makes files without names that a session has open.
fn open_nameless(core: &mut Core, session: SessionId, count: usize) -> Vec<InodeId> {
    let one = |_| {
        let inode = core.new_inode_id().unwrap();
        let create = CreateUnnamed {
            caller: Caller::ROOT,
            directory: InodeId::ROOT,
            inode,
            seed: 0,
            mode: 0o600,
            umask: 0,
            session,
            nameable: false,
        };
        core.execute(None, Command::CreateUnnamed(create)).unwrap();
        inode
    };
    (0..count).map(one).collect()
}

#[test]
fn what_the_sessions_of_a_backup_had_open_ends_in_small_commands() {
    let mut backed = Backed::new();
    let server = &backed.server;
    let sessions = [(backed.host.session, 300), (Host::open(server, 2).session, 10)];
    let open = |(session, count)| server.turn(move |core| open_nameless(core, session, count));
    let made: Vec<InodeId> = sessions.into_iter().flat_map(open).collect();
    backup(server, &backed.path);
    backed.server.stop();

    let (settings, time) = settings(&backed.second(), StoreKind::default());
    let found = restore(&settings, &backed.path).unwrap();
    let again = Server::start_with(settings, time);
    let records = records_from(&again.log_dir(), found.index.next());
    let commands: Vec<Command> =
        records.iter().map(|(_, body)| Envelope::from_bytes(body).unwrap().command).collect();
    let closed = |command: &Command| match command {
        Command::CloseWrites { inodes, .. } => Some(inodes.len()),
        _ => None,
    };
    let parts: Vec<usize> = commands.iter().map_while(closed).collect();
    assert_eq!(parts, [256, 44, 10]);
    assert!(matches!(commands[parts.len()], Command::Restored(_)));
    let (left, queued) = again.turn(move |core| {
        let is_there = |inode: &&InodeId| tree::find(core.view(), **inode).unwrap().is_some();
        let left = made.iter().filter(is_there).count();
        (left, file_system(core).reclaim_entries)
    });
    assert_eq!((left, queued), (0, 2 * 310), "each once on each target");
}

#[test]
fn a_snapshot_serves_as_a_backup_when_there_is_no_other() {
    let mut backed = Backed::new();
    let place = Place::of(&backed.server.settings);
    let mut taking = Taking::begin(backed.server.handle(), &place, Purpose::Recovery).unwrap();
    while taking.step().unwrap() {}
    let index = taking.keep().unwrap();
    let dir = backed.server.snapshot_dir();
    backed.server.stop();
    backed.path = kept::path(&dir, index);
    let again = backed.restored();
    let record = records_from(&again.log_dir(), index.next());
    let first = Envelope::from_bytes(&record[0].1).unwrap();
    assert!(matches!(first.command, Command::Restored(_)));
    let keys = again
        .turn(|core| tree::scan::<KeyRecord>(core.view(), &keys::signing_keys(), 9).unwrap().len());
    assert_eq!(keys, 1, "what the old ones signed is void");
}
