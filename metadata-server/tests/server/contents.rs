//! What lets clients open files without asking: of which it is shown, and to whom.

use millrace_metadata_server::{
    command::{Command, SetXattr},
    engine::{Core, StoreKind},
    leases::Wait,
    ops::{self, Need, Step},
};
use millrace_protocol::{
    capability::{Capability, Rights},
    codec,
    lease::{AwaitRecalls, FindName, FoundName, Recall, ShowContents, ShownContents},
    metadata::{MakeLink, NewNode, XattrMode},
    session::Caller,
};
use millrace_types::{ErrorKind, InodeId};
use tempfile::TempDir;

use crate::{
    engine::Server,
    hosts::{Host, name, register_targets},
};

struct World {
    server: Server,
    reads: Host,
    writes: Host,
    directory: InodeId,
    files: Vec<InodeId>,
    _dir: TempDir,
}

fn world() -> World {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&dir.path().join("metadata"), StoreKind::Memory);
    register_targets(&server);
    let mut writes = Host::open(&server, 2);
    let directory = writes.make(&server, InodeId::ROOT, "d", NewNode::Directory).unwrap();
    let directory = directory.attributes.inode;
    let make = |text| writes.make(&server, directory, text, NewNode::Regular).unwrap();
    let files = ["a", "b", "c", "d", "e"].map(make).map(|made| made.attributes.inode).to_vec();
    let reads = Host::open(&server, 1);
    let world = World { server, reads, writes, directory, files, _dir: dir };
    assert_eq!(world.hear(0), []);
    world
}

impl World {
    /// The reading host listens.
    fn hear(&self, acknowledged: u64) -> Vec<Recall> {
        let (client, session) = (self.reads.client.clone(), self.reads.session);
        self.server.turn(move |core| {
            let incarnation = core.incarnation();
            let request = AwaitRecalls { session, incarnation, acknowledged };
            ops::lease::enrol(core, &client, &request).unwrap();
            ops::lease::listen(core, &client, &request, false).unwrap();
            ops::lease::recalls(core, &client, session).unwrap().recalls
        })
    }

    fn show(&self, inode: InodeId, entries_max: u32) -> Result<ShownContents, ErrorKind> {
        let session = self.reads.session;
        let request = ShowContents { caller: Caller::ROOT, session, inode, entries_max };
        self.reads.run(&self.server, request, ops::contents::show)
    }

    fn shown(&self, inode: InodeId, entries_max: u32) -> Vec<InodeId> {
        let shown = self.show(inode, entries_max).unwrap();
        shown.contents.iter().map(|content| content.attributes.inode).collect()
    }

    /// Has the server change something about an inode by itself.
    fn execute_heard(&self, inode: InodeId) -> Vec<Wait> {
        let set = move || SetXattr {
            caller: Caller::ROOT,
            inode,
            name: b"user.a".to_vec(),
            value: b"v".to_vec(),
            mode: XattrMode::Any,
        };
        let turn = move |core: &mut Core| core.execute_heard(Command::SetXattr(set()));
        self.server.try_turn(turn).unwrap().1
    }

    fn find(&self, text: &str) -> FoundName {
        let (session, parent) = (self.reads.session, self.directory);
        let request = FindName { caller: Caller::ROOT, session, parent, name: name(text) };
        self.reads.run(&self.server, request, ops::lease::find).unwrap()
    }
}

#[test]
fn a_file_is_shown_with_those_behind_it_for_this_session_to_read() {
    let world = world();
    let shown = world.show(world.files[1], 3).unwrap();
    assert_eq!(shown.directory, world.directory);
    let inodes: Vec<_> = shown.contents.iter().map(|shown| shown.attributes.inode).collect();
    assert_eq!(inodes, world.files[1..4]);
    for content in &shown.contents {
        let statement: Capability = codec::decode(&content.capability.body).unwrap();
        assert_eq!(statement.rights, Rights::Read);
        assert_eq!(statement.session, world.reads.session);
        assert_eq!(statement.content.inode, content.attributes.inode);
    }
    assert_eq!(world.shown(world.files[4], 1024), world.files[4..]);
    assert_eq!(world.show(world.files[0], 0), Err(ErrorKind::InvalidArgument));
    assert_eq!(world.show(world.directory, 1), Err(ErrorKind::InvalidArgument));
}

#[test]
fn what_is_shown_is_taken_back_before_it_changes() {
    let mut world = world();
    assert_eq!(world.shown(world.files[0], 5).len(), 5);
    let remove = world.writes.remove(world.directory, "c", false);
    let client = world.writes.client.clone();
    let step = world.server.try_turn(move |core| {
        core.attempt(Vec::new(), |core| ops::remove::remove(core, &client, &remove))
    });
    let Ok(Step::Need(Need::Recall(wait))) = step else { panic!("it waits: {step:?}") };
    let heard = world.hear(0);
    assert!(heard.contains(&Recall::Attributes(world.files[2])), "{heard:?}");
    assert!(world.shown(world.files[3], 5).is_empty(), "nothing is granted while it waits");
    drop(wait);
}

#[test]
fn what_others_write_or_what_has_several_names_is_left_out() {
    let mut world = world();
    let open = world.writes.open_write(world.files[1], false);
    world.writes.run(&world.server, open, ops::open::open).unwrap();
    let link = MakeLink {
        caller: Caller::ROOT,
        operation: world.writes.operation(),
        inode: world.files[3],
        parent: InodeId::ROOT,
        name: name("second"),
    };
    world.writes.run(&world.server, link, ops::create::make_link).unwrap();
    let left = [0, 2, 4].map(|nth: usize| world.files[nth]);
    assert_eq!(world.shown(world.files[0], 5), left);
    assert_eq!(world.shown(world.files[1], 1), []);
    assert_eq!(world.shown(world.files[3], 5), []);
    for (text, has_capability) in [("a", true), ("b", false), ("d", false)] {
        let found = world.find(text).found.unwrap();
        assert_eq!(found.capability.is_some(), has_capability, "{text}");
    }
    let close = world.writes.close_write(world.files[1]);
    world.writes.run(&world.server, close, ops::open::close).unwrap();
    assert!(world.find("b").found.unwrap().capability.is_some());
}

#[test]
fn who_does_not_listen_is_shown_nothing() {
    let world = world();
    let silent = Host::open(&world.server, 3);
    let (session, inode) = (silent.session, world.files[0]);
    let request = ShowContents { caller: Caller::ROOT, session, inode, entries_max: 5 };
    let shown = silent.run(&world.server, request, ops::contents::show).unwrap();
    assert_eq!(shown.contents, []);
    let request =
        FindName { caller: Caller::ROOT, session, parent: world.directory, name: name("a") };
    let found = silent.run(&world.server, request, ops::lease::find).unwrap();
    assert_eq!((found.lease, found.found.unwrap().capability), (None, None));
}

#[test]
fn a_host_whose_root_is_nobody_is_shown_what_others_may_read() {
    let mut world = world();
    let set = world.writes.create(world.directory, "secret", NewNode::Regular);
    let create = millrace_protocol::metadata::Create { mode: 0o600, ..set };
    let secret = world.writes.run(&world.server, create, ops::create::create).unwrap();
    let secret = secret.attributes.inode;
    assert!(world.shown(world.files[0], 10).contains(&secret));
    world.reads.client.squash_root = true;
    assert_eq!(world.shown(world.files[0], 10), world.files);
    assert_eq!(world.shown(secret, 1), []);
}

#[test]
fn of_a_command_of_the_server_itself_others_have_heard_when_its_wait_is_over() {
    let world = world();
    assert_eq!(world.shown(world.files[0], 5).len(), 5);
    let file = world.files[0];
    let heard = world.execute_heard(file);
    assert!(heard.iter().any(|wait| !wait.is_over()));
    assert_eq!(world.hear(0), [Recall::Attributes(file)]);
    assert_eq!(world.hear(1), []);
    assert!(heard.iter().all(Wait::is_over));
}

#[test]
fn after_a_restart_a_command_of_the_server_waits_for_who_may_show_a_file_and_not_for_new_names() {
    let mut world = world();
    assert_eq!(world.shown(world.files[0], 5).len(), 5);
    world.server.restart();
    assert_eq!(world.execute_heard(world.directory), [], "it shows no file");
    let heard = world.execute_heard(world.files[0]);
    assert!(!heard.is_empty() && !heard.iter().any(Wait::is_over));
    // That it listens again says that it keeps nothing from before.
    world.hear(0);
    assert!(heard.iter().all(Wait::is_over));
}
