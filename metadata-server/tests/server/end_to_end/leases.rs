//! Leases over the network: a change waits for a client that listens, and for what it says after a
//! restart.

use millrace_protocol::{
    lease::{AwaitRecalls, FindName, Recall},
    metadata::{Coverage, NewNode, Remove},
    session::{Caller, Hello, Role},
};
use millrace_types::{ErrorKind, InodeId, LogIndex};

use super::cluster::{Cluster, Node, grant, name};

/// Listens for ever, and acknowledges what it hears at once.
async fn listen(node: &Node, incarnation: u64, heard: &mut Vec<Recall>) {
    let mut request = AwaitRecalls { session: node.session, incarnation, acknowledged: 0 };
    loop {
        let recalls = node.ask(&request).await.unwrap();
        heard.extend(recalls.recalls);
        request.acknowledged = recalls.through;
    }
}

/// Looks a name up until that is covered: the server may not have heard yet that somebody listens.
async fn look(node: &Node, text: &str) {
    let request = FindName {
        caller: Caller::ROOT,
        session: node.session,
        parent: InodeId::ROOT,
        name: name(text),
    };
    while node.ask(&request).await.unwrap().coverage == Coverage::None {}
}

async fn incarnation(node: &Node) -> u64 {
    node.ask(&Hello { seen_index: LogIndex(0) }).await.unwrap().incarnation
}

fn removal(node: &mut Node, text: &str) -> Remove {
    let operation = node.operation();
    let (caller, parent) = (Caller::ROOT, InodeId::ROOT);
    Remove { caller, operation, parent, name: name(text), directory: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_answered_when_who_listens_has_acknowledged_also_after_a_restart() {
    let mut cluster = Cluster::start().await;
    let mut keeper = cluster.client(&grant(Role::Client, 1)).await;
    let mut changer = cluster.client(&grant(Role::Client, 2)).await;
    for text in ["first", "second"] {
        changer.make(InodeId::ROOT, text, NewNode::Fifo, 0o600).await;
    }
    let (before, mut heard) = (incarnation(&keeper).await, Vec::new());
    let request = removal(&mut changer, "first");
    tokio::select! {
        () = listen(&keeper, before, &mut heard) => {}
        () = async {
            look(&keeper, "first").await;
            changer.ask(&request).await.unwrap();
        } => {}
    }
    assert!(heard.contains(&Recall::Name(InodeId::ROOT, name("first"))), "{heard:?}");

    cluster.restart().await;
    for node in [&mut keeper, &mut changer] {
        node.find_again(&cluster);
    }
    let old = AwaitRecalls { session: keeper.session, incarnation: before, acknowledged: 0 };
    assert_eq!(keeper.refusal(&old).await, ErrorKind::Stale);
    let after = incarnation(&keeper).await;
    let request = removal(&mut changer, "second");
    let waits = changer.ask(&request);
    tokio::pin!(waits);
    // However it is scheduled, nobody is answered before the other has said that it keeps nothing.
    tokio::select! {
        biased;
        early = &mut waits => panic!("{early:?}"),
        shown = keeper.lookup(InodeId::ROOT, "second") => drop(shown.unwrap()),
    }
    tokio::select! {
        () = listen(&keeper, after, &mut heard) => {}
        done = &mut waits => drop(done.unwrap()),
    }
    cluster.stop().await;
}
