//! The server's memory stays within what its settings say, however many inodes there are.

use std::{
    env, fs,
    path::Path,
    process::{Command as Program, Stdio},
};

use millrace_metadata_server::{
    command::{Command, Create, RegisterHost},
    engine::{Core, Engine, EngineSettings, StoreKind},
    memory,
    namespace::tree,
};
use millrace_protocol::{metadata::NewNode, session::Caller};
use millrace_runtime::Random;
use millrace_types::{ByteLen, FileName, HostId, InodeId, MIB, TargetId};
use tempfile::TempDir;

use crate::{chance::stretched, engine::CLUSTER};

const PLACE: &str = "MILLRACE_MEMORY_PLACE";

/// The cache of the store in this test.
const CACHE: u64 = 8 * MIB;

/// What the settings promise for the default engine: two and a half times the cache, and this.
const BESIDE: u64 = 64 * MIB;

/// The store has more than the cache on the disk then, compressed.
const FILES: usize = 100_000;
const A_DIRECTORY: usize = 1000;
const LOOKUPS: usize = 50_000;

/// Fills a server, looks files up in no order, and says what the process had resident at most.
#[test]
#[ignore = "the process whose memory `memory_has_its_bound` measures"]
fn fills_and_looks_up() {
    // As the daemon does first.
    memory::in_small_pages().unwrap();
    let place = env::var_os(PLACE).expect("the test that starts this one says where");
    let place = Path::new(&place);
    let new = EngineSettings::new(place.join("metadata"), CLUSTER);
    let settings = EngineSettings { store: StoreKind::Lsm, cache_bytes: CACHE, ..new };
    let engine = Engine::start(settings).unwrap();
    let register = RegisterHost {
        host: HostId([1; 16]),
        name: "storage".to_owned(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
    };
    let turn = |work: Box<dyn FnOnce(&mut Core) + Send>| {
        engine.handle().blocking_turn(move |core| {
            work(core);
            Ok(())
        })
    };
    turn(Box::new(|core| {
        core.execute(None, Command::RegisterHost(register)).unwrap();
    }))
    .unwrap();
    let directories = stretched(FILES).div_ceil(A_DIRECTORY);
    for directory in 0..directories {
        turn(Box::new(move |core| {
            make(core, InodeId::ROOT, directory, NewNode::Directory);
            let parent = find(core, InodeId::ROOT, directory);
            (0..A_DIRECTORY).for_each(|file| make(core, parent, file, NewNode::Regular));
        }))
        .unwrap();
    }
    let random = Random::seeded(1);
    for _ in 0..LOOKUPS / A_DIRECTORY {
        let random = random.clone();
        turn(Box::new(move |core| {
            for _ in 0..A_DIRECTORY {
                let below = |count: usize| random.within(0..u64::try_from(count).unwrap());
                let (directory, file) = (below(directories), below(A_DIRECTORY));
                let parent = find(core, InodeId::ROOT, usize::try_from(directory).unwrap());
                find(core, parent, usize::try_from(file).unwrap());
            }
        }))
        .unwrap();
    }
    engine.stop().unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib = most.split_whitespace().next().unwrap();
    fs::write(place.join("most"), kib).unwrap();
}

#[test]
fn memory_has_its_bound_whatever_the_store_holds() {
    let dir = TempDir::new().unwrap();
    let mut child = Program::new(env::current_exe().unwrap());
    child.args(["--exact", "memory::fills_and_looks_up", "--ignored"]).env(PLACE, dir.path());
    let ended = child.stdout(Stdio::null()).status().unwrap();
    assert!(ended.success(), "{ended}");
    let most: u64 = fs::read_to_string(dir.path().join("most")).unwrap().parse().unwrap();
    let (most, bound) = (most * 1024, CACHE * 5 / 2 + BESIDE);
    assert!(most <= bound, "{} MiB resident, {} are promised", most / MIB, bound / MIB);
    let store = dir.path().join("metadata/store-lsm");
    let stored = bytes_in(&store);
    assert!(stored > CACHE, "{} MiB in the store, which fit in memory", stored / MIB);
}

fn make(core: &mut Core, parent: InodeId, number: usize, node: NewNode) {
    let create = Create {
        caller: Caller::ROOT,
        parent,
        name: name(number),
        node,
        mode: 0o755,
        inode: core.new_inode_id().unwrap(),
        seed: 0,
        open: None,
        exclusive: true,
    };
    core.execute(None, Command::Create(create)).unwrap();
}

fn find(core: &mut Core, parent: InodeId, number: usize) -> InodeId {
    let entry = tree::entry(core.view(), parent, &name(number)).unwrap().unwrap();
    tree::named(core.view(), &entry).unwrap().id
}

/// As what is named by its checksum, which no compression makes smaller.
fn name(number: usize) -> FileName {
    let scrambled = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    FileName::parse(format!("{scrambled:016x}-{:016x}.jpg", scrambled.rotate_left(29)).as_bytes())
        .unwrap()
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => bytes_in(&entry.path()),
        false => entry.metadata().unwrap().len(),
    });
    sizes.sum()
}
