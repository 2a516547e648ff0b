//! What a client can make the server keep has a bound, whatever it sends.

use std::time::Duration;

use millrace_metadata_server::{
    engine::StoreKind,
    ops::{self, session},
    store::keys,
};
use millrace_protocol::{
    metadata::{NewNode, OpenMode},
    session::{OpenSession, Operation, SESSIONS_PER_HOST_MAX, SessionReply},
};
use millrace_types::{ErrorKind, Failure, InodeId};
use tempfile::TempDir;

use crate::{
    engine::{Server, rebuilt},
    hosts::{Host, client, register_targets, run},
};

fn server(dir: &TempDir) -> Server {
    let server = Server::start(&dir.path().join("metadata"), StoreKind::default());
    register_targets(&server);
    server
}

fn open_session(server: &Server, host: u8, nonce: u64) -> Result<SessionReply, Failure> {
    let request = OpenSession { nonce, host_name: "client".to_owned() };
    run(server, &client(host), request, session::open)
}

#[test]
fn an_operation_too_far_ahead_of_the_oldest_is_refused_and_nothing_is_kept_of_it() {
    let dir = TempDir::new().unwrap();
    let server = server(&dir);
    let mut host = Host::open(&server, 1);
    let file = host.make(&server, InodeId::ROOT, "file", NewNode::Regular).unwrap();
    let oldest = host.sequence;
    for (ahead, allowed) in [
        (Operation::SPAN_MAX - 1, true),
        (Operation::SPAN_MAX, false),
        (Operation::SPAN_MAX * 2, false),
        (u64::MAX - oldest, false),
    ] {
        let mut create = host.create(InodeId::ROOT, &format!("ahead{ahead}"), NewNode::Fifo);
        create.operation = host.numbered(oldest + ahead, oldest);
        let before = server.turn(|core| core.last_index());
        let made = host.run(&server, create, ops::create::create).map(drop);
        let mut read = host.open_write(file.attributes.inode, false);
        read.mode = OpenMode::Read;
        read.operation = host.numbered(oldest + ahead, oldest);
        let opened = host.run(&server, read, ops::open::open).map(drop);
        let expected = if allowed { Ok(()) } else { Err(ErrorKind::Busy) };
        assert_eq!((made, opened), (expected, expected), "{ahead} ahead");
        let after = server.turn(|core| core.last_index());
        assert_eq!(after > before, allowed, "{ahead} ahead");
    }
    // The mark moves, and it goes on: first with the outcomes of all that it waits for.
    let mut create = host.create(InodeId::ROOT, "last", NewNode::Fifo);
    let last = oldest + 2 * Operation::SPAN_MAX;
    create.operation = host.numbered(last, last);
    host.run(&server, create, ops::create::create).unwrap();
    let outcomes = keys::outcomes(host.session);
    let contents = server.contents();
    let kept = contents.0.iter().filter(|(key, _)| key.starts_with(&outcomes)).count();
    assert_eq!(kept, 1);
    contents.assert_equal(&rebuilt(&server.log_dir()), "after refusals");
}

#[test]
fn a_host_that_opens_sessions_in_a_loop_is_refused_until_old_ones_run_out() {
    let dir = TempDir::new().unwrap();
    let mut server = server(&dir);
    let most = u64::try_from(SESSIONS_PER_HOST_MAX).unwrap();
    let first = open_session(&server, 1, 0).unwrap().session;
    for nonce in 1..most {
        open_session(&server, 1, nonce).unwrap();
    }
    for _ in 0..2 {
        let refused = open_session(&server, 1, most).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Busy);
        assert!(refused.message.contains("unmount"), "{refused}");
        assert!(refused.retry_after_ms > 0);
        // Neither other hosts nor a repeated request are concerned.
        assert_eq!(open_session(&server, 1, 0).unwrap().session, first);
        open_session(&server, 2, 0).unwrap();
        server.restart();
    }
    // One that has been silent for a lease makes room, although nobody has looked for it yet; who
    // renewed stays.
    server.pass(Duration::from_secs(20));
    for nonce in 1..most {
        open_session(&server, 1, nonce).unwrap();
    }
    server.pass(Duration::from_secs(11));
    server.time.advance(Duration::from_secs(2));
    let next = open_session(&server, 1, most).unwrap().session;
    assert_eq!(open_session(&server, 1, most).unwrap().session, next);
    // The first has ended: its number would begin another.
    assert_eq!(open_session(&server, 1, 0).unwrap_err().kind, ErrorKind::Busy);
    server.pass(Duration::from_secs(60));
    open_session(&server, 1, most + 2).unwrap();
    server.contents().assert_equal(&rebuilt(&server.log_dir()), "after refusals");
}
