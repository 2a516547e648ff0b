//! Sessions over the network: opening, renewing, running out, surviving a restart.

use std::time::Duration;

use millrace_protocol::{
    cluster::{FetchKeys, RegisterHost},
    codec,
    metadata::{Close, NewNode, Open, OpenMode, Remove},
    session::{Caller, CloseSession, Hello, RenewTicket, Role, Ticket},
};
use millrace_types::{ErrorKind, InodeId, LogIndex};

use super::cluster::{Cluster, Node, STORAGE, grant, name, registration};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_opened_once_for_a_number_and_its_ticket_names_the_connection() {
    let cluster = Cluster::start().await;
    let client = cluster.node(&grant(Role::Client, 1));
    let first = client.open_session(7).await.unwrap();
    let again = client.open_session(7).await.unwrap();
    assert_eq!((again.session, again.lease_ms), (first.session, 30_000));
    let other = client.open_session(8).await.unwrap();
    assert_ne!(other.session, first.session);
    let ticket: Ticket = codec::decode(&first.ticket.body).unwrap();
    assert_eq!((ticket.session, ticket.host), (first.session, client.identity.peer().host));
    assert_eq!(ticket.fingerprint, client.identity.peer().fingerprint);
    assert_eq!(ticket.expires, first.server_time.plus(LEASE));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_session_lives_on_and_a_silent_one_ends_with_what_it_holds() {
    let cluster = Cluster::start().await;
    let mut silent = cluster.client(&grant(Role::Client, 1)).await;
    let mut alive = cluster.client(&grant(Role::Client, 2)).await;
    let file = silent.make(InodeId::ROOT, "file", NewNode::Regular, 0o600).await;
    let operation = silent.operation();
    let open = Open {
        caller: Caller::ROOT,
        operation,
        inode: file,
        mode: OpenMode::Write,
        truncate: false,
        reopen: false,
    };
    silent.ask(&open).await.unwrap();
    let operation = alive.operation();
    let remove = Remove {
        caller: Caller::ROOT,
        operation,
        parent: InodeId::ROOT,
        name: name("file"),
        directory: false,
    };
    alive.ask(&remove).await.unwrap();
    cluster.pass(Duration::from_secs(20)).await;
    let renewed = alive.ask(&RenewTicket { session: alive.session }).await.unwrap();
    let ticket: Ticket = codec::decode(&renewed.ticket.body).unwrap();
    assert_eq!(ticket.expires, renewed.server_time.plus(LEASE));
    // The ticket has run out; the clocks may differ by two seconds.
    cluster.pass(Duration::from_secs(11)).await;
    assert_eq!(alive.show(file).await.unwrap().attributes.links, 0);
    cluster.pass(Duration::from_secs(2)).await;
    assert_eq!(alive.show(file).await.unwrap_err().kind, ErrorKind::Stale, "its chunks may go");
    let renew = RenewTicket { session: silent.session };
    assert_eq!(silent.refusal(&renew).await, ErrorKind::SessionGone);
    let late = silent.create(Caller::ROOT, InodeId::ROOT, "late", NewNode::Regular, 0o600);
    assert_eq!(silent.refusal(&late).await, ErrorKind::SessionGone);
    let missing = alive.lookup(InodeId::ROOT, "late").await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound, "it was not executed");
    alive.make(InodeId::ROOT, "alive", NewNode::Regular, 0o600).await;
    // The same number begins another session now.
    let next = silent.open_session(1).await.unwrap().session;
    assert_ne!(next, silent.session);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stood_still_has_heard_nobody_and_takes_nobody_for_dead() {
    let cluster = Cluster::start().await;
    let client = cluster.client(&grant(Role::Client, 1)).await;
    let renew = RenewTicket { session: client.session };
    cluster.pass(Duration::from_secs(10)).await;
    // Neither the first look after it nor those that follow end what is alive.
    for stall in [LEASE + Duration::from_secs(10), LEASE * 100] {
        cluster.time.advance(stall);
        cluster.pass(Duration::from_secs(10)).await;
        client.ask(&renew).await.unwrap();
    }
    // One that is heard before the look is given no more than a lease from that on.
    cluster.time.advance(LEASE * 100);
    client.ask(&renew).await.unwrap();
    cluster.pass(LEASE + Duration::from_secs(4)).await;
    assert_eq!(client.refusal(&renew).await, ErrorKind::SessionGone, "it was silent");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_its_host_and_ends_when_that_says_so() {
    let cluster = Cluster::start().await;
    let mut owner = cluster.client(&grant(Role::Client, 1)).await;
    let thief = cluster.node(&grant(Role::Client, 2));
    let renew = RenewTicket { session: owner.session };
    assert_eq!(thief.refusal(&renew).await, ErrorKind::SessionGone);
    // Ending what is not there is no error, and harms nobody.
    thief.ask(&CloseSession { session: owner.session }).await.unwrap();
    owner.ask(&renew).await.unwrap();
    let create = owner.create(Caller::ROOT, InodeId::ROOT, "x", NewNode::Regular, 0o600);
    assert_eq!(thief.refusal(&create).await, ErrorKind::SessionGone);
    owner.ask(&CloseSession { session: owner.session }).await.unwrap();
    assert_eq!(owner.refusal(&renew).await, ErrorKind::SessionGone);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_and_its_last_answer_survive_a_restart() {
    let mut cluster = Cluster::start().await;
    let mut client = cluster.client(&grant(Role::Client, 1)).await;
    let create = client.create(Caller::ROOT, InodeId::ROOT, "file", NewNode::Regular, 0o600);
    let made = client.ask(&create).await.unwrap();
    let hello = Hello { seen_index: LogIndex(0) };
    let before = client.ask(&hello).await.unwrap();
    cluster.restart().await;
    client.find_again(&cluster);
    let after = client.ask(&hello).await.unwrap();
    assert_ne!(after.incarnation, before.incarnation);
    assert!(after.last_index >= before.last_index);
    let again = client.ask(&create).await.unwrap();
    assert_eq!(again.attributes, made.attributes);
    client.ask(&RenewTicket { session: client.session }).await.unwrap();
    // A restart gives everybody a lease's time, and no more.
    cluster.pass(LEASE + Duration::from_secs(3)).await;
    let renew = RenewTicket { session: client.session };
    assert_eq!(client.refusal(&renew).await, ErrorKind::SessionGone);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_names_outlives_a_close_while_the_rest_of_what_is_open_is_told_again() {
    let mut cluster = Cluster::start().await;
    let mut client = cluster.client(&grant(Role::Client, 1)).await;
    let file = client.make(InodeId::ROOT, "file", NewNode::Regular, 0o600).await;
    let open = |client: &mut Node| Open {
        caller: Caller::ROOT,
        operation: client.operation(),
        inode: file,
        mode: OpenMode::Read,
        truncate: false,
        reopen: false,
    };
    for _ in 0..2 {
        let request = open(&mut client);
        client.ask(&request).await.unwrap();
    }
    let remove = Remove {
        caller: Caller::ROOT,
        operation: client.operation(),
        parent: InodeId::ROOT,
        name: name("file"),
        directory: false,
    };
    client.ask(&remove).await.unwrap();
    cluster.restart().await;
    client.find_again(&cluster);
    let request = open(&mut client);
    client.ask(&request).await.unwrap();
    let (operation, mode) = (client.operation(), OpenMode::Read);
    client.ask(&Close { operation, inode: file, mode }).await.unwrap();
    assert_eq!(client.show(file).await.unwrap().attributes.links, 0, "its other open is not told");
    let renew = RenewTicket { session: client.session };
    for _ in 0..5 {
        cluster.pass(Duration::from_secs(20)).await;
        client.ask(&renew).await.unwrap();
    }
    assert_eq!(client.show(file).await.unwrap_err().kind, ErrorKind::Stale, "it never was");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_storage_host_with_an_identity_that_serves_is_refused() {
    let cluster = Cluster::start().await;
    let (host, first) = STORAGE;
    let daemon = cluster.node(&grant(Role::Target, host));
    let refused = daemon.ask(&registration("127.0.0.1:2", &[3])).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InUse, "{refused}");
    for word in [first, "millrace cluster invite --role target"] {
        assert!(refused.message.contains(word), "{refused}");
    }
    for (address, targets, what) in [
        (first, &[1][..], "the same host, started with fewer disks"),
        ("127.0.0.1:3", &[1, 2][..], "it has another address"),
        ("127.0.0.1:4", &[1, 2, 3][..], "and a disk that came later"),
    ] {
        let passed = daemon.ask(&registration(address, targets)).await;
        assert!(passed.is_ok(), "{what}: {passed:?}");
    }

    // It comes back at another address without one of its disks, of which it has just told.
    let moved = registration("127.0.0.1:5", &[2, 3]);
    assert_eq!(daemon.refusal(&moved).await, ErrorKind::InUse);
    cluster.pass(Duration::from_secs(4)).await;
    daemon.ask(&moved).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_role_may_not_ask_is_refused() {
    let cluster = Cluster::start().await;
    let client = cluster.node(&grant(Role::Client, 1));
    assert_eq!(client.refusal(&FetchKeys {}).await, ErrorKind::Forbidden);
    let register = RegisterHost {
        addresses: vec!["127.0.0.1:1".to_owned()],
        host_name: "client".to_owned(),
        targets: Vec::new(),
    };
    assert_eq!(client.refusal(&register).await, ErrorKind::Forbidden);
    let target = cluster.node(&grant(Role::Target, 2));
    target.ask(&FetchKeys {}).await.unwrap();
    let session = target.open_session(1).await.unwrap_err();
    assert_eq!(session.kind, ErrorKind::Forbidden);
    cluster.stop().await;
}
