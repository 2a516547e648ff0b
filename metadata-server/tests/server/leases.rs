//! Leases at the operations of a running engine: what is granted, what each change takes back and
//! from whom, and what a change waits for.

use std::time::Duration;

use millrace_metadata_server::{
    engine::{Core, EngineSettings, StoreKind},
    leases::Wait,
    ops::{self, Client, Need, Step},
};
use millrace_protocol::{
    access::{LastRead, NoteReads},
    lease::{
        AwaitRecalls, EntriesPage, FindName, FoundName, ListEntries, ListFrom, MadeName, MakeName,
        Recall, RemoveName, ShowInode, ShownInode,
    },
    metadata::{
        Commit, Coverage, Create, CreateMasked, MakeLink, NewNode, SetAttributes, SetXattr,
        XattrMode,
    },
    session::Caller,
};
use millrace_types::{ContentGeneration, ErrorKind, Failure, InodeId, Timestamp, WriteEpoch};
use tempfile::TempDir;

mod bare;
mod delegations;
mod news;

use crate::{
    engine::{Server, settings},
    hosts::{Host, Run, client, name, register_targets},
};

/// A server with a host that looks, one that changes, and something to look at.
struct World {
    server: Server,
    looks: Keeper,
    changes: Host,
    directory: InodeId,
    file: InodeId,
    _dir: TempDir,
}

/// A host that listens to what is taken back.
struct Keeper {
    host: Host,
    acknowledged: u64,
}

/// What a change came to within one turn.
enum Came<T> {
    Done(T),
    Waits(Wait),
}

impl<T> Came<T> {
    fn done(self) -> T {
        match self {
            Self::Done(reply) => reply,
            Self::Waits(_) => panic!("somebody must give something back first"),
        }
    }

    fn waits(self) -> Wait {
        match self {
            Self::Done(_) => panic!("nobody was asked"),
            Self::Waits(wait) => wait,
        }
    }
}

/// One turn of an operation; shrinks are confirmed at once.
fn attempt<R: Send + 'static, T: Send + 'static>(
    server: &Server,
    client: &Client,
    request: R,
    operation: Run<R, T>,
    given_back: &[Wait],
) -> Result<Came<T>, Failure> {
    let (client, given_back) = (client.clone(), given_back.to_vec());
    server.try_turn(move |core: &mut Core| {
        match core.attempt(given_back, |core| operation(core, &client, &request))? {
            Step::Done(reply) => Ok(Came::Done(reply)),
            Step::Need(Need::Recall(wait)) => Ok(Came::Waits(wait)),
            Step::Need(other) => panic!("nothing else is needed here: {other:?}"),
        }
    })
}

impl Keeper {
    fn open(server: &Server, number: u8) -> Self {
        let mut keeper = Self { host: Host::open(server, number), acknowledged: 0 };
        assert!(keeper.hear(server).is_empty());
        keeper
    }

    /// Listens, which acknowledges all that was heard before; what is taken back now.
    fn hear(&mut self, server: &Server) -> Vec<Recall> {
        let (client, session) = (self.host.client.clone(), self.host.session);
        let acknowledged = self.acknowledged;
        let recalls = server.turn(move |core| {
            let incarnation = core.incarnation();
            let request = AwaitRecalls { session, incarnation, acknowledged };
            ops::lease::enrol(core, &client, &request).unwrap();
            ops::lease::listen(core, &client, &request, false).unwrap();
            ops::lease::recalls(core, &client, session).unwrap()
        });
        self.acknowledged = recalls.through;
        recalls.recalls
    }

    fn find(&self, server: &Server, parent: InodeId, text: &str) -> FoundName {
        let session = self.host.session;
        let request = FindName { caller: Caller::ROOT, session, parent, name: name(text) };
        self.host.run(server, request, ops::lease::find).unwrap()
    }

    fn show(&self, server: &Server, inode: InodeId) -> ShownInode {
        let request = ShowInode { caller: Caller::ROOT, session: self.host.session, inode };
        self.host.run(server, request, ops::lease::show).unwrap()
    }

    fn list(&self, server: &Server, inode: InodeId, from: ListFrom) -> EntriesPage {
        let request = ListEntries {
            caller: Caller::ROOT,
            session: self.host.session,
            inode,
            from,
            entries_max: 100,
        };
        self.host.run(server, request, ops::lease::list).unwrap().page
    }
}

fn world() -> World {
    world_with(|_| {})
}

fn world_with(change: impl FnOnce(&mut EngineSettings)) -> World {
    let dir = TempDir::new().unwrap();
    let (mut settings, time) = settings(&dir.path().join("metadata"), StoreKind::Memory);
    change(&mut settings);
    let server = Server::start_with(settings, time);
    register_targets(&server);
    let mut changes = Host::open(&server, 2);
    let directory = changes.make(&server, InodeId::ROOT, "d", NewNode::Directory).unwrap();
    let directory = directory.attributes.inode;
    let file = changes.make(&server, directory, "f", NewNode::Regular).unwrap().attributes.inode;
    let looks = Keeper::open(&server, 1);
    World { server, looks, changes, directory, file, _dir: dir }
}

impl World {
    fn attempt<R: Send + 'static, T: Send + 'static>(
        &self,
        request: R,
        operation: Run<R, T>,
    ) -> Came<T> {
        self.attempt_after(request, operation, &[])
    }

    fn attempt_after<R: Send + 'static, T: Send + 'static>(
        &self,
        request: R,
        operation: Run<R, T>,
        given_back: &[Wait],
    ) -> Came<T> {
        attempt(&self.server, &self.changes.client, request, operation, given_back).unwrap()
    }

    /// The change waits; what the other host hears; then it takes place.
    fn change<R, T>(&mut self, request: R, operation: Run<R, T>) -> Vec<Recall>
    where
        R: Clone + Send + 'static,
        T: Send + 'static,
    {
        let before = self.server.turn(|core| core.last_index());
        let wait = self.attempt(request.clone(), operation).waits();
        let heard = self.looks.hear(&self.server);
        assert!(!wait.is_over(), "it is not acknowledged");
        let again = self.attempt(request.clone(), operation).waits();
        drop(again);
        let last = self.server.turn(|core| core.last_index());
        assert_eq!(last, before, "nothing is logged meanwhile");
        while !self.looks.hear(&self.server).is_empty() {}
        assert!(wait.is_over());
        self.attempt_after(request.clone(), operation, &[wait]).done();
        self.attempt(request, operation).done();
        heard
    }

    /// The other host knows the names and attributes of everything here.
    fn look(&self) {
        let found = self.looks.find(&self.server, self.directory, "f");
        assert_eq!((found.coverage, found.lease), (Coverage::Names, Some(self.directory)));
        assert_eq!(found.found.unwrap().attributes.inode, self.file);
        let shown = self.looks.show(&self.server, self.directory);
        assert_eq!(shown.lease, Some(self.directory));
    }

    fn set(&mut self, inode: InodeId) -> SetAttributes {
        SetAttributes {
            caller: Caller::ROOT,
            operation: self.changes.operation(),
            inode,
            mode: Some(0o700),
            uid: None,
            gid: None,
            size: None,
            accessed: None,
            modified: None,
            make_sparse: false,
            open: false,
        }
    }
}

#[test]
fn a_removed_name_is_taken_back_with_the_attributes_of_file_and_directory() {
    let mut world = world();
    world.look();
    let remove = world.changes.remove(world.directory, "f", false);
    let heard = world.change(remove, ops::remove::remove);
    let (directory, file) = (world.directory, world.file);
    assert_eq!(
        heard,
        [
            Recall::Name(directory, name("f")),
            Recall::Attributes(directory),
            Recall::Attributes(file),
        ]
    );
}

#[test]
fn a_new_name_concerns_only_those_who_know_that_there_was_none() {
    let mut world = world();
    let found = world.looks.find(&world.server, world.directory, "f");
    assert_eq!(found.coverage, Coverage::Names);
    let create = world.changes.create(world.directory, "g", NewNode::Regular);
    world.attempt(create, ops::create::create).done();
    let missing = world.looks.find(&world.server, world.directory, "h");
    assert_eq!((missing.found, missing.coverage), (None, Coverage::Directory));
    let create = world.changes.create(world.directory, "h", NewNode::Directory);
    let heard = world.change(create, ops::create::create);
    assert_eq!(heard, [Recall::Name(world.directory, name("h"))]);
}

#[test]
fn a_rename_takes_both_names_back() {
    let mut world = world();
    let other = world.changes.make(&world.server, InodeId::ROOT, "e", NewNode::Directory).unwrap();
    let other = other.attributes.inode;
    world.looks.find(&world.server, world.directory, "f");
    world.looks.find(&world.server, other, "g");
    let rename = world.changes.rename((world.directory, "f"), (other, "g"));
    let heard = world.change(rename, ops::rename::rename);
    assert_eq!(
        heard,
        [
            Recall::Name(world.directory, name("f")),
            Recall::Name(other, name("g")),
            Recall::Attributes(world.file),
        ]
    );
    let found = world.looks.find(&world.server, other, "g");
    assert_eq!(found.lease, Some(other), "its attributes moved to the other lease");
}

#[test]
fn a_file_with_two_names_has_a_lease_of_its_own() {
    let mut world = world();
    world.look();
    let link = MakeLink {
        caller: Caller::ROOT,
        operation: world.changes.operation(),
        inode: world.file,
        parent: InodeId::ROOT,
        name: name("second"),
    };
    let heard = world.change(link, ops::create::make_link);
    assert_eq!(heard, [Recall::Attributes(world.file)]);
    let found = world.looks.find(&world.server, world.directory, "f");
    assert_eq!((found.coverage, found.lease), (Coverage::Names, Some(world.file)));
    let remove = world.changes.remove(InodeId::ROOT, "second", false);
    let heard = world.change(remove, ops::remove::remove);
    assert_eq!(heard, [Recall::Attributes(world.file)]);
    let found = world.looks.find(&world.server, world.directory, "f");
    assert_eq!(found.lease, Some(world.directory));
}

#[test]
fn attributes_are_taken_back_by_chmod_truncate_and_setxattr() {
    let mut world = world();
    let attributes = [Recall::Attributes(world.file)];
    world.look();
    let chmod = world.set(world.file);
    assert_eq!(world.change(chmod, ops::set_attributes::set), attributes);
    world.look();
    let grow = SetAttributes { size: Some(100), ..world.set(world.file) };
    assert_eq!(world.change(grow, ops::set_attributes::set), attributes);
    world.look();
    let xattr = SetXattr {
        caller: Caller::ROOT,
        operation: world.changes.operation(),
        inode: world.file,
        name: b"user.a".to_vec(),
        value: b"v".to_vec(),
        mode: XattrMode::Any,
    };
    assert_eq!(world.change(xattr, ops::xattr::set), attributes);
    let chmod = world.set(world.directory);
    let heard = world.change(chmod, ops::set_attributes::set);
    assert_eq!(heard, [Recall::Attributes(world.directory)]);
}

#[test]
fn what_was_read_takes_nothing_back() {
    let mut world = world();
    world.look();
    world.server.time.advance(Duration::from_secs(5));
    let (at, session) = (world.server.turn(|core| core.now()), world.changes.session);
    let reads = [world.file, world.directory];
    let reads = reads.map(|inode| LastRead { inode, seen: LastRead::UNSEEN, at });
    let request = NoteReads { session, reads: reads.to_vec() };
    world.attempt(request, ops::access::note).done();
    assert_eq!(world.looks.hear(&world.server), []);
    assert_eq!(world.changes.show(&world.server, world.file).unwrap().attributes.accessed, at);
    // It still holds what it held.
    let chmod = world.set(world.file);
    let heard = world.change(chmod, ops::set_attributes::set);
    assert_eq!(heard, [Recall::Attributes(world.file)]);
}

#[test]
fn opening_for_writing_takes_attributes_back_once_and_writing_nothing_more() {
    let mut world = world();
    world.look();
    let open = world.changes.open_write(world.file, false);
    let heard = world.change(open, ops::open::open);
    assert_eq!(heard, [Recall::Attributes(world.file)]);
    let found = world.looks.find(&world.server, world.directory, "f");
    assert_eq!((found.coverage, found.lease), (Coverage::Names, None), "it is being written");
    assert_eq!(world.looks.show(&world.server, world.file).lease, None);
    let page = world.looks.list(&world.server, world.directory, ListFrom::Cookie(0));
    assert_eq!(page.entries[0].lease, None);
    for end in 1..5 {
        let commit = Commit {
            operation: world.changes.operation(),
            inode: world.file,
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            end,
            written_at: Some(Timestamp(1)),
            durable: false,
        };
        world.attempt(commit, ops::commit::commit).done();
    }
    let close = world.changes.close_write(world.file);
    world.attempt(close, ops::open::close).done();
    world.look();
}

#[test]
fn who_makes_the_change_is_not_asked() {
    let mut world = world();
    world.look();
    let remove = world.looks.host.remove(world.directory, "f", false);
    let came = attempt(&world.server, &world.looks.host.client, remove, ops::remove::remove, &[]);
    came.unwrap().done();
    assert!(world.looks.hear(&world.server).is_empty());
}

#[test]
fn nothing_is_granted_while_a_change_waits_and_again_when_it_is_given_up() {
    let mut world = world();
    world.look();
    let remove = world.changes.remove(world.directory, "f", false);
    let wait = world.attempt(remove, ops::remove::remove).waits();
    let found = world.looks.find(&world.server, world.directory, "f");
    assert_eq!((found.coverage, found.lease), (Coverage::None, None));
    drop(wait);
    let found = world.looks.find(&world.server, world.directory, "f");
    assert_eq!(found.coverage, Coverage::None, "a part of the lease ends, which is not heard");
    while !world.looks.hear(&world.server).is_empty() {}
    let found = world.looks.find(&world.server, world.directory, "f");
    assert_eq!(found.coverage, Coverage::Names);
}

#[test]
fn a_holder_that_is_dead_costs_its_lease_and_no_more() {
    let mut world = world();
    world.look();
    let remove = world.changes.remove(world.directory, "f", false);
    let wait = world.attempt(remove.clone(), ops::remove::remove).waits();
    let step = Duration::from_secs(1);
    for _ in 0..33 {
        assert!(!wait.is_over());
        world.server.time.advance(step);
        let session = world.changes.session;
        let client = world.changes.client.clone();
        world.server.turn(move |core| {
            let renew = millrace_protocol::session::RenewTicket { session };
            ops::session::renew(core, &client, &renew).unwrap();
            core.tick().unwrap();
        });
    }
    assert!(wait.is_over(), "its session has ended");
    world.attempt(remove, ops::remove::remove).done();
}

#[test]
fn after_a_restart_changes_wait_for_everybody_who_may_keep_something() {
    let mut world = world();
    world.look();
    world.server.restart();
    let remove = world.changes.remove(world.directory, "f", false);
    let wait = world.attempt(remove.clone(), ops::remove::remove).waits();
    let (client, session) = (world.looks.host.client.clone(), world.looks.host.session);
    let old = AwaitRecalls { session, incarnation: 1, acknowledged: 0 };
    let refused = world.server.try_turn(move |core| ops::lease::enrol(core, &client, &old));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Stale);
    assert!(!wait.is_over());
    world.looks.acknowledged = 0;
    assert!(world.looks.hear(&world.server).is_empty());
    assert!(wait.is_over());
    world.attempt(remove, ops::remove::remove).done();
}

#[test]
fn a_session_that_never_listened_holds_nobody_up() {
    let mut world = world();
    let silent = Host::open(&world.server, 3);
    let request = FindName {
        caller: Caller::ROOT,
        session: silent.session,
        parent: world.directory,
        name: name("f"),
    };
    let found = silent.run(&world.server, request, ops::lease::find).unwrap();
    assert_eq!((found.coverage, found.lease), (Coverage::None, None));
    let close = millrace_protocol::session::CloseSession { session: world.looks.host.session };
    world.looks.host.run(&world.server, close, ops::session::close).unwrap();
    world.server.restart();
    let remove = world.changes.remove(world.directory, "f", false);
    world.attempt(remove, ops::remove::remove).done();
}

#[test]
fn a_page_begins_with_a_name_and_covers_what_has_no_lease_of_its_own() {
    let mut world = world();
    for text in ["g", "h"] {
        world.changes.make(&world.server, world.directory, text, NewNode::Regular).unwrap();
    }
    world.changes.make(&world.server, world.directory, "sub", NewNode::Directory).unwrap();
    let page = world.looks.list(&world.server, world.directory, ListFrom::Name(name("g")));
    let shown: Vec<_> =
        page.entries.iter().map(|at| (at.entry.name.clone(), at.lease.is_some())).collect();
    assert_eq!(shown, [(name("g"), true), (name("h"), true), (name("sub"), false)]);
    assert!(page.last && page.coverage == Coverage::Names);
    assert_eq!(page.directory.unwrap().inode, world.directory);
    let page = world.looks.list(&world.server, world.directory, ListFrom::Name(name("none")));
    assert!(page.entries.is_empty() && !page.last);
    let page = world.looks.list(&world.server, world.directory, ListFrom::Cookie(0));
    assert_eq!(page.entries.len(), 4);
    let remove = world.changes.remove(world.directory, "h", false);
    let heard = world.change(remove, ops::remove::remove);
    assert!(heard.contains(&Recall::Name(world.directory, name("h"))));
}

#[test]
fn nothing_is_kept_of_the_top_that_a_client_knows_as_its_root_and_of_what_lies_below_it_is() {
    let mut world = world();
    let sub = world.changes.make(&world.server, world.directory, "sub", NewNode::Directory);
    let sub = sub.unwrap().attributes.inode;
    world.changes.make(&world.server, sub, "g", NewNode::Regular).unwrap();
    let subtree = Client { subtree: Some(b"/d".to_vec()), ..client(5) };
    let host = Host::open_as(&world.server, subtree);
    let mut inside = Keeper { host, acknowledged: 0 };
    inside.hear(&world.server);
    let found = inside.find(&world.server, InodeId::ROOT, "f");
    assert_eq!((found.coverage, found.lease), (Coverage::None, None));
    assert_eq!(inside.show(&world.server, InodeId::ROOT).lease, None);
    assert_eq!(inside.find(&world.server, sub, "g").lease, Some(sub));
    let remove = world.changes.remove(sub, "g", false);
    world.attempt(remove, ops::remove::remove).waits();
    assert!(inside.hear(&world.server).contains(&Recall::Name(sub, name("g"))));
}

/// What a host that keeps what it makes is answered.
fn make(world: &World, create: Create) -> MadeName {
    let request = MakeName { make: CreateMasked { create, umask: 0 } };
    world.looks.host.run(&world.server, request, ops::kept_change::make).unwrap()
}

#[test]
fn who_makes_a_name_may_keep_it_with_what_its_directory_shows() {
    let mut world = world();
    let create = world.looks.host.create(world.directory, "made", NewNode::Directory);
    let made = make(&world, create.clone());
    let directory = made.reply.attributes.inode;
    assert_eq!((made.coverage, made.lease), (Coverage::Names, Some(directory)));
    assert_eq!(made.directory.as_ref().map(|directory| directory.size), Some(2));
    assert!(made.empty);
    assert_eq!(make(&world, create.clone()), made, "asked again");
    // Another makes a name in it: both that it is empty and what it shows are taken back.
    let inside = world.changes.create(directory, "inside", NewNode::Regular);
    let heard = world.change(inside, ops::create::create);
    assert_eq!(heard, [Recall::Name(directory, name("inside")), Recall::Attributes(directory)]);
    assert!(!make(&world, create.clone()).empty, "asked once more");
    // And then gives its name away.
    let rename = world.changes.rename((world.directory, "made"), (InodeId::ROOT, "moved"));
    let heard = world.change(rename, ops::rename::rename);
    assert!(heard.contains(&Recall::Name(world.directory, name("made"))));
    assert_eq!(make(&world, create).coverage, Coverage::None);
}

#[test]
fn who_had_to_wait_for_a_change_may_keep_what_it_shows() {
    let mut world = world();
    let mut makes = Keeper::open(&world.server, 3);
    world.looks.find(&world.server, world.directory, "new");
    let create = makes.host.create(world.directory, "new", NewNode::Regular);
    let request = MakeName { make: CreateMasked { create, umask: 0 } };
    let client = makes.host.client.clone();
    let tried = |given_back: &[Wait]| {
        let run = ops::kept_change::make;
        attempt(&world.server, &client, request.clone(), run, given_back).unwrap()
    };
    let wait = tried(&[]).waits();
    while !world.looks.hear(&world.server).is_empty() {}
    let made = tried(&[wait]).done();
    assert_eq!((made.coverage, made.lease), (Coverage::Names, Some(world.directory)));
    assert!(made.directory.is_some());
}

#[test]
fn who_removes_a_name_may_keep_what_its_directory_shows() {
    let mut world = world();
    let remove = world.looks.host.remove(world.directory, "f", false);
    let request = RemoveName { remove };
    let looks = &world.looks.host;
    let removed = looks.run(&world.server, request.clone(), ops::kept_change::remove).unwrap();
    assert_eq!(removed.directory.unwrap().size, 0);
    let again = looks.run(&world.server, request, ops::kept_change::remove).unwrap();
    assert_eq!(again.directory.unwrap().size, 0, "asked again");
    let chmod = world.set(world.directory);
    let heard = world.change(chmod, ops::set_attributes::set);
    assert_eq!(heard, [Recall::Attributes(world.directory)]);
}

#[test]
fn the_only_writer_may_keep_what_its_file_shows_until_another_opens_it_for_writing() {
    let mut world = world();
    let create = world.looks.host.create(world.directory, "open", NewNode::Regular);
    let made = make(&world, Create { open: true, ..create });
    assert_eq!((made.lease, made.empty), (Some(world.directory), false));
    let file = made.reply.attributes.inode;
    let chmod = world.set(file);
    assert_eq!(world.change(chmod, ops::set_attributes::set), [Recall::Attributes(file)]);
    assert_eq!(world.looks.show(&world.server, file).lease, Some(world.directory));
    let open = world.changes.open_write(file, false);
    assert_eq!(world.change(open, ops::open::open), [Recall::Attributes(file)]);
    assert_eq!(world.looks.show(&world.server, file).lease, None);
    let chmod = world.set(file);
    world.attempt(chmod, ops::set_attributes::set).done();
}

#[test]
fn a_session_that_does_not_listen_keeps_nothing_of_what_it_makes() {
    let mut world = world();
    world.looks.show(&world.server, world.directory);
    let silent = &mut world.changes;
    let create = silent.create(world.directory, "silent", NewNode::Directory);
    let request = MakeName { make: CreateMasked { create, umask: 0 } };
    let came = attempt(&world.server, &silent.client, request, ops::kept_change::make, &[]);
    let wait = came.unwrap().waits();
    while !world.looks.hear(&world.server).is_empty() {}
    let create = world.changes.create(world.directory, "silent", NewNode::Directory);
    let request = MakeName { make: CreateMasked { create, umask: 0 } };
    let came =
        attempt(&world.server, &world.changes.client, request, ops::kept_change::make, &[wait]);
    let made = came.unwrap().done();
    assert_eq!((made.coverage, made.lease, made.empty), (Coverage::None, None, false));
    assert_eq!(made.directory, None);
}
