//! Ends of sessions, and what is declared after a restart, on a clock that only the test moves.

use std::time::Duration;

use millrace_protocol::{
    lock::{Lock, LockSpace},
    metadata::{Close, NewNode, Open, OpenMode, Rename, RenameMode},
    session::{AllTold, Caller, Operation, RenewTicket, Role},
};
use millrace_runtime::{Clock, Random, VirtualTime};
use millrace_types::{ByteLen, ClusterId, FileName, GIB, LockKind, LockRange, TargetId, Timestamp};
use tempfile::TempDir;

use super::*;
use crate::{
    command::{Create, CreateUnnamed, OpenSession, OpenWrite, Outcome, RegisterHost, Remove},
    engine::{
        room::Room,
        startup::{EngineSettings, StoreKind, open},
    },
    ops::{self, Client, Step},
    sessions::Readers,
    store::records::TrimRecord,
};

const HOST: HostId = HostId([1; 16]);

/// Above the id of whatever a test makes.
const LATER: InodeId = InodeId(u64::MAX);

/// A core whose clock only the test moves, and its sessions.
struct World {
    core: Core,
    time: VirtualTime,
    sessions: Vec<SessionId>,
    /// Requests with numbers of their own so far.
    requests: u64,
    dir: TempDir,
}

fn client() -> Client {
    Client {
        role: Role::Client,
        host: HOST,
        fingerprint: [1; 32],
        subtree: None,
        squash_root: false,
        settled: Vec::new(),
    }
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (clock, time) = Clock::manual(Timestamp::from_parts(1_800_000_000, 0));
        let settings = EngineSettings {
            store: StoreKind::Memory,
            reserve_bytes: 0,
            clock,
            random: Random::seeded(7),
            ..EngineSettings::new(dir.path().join("metadata"), ClusterId([7; 16]))
        };
        let mut core = open(settings).unwrap();
        core.tick().unwrap();
        Self { core, time, sessions: Vec::new(), requests: 0, dir }
    }

    fn open(&mut self, nonce: u64) -> SessionId {
        let open = OpenSession { host: HOST, host_name: "client".to_owned(), nonce };
        let opened = self.core.execute(None, Command::OpenSession(open)).unwrap();
        let Outcome::Session(session) = opened else { panic!("a session") };
        self.sessions.push(session);
        self.renew(session).unwrap();
        session
    }

    fn renew(&mut self, session: SessionId) -> Result<(), ErrorKind> {
        let request = RenewTicket { session };
        let renewed = ops::session::renew(&mut self.core, &client(), &request);
        renewed.map(drop).map_err(|failure| failure.kind)
    }

    /// The session says that it has told all, to a life so many after the present one.
    fn tell(&mut self, session: SessionId, other: u64) -> Result<(), ErrorKind> {
        let incarnation = self.core.incarnation().wrapping_add(other);
        let request = AllTold { session, incarnation };
        let told = ops::session::all_told(&mut self.core, &client(), &request);
        told.map(drop).map_err(|failure| failure.kind)
    }

    /// Lets so many seconds pass, in each of which every session asks for a ticket.
    fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.time.advance(Duration::from_secs(1));
            for session in self.sessions.clone() {
                // One that holds others up is refused.
                self.renew(session).unwrap_or_default();
            }
            self.core.tick().unwrap();
        }
    }

    /// Without one, no file can be made.
    fn register_target(&mut self) {
        let targets = vec![(TargetId([1; 8]), ByteLen(GIB))];
        let (name, addresses) = ("store".to_owned(), vec!["127.0.0.1:1".to_owned()]);
        let register = RegisterHost { host: HOST, name, addresses, targets };
        self.core.execute(None, Command::RegisterHost(register)).unwrap();
    }

    /// Leaves the disk room for changes, or none.
    fn set_room(&mut self, is_enough: bool) {
        let reserve = if is_enough { 0 } else { u64::MAX };
        self.core.room = Room::new(self.dir.path().to_owned(), reserve);
    }

    /// Something without a name that the session reads, as the log knows.
    fn read_nameless(&mut self, session: SessionId) -> InodeId {
        let (caller, parent) = (Caller::ROOT, InodeId::ROOT);
        let name = FileName::parse(b"name").unwrap();
        let inode = self.core.new_inode_id().unwrap();
        let create = Create {
            caller: caller.clone(),
            parent,
            name: name.clone(),
            node: NewNode::Fifo,
            mode: 0o600,
            inode,
            seed: 0,
            open: None,
            exclusive: true,
        };
        self.core.execute(None, Command::Create(create)).unwrap();
        let readers = vec![session];
        let remove = Remove { caller, parent, name, directory: false, readers };
        self.core.execute(None, Command::Remove(remove)).unwrap();
        inode
    }

    /// Files without names that the session has open for writing.
    fn write_nameless(&mut self, session: SessionId, count: usize) -> Vec<InodeId> {
        let one = |_| {
            let inode = self.core.new_inode_id().unwrap();
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
            self.core.execute(None, Command::CreateUnnamed(create)).unwrap();
            inode
        };
        (0..count).map(one).collect()
    }

    fn operation(&mut self, session: SessionId) -> Operation {
        self.requests += 1;
        Operation { session, sequence: self.requests, lowest_pending: self.requests }
    }

    /// A new file takes the place of whatever was called `name`.
    fn replace(&mut self, session: SessionId) -> InodeId {
        let [new, name] = [&b"new"[..], b"name"].map(|name| FileName::parse(name).unwrap());
        let inode = self.core.new_inode_id().unwrap();
        let create = Create {
            caller: Caller::ROOT,
            parent: InodeId::ROOT,
            name: new.clone(),
            node: NewNode::Regular,
            mode: 0o600,
            inode,
            seed: 0,
            open: None,
            exclusive: true,
        };
        self.core.execute(None, Command::Create(create)).unwrap();
        let rename = Rename {
            caller: Caller::ROOT,
            operation: self.operation(session),
            source_parent: InodeId::ROOT,
            source_name: new,
            target_parent: InodeId::ROOT,
            target_name: name,
            mode: RenameMode::Replace,
        };
        let renamed = ops::rename::rename(&mut self.core, &client(), &rename).unwrap();
        assert!(matches!(renamed, Step::Done(_)), "nobody is waited for");
        inode
    }

    fn open_file(&mut self, client: &Client, session: SessionId, inode: InodeId) -> Opened {
        let request = Open {
            caller: Caller::ROOT,
            operation: self.operation(session),
            inode,
            mode: OpenMode::Read,
            truncate: false,
            reopen: false,
        };
        match ops::open::open(&mut self.core, client, &request) {
            Ok(step) => {
                assert!(matches!(step, Step::Done(_)), "nobody is waited for");
                Ok(())
            }
            Err(failure) => Err(failure.kind),
        }
    }

    fn close_file(&mut self, session: SessionId, inode: InodeId) {
        let operation = self.operation(session);
        let request = Close { operation, inode, mode: OpenMode::Read };
        assert!(ops::open::close(&mut self.core, &client(), &request).is_ok());
    }

    fn is_there(&self, inode: InodeId) -> bool {
        tree::find(self.core.view(), inode).unwrap().is_some()
    }
}

/// What comes of an open.
type Opened = Result<(), ErrorKind>;

#[test]
fn a_session_that_holds_others_up_gets_no_ticket_and_ends_with_its_last_one() {
    let mut world = World::new();
    let [deaf, other] = [1, 2].map(|nonce| world.open(nonce));
    let inode = world.read_nameless(deaf);
    world.core.leases.handle_cut(InodeId::ROOT, [deaf]);
    let wait = world.core.leases.heard_of_cut(InodeId::ROOT, other, true);
    let wait = wait.expect("it has not heard");
    world.pass(160);
    assert_eq!(world.renew(deaf), Ok(()));
    world.pass(1);
    assert_eq!(world.renew(deaf), Err(ErrorKind::Busy));
    // The last ticket is of this second, and good for 30; clocks may differ by two.
    world.pass(32);
    assert!(!wait.is_over() && world.is_there(inode), "targets may still take its writes");
    world.pass(1);
    assert!(wait.is_over() && !world.is_there(inode));
    assert_eq!(world.renew(deaf), Err(ErrorKind::SessionGone));
    assert_eq!((world.core.session_of(HOST, 1), world.renew(other)), (None, Ok(())));
}

#[test]
fn a_session_with_many_files_without_names_ends_in_small_commands() {
    let mut world = World::new();
    world.register_target();
    let [session, other] = [1, 2].map(|nonce| world.open(nonce));
    let read = world.read_nameless(session);
    let mut written = world.write_nameless(session, 2 * OPENS_MAX + 10);
    let kept = world.write_nameless(other, 1)[0];
    let before = world.core.last_index();
    assert!(world.core.end_session(session).unwrap());
    // Two parts, of which the first has a reader too, and the end with what was left.
    assert_eq!(world.core.last_index().0 - before.0, 4);
    written.push(read);
    assert!(written.iter().all(|&inode| !world.is_there(inode)));
    assert!(world.is_there(kept), "another session has it open");
    assert_eq!(world.core.session_of(HOST, 1), None);
    let queued = world.core.file_system().unwrap().reclaim_entries;
    assert_eq!(queued, 2 * OPENS_MAX as u64 + 10, "each once");
}

#[test]
fn the_end_of_many_files_without_names_has_others_know_of_a_dead_writer() {
    let mut world = World::new();
    world.register_target();
    let [session, other] = [1, 2].map(|nonce| world.open(nonce));
    let shared = world.write_nameless(session, 1)[0];
    let opener = Opener { session: other, inode: shared };
    let open = OpenWrite { caller: None, opener, truncate: false };
    world.core.execute(None, Command::OpenWrite(open)).unwrap();
    let own = world.write_nameless(session, 2 * OPENS_MAX);
    assert!(world.core.end_session(session).unwrap());
    assert!(own.iter().all(|&inode| !world.is_there(inode)));
    let content = tree::inode(world.core.view(), shared).unwrap().content().unwrap();
    assert!(content.sparse, "it may have bytes of which nobody has told");
}

#[test]
fn a_session_whose_end_has_begun_gets_no_ticket_and_ends_some_turns_later() {
    let mut world = World::new();
    world.register_target();
    let [closed, silent, other] = [1, 2, 3].map(|nonce| world.open(nonce));
    let mut written = world.write_nameless(closed, 2 * OPENS_A_TURN);
    let before = world.core.last_index();
    assert!(!world.core.end_session(closed).unwrap(), "others have their turns between");
    assert_eq!(world.core.last_index().0 - before.0, 4);
    let is_gone = |world: &World, inodes: &[InodeId]| {
        inodes.iter().filter(|&&inode| !world.is_there(inode)).count()
    };
    assert_eq!(is_gone(&world, &written), OPENS_A_TURN);

    // It has lost files: it may not live on, though its end cannot be logged for now.
    world.set_room(false);
    assert_eq!(world.core.tick().unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(world.renew(closed), Err(ErrorKind::SessionGone));
    assert_eq!((world.renew(silent), world.renew(other)), (Ok(()), Ok(())));
    world.set_room(true);
    // The next look goes on, whoever asked for the end.
    written.extend(world.write_nameless(silent, 10));
    world.sessions.retain(|&session| session == other);
    world.core.tick().unwrap();
    assert_eq!(world.core.session_of(HOST, 1), None);
    assert_eq!(is_gone(&world, &written), 2 * OPENS_A_TURN);
    // A lease later also that one ends, which is silent.
    world.pass(33);
    assert_eq!(is_gone(&world, &written), 2 * OPENS_A_TURN + 10);
    assert_eq!((world.core.session_of(HOST, 2), world.renew(other)), (None, Ok(())));
}

#[test]
fn who_is_dead_ends_also_on_a_disk_that_takes_no_other_changes() {
    let mut world = World::new();
    world.register_target();
    let [dead, other] = [1, 2].map(|nonce| world.open(nonce));
    let written = world.write_nameless(dead, OPENS_MAX + 10);
    let (space, kind, range) = (LockSpace::Range, Some(LockKind::Write), LockRange::WHOLE);
    let lock = Lock { inode: LATER, space, owner: 1, kind, range, process: 7 };
    let take = |world: &mut World, session, sequence| {
        let operation = Operation { session, sequence, lowest_pending: 1 };
        world.core.locks.set(operation, &lock, 0).map_err(|failure| failure.kind)
    };
    assert_eq!(take(&mut world, dead, 1), Ok(true));
    world.core.room = Room::for_ends(world.dir.path().to_owned());
    world.sessions.retain(|&session| session == other);
    world.pass(32);
    assert_eq!(take(&mut world, other, 1), Err(ErrorKind::Locked), "it may live");
    world.pass(1);
    assert_eq!(take(&mut world, other, 2), Ok(true));
    assert!(!written.iter().any(|&inode| world.is_there(inode)));
    let open = OpenSession { host: HOST, host_name: "client".to_owned(), nonce: 3 };
    let refused = world.core.execute(None, Command::OpenSession(open)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSpace);
    assert!(world.core.takes_no_changes());
}

#[test]
fn who_could_not_commit_on_a_full_disk_has_not_closed_either_and_the_targets_drop_what_it_wrote() {
    let mut world = World::new();
    world.register_target();
    let session = world.open(1);
    let (caller, parent) = (Caller::ROOT, InodeId::ROOT);
    let name = FileName::parse(b"file").unwrap();
    let (node, inode) = (NewNode::Regular, world.core.new_inode_id().unwrap());
    let open = Some(session);
    let create =
        Create { caller, parent, name, node, mode: 0o600, inode, seed: 0, open, exclusive: true };
    world.core.execute(None, Command::Create(create)).unwrap();
    world.core.room = Room::for_ends(world.dir.path().to_owned());
    let epoch = |world: &World| {
        let inode = tree::inode(world.core.view(), inode).unwrap();
        inode.file().unwrap().write_epoch
    };
    let before = epoch(&world);
    let operation = Some(Operation { session, sequence: 1, lowest_pending: 1 });
    let close = Command::CloseWrites { session, inodes: vec![inode] };
    let refused = world.core.execute(operation, close).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSpace);
    assert!(world.core.end_session(session).unwrap());
    assert!(epoch(&world) > before, "what is still on its way is refused");
    let trim: Option<TrimRecord> = records::read(world.core.view(), &keys::trim(inode)).unwrap();
    assert!(trim.is_some());
}

#[test]
fn a_session_that_gives_back_at_last_gets_tickets_again() {
    let mut world = World::new();
    let deaf = world.open(1);
    world.core.leases.handle_cut(InodeId::ROOT, [deaf]);
    world.pass(170);
    assert_eq!(world.renew(deaf), Err(ErrorKind::Busy));
    let through = world.core.leases.poll_recalls(deaf).unwrap().through;
    let now = world.core.now();
    world.core.leases.handle_listening(deaf, through, now);
    world.pass(1);
    assert_eq!(world.renew(deaf), Ok(()));
    world.pass(300);
    assert_eq!(world.renew(deaf), Ok(()));
}

#[test]
fn who_lives_has_as_long_to_declare_what_it_reads_as_others_wait_for_it() {
    let mut world = World::new();
    let session = world.open(1);
    let inode = world.read_nameless(session);
    world.core.readers = Readers::after_restart([session], LATER);
    world.pass(96);
    assert!(world.is_there(inode), "it may be about to tell of it");
    world.pass(1);
    assert!(!world.is_there(inode) && !world.core.readers.is_declaring());
    assert_eq!(world.renew(session), Ok(()), "it lives");
}

#[test]
fn what_nobody_declared_is_dropped_at_once_when_all_have_told_or_ended() {
    let mut world = World::new();
    let [first, second, dead] = [1, 2, 3].map(|nonce| world.open(nonce));
    let [read, unread] = [(); 2].map(|()| world.read_nameless(first));
    world.core.readers = Readers::after_restart([first, second, dead], LATER);
    let again = Operation { session: first, sequence: 1, lowest_pending: 1 };
    world.core.readers.handle_open(again, read).unwrap();
    assert_eq!(world.tell(first, 1), Err(ErrorKind::Stale), "that was another life");
    assert!(world.core.readers.is_undeclared(first));
    for session in [first, first, second] {
        assert_eq!(world.tell(session, 0), Ok(()));
    }
    assert!(!world.core.readers.is_undeclared(first) && world.is_there(unread));
    // One that says nothing is waited for until it has ended.
    world.sessions.retain(|&session| session != dead);
    world.pass(32);
    assert!(world.is_there(unread));
    world.pass(1);
    assert!(!world.is_there(unread) && !world.core.readers.is_declaring());
    assert!(world.is_there(read), "it is told of");
}

#[test]
fn who_tells_last_has_what_nobody_declared_dropped_before_the_answer() {
    let mut world = World::new();
    let [reader, other] = [1, 2].map(|nonce| world.open(nonce));
    let inodes = [(); 2].map(|()| world.read_nameless(reader));
    world.core.readers = Readers::after_restart([reader, other], LATER);
    world.tell(reader, 0).unwrap();
    let since = world.open(3);
    world.tell(since, 0).unwrap();
    assert!(inodes.iter().all(|&inode| world.is_there(inode)), "one may have them open");
    // A full disk takes none of it, and puts nothing off but that.
    world.set_room(false);
    world.tell(other, 0).unwrap();
    assert!(!world.core.readers.is_declaring() && world.is_there(inodes[0]));
    world.set_room(true);
    world.tell(other, 0).unwrap();
    assert!(!inodes.iter().any(|&inode| world.is_there(inode)));
    world.core.end_session(reader).unwrap();
    assert_eq!(world.tell(reader, 0), Err(ErrorKind::SessionGone));
}

#[test]
fn of_much_that_was_not_declared_some_is_dropped_at_each_look() {
    let mut world = World::new();
    let session = world.open(1);
    let read = |_| world.read_nameless(session);
    let inodes: Vec<_> = (0..OPENS_A_LOOK + 10).map(read).collect();
    let left = |world: &World| inodes.iter().filter(|&&inode| world.is_there(inode)).count();
    world.core.readers = Readers::after_restart([session], LATER);
    world.pass(96);
    assert_eq!(left(&world), OPENS_A_LOOK + 10);
    world.pass(1);
    assert_eq!((left(&world), world.core.readers.is_declaring()), (10, false));
    world.set_room(false);
    world.pass(1);
    assert_eq!(left(&world), 10);
    world.set_room(true);
    world.pass(1);
    assert_eq!((left(&world), world.core.readers.looked()), (0, None));
}

#[test]
fn what_was_not_declared_is_dropped_when_the_disk_has_room_again() {
    let mut world = World::new();
    let session = world.open(1);
    let inode = world.read_nameless(session);
    world.core.readers = Readers::after_restart([session], LATER);
    world.set_room(false);
    world.pass(100);
    assert!(world.is_there(inode) && world.core.readers.is_declaring());
    world.set_room(true);
    world.pass(1);
    assert!(!world.is_there(inode) && !world.core.readers.is_declaring());
    assert_eq!(world.renew(session), Ok(()), "it lives");
}

#[test]
fn an_open_that_comes_too_late_does_so_once_under_a_name_and_then_has_the_file_that_it_saw() {
    let mut world = World::new();
    world.register_target();
    let [reader, writer] = [1, 2].map(|nonce| world.open(nonce));
    let seen: Vec<_> = (0..4).map(|_| world.replace(writer)).collect();
    assert!(!world.is_there(seen[0]), "nobody has missed anything yet");
    assert_eq!(world.open_file(&client(), reader, seen[2]), Err(ErrorKind::Stale));
    let late = seen[3];
    let next = world.replace(writer);
    // Twice, as two programs do: the first one's close does not take it away from the second.
    for _ in 0..2 {
        assert_eq!(world.open_file(&client(), reader, late), Ok(()));
        world.close_file(reader, late);
    }
    assert_eq!(world.open_file(&client(), reader, late), Ok(()));
    world.pass(1);
    assert!(world.is_there(late), "it is open");
    world.close_file(reader, late);
    assert!(!world.is_there(late) && world.is_there(next));
    // Of the one that nobody opens nothing is left either.
    world.replace(writer);
    assert!(world.is_there(next));
    world.set_room(false);
    world.pass(2);
    assert!(world.is_there(next), "a full disk puts it off");
    world.set_room(true);
    world.pass(1);
    assert!(!world.is_there(next));
}

#[test]
fn what_is_removed_stays_for_who_has_missed_its_name_and_not_for_a_session_that_ended() {
    let mut world = World::new();
    world.register_target();
    let [reader, writer] = [1, 2].map(|nonce| world.open(nonce));
    let first = world.replace(writer);
    let second = world.replace(writer);
    assert_eq!(world.open_file(&client(), reader, first), Err(ErrorKind::Stale));
    let remove = millrace_protocol::metadata::Remove {
        caller: Caller::ROOT,
        operation: world.operation(writer),
        parent: InodeId::ROOT,
        name: FileName::parse(b"name").unwrap(),
        directory: false,
    };
    ops::remove::remove(&mut world.core, &client(), &remove).unwrap();
    assert!(world.is_there(second));
    assert!(world.core.end_session(reader).unwrap());
    assert!(!world.is_there(second), "nobody else is waited for");
    let third = world.replace(writer);
    world.replace(writer);
    assert!(!world.is_there(third));
}

#[test]
fn for_a_client_that_is_restricted_to_a_directory_nothing_is_kept() {
    let mut world = World::new();
    world.register_target();
    let [reader, writer] = [1, 2].map(|nonce| world.open(nonce));
    let [first, second] = [(); 2].map(|()| world.replace(writer));
    let restricted = Client { subtree: Some(Vec::new()), ..client() };
    assert_eq!(world.open_file(&restricted, reader, first), Err(ErrorKind::Stale));
    world.replace(writer);
    assert!(!world.is_there(second), "it could lie outside, where the client sees nothing");
}
