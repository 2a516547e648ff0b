//! A file that was cut while a target does not confirm it, for whatever reason.

use millrace_metadata_server::{
    engine::StoreKind,
    namespace::tree,
    ops::{self, Need, Step},
    store::{
        keys,
        records::{self, TrimRecord},
    },
};
use millrace_protocol::{
    metadata::{NewNode, Open, SetAttributes},
    session::Caller,
};
use millrace_types::InodeId;
use tempfile::TempDir;

use crate::{
    engine::Server,
    hosts::{Host, Run, register_targets},
};

struct World {
    server: Server,
    host: Host,
    file: InodeId,
    _dir: TempDir,
}

/// A file that was cut, of which the targets have not heard.
fn cut() -> World {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&dir.path().join("metadata"), StoreKind::Memory);
    register_targets(&server);
    let mut host = Host::open(&server, 1);
    let made = host.make(&server, InodeId::ROOT, "file", NewNode::Regular).unwrap();
    let mut world = World { server, host, file: made.attributes.inode, _dir: dir };
    world.grow_and_cut();
    world
}

impl World {
    fn grow_and_cut(&mut self) {
        let grow = self.resize(100);
        self.host.run(&self.server, grow, ops::set_attributes::set).unwrap();
        let shrink = self.resize(50);
        assert!(self.is_held_up(shrink, ops::set_attributes::set));
    }

    fn resize(&mut self, size: u64) -> SetAttributes {
        SetAttributes { size: Some(size), ..self.set() }
    }

    /// Sets nothing.
    fn set(&mut self) -> SetAttributes {
        let mut operation = self.host.operation();
        operation.lowest_pending = 1;
        SetAttributes {
            caller: Caller::ROOT,
            operation,
            inode: self.file,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            accessed: None,
            modified: None,
            make_sparse: false,
            open: false,
        }
    }

    fn open_write(&mut self, truncate: bool) -> Open {
        let mut open = self.host.open_write(self.file, truncate);
        open.operation.lowest_pending = 1;
        open
    }

    /// Whether an operation waits for the targets, which say nothing; otherwise it is done.
    fn is_held_up<R, T>(&self, request: R, run: Run<R, T>) -> bool
    where
        R: Send + 'static,
        T: Send + 'static,
    {
        let client = self.host.client.clone();
        let step = self.server.try_turn(move |core| run(core, &client, &request)).unwrap();
        match step {
            Step::Done(_) => false,
            Step::Need(Need::Trim(inode)) => inode == self.file,
            Step::Need(other) => panic!("it waits for {other:?}"),
        }
    }

    /// Size, generation, and whether something is to be trimmed.
    fn found(&self) -> (u64, u32, bool) {
        let file = self.file;
        self.server.turn(move |core| {
            let inode = tree::inode(core.view(), file).unwrap();
            let trim: Option<TrimRecord> = records::read(core.view(), &keys::trim(file)).unwrap();
            (inode.size, inode.content().unwrap().generation.0, trim.is_some())
        })
    }
}

#[test]
fn a_file_of_which_a_cut_is_not_confirmed_can_be_emptied_and_nothing_else() {
    for by_open in [true, false] {
        let mut world = cut();
        assert_eq!(world.found(), (50, 1, true));
        let chmod = SetAttributes { mode: Some(0o600), ..world.set() };
        assert!(world.is_held_up(chmod, ops::set_attributes::set));
        let open = world.open_write(false);
        assert!(world.is_held_up(open, ops::open::open));
        let is_held_up = if by_open {
            let open = world.open_write(true);
            world.is_held_up(open, ops::open::open)
        } else {
            let empty = world.resize(0);
            world.is_held_up(empty, ops::set_attributes::set)
        };
        assert!(!is_held_up);
        assert_eq!(world.found(), (0, 2, false), "by an open: {by_open}");
        let grow = world.resize(70);
        world.host.run(&world.server, grow, ops::set_attributes::set).unwrap();
        assert_eq!(world.found(), (70, 2, false));
    }
}

#[test]
fn who_has_emptied_a_file_and_asks_again_waits_for_a_cut_since() {
    let mut world = cut();
    let open = world.open_write(true);
    assert!(!world.is_held_up(open.clone(), ops::open::open));
    world.grow_and_cut();
    assert!(world.is_held_up(open, ops::open::open), "it could write behind the cut");
    assert_eq!(world.found(), (50, 2, true), "it is emptied once");
}
