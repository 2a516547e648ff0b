//! Times of access that follow reads: what a batch raises, of what, and what is left alone.

use std::time::Duration;

use millrace_metadata_server::{
    engine::StoreKind,
    ops::{self, Client},
};
use millrace_protocol::{
    access::{LastRead, NoteReads, READS_MAX},
    metadata::{Attributes, NewNode, SetAttributes, SetTime},
    session::Caller,
};
use millrace_types::{ErrorKind, InodeId, LogIndex, SessionId, Timestamp};
use tempfile::TempDir;

use crate::{
    engine::{Server, rebuilt},
    hosts::{Host, client, register_targets},
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

struct World {
    server: Server,
    host: Host,
    directory: InodeId,
    file: InodeId,
    _dir: TempDir,
}

/// A directory `d` with a file `f`, a second ago.
fn world(store: StoreKind) -> World {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&dir.path().join("metadata"), store);
    register_targets(&server);
    let mut host = Host::open(&server, 1);
    let directory = host.make(&server, InodeId::ROOT, "d", NewNode::Directory).unwrap();
    let directory = directory.attributes.inode;
    let file = host.make(&server, directory, "f", NewNode::Regular).unwrap().attributes.inode;
    server.time.advance(SECOND);
    World { server, host, directory, file, _dir: dir }
}

impl World {
    fn now(&self) -> Timestamp {
        self.server.turn(|core| core.now())
    }

    fn last(&self) -> LogIndex {
        self.server.turn(|core| core.last_index())
    }

    fn shows(&self, inode: InodeId) -> Attributes {
        self.host.show(&self.server, inode).unwrap().attributes
    }

    fn accessed(&self, inode: InodeId) -> Timestamp {
        self.shows(inode).accessed
    }

    /// Tells of reads of `inodes` at `at`, by who saw what the server shows.
    fn read(&self, inodes: &[InodeId], at: Timestamp) {
        let reads = inodes.iter().map(|&inode| {
            let shown = self.host.show(&self.server, inode);
            let seen = shown.map_or(LastRead::UNSEEN, |reply| reply.attributes.accessed);
            LastRead { inode, seen, at }
        });
        tell(&self.server, &self.host, reads.collect()).unwrap();
    }

    fn set_accessed(&mut self, accessed: SetTime) {
        let request = SetAttributes {
            caller: Caller::ROOT,
            operation: self.host.operation(),
            inode: self.file,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            accessed: Some(accessed),
            modified: None,
            make_sparse: false,
            open: false,
        };
        self.host.run(&self.server, request, ops::set_attributes::set).unwrap();
    }
}

fn tell(server: &Server, host: &Host, reads: Vec<LastRead>) -> Result<LogIndex, ErrorKind> {
    let request = NoteReads { session: host.session, reads };
    host.run(server, request, ops::access::note).map(|done| done.index)
}

#[test]
fn a_read_raises_the_time_of_access_and_changes_nothing_else() {
    let world = world(StoreKind::Memory);
    let (before, at) = (world.shows(world.file), world.now());
    world.read(&[world.file, world.directory], at);
    assert_eq!(world.shows(world.file), Attributes { accessed: at, ..before });
    assert_eq!(world.accessed(world.directory), at);
}

#[test]
fn within_a_day_of_the_last_read_only_a_change_makes_another_one_count() {
    let mut world = world(StoreKind::Memory);
    let first = world.now();
    world.read(&[world.file], first);
    world.server.time.advance(DAY - SECOND);
    let last = world.last();
    world.read(&[world.file], world.now());
    assert_eq!((world.accessed(world.file), world.last()), (first, last), "nothing is logged");
    world.server.time.advance(SECOND);
    let next = world.now();
    world.read(&[world.file], next);
    assert_eq!(world.accessed(world.file), next, "a day later");

    world.server.time.advance(SECOND);
    let old = Timestamp::from_parts(1_000_000_000, 0);
    world.set_accessed(SetTime::At(old));
    world.server.time.advance(SECOND);
    world.read(&[world.file], world.now());
    assert_eq!(world.accessed(world.file), world.now(), "the inode has changed since");
}

#[test]
fn a_time_that_was_set_after_the_read_stands_and_a_later_one_is_never_lowered() {
    let mut world = world(StoreKind::Memory);
    let (seen, at) = (world.accessed(world.file), world.now());
    let read = LastRead { inode: world.file, seen, at };
    world.server.time.advance(SECOND);
    for set in [at.plus(10 * DAY), Timestamp::from_parts(1_000_000_000, 0)] {
        world.set_accessed(SetTime::At(set));
        let late = LastRead { at: world.now(), ..read };
        for read in [read, late] {
            tell(&world.server, &world.host, vec![read]).unwrap();
            assert_eq!(world.accessed(world.file), set);
        }
    }
}

#[test]
fn a_time_in_the_future_counts_as_now() {
    let world = world(StoreKind::Memory);
    world.read(&[world.file], world.now().plus(365 * DAY));
    assert_eq!(world.accessed(world.file), world.now());
}

#[test]
fn what_is_gone_is_passed_over_and_too_many_or_another_hosts_session_are_refused() {
    let world = world(StoreKind::Memory);
    let gone = InodeId(1 << 40);
    world.read(&[gone, world.file, world.file], world.now());
    assert_eq!(world.accessed(world.file), world.now());

    let read = LastRead { inode: gone, seen: LastRead::UNSEEN, at: world.now() };
    let last = world.last();
    assert_eq!(tell(&world.server, &world.host, vec![read; READS_MAX]), Ok(last));
    let many = tell(&world.server, &world.host, vec![read; READS_MAX + 1]);
    assert_eq!(many, Err(ErrorKind::InvalidArgument));
    let other = Host { session: SessionId(1 << 40), ..world.host.clone() };
    assert_eq!(tell(&world.server, &other, vec![read]), Err(ErrorKind::SessionGone));
    let other = Host { client: client(9), ..world.host.clone() };
    assert_eq!(tell(&world.server, &other, vec![read]), Err(ErrorKind::SessionGone));
}

#[test]
fn a_certificate_bounds_what_a_host_can_have_read() {
    let mut world = world(StoreKind::Memory);
    let outside = world.host.make(&world.server, InodeId::ROOT, "o", NewNode::Regular).unwrap();
    let outside = outside.attributes;
    world.server.time.advance(SECOND);
    let bound = Client { subtree: Some(b"/d".to_vec()), ..client(2) };
    let bound = Host::open_as(&world.server, bound);
    let at = world.now();
    let reads = [InodeId::ROOT, world.file, outside.inode];
    let reads = reads.map(|inode| LastRead { inode, seen: LastRead::UNSEEN, at });
    tell(&world.server, &bound, reads.to_vec()).unwrap();
    assert_eq!(world.accessed(world.file), at);
    assert_eq!(world.accessed(world.directory), at, "the root that it sees");
    assert_eq!(world.shows(outside.inode), outside);
    assert!(world.accessed(InodeId::ROOT) < at);

    let operation = world.host.operation();
    let secret = SetAttributes {
        caller: Caller::ROOT,
        operation,
        inode: world.file,
        mode: Some(0o600),
        uid: None,
        gid: None,
        size: None,
        accessed: None,
        modified: None,
        make_sparse: false,
        open: false,
    };
    world.host.run(&world.server, secret, ops::set_attributes::set).unwrap();
    world.server.time.advance(SECOND);
    let squashed = Host::open_as(&world.server, Client { squash_root: true, ..client(3) });
    let later = LastRead { at: world.now(), ..reads[1] };
    tell(&world.server, &squashed, vec![later]).unwrap();
    assert_eq!(world.accessed(world.file), at, "only root may read it");
}

#[test]
fn the_log_gives_the_same_times_again() {
    for store in [StoreKind::Sled, StoreKind::Lsm] {
        let mut world = world(store);
        let at = world.now();
        world.read(&[world.file, world.directory, InodeId::ROOT], at);
        world.server.time.advance(2 * DAY);
        world.read(&[world.directory], world.now());
        let expected = world.server.contents();
        expected.assert_equal(&rebuilt(&world.server.log_dir()), "from the log");
        world.server.restart();
        assert_eq!(world.accessed(world.file), at);
        assert_eq!(world.accessed(world.directory), at.plus(2 * DAY));
    }
}
