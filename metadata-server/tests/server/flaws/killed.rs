//! A server that is killed in the middle of its repairs, and goes on with them.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command as Process, Stdio},
    thread,
    time::Duration,
};

use millrace_metadata_server::{
    command::{Command, Create},
    engine::StoreKind,
    namespace::tree,
    store::{Batch, keys, records::Record as _},
};
use millrace_protocol::{metadata::NewNode, session::Caller};
use millrace_runtime::Random;
use millrace_types::{FileName, InodeId};
use tempfile::TempDir;

use super::{check, check_at, expect_none, plant};
use crate::engine::{ON_DISK, Server};

const STATE: &str = "MILLRACE_KILLED_STATE";
const ENGINE: &str = "MILLRACE_KILLED_STATE_ENGINE";

/// Files in the tree, each of which is damaged.
const FILES: u64 = 600;

fn file_name(number: u64) -> FileName {
    FileName::parse(format!("file-{number:04}").as_bytes()).unwrap()
}

/// Repairs slowly until it is killed, or to the end.
#[test]
#[ignore = "the process that `repairs_that_are_killed` kills"]
fn repairs_until_it_is_killed() {
    let state = env::var_os(STATE).expect("the test that starts this one says where");
    let kind = match env::var(ENGINE).unwrap().as_str() {
        "lsm" => StoreKind::Lsm,
        _ => StoreKind::Sled,
    };
    let server = Server::start(Path::new(&state), kind);
    fs::write(Path::new(&state).with_file_name("began"), b"").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(check_at(server.handle(), true, 32_000));
}

fn start(kind: StoreKind, state: &Path) -> Child {
    let mut child = Process::new(env::current_exe().unwrap());
    child.args(["--exact", "flaws::killed::repairs_until_it_is_killed", "--ignored"]);
    child.env(STATE, state).env(ENGINE, kind.name());
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A tree in which every file counts wrong, every third has lost its name, and every fifth has
/// something left over.
fn damaged(state: &Path, kind: StoreKind) {
    let mut server = Server::start(state, kind);
    server.turn(|core| {
        for number in 0..FILES {
            let create = Create {
                caller: Caller::ROOT,
                parent: InodeId::ROOT,
                name: file_name(number),
                node: NewNode::Fifo,
                mode: 0o644,
                inode: InodeId(1000 + number),
                seed: 0,
                open: None,
                exclusive: true,
            };
            core.execute(None, Command::Create(create)).unwrap();
        }
    });
    server.stop();
    let mut store = server.open_store();
    for number in 0..FILES {
        let id = InodeId(1000 + number);
        let mut batch = match number % 3 {
            0 => plant::without_entry(&*store, InodeId::ROOT, file_name(number).as_bytes()),
            _ => Batch::default(),
        };
        let mut inode = plant::inode(&*store, id);
        inode.links = 9;
        batch.put(keys::inode(id), inode.encode());
        if number % 5 == 0 {
            batch.put(keys::xattr(InodeId(9000 + number), b"user.x"), b"1".to_vec());
        }
        store.commit(&batch).unwrap();
    }
    store.checkpoint().unwrap();
    drop(store);
    // The store is believed at the next start, which the clean stop has said.
}

#[test]
fn repairs_that_are_killed_in_the_middle_go_on_where_they_are() {
    for kind in ON_DISK {
        let dir = TempDir::new().unwrap();
        let state = dir.path().join("metadata");
        damaged(&state, kind);
        let random = Random::seeded(9);
        let mut ended = 0;
        for _ in 0..6 {
            let mut child = start(kind, &state);
            while !dir.path().join("began").exists() {
                assert!(child.try_wait().unwrap().is_none(), "{kind:?}: it does not start");
                thread::yield_now();
            }
            fs::remove_file(dir.path().join("began")).unwrap();
            // When it is killed is the chance of this test.
            thread::sleep(Duration::from_millis(random.within(1..700)));
            ended += u32::from(child.try_wait().unwrap().is_some());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(ended < 6, "{kind:?}: it was killed in the middle");
        let server = Server::start(&state, kind);
        check(&server, true);
        expect_none(&check(&server, false), kind.name());
        server.turn(|core| {
            let resolve =
                |path: String| tree::resolve(core.view(), InodeId::ROOT, path.as_bytes()).unwrap();
            for number in 0..FILES {
                let id = 1000 + number;
                let inode = match number % 3 {
                    0 => resolve(format!("/lost+found/{id}")),
                    _ => resolve(format!("/file-{number:04}")),
                };
                assert_eq!((inode.id, inode.links), (InodeId(id), 1));
            }
            assert_eq!(resolve("/lost+found".to_owned()).size, FILES / 3);
        });
    }
}
