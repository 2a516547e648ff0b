//! Files that a host makes by itself and tells of later: who may, what others are told meanwhile,
//! and what becomes of it.

use millrace_metadata_server::{
    command::{self, Command},
    leases::delegations::CONTESTED,
    namespace::tree,
};
use millrace_protocol::{
    capability::{Capability, Signed},
    cluster::{Bucket, LinkMode},
    codec,
    delegation::{DeclareDelegations, Delegate, Delegation, NewFile, PublishFiles, PublishedFile},
};
use millrace_types::{FileName, Timestamp};

use super::*;

mod inline;

/// A host with a delegation of a directory of its own.
struct Maker {
    world: World,
    directory: InodeId,
    contents: Vec<Signed>,
}

fn delegate(world: &World, keeper: &Keeper, directory: InodeId) -> Option<Delegation> {
    let session = keeper.host.session;
    let request = Delegate { session, directory, contents_max: 3 };
    keeper.host.run(&world.server, request, ops::delegation::delegate).unwrap().delegation
}

fn content(signed: &Signed) -> InodeId {
    codec::decode::<Capability>(&signed.body).unwrap().content.inode
}

fn maker() -> Maker {
    let world = world();
    let given = delegate(&world, &world.looks, world.directory).expect("nobody else is there");
    assert_eq!(given.directory.inode, world.directory);
    assert_eq!(given.contents.len(), 3);
    Maker { directory: world.directory, contents: given.contents, world }
}

impl Maker {
    fn file(&mut self, text: &str, nth: usize) -> NewFile {
        NewFile {
            operation: self.world.looks.host.operation(),
            caller: Caller { uid: 7, gid: 8, groups: Vec::new() },
            parent: self.directory,
            name: name(text),
            mode: 0o640,
            made_at: Timestamp::from_parts(1_800_000_000, 0),
            content: self.contents[nth].clone(),
            end: 16_384,
            written_at: Some(Timestamp::from_parts(1_800_000_000, 0)),
            inline: None,
        }
    }

    /// Publishes within one turn, which waits for nobody.
    fn publish(&self, files: &[NewFile]) -> Vec<Result<MadeName, ErrorKind>> {
        let host = &self.world.looks.host;
        let request = PublishFiles { session: host.session, files: files.to_vec() };
        let came =
            attempt(&self.world.server, &host.client, request, ops::delegation::publish, &[]);
        let published = came.unwrap().done().files.into_iter();
        let each = published.map(|file| match file {
            PublishedFile::Made(made) | PublishedFile::MadeInline(made) => Ok(*made),
            PublishedFile::Refused(failure) => Err(failure.kind),
        });
        each.collect()
    }

    /// Tells a life of the server of the delegation.
    fn declare(&self, incarnation: u64) -> Result<(), ErrorKind> {
        let host = &self.world.looks.host;
        let directories = vec![self.directory];
        let request = DeclareDelegations { session: host.session, incarnation, directories };
        host.run(&self.world.server, request, ops::delegation::declare).map(drop)
    }

    fn set(&mut self) -> SetAttributes {
        self.world.set(self.directory)
    }
}

/// Everybody may write in the directory.
fn opened() -> Maker {
    let mut maker = maker();
    let chmod = SetAttributes { mode: Some(0o777), ..maker.set() };
    let wait = maker.world.attempt(chmod.clone(), ops::set_attributes::set).waits();
    while !maker.world.looks.hear(&maker.world.server).is_empty() {}
    maker.world.attempt_after(chmod, ops::set_attributes::set, &[wait]).done();
    maker.world.server.time.advance(CONTESTED);
    let given = delegate(&maker.world, &maker.world.looks, maker.directory);
    maker.contents = given.expect("it is quiet").contents;
    maker
}

#[test]
fn a_file_that_is_published_is_there_with_its_bytes_and_open_for_writing() {
    let mut maker = opened();
    let files = [maker.file("a", 0), maker.file("b", 1)];
    let made = maker.publish(&files);
    let [Ok(first), Ok(second)] = &made[..] else { panic!("both are made: {made:?}") };
    assert_ne!(first.reply.attributes.inode, second.reply.attributes.inode);
    assert_eq!(first.lease, Some(maker.directory));
    assert_eq!(second.directory.as_ref().map(|directory| directory.size), Some(3));
    let found = maker.world.looks.find(&maker.world.server, maker.directory, "a").found.unwrap();
    let shown = &found.attributes;
    assert_eq!(shown.inode, content(&maker.contents[0]));
    assert_eq!((shown.size, shown.mode, shown.uid, shown.gid), (16_384, 0o640, 7, 8));
    assert_eq!(shown.modified, files[0].written_at.unwrap());
    let content = found.content.unwrap();
    assert_eq!(
        content.layout,
        codec::decode::<Capability>(&files[0].content.body).unwrap().content.layout
    );
    // It may be written on.
    let commit = Commit {
        operation: maker.world.looks.host.operation(),
        inode: shown.inode,
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(1),
        end: 20_000,
        written_at: None,
        durable: false,
    };
    let reply = maker.world.looks.host.run(&maker.world.server, commit, ops::commit::commit);
    assert_eq!(reply.unwrap().attributes.size, 20_000);
}

#[test]
fn what_is_published_again_is_made_once_under_the_same_number_or_another() {
    let mut maker = opened();
    let file = maker.file("a", 0);
    let first = maker.publish(std::slice::from_ref(&file));
    let before = maker.world.server.turn(|core| core.last_index());
    assert_eq!(maker.publish(std::slice::from_ref(&file)), first);
    let again = NewFile { operation: maker.world.looks.host.operation(), ..file };
    assert_eq!(maker.publish(&[again]), first);
    assert_eq!(maker.world.server.turn(|core| core.last_index()), before, "nothing is logged");
}

#[test]
fn a_file_is_refused_by_itself() {
    let mut maker = opened();
    let world = &mut maker.world;
    let shown = world.looks.show(&world.server, world.file);
    // What another file has, what another session was given, and what nobody has signed.
    let open = world.looks.host.open_write(world.file, false);
    let opened = world.looks.host.run(&world.server, open, ops::open::open).unwrap();
    let of_a_file = opened.capability.unwrap();
    let open = world.changes.open_write(world.file, false);
    let came = world.attempt(open.clone(), ops::open::open).waits();
    while !world.looks.hear(&world.server).is_empty() {}
    let of_another = world.attempt_after(open, ops::open::open, &[came]).done();
    let of_another = of_another.capability.unwrap();
    // The other one has ended the delegation with that.
    maker.world.server.time.advance(CONTESTED);
    let given = delegate(&maker.world, &maker.world.looks, maker.directory);
    maker.contents = given.expect("it is quiet").contents;
    let mut forged = maker.contents[2].clone();
    forged.body[3] ^= 1;
    let (taken, free) = (maker.file("f", 0), maker.file("free", 1));
    let with = |maker: &mut Maker, text: &str, content| NewFile { content, ..maker.file(text, 0) };
    let files = [
        taken,
        with(&mut maker, "g", of_a_file),
        with(&mut maker, "h", of_another),
        with(&mut maker, "i", forged),
        free,
    ];
    let made: Vec<_> = maker.publish(&files).into_iter().map(|made| made.map(|_| ())).collect();
    assert_eq!(
        made,
        [
            Err(ErrorKind::Exists),
            Err(ErrorKind::Forbidden),
            Err(ErrorKind::Forbidden),
            Err(ErrorKind::Forbidden),
            Ok(())
        ]
    );
    assert_eq!(shown.reply.attributes.inode, maker.world.file);
}

#[test]
fn whoever_looks_is_told_the_truth_may_keep_nothing_and_ends_the_delegation() {
    let mut maker = opened();
    let mut other = Keeper::open(&maker.world.server, 3);
    assert!(maker.world.looks.hear(&maker.world.server).is_empty());
    let found = other.find(&maker.world.server, maker.directory, "a");
    assert_eq!((found.found, found.coverage), (None, Coverage::None));
    assert_eq!(other.show(&maker.world.server, maker.directory).lease, None);
    let heard = maker.world.looks.hear(&maker.world.server);
    assert_eq!(heard, [Recall::Lease(maker.directory)], "once");
    // What was made is published before that is acknowledged, and waits for nobody.
    let file = maker.file("a", 0);
    assert!(maker.publish(&[file])[0].is_ok());
    assert!(maker.world.looks.hear(&maker.world.server).is_empty());
    let found = other.find(&maker.world.server, maker.directory, "a");
    assert_eq!(found.coverage, Coverage::Names);
    let shown = other.show(&maker.world.server, maker.directory);
    assert_eq!(shown.lease, Some(maker.directory));
    assert!(other.hear(&maker.world.server).is_empty());
    // For a while nobody is given it.
    let again = |maker: &Maker| delegate(&maker.world, &maker.world.looks, maker.directory);
    assert!(again(&maker).is_none());
    maker.world.server.time.advance(CONTESTED);
    for keeper in [&mut maker.world.looks, &mut other] {
        keeper.hear(&maker.world.server);
    }
    assert!(again(&maker).is_none(), "the other one has a lease");
    assert_eq!(other.hear(&maker.world.server), [Recall::Lease(maker.directory)]);
    assert!(again(&maker).is_none(), "it has not given it back");
    assert!(other.hear(&maker.world.server).is_empty(), "it is asked once");
    assert!(again(&maker).is_some());
}

#[test]
fn whoever_changes_a_directory_waits_for_the_end_of_its_delegation() {
    let mut maker = opened();
    let create = maker.world.changes.create(maker.directory, "a", NewNode::Regular);
    let wait = maker.world.attempt(create.clone(), ops::create::create).waits();
    assert_eq!(maker.world.looks.hear(&maker.world.server), [Recall::Lease(maker.directory)]);
    assert!(!wait.is_over());
    let file = maker.file("a", 0);
    assert!(maker.publish(&[file])[0].is_ok(), "the name is its maker's");
    assert!(maker.world.looks.hear(&maker.world.server).is_empty());
    assert!(wait.is_over());
    let create = Create { exclusive: true, ..create };
    let refused = ops::create::create;
    let came = attempt(&maker.world.server, &maker.world.changes.client, create, refused, &[wait]);
    assert_eq!(came.map(|_| ()).unwrap_err().kind, ErrorKind::Exists);
}

#[test]
fn only_plain_directories_are_delegated_and_only_to_clients_that_see_everything() {
    let mut world = world();
    let list = SetXattr {
        caller: Caller::ROOT,
        operation: world.changes.operation(),
        inode: world.directory,
        name: b"system.posix_acl_default".to_vec(),
        value: [&2_u32.to_le_bytes()[..], &entry(1, 7), &entry(4, 5), &entry(32, 5)].concat(),
        mode: XattrMode::Any,
    };
    world.attempt(list, ops::xattr::set).done();
    assert!(delegate(&world, &world.looks, world.directory).is_none());
    let made = world.changes.make(&world.server, InodeId::ROOT, "e", NewNode::Directory).unwrap();
    let plain = made.attributes.inode;
    for client in [
        Client { subtree: Some(b"/e".to_vec()), ..client(5) },
        Client { squash_root: true, ..client(6) },
    ] {
        let mut keeper = Keeper { host: Host::open_as(&world.server, client), acknowledged: 0 };
        keeper.hear(&world.server);
        assert!(delegate(&world, &keeper, plain).is_none());
    }
    assert!(delegate(&world, &world.looks, plain).is_some());
    let file =
        Delegate { session: world.looks.host.session, directory: world.file, contents_max: 1 };
    let refused = world.looks.host.run(&world.server, file, ops::delegation::delegate);
    assert_eq!(refused, Err(ErrorKind::NotDirectory));
}

#[test]
fn nothing_below_a_link_is_delegated_also_where_names_are_no_keys() {
    let mut world = world();
    for is_linked in [false, true] {
        let text = if is_linked { "linked" } else { "plain" };
        let made = world.changes.make(&world.server, InodeId::ROOT, text, NewNode::Directory);
        let top = made.unwrap().attributes.inode;
        let below = world.server.turn(move |core| {
            if is_linked {
                link(core, top);
            }
            let odd = make_directory(core, top, b"\xff");
            make_directory(core, odd, b"below")
        });
        assert_eq!(delegate(&world, &world.looks, below).is_none(), is_linked);
    }
}

fn link(core: &mut Core, directory: InodeId) {
    let url = "s3://photos".to_owned();
    let bucket = Bucket { url, endpoint: None, region: None, credentials: None };
    let mode = LinkMode::ImportExport;
    let add = command::AddLink { directory, bucket, prefix: String::new(), mode };
    core.execute(None, Command::AddLink(add)).unwrap();
}

fn make_directory(core: &mut Core, parent: InodeId, name: &[u8]) -> InodeId {
    let inode = core.new_inode_id().unwrap();
    let create = command::Create {
        caller: Caller::ROOT,
        parent,
        name: FileName::parse(name).unwrap(),
        node: NewNode::Directory,
        mode: 0o777,
        inode,
        seed: 0,
        open: None,
        exclusive: true,
    };
    core.execute(None, Command::Create(create)).unwrap();
    inode
}

/// An entry of an access control list.
fn entry(tag: u16, permissions: u16) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
}

#[test]
fn checks_of_the_targets_leave_ids_alone_that_may_yet_be_published() {
    let mut maker = opened();
    let lowest = |maker: &Maker| maker.world.server.turn(|core| core.high_water());
    assert_eq!(lowest(&maker), content(&maker.contents[0]));
    let files = [maker.file("a", 0), maker.file("c", 2)];
    maker.publish(&files);
    assert_eq!(lowest(&maker), content(&maker.contents[1]));
    let chmod = maker.set();
    let wait = maker.world.attempt(chmod, ops::set_attributes::set).waits();
    while !maker.world.looks.hear(&maker.world.server).is_empty() {}
    drop(wait);
    assert!(lowest(&maker) > content(&maker.contents[2]), "it has given the rest back");
}

#[test]
fn a_new_key_takes_delegations_back_before_the_one_they_are_signed_with_is_forgotten() {
    let mut maker = maker();
    maker.world.server.turn(|core| core.renew_key().unwrap());
    maker.world.server.turn(|core| core.use_coming_key().unwrap());
    assert_eq!(maker.world.looks.hear(&maker.world.server), [Recall::Lease(maker.directory)]);
    let file = maker.file("a", 0);
    assert!(maker.publish(&[file])[0].is_ok());
}

#[test]
fn after_a_restart_nobody_takes_the_name_of_a_file_that_is_declared() {
    let mut maker = opened();
    let mut other = Keeper::open(&maker.world.server, 3);
    maker.world.server.restart();
    for keeper in [&mut maker.world.looks, &mut other] {
        keeper.acknowledged = 0;
    }
    // Nothing is granted before all have said what they have.
    other.hear(&maker.world.server);
    let found = other.find(&maker.world.server, maker.directory, "a");
    assert_eq!((found.found, found.coverage), (None, Coverage::None));
    let incarnation = maker.world.server.turn(|core| core.incarnation());
    assert_eq!(maker.declare(incarnation ^ 1), Err(ErrorKind::Stale));
    assert_eq!(maker.declare(incarnation), Ok(()));
    assert_eq!(maker.declare(incarnation), Ok(()), "again");
    // Nobody knows which ids it has, so that it is taken back as soon as its holder listens.
    assert_eq!(maker.world.looks.hear(&maker.world.server), [Recall::Lease(maker.directory)]);
    let create = maker.world.changes.create(maker.directory, "a", NewNode::Regular);
    let wait = maker.world.attempt(create, ops::create::create).waits();
    let file = maker.file("a", 0);
    assert!(maker.publish(&[file])[0].is_ok());
    assert!(!wait.is_over());
    assert_eq!(maker.world.looks.hear(&maker.world.server), [Recall::Lease(maker.directory)]);
    maker.world.looks.hear(&maker.world.server);
    assert!(wait.is_over());
    assert_eq!(maker.declare(incarnation), Err(ErrorKind::Stale), "it listens already");
    let directory = maker.directory;
    let size =
        maker.world.server.turn(move |core| tree::inode(core.view(), directory).unwrap().size);
    assert_eq!(size, 2);
}
