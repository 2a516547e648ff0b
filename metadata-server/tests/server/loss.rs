//! Giving a target up: what is marked, what may still be done with it, and who serves afterwards.

use std::time::Duration;

use millrace_metadata_server::{
    command::{
        AddLink, Command, Commit, ImportEntries, ImportEntry, ImportKind, Loss, Outcome, Rename,
    },
    engine::{Core, StoreKind},
    namespace::{Body, FileBody, ObjectState, tree},
    ops,
    targets::losses::Losses,
};
use millrace_protocol::{
    admin::{ClusterStatus, Health, TargetState},
    capability::Origin,
    cluster::{Bucket, Heartbeat, LinkMode, TargetReport},
    loss::{LookLoss, LoseTarget, LossPage, LossProgress},
    metadata::{NewNode, RenameMode},
    session::{Caller, Role},
};
use millrace_types::{
    ByteLen, ChunkIndex, ErrorKind, Failure, GIB, InodeId, LinkId, MIB, TargetId, Timestamp,
};

use crate::{
    engine::Server,
    hosts::{Host, client, name, register_targets, run},
};

const LOST: TargetId = TargetId([1; 8]);
const OTHER: TargetId = TargetId([2; 8]);

struct World {
    server: Server,
    host: Host,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(store: StoreKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), store);
        register_targets(&server);
        let host = Host::open(&server, 1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self { server, host, runtime, _dir: dir }
    }

    /// A file of these bytes, all of them committed; it is closed.
    fn file(&mut self, text: &str, size: u64) -> InodeId {
        let made = self.host.make(&self.server, InodeId::ROOT, text, NewNode::Regular).unwrap();
        let inode = made.attributes.inode;
        let content = made.content.unwrap();
        let commit = Commit {
            inode,
            generation: content.generation,
            write_epoch: content.write_epoch,
            end: size,
            written_at: Some(Timestamp(1)),
        };
        self.execute(Command::Commit(commit)).unwrap();
        let close = self.host.close_write(inode);
        self.host.run(&self.server, close, ops::open::close).unwrap();
        inode
    }

    fn execute(&self, command: Command) -> Result<Outcome, Failure> {
        self.server.try_turn(move |core| core.execute(None, command))
    }

    fn body(&self, inode: InodeId) -> FileBody {
        self.server.turn(move |core| match tree::inode(core.view(), inode).unwrap().body {
            Body::File(file) => *file,
            other => panic!("{other:?}"),
        })
    }

    /// Who serves the first chunk of a file; `None` while nobody does.
    fn serves(&self, inode: InodeId) -> Option<TargetId> {
        let layout = self.body(inode).layout;
        let map = self.server.turn(|core| core.map().0);
        let group = map.group(layout.pool(), layout.group(ChunkIndex(0))).unwrap().clone();
        group.targets.first().copied()
    }

    /// A file whose first chunk lies on a target.
    fn file_on(&mut self, target: TargetId, text: &str, size: u64) -> InodeId {
        for at in 0.. {
            let inode = self.file(&format!("{text}{at}"), size);
            if self.serves(inode) == Some(target) {
                return inode;
            }
        }
        unreachable!("there are as many groups of each")
    }

    /// Only the other target is heard of from now on, for some leases. The host comes back after.
    fn silence(&mut self) {
        for _ in 0..8 {
            self.server.pass(Duration::from_secs(10));
            beat(&self.server, OTHER).unwrap();
        }
        let state = self.targets().into_iter().find(|(id, _)| *id == LOST);
        assert_eq!(state, Some((LOST, TargetState::Offline)));
        self.host = Host::open(&self.server, 1);
    }

    fn targets(&self) -> Vec<(TargetId, TargetState)> {
        let operator = ops::Client { role: Role::Admin, ..client(201) };
        let status = run(&self.server, &operator, ClusterStatus {}, ops::admin::status).unwrap();
        status.targets.into_iter().map(|target| (target.id, target.state)).collect()
    }

    fn losses(&self) -> Losses {
        Losses::new(self.server.handle().clone())
    }

    fn lose(&self) -> Result<LossProgress, Failure> {
        let losses = self.losses();
        self.runtime.block_on(async {
            tokio::select! {
                () = losses.run() => unreachable!("it runs until it is dropped"),
                progress = losses.lose(&LoseTarget { target: LOST }) => progress,
            }
        })
    }

    fn look(&self) -> Result<LossPage, Failure> {
        let losses = self.losses();
        self.runtime.block_on(losses.look(&LookLoss { target: LOST, after: None }))
    }

    /// What the state of the cluster says of files that lack what went with a target.
    fn lacking(&self) -> Vec<String> {
        let operator = ops::Client { role: Role::Admin, ..client(201) };
        let status = run(&self.server, &operator, ClusterStatus {}, ops::admin::status).unwrap();
        let see = format!("see millrace target lost {LOST}");
        let lacking = status.problems.into_iter().filter(|problem| problem.contains(&see));
        let lacking: Vec<_> = lacking.collect();
        assert!(lacking.is_empty() || status.health == Health::Degraded);
        lacking
    }

    /// Looks at every file, as the server does by itself when it has nothing else to do.
    fn look_for_damage(&self) {
        self.runtime.block_on(self.losses().look_for_damage()).unwrap();
    }

    fn open_write(&mut self, inode: InodeId, truncate: bool) -> Result<(), ErrorKind> {
        let open = self.host.open_write(inode, truncate);
        self.host.run(&self.server, open, ops::open::open).map(drop)
    }
}

fn report(target: TargetId) -> TargetReport {
    TargetReport {
        id: target,
        capacity: ByteLen(GIB),
        used: ByteLen(0),
        inode_max: InodeId(0),
        loss_count: 0,
        bad_blocks: 0,
        blank: false,
    }
}

fn beat(server: &Server, target: TargetId) -> Result<(), Failure> {
    let daemon = ops::Client { role: Role::Target, ..client(200) };
    let request = Heartbeat { targets: vec![report(target)], hydrated_bytes: 0 };
    run(server, &daemon, request, ops::cluster::heartbeat).map(drop)
}

/// A linked directory with an object, imported as it is.
fn imported(world: &mut World, text: &str) -> InodeId {
    let made = world.host.make(&world.server, InodeId::ROOT, text, NewNode::Directory).unwrap();
    let directory = made.attributes.inode;
    let url = "file:///b".to_owned();
    let link = AddLink {
        directory,
        bucket: Bucket { url, endpoint: None, region: None, credentials: None },
        prefix: String::new(),
        mode: LinkMode::ImportExport,
    };
    let Outcome::Link(link) = world.execute(Command::AddLink(link)).unwrap() else { panic!() };
    let ids: Vec<_> =
        world.server.turn(|core| (0..16).map(|_| core.new_inode_id().unwrap()).collect());
    let entries = ids.iter().zip(0..).map(|(&inode, seed)| ImportEntry {
        name: name(&format!("object{seed}")),
        inode,
        seed,
        mode: 0o666,
        uid: 0,
        gid: 0,
        modified: Timestamp(1),
        kind: ImportKind::File(origin(link, seed)),
    });
    let import = ImportEntries { directory, entries: entries.collect() };
    world.execute(Command::ImportEntries(import)).unwrap();
    world.execute(Command::MarkDirectoryListed(directory)).unwrap();
    ids.into_iter().find(|&inode| world.serves(inode) == Some(LOST)).expect("one is on it")
}

fn origin(link: LinkId, seed: u32) -> Origin {
    let (key, tag) = (format!("object{seed}"), "t".to_owned());
    Origin { link, key, size: MIB, tag, modified: Timestamp(1) }
}

#[test]
fn what_only_it_had_is_marked_and_others_serve_the_rest() {
    for store in [StoreKind::Memory, StoreKind::default()] {
        let mut world = World::new(store);
        let gone = world.file_on(LOST, "gone", MIB);
        let kept = world.file_on(OTHER, "kept", MIB);
        let empty = world.file("empty", 0);
        let clean = imported(&mut world, "set");
        let dirty = imported(&mut world, "more");
        world.open_write(dirty, false).unwrap();
        let before = world.server.turn(|core| core.map().0.epoch);
        let newest = world.server.turn(|core| core.keyring().newest());

        let refused = world.lose().unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InUse, "{refused}");
        world.silence();
        let preview = world.look().unwrap();
        assert!(!preview.given_up);
        let told = world.lose().unwrap();
        assert!(told.ended);
        assert_eq!((told.groups, preview.groups), (64, 64));
        let after = world.look().unwrap();
        assert_eq!((after.files, after.given_up), (told.files, true));
        assert_eq!(preview.paths, after.paths, "it said before what it would do");
        let found = |path: &[u8]| after.paths.iter().any(|known| known.starts_with(path));
        assert!(found(b"/gone") && found(b"/more/object") && !found(b"/set"));

        let states = [gone, kept, empty, clean, dirty].map(|inode| world.body(inode).state);
        use ObjectState::{Clean, Local, Lost};
        assert_eq!(states, [Lost, Local, Local, Clean, Lost]);
        let lost = world.body(dirty);
        assert_eq!((lost.origin_length, lost.sparse), (0, false), "absent is lost");
        assert_eq!(world.body(clean).origin_length, MIB, "the bucket has it");
        for inode in [gone, kept, empty, clean, dirty] {
            assert_eq!(world.serves(inode), Some(OTHER));
        }
        let (map, key) = world.server.turn(|core| (core.map().0, core.keyring().newest()));
        assert!(map.epoch > before && key > newest, "old capabilities are worth nothing");
        assert!(map.targets.iter().all(|target| target.id == OTHER));
        assert_eq!(world.lose().unwrap(), told, "once more changes nothing");
    }
}

#[test]
fn what_was_renamed_and_not_exported_is_named_before_and_not_marked() {
    let mut world = World::new(StoreKind::Memory);
    let clean = imported(&mut world, "set");
    assert!(world.look().unwrap().paths.is_empty(), "the bucket has all of them");
    let named = move |core: &mut Core| tree::inode(core.view(), clean).unwrap().parent.unwrap();
    let parent = world.server.turn(named);
    let rename = Rename {
        caller: Caller::ROOT,
        source_parent: parent.directory,
        source_name: parent.name,
        target_parent: parent.directory,
        target_name: name("old"),
        mode: RenameMode::Replace,
        readers: Vec::new(),
    };
    world.execute(Command::Rename(rename)).unwrap();
    let gone = world.file_on(LOST, "gone", MIB);
    world.silence();
    let preview = world.look().unwrap();
    assert_eq!(preview.files, u64::try_from(preview.paths.len()).unwrap() - 1, "{preview:?}");
    assert_eq!(preview.paths.last().unwrap(), b"/set/old", "behind what is damaged");
    let told = world.lose().unwrap();
    assert_eq!((told.ended, told.files), (true, preview.files));
    assert_eq!(world.body(gone).state, ObjectState::Lost);
    let renamed = world.body(clean);
    assert_eq!(renamed.state, ObjectState::Clean, "its object may be there");
    assert_eq!(renamed.origin_length, MIB);
    assert_eq!(world.look().unwrap().paths, preview.paths[..preview.paths.len() - 1]);
}

#[test]
fn what_is_damaged_takes_no_change_but_a_new_content() {
    let mut world = World::new(StoreKind::Memory);
    let gone = world.file_on(LOST, "gone", MIB);
    world.silence();
    assert!(world.lose().unwrap().ended);
    assert_eq!(world.open_write(gone, false), Err(ErrorKind::Lost));
    let content = world.host.show(&world.server, gone).unwrap().content.unwrap();
    let late = Commit {
        inode: gone,
        generation: content.generation,
        write_epoch: content.write_epoch,
        end: 2 * MIB,
        written_at: Some(Timestamp(2)),
    };
    assert_eq!(world.execute(Command::Commit(late)).unwrap_err().kind, ErrorKind::Lost);
    world.open_write(gone, true).unwrap();
    assert_eq!(world.body(gone).state, ObjectState::Local);
    assert!(world.body(gone).generation > content.generation);
    assert_eq!(world.look().unwrap().files, 0);
}

#[test]
fn what_is_damaged_is_told_over_restarts_with_how_much_it_is() {
    let mut world = World::new(StoreKind::default());
    let gone = world.file_on(LOST, "gone", MIB);
    world.file_on(LOST, "more", MIB);
    world.silence();
    assert!(world.lacking().is_empty());
    assert_eq!(world.lose().unwrap().files, 2);
    assert!(world.lacking()[0].contains("2 files"), "at once: {:?}", world.lacking());
    world.look_for_damage();
    let told = world.lacking();
    assert!(told[0].starts_with("2 files lack bytes") && told[0].contains("/gone"), "{told:?}");
    // What is known is looked at again for each answer.
    world.open_write(gone, true).unwrap();
    let told = world.lacking();
    assert!(told[0].starts_with("1 file lacks bytes") && told[0].contains("/more"), "{told:?}");

    world.server.restart();
    assert!(world.lacking()[0].contains("with bytes of 2 files"), "{:?}", world.lacking());
    world.look_for_damage();
    assert_eq!(world.lacking(), told);
}

#[test]
fn nothing_is_told_of_damage_that_was_removed_or_never_was() {
    let mut world = World::new(StoreKind::default());
    world.file_on(LOST, "gone", MIB);
    world.silence();
    assert!(world.lose().unwrap().ended);
    world.look_for_damage();
    let path = world.look().unwrap().paths.remove(0);
    let text = String::from_utf8(path[1..].to_vec()).unwrap();
    let remove = world.host.remove(InodeId::ROOT, &text, false);
    world.host.run(&world.server, remove, ops::remove::remove).unwrap();
    assert!(world.lacking().is_empty());
    world.server.restart();
    assert_eq!(world.lacking().len(), 1, "nobody has looked yet");
    world.look_for_damage();
    assert!(world.lacking().is_empty());

    let mut sound = World::new(StoreKind::Memory);
    sound.file("empty", 0);
    sound.silence();
    assert!(sound.lose().unwrap().ended);
    assert!(sound.lacking().is_empty(), "no file had a byte there");
}

#[test]
fn a_start_goes_on_where_the_one_before_was() {
    let mut world = World::new(StoreKind::default());
    let gone = world.file_on(LOST, "gone", MIB);
    world.silence();
    let below = InodeId(gone.0 + 1);
    world.execute(Command::Loss(Loss::Begin { target: LOST, below })).unwrap();
    assert_eq!(world.serves(gone), None, "nobody serves it before it has been looked at");
    assert_eq!(world.body(gone).state, ObjectState::Local);
    let made = world.file("made", 0);
    assert_eq!(world.body(made).state, ObjectState::Local, "files can be made meanwhile");
    world.server.restart();
    assert!(world.lose().unwrap().ended);
    assert_eq!(world.body(gone).state, ObjectState::Lost);
    assert_eq!(world.serves(gone), Some(OTHER));
}

#[test]
fn a_target_that_is_back_has_no_say_and_its_daemon_goes_on() {
    let mut world = World::new(StoreKind::Memory);
    let gone = world.file_on(LOST, "gone", MIB);
    world.silence();
    assert!(world.lose().unwrap().ended);
    register_targets(&world.server);
    beat(&world.server, LOST).unwrap();
    beat(&world.server, OTHER).unwrap();
    assert_eq!(world.targets(), [(OTHER, TargetState::Online)]);
    assert_eq!(world.serves(gone), Some(OTHER));
    let last = LoseTarget { target: OTHER };
    world.server.pass(Duration::from_secs(100));
    let refused = world.runtime.block_on(world.losses().lose(&last)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable, "nobody would be left: {refused}");
    let unknown = LoseTarget { target: TargetId([9; 8]) };
    let refused = world.runtime.block_on(world.losses().lose(&unknown)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound);
}
