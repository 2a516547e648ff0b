//! What targets may drop to make room: what is saved in a bucket, and neither written to nor
//! pinned, itself or above.

use millrace_metadata_server::{
    command::{
        AddLink, BeginExport, Command, CompleteExport, ImportEntries, ImportEntry, ImportKind,
        Outcome, SetAttributes,
    },
    engine::{Core, StoreKind},
    namespace::tree,
    ops,
};
use millrace_protocol::{
    capability::Origin,
    cluster::{Bucket, LinkMode},
    metadata::{MakeLink, NewNode, OpenMode},
    release::{ASK_RELEASE_MAX, AskRelease, ListPins, ReleaseAnswer, SetPin},
    session::{Caller, Role},
    target::ContentName,
};
use millrace_types::{ContentGeneration, ErrorKind, InodeId, JobId, LinkId, Timestamp};

use crate::{
    engine::Server,
    hosts::{Host, client, name, register_targets, run},
};

struct World {
    server: Server,
    host: Host,
    _dir: tempfile::TempDir,
}

/// The id of an export.
const EXPORT: u128 = 7;

/// `/set/sub/a` and `/set/sub/b` are objects, `/own` is none.
fn world() -> (World, [InodeId; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), StoreKind::Memory);
    register_targets(&server);
    let mut host = Host::open(&server, 1);
    let make = |host: &mut Host, parent, text: &str, node| {
        host.make(&server, parent, text, node).unwrap().attributes.inode
    };
    let set = make(&mut host, InodeId::ROOT, "set", NewNode::Directory);
    let own = make(&mut host, InodeId::ROOT, "own", NewNode::Regular);
    let link = AddLink {
        directory: set,
        bucket: Bucket { url: "file:///b".into(), endpoint: None, region: None, credentials: None },
        prefix: String::new(),
        mode: LinkMode::Import,
    };
    let [a, b] = server.turn(move |core| {
        let outcome = core.execute(None, Command::AddLink(link)).unwrap();
        let Outcome::Link(link) = outcome else { panic!("{outcome:?}") };
        let ids = [(); 3].map(|()| core.new_inode_id().unwrap());
        let entry = |text: &str, inode, kind| ImportEntry {
            name: name(text),
            inode,
            seed: 1,
            mode: 0o777,
            uid: 0,
            gid: 0,
            modified: Timestamp(1),
            kind,
        };
        let mut import = |directory, entries| {
            let import = ImportEntries { directory, entries };
            core.execute(None, Command::ImportEntries(import)).unwrap();
            core.execute(None, Command::MarkDirectoryListed(directory)).unwrap();
        };
        import(set, vec![entry("sub", ids[0], ImportKind::Directory)]);
        let objects = ["a", "b"]
            .iter()
            .zip(&ids[1..])
            .map(|(text, inode)| entry(text, *inode, ImportKind::File(origin(link, text))));
        import(ids[0], objects.collect());
        [ids[1], ids[2]]
    });
    (World { server, host, _dir: dir }, [a, b, own])
}

fn origin(link: LinkId, text: &str) -> Origin {
    let (key, tag) = (format!("sub/{text}"), "t".to_owned());
    Origin { link, key, size: 100, tag, modified: Timestamp(1) }
}

impl World {
    fn ask(&self, inodes: &[InodeId]) -> Vec<ReleaseAnswer> {
        let content = |&inode| ContentName { inode, generation: ContentGeneration(1) };
        let request = AskRelease { contents: inodes.iter().map(content).collect() };
        let daemon = ops::Client { role: Role::Target, ..client(200) };
        run(&self.server, &daemon, request, ops::release::ask).unwrap().answers
    }

    fn pin(&self, caller: Caller, path: &str, pinned: bool) -> Result<(bool, usize), ErrorKind> {
        let request = SetPin { caller, path: path.into(), pinned };
        let reply = self.host.run(&self.server, request, ops::release::set_pin)?;
        Ok((reply.changed, reply.above.len()))
    }

    /// Opens a file for writing and closes it: nobody has compared it with its object.
    fn touch(&mut self, inode: InodeId) {
        let open = self.host.open_write(inode, false);
        self.host.run(&self.server, open, ops::open::open).unwrap();
        let close = self.host.close_write(inode);
        self.host.run(&self.server, close, ops::open::close).unwrap();
    }

    /// Exports a file to its object. The targets have not heard of that yet.
    fn export(&self, inode: InodeId) {
        self.server.turn(move |core| {
            let content = tree::inode(core.view(), inode).unwrap().content();
            let known = content.unwrap().origin.unwrap();
            let begin = BeginExport {
                inode,
                job: JobId(1),
                export: EXPORT,
                link: known.link,
                key: known.key.clone(),
                replaces: Some(known.tag.clone()),
                part_size: 1 << 23,
            };
            core.execute(None, Command::BeginExport(begin)).unwrap();
            let origin = Origin { tag: "exported".to_owned(), ..known };
            let complete = CompleteExport { inode, export: EXPORT, origin };
            let outcome = core.execute(None, Command::CompleteExport(complete)).unwrap();
            assert_eq!(outcome, Outcome::Exported(true));
        });
    }

    /// All targets have heard of the export.
    fn end_export(&self, inode: InodeId) {
        self.server.turn(move |core| {
            core.execute(None, Command::AbortExport { inode, export: EXPORT }).unwrap();
        });
    }

    fn directory_of(&self, inode: InodeId) -> InodeId {
        let found = move |core: &mut Core| tree::inode(core.view(), inode).unwrap().parent;
        self.server.turn(found).unwrap().directory
    }

    fn pins(&self) -> Vec<String> {
        let operator = ops::Client { role: Role::Admin, ..client(201) };
        let reply =
            run(&self.server, &operator, ListPins { after: None }, ops::release::pins).unwrap();
        assert!(!reply.more);
        reply.pins.into_iter().map(|(_, path)| String::from_utf8(path).unwrap()).collect()
    }
}

#[test]
fn what_is_saved_may_go_unless_somebody_writes_to_it_or_it_differs() {
    use ReleaseAnswer::{MayGo, Unknown, Unsaved};
    let (mut world, [a, b, own]) = world();
    let gone = InodeId(1 << 40);
    assert_eq!(world.ask(&[a, a, own, b, gone]), [MayGo, MayGo, Unsaved, MayGo, Unknown]);
    let open = world.host.open_write(a, false);
    world.host.run(&world.server, open, ops::open::open).unwrap();
    assert_eq!(world.ask(&[a]), [Unsaved], "it may differ from its object");
    let close = world.host.close_write(a);
    assert_eq!(close.mode, OpenMode::Write);
    world.host.run(&world.server, close, ops::open::close).unwrap();
    assert_eq!(world.ask(&[a, b]), [Unsaved, MayGo], "nobody has compared them");
    let cut = world.host.open_write(b, true);
    world.host.run(&world.server, cut, ops::open::open).unwrap();
    assert_eq!(world.ask(&[b]), [Unknown], "it has another content");

    let contents =
        vec![ContentName { inode: a, generation: ContentGeneration(1) }; ASK_RELEASE_MAX + 1];
    let refused = world.host.run(&world.server, AskRelease { contents }, ops::release::ask);
    assert_eq!(refused.unwrap_err(), ErrorKind::InvalidArgument);
}

#[test]
fn what_was_exported_may_go_when_its_targets_know_of_it() {
    use ReleaseAnswer::{InUse, MayGo, Unsaved};
    let (mut world, [a, b, _]) = world();
    for inode in [a, b] {
        world.touch(inode);
    }
    assert_eq!(world.ask(&[a, b]), [Unsaved, Unsaved]);
    world.export(a);
    assert_eq!(world.ask(&[a]), [InUse], "its targets do not know what the object has");
    world.export(b);
    world.end_export(a);
    assert_eq!(world.ask(&[a, b]), [MayGo, InUse]);
    world.end_export(b);
    assert_eq!(world.ask(&[a, b]), [MayGo, MayGo]);
}

#[test]
fn what_had_holes_has_none_when_it_is_exported_and_may_go() {
    use ReleaseAnswer::{MayGo, Unsaved};
    let (mut world, [a, b, _]) = world();
    for inode in [a, b] {
        world.touch(inode);
    }
    world.server.turn(move |core| {
        let set = SetAttributes { inode: a, make_sparse: true, ..SetAttributes::default() };
        core.execute(None, Command::SetAttributes(set)).unwrap();
    });
    let content = |world: &World| {
        let found = move |core: &mut Core| tree::inode(core.view(), a).unwrap().content();
        world.server.turn(found).unwrap()
    };
    let before = content(&world);
    assert!(before.sparse);
    assert_eq!(world.ask(&[a, b]), [Unsaved, Unsaved]);
    for inode in [a, b] {
        world.export(inode);
        world.end_export(inode);
    }
    let after = content(&world);
    assert!(!after.sparse && after.write_epoch > before.write_epoch);
    assert_eq!(world.ask(&[a, b]), [MayGo, MayGo], "who opened it before is refused by targets");
}

#[test]
fn what_was_renamed_is_nowhere_else_and_stays() {
    use ReleaseAnswer::{MayGo, Unsaved};
    let (mut world, [a, b, _]) = world();
    assert_eq!(world.ask(&[a, b]), [MayGo, MayGo]);
    let sub = world.directory_of(a);
    let rename = world.host.rename((sub, "a"), (sub, "c"));
    world.host.run(&world.server, rename, ops::rename::rename).unwrap();
    assert_eq!(world.ask(&[a]), [Unsaved], "an export may put another file in its object's place");
    let back = world.host.rename((sub, "c"), (sub, "a"));
    world.host.run(&world.server, back, ops::rename::rename).unwrap();
    assert_eq!(world.ask(&[a]), [MayGo]);
    let up = world.server.turn(move |core| tree::inode(core.view(), sub).unwrap().parent.unwrap());
    let moved = world.host.rename((up.directory, "sub"), (up.directory, "other"));
    world.host.run(&world.server, moved, ops::rename::rename).unwrap();
    assert_eq!(world.ask(&[a, b]), [Unsaved, Unsaved], "so with a directory above");
}

#[test]
fn a_pin_holds_for_all_below_for_every_name_and_over_a_restart() {
    use ReleaseAnswer::{MayGo, Pinned};
    let (mut world, [a, b, _]) = world();
    assert_eq!(world.pin(Caller::ROOT, "/set/sub", true), Ok((true, 0)));
    assert_eq!(world.pin(Caller::ROOT, "/set/sub", true), Ok((false, 0)));
    assert_eq!(world.ask(&[a, b]), [Pinned, Pinned]);
    assert_eq!(world.pin(Caller::ROOT, "/set/sub/a", true), Ok((true, 1)));
    assert_eq!(world.pins(), ["/set/sub", "/set/sub/a"]);
    assert_eq!(world.pin(Caller::ROOT, "/set/sub", false), Ok((true, 0)));
    assert_eq!(world.ask(&[a, b]), [Pinned, MayGo]);

    let stranger = Caller { uid: 77, gid: 77, groups: vec![] };
    assert_eq!(world.pin(stranger.clone(), "/set/sub/a", false), Err(ErrorKind::NotPermitted));
    assert_eq!(world.pin(Caller::ROOT, "/set/none", true), Err(ErrorKind::NotFound));
    assert_eq!(world.pins(), ["/set/sub/a"]);

    // A second name, below a directory that is pinned.
    let set = world.directory_of(world.directory_of(a));
    let kept = world.host.make(&world.server, set, "kept", NewNode::Directory);
    let kept = kept.unwrap().attributes.inode;
    let link = MakeLink {
        caller: Caller::ROOT,
        operation: world.host.operation(),
        inode: b,
        parent: kept,
        name: name("b"),
    };
    world.host.run(&world.server, link, ops::create::make_link).unwrap();
    assert_eq!(world.ask(&[b]), [MayGo]);
    assert_eq!(world.pin(Caller::ROOT, "/set/kept", true), Ok((true, 0)));
    assert_eq!(world.ask(&[b]), [Pinned]);
    assert_eq!(world.pin(Caller::ROOT, "/set/kept", false), Ok((true, 0)));

    let remove = world.host.remove(InodeId::ROOT, "own", false);
    world.host.run(&world.server, remove, ops::remove::remove).unwrap();
    let remove = world.host.remove(world.directory_of(a), "a", false);
    world.host.run(&world.server, remove, ops::remove::remove).unwrap();
    assert_eq!(world.pins(), Vec::<String>::new(), "a pin goes with its file");
    assert_eq!(world.pin(Caller::ROOT, "/set/sub/b", true), Ok((true, 0)));
    world.server.restart();
    assert_eq!(world.ask(&[b]), [Pinned]);
}
