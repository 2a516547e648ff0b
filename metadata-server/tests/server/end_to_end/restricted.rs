//! What a certificate allows: a subtree, root as nobody, and otherwise the permission bits.

use millrace_protocol::{
    capability::Rights,
    metadata::{
        Commit, InodeReply, MakeLink, NewNode, Open, OpenMode, ReadDirectory, Remove, Rename,
        RenameMode, SetAttributes,
    },
    session::{Caller, Role},
};
use millrace_transport::Grant;
use millrace_types::{ErrorKind, InodeId};

use super::cluster::{Cluster, Node, grant, name, user};

/// Linux's overflow user, which a squashed root becomes.
const NOBODY: u32 = 65_534;

struct Tree {
    team: InodeId,
    inside: InodeId,
    outside: InodeId,
}

/// `/team/inside` and `/outside`, by an unrestricted client.
async fn tree(admin: &mut Node) -> Tree {
    let team = admin.make(InodeId::ROOT, "team", NewNode::Directory, 0o777).await;
    let inside = admin.make(team, "inside", NewNode::Regular, 0o666).await;
    let outside = admin.make(InodeId::ROOT, "outside", NewNode::Regular, 0o666).await;
    Tree { team, inside, outside }
}

fn subtree(host: u8, path: &str) -> Grant {
    Grant { subtree: Some(path.as_bytes().to_vec()), ..grant(Role::Client, host) }
}

fn open(node: &mut Node, caller: Caller, inode: InodeId, mode: OpenMode) -> Open {
    let operation = node.operation();
    Open { caller, operation, inode, mode, truncate: false, reopen: false }
}

fn rename(node: &mut Node, from: (InodeId, &str), to: (InodeId, &str)) -> Rename {
    Rename {
        caller: Caller::ROOT,
        operation: node.operation(),
        source_parent: from.0,
        source_name: name(from.1),
        target_parent: to.0,
        target_name: name(to.1),
        mode: RenameMode::Replace,
    }
}

fn link(node: &mut Node, inode: InodeId, parent: InodeId, text: &str) -> MakeLink {
    let operation = node.operation();
    MakeLink { caller: Caller::ROOT, operation, inode, parent, name: name(text) }
}

fn set(node: &mut Node, caller: Caller, inode: InodeId) -> SetAttributes {
    SetAttributes {
        caller,
        operation: node.operation(),
        inode,
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

#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_its_subtree_as_the_root_and_nothing_else() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    let tree = tree(&mut free).await;
    let mut bound = cluster.client(&subtree(2, "/team")).await;
    let root = bound.show(InodeId::ROOT).await.unwrap();
    assert_eq!(root.attributes.inode, InodeId::ROOT);
    let found = bound.lookup(InodeId::ROOT, "inside").await.unwrap();
    assert_eq!(found.attributes.inode, tree.inside);
    let missing = bound.lookup(InodeId::ROOT, "outside").await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
    assert_eq!(bound.show(tree.outside).await.unwrap_err().kind, ErrorKind::Forbidden);
    let list =
        ReadDirectory { caller: Caller::ROOT, inode: InodeId::ROOT, cookie: 0, entries_max: 10 };
    let page = bound.ask(&list).await.unwrap();
    let names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!((names, page.parent), (vec!["inside".to_owned()], InodeId::ROOT));
    let deep = bound.make(InodeId::ROOT, "deep", NewNode::Directory, 0o755).await;
    let below = ReadDirectory { inode: deep, ..list };
    assert_eq!(bound.ask(&below).await.unwrap().parent, InodeId::ROOT, "`..` is its own root");
    assert_eq!(free.lookup(tree.team, "deep").await.unwrap().attributes.inode, deep);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_names_is_of_who_has_it_open() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    let tree = tree(&mut free).await;
    let mut bound = cluster.client(&subtree(2, "/team")).await;
    let mut neighbour = cluster.client(&subtree(3, "/team")).await;
    for inode in [tree.outside, tree.inside] {
        let opened = open(&mut free, Caller::ROOT, inode, OpenMode::Write);
        free.ask(&opened).await.unwrap();
    }
    let opened = open(&mut bound, Caller::ROOT, tree.inside, OpenMode::Read);
    bound.ask(&opened).await.unwrap();
    for (parent, text) in [(InodeId::ROOT, "outside"), (tree.team, "inside")] {
        let operation = free.operation();
        let remove =
            Remove { caller: Caller::ROOT, operation, parent, name: name(text), directory: false };
        free.ask(&remove).await.unwrap();
    }
    for mode in [OpenMode::Read, OpenMode::Write] {
        for reopen in [false, true] {
            let opened = Open { reopen, ..open(&mut bound, Caller::ROOT, tree.outside, mode) };
            assert_eq!(bound.refusal(&opened).await, ErrorKind::Forbidden);
            let opened = Open { reopen, ..open(&mut neighbour, Caller::ROOT, tree.inside, mode) };
            assert_eq!(neighbour.refusal(&opened).await, ErrorKind::Forbidden);
        }
    }
    let named = link(&mut bound, tree.outside, InodeId::ROOT, "stolen");
    assert_eq!(bound.refusal(&named).await, ErrorKind::Forbidden);
    let changed = SetAttributes { mode: Some(0), ..set(&mut bound, Caller::ROOT, tree.outside) };
    assert_eq!(bound.refusal(&changed).await, ErrorKind::Forbidden);
    // Who had it open goes on, through another descriptor too.
    assert_eq!(bound.show(tree.inside).await.unwrap().attributes.links, 0);
    let opened = open(&mut bound, Caller::ROOT, tree.inside, OpenMode::Read);
    assert!(bound.ask(&opened).await.unwrap().capability.is_some());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restricted_client_changes_nothing_outside() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    let tree = tree(&mut free).await;
    let elsewhere = free.make(InodeId::ROOT, "elsewhere", NewNode::Directory, 0o777).await;
    let mut bound = cluster.client(&subtree(2, "/team")).await;
    let create = bound.create(Caller::ROOT, elsewhere, "x", NewNode::Regular, 0o600);
    assert_eq!(bound.refusal(&create).await, ErrorKind::Forbidden);
    let away = rename(&mut bound, (InodeId::ROOT, "inside"), (elsewhere, "inside"));
    assert_eq!(bound.refusal(&away).await, ErrorKind::Forbidden);
    let stolen = rename(&mut bound, (elsewhere, "x"), (InodeId::ROOT, "x"));
    assert_eq!(bound.refusal(&stolen).await, ErrorKind::Forbidden);
    let linked = link(&mut bound, tree.outside, InodeId::ROOT, "stolen");
    assert_eq!(bound.refusal(&linked).await, ErrorKind::Forbidden);
    let opened = open(&mut bound, Caller::ROOT, tree.outside, OpenMode::Read);
    assert_eq!(bound.refusal(&opened).await, ErrorKind::Forbidden);
    let changed = SetAttributes { mode: Some(0), ..set(&mut bound, Caller::ROOT, tree.outside) };
    assert_eq!(bound.refusal(&changed).await, ErrorKind::Forbidden);
    let operation = bound.operation();
    let remove = Remove {
        caller: Caller::ROOT,
        operation,
        parent: elsewhere,
        name: name("x"),
        directory: false,
    };
    assert_eq!(bound.refusal(&remove).await, ErrorKind::Forbidden);
    // A link that leads out is only text: nobody follows it here.
    let out = NewNode::Symlink(b"/elsewhere".to_vec());
    let out = bound.make(InodeId::ROOT, "out", out, 0o777).await;
    let through = bound.lookup(out, "x").await.unwrap_err();
    assert_eq!(through.kind, ErrorKind::NotDirectory);
    // What has one name inside is inside, whatever other names it has.
    let both = link(&mut free, tree.outside, tree.team, "both");
    free.ask(&both).await.unwrap();
    assert_eq!(bound.show(tree.outside).await.unwrap().attributes.links, 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subtree_that_does_not_exist_is_told_when_the_session_is_opened() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    tree(&mut free).await;
    for path in ["/missing", "/outside", "/team/../outside"] {
        let bound = cluster.node(&subtree(2, path));
        let refused = bound.open_session(1).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Forbidden, "{path}: {refused}");
    }
    cluster.stop().await;
}

fn rights(reply: &InodeReply) -> Option<Rights> {
    let signed = reply.capability.as_ref()?;
    let capability: millrace_protocol::capability::Capability =
        millrace_protocol::codec::decode(&signed.body).unwrap();
    Some(capability.rights)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_squashed_root_is_nobody() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    let tree = tree(&mut free).await;
    let secret = free.make(tree.team, "secret", NewNode::Regular, 0o600).await;
    let mut squashed = cluster.client(&Grant { squash_root: true, ..grant(Role::Client, 2) }).await;
    let made = squashed.make(tree.team, "made", NewNode::Regular, 0o600).await;
    let shown = squashed.show(made).await.unwrap().attributes;
    assert_eq!((shown.uid, shown.gid), (NOBODY, NOBODY));
    let create = squashed.create(Caller::ROOT, InodeId::ROOT, "x", NewNode::Regular, 0o600);
    assert_eq!(squashed.refusal(&create).await, ErrorKind::PermissionDenied);
    let taken =
        SetAttributes { uid: Some(NOBODY), ..set(&mut squashed, Caller::ROOT, tree.inside) };
    assert_eq!(squashed.refusal(&taken).await, ErrorKind::NotPermitted);
    // Root through a supplementary group is no way around it.
    let grouped = Caller { uid: 1000, gid: 1000, groups: vec![0] };
    let opened = open(&mut squashed, grouped, secret, OpenMode::Write);
    assert_eq!(squashed.refusal(&opened).await, ErrorKind::PermissionDenied);
    // It says that the file was opened before, to pass by the check of permissions.
    let reopened = open(&mut squashed, Caller::ROOT, secret, OpenMode::Write);
    let reopened = Open { reopen: true, ..reopened };
    assert_eq!(squashed.refusal(&reopened).await, ErrorKind::PermissionDenied);
    assert_eq!(rights(&squashed.show(secret).await.unwrap()), None, "for root alone to read");
    let of_group = free.make(tree.team, "of-group", NewNode::Regular, 0o640).await;
    assert_eq!(rights(&squashed.show(of_group).await.unwrap()), None, "and for its group");
    let readable = squashed.show(tree.inside).await.unwrap();
    assert_eq!(rights(&readable), Some(Rights::Read));
    assert_eq!(rights(&free.show(secret).await.unwrap()), Some(Rights::Read));
    cluster.stop().await;
}

/// To name the owner that a file has takes setuid from it: what a write does, of whoever's file.
#[tokio::test(flavor = "multi_thread")]
async fn who_writes_a_file_takes_setuid_from_it_also_where_its_owner_is_nobody() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    let tree = tree(&mut free).await;
    let program = free.make(tree.team, "program", NewNode::Regular, 0o666).await;
    let make_setuid = SetAttributes { mode: Some(0o4777), ..set(&mut free, Caller::ROOT, program) };
    assert_eq!(free.ask(&make_setuid).await.unwrap().attributes.mode, 0o4777);
    let mut squashed = cluster.client(&Grant { squash_root: true, ..grant(Role::Client, 2) }).await;
    let take = |node: &mut Node, uid| {
        let request = set(node, Caller::ROOT, program);
        SetAttributes { uid: Some(uid), open: true, ..request }
    };
    let early = take(&mut squashed, 0);
    assert_eq!(squashed.refusal(&early).await, ErrorKind::NotPermitted, "it writes nothing");
    let opened = open(&mut squashed, user(1000), program, OpenMode::Write);
    squashed.ask(&opened).await.unwrap();
    let owned = take(&mut squashed, NOBODY);
    assert_eq!(squashed.refusal(&owned).await, ErrorKind::NotPermitted, "it is another's");
    let taken = take(&mut squashed, 0);
    let shown = squashed.ask(&taken).await.unwrap().attributes;
    assert_eq!((shown.mode, shown.uid), (0o777, 0));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_users_may_what_the_permission_bits_say() {
    let cluster = Cluster::start().await;
    let mut client = cluster.client(&grant(Role::Client, 1)).await;
    let denied = client.create(user(1000), InodeId::ROOT, "x", NewNode::Regular, 0o600);
    assert_eq!(client.refusal(&denied).await, ErrorKind::PermissionDenied);
    let shared = client.make(InodeId::ROOT, "shared", NewNode::Directory, 0o1777).await;
    let own = client.create(user(1000), shared, "own", NewNode::Regular, 0o600);
    let own = client.ask(&own).await.unwrap().attributes.inode;
    let opened = open(&mut client, user(1001), own, OpenMode::Write);
    assert_eq!(client.refusal(&opened).await, ErrorKind::PermissionDenied);
    let operation = client.operation();
    let remove = Remove {
        caller: user(1001),
        operation,
        parent: shared,
        name: name("own"),
        directory: false,
    };
    assert_eq!(client.refusal(&remove).await, ErrorKind::NotPermitted, "the directory is sticky");
    let chmod = SetAttributes { mode: Some(0o666), ..set(&mut client, user(1001), own) };
    assert_eq!(client.refusal(&chmod).await, ErrorKind::NotPermitted);
    let opened = open(&mut client, user(1000), own, OpenMode::Write);
    assert_eq!(rights(&client.ask(&opened).await.unwrap()), Some(Rights::ReadWrite));
    cluster.stop().await;
}

/// Only opening checks whether a file may change, so that only who has it open says how large it
/// is.
#[tokio::test(flavor = "multi_thread")]
async fn a_size_is_taken_only_from_who_has_the_file_open_for_writing() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    let tree = tree(&mut free).await;
    let content = free.show(tree.inside).await.unwrap().content.unwrap();
    let mut other = cluster.client(&grant(Role::Client, 2)).await;
    let commit = |operation| Commit {
        operation,
        inode: tree.inside,
        generation: content.generation,
        write_epoch: content.write_epoch,
        end: 4096,
        written_at: None,
        durable: true,
    };
    let early = commit(other.operation());
    assert_eq!(other.refusal(&early).await, ErrorKind::NotPermitted);
    let opened = open(&mut other, Caller::ROOT, tree.inside, OpenMode::Write);
    other.ask(&opened).await.unwrap();
    let request = commit(other.operation());
    assert_eq!(other.ask(&request).await.unwrap().attributes.size, 4096);
    cluster.stop().await;
}
