//! A store whose process is killed, by itself: it holds what some of the first batches made, each
//! as a whole, and none of what was there before is lost at a checkpoint.

use std::{
    collections::BTreeMap,
    env, fs,
    ops::{Bound, RangeInclusive},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use millrace_metadata_server::{
    engine::StoreKind,
    store::{Batch, MetaStore, Stores as _, keys, lsm::LsmStores, sled::SledStores},
};
use millrace_runtime::Random;
use millrace_types::InodeId;
use tempfile::TempDir;

use crate::engine::ON_DISK;

const STORE: &str = "MILLRACE_KILLED_STORE";
const ENGINE: &str = "MILLRACE_KILLED_ENGINE";

fn open(kind: StoreKind, dir: &Path) -> Box<dyn MetaStore> {
    let (dir, cache_bytes) = (dir.to_owned(), 8 << 20);
    let opened = match kind {
        StoreKind::Lsm => LsmStores { dir, cache_bytes }.open(),
        _ => SledStores { dir, cache_bytes }.open(),
    };
    opened.unwrap()
}

/// What batch `number` does: the same in each process.
pub(crate) fn batch(number: u64) -> Batch {
    let random = Random::seeded(number);
    let mut batch = Batch::default();
    for _ in 0..1 + random.within(0..6) {
        let key = format!("key-{:05}", random.within(0..20_000)).into_bytes();
        if random.within(0..4) == 0 {
            batch.delete(key);
        } else {
            let len = usize::try_from(random.within(10..600)).unwrap();
            batch.put(key, [&number.to_be_bytes()[..], &vec![b'v'; len]].concat());
        }
    }
    // The bytes of a small file come with it, and those of an older one go.
    batch.put(keys::contents(InodeId(number)), vec![b'p'; 2000]);
    batch.delete(keys::contents(InodeId(number.saturating_sub(SMALL_FILES))));
    batch.put(b"applied".to_vec(), number.to_be_bytes().to_vec());
    batch
}

/// Small files that are there at a time.
const SMALL_FILES: u64 = 5;

/// The last batch that a store shows.
pub(crate) fn applied(store: &dyn MetaStore) -> u64 {
    let bytes = store.get(b"applied").unwrap();
    bytes.map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()))
}

/// What the first batches make.
#[derive(Default)]
pub(crate) struct Model(BTreeMap<Vec<u8>, Vec<u8>>);

impl Model {
    /// Adds what these make.
    pub(crate) fn apply(&mut self, numbers: RangeInclusive<u64>) {
        for number in numbers {
            for (key, value) in batch(number).iter() {
                match value {
                    Some(value) => self.0.insert(key.to_vec(), value.to_vec()),
                    None => self.0.remove(key),
                };
            }
        }
    }

    /// Whether a store shows this, and nothing else: the first batches up to `shown`.
    pub(crate) fn is_in(&self, kind: StoreKind, store: &dyn MetaStore, shown: u64) -> bool {
        let mut pairs = store.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX).unwrap();
        if kind == StoreKind::Sled {
            // They may be there before the batch that they belong to, and nobody knows of them.
            let later = keys::contents(InodeId(shown + 1));
            pairs.retain(|(key, _)| key[0] != keys::CONTENTS || *key < later);
        }
        pairs.iter().map(|(key, value)| (key, value)).eq(&self.0)
    }
}

/// Commits batches until it is killed, and says which checkpoint has ended.
#[test]
#[ignore = "the process that `a_store_whose_process_is_killed` kills"]
fn commits_until_it_is_killed() {
    let dir = env::var_os(STORE).expect("the test that starts this one says where");
    let kind = match env::var(ENGINE).unwrap().as_str() {
        "lsm" => StoreKind::Lsm,
        _ => StoreKind::Sled,
    };
    let dir = Path::new(&dir);
    let mut store = open(kind, &dir.join("store"));
    let first = applied(&*store) + 1;
    fs::write(dir.join("began"), b"").unwrap();
    for number in first.. {
        store.commit(&batch(number)).unwrap();
        if number % 997 == 0 {
            store.checkpoint().unwrap();
            fs::write(dir.join("checkpoint.new"), number.to_string()).unwrap();
            fs::rename(dir.join("checkpoint.new"), dir.join("checkpoint")).unwrap();
        }
    }
}

/// How often each store is killed at least. Where its process came to no checkpoint in any of these
/// times, it gets longer and longer ones: how much it does in one is the machine's matter.
const KILLS: u32 = 12;

fn start(kind: StoreKind, dir: &Path) -> Child {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "killed::commits_until_it_is_killed", "--ignored"]);
    child.env(STORE, dir).env(ENGINE, kind.name());
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_store_whose_process_is_killed_holds_the_first_of_its_batches_as_a_whole() {
    for kind in ON_DISK {
        let dir = TempDir::new().unwrap();
        let random = Random::seeded(5);
        let mut model = Model::default();
        let (mut at, mut most) = (0, 0);
        for round in 0_u32.. {
            let mut child = start(kind, dir.path());
            while !dir.path().join("began").exists() {
                assert!(child.try_wait().unwrap().is_none(), "{kind:?}: it does not open");
                thread::yield_now();
            }
            // When it is killed is the chance of this test.
            let latest = 700_u64 << (round / KILLS);
            thread::sleep(Duration::from_millis(random.within(1..latest)));
            child.kill().unwrap();
            child.wait().unwrap();
            fs::remove_file(dir.path().join("began")).unwrap();

            let store = open(kind, &dir.path().join("store"));
            let shown = applied(&*store);
            let promised = fs::read_to_string(dir.path().join("checkpoint"));
            let promised = promised.map_or(0, |text| text.parse::<u64>().unwrap());
            let what = format!("{kind:?}, round {round}: {shown}");
            assert!(shown >= promised && shown >= at, "{what}, promised {promised}, was {at}");
            model.apply(at + 1..=shown);
            assert!(model.is_in(kind, &*store, shown), "{what}");
            (most, at) = (most.max(shown - at), shown);
            if round + 1 >= KILLS && most > 997 {
                break;
            }
            assert!(round + 1 < 4 * KILLS, "{kind:?}: at most {most} batches in a run");
        }
    }
}

/// sled itself would take it for its own, and for damaged.
#[test]
fn what_a_killed_opening_of_sled_has_left_undone_is_no_damage() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("store");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("conf"), [0; 9]).unwrap();
    let mut store = open(StoreKind::Sled, &dir);
    store.commit(&batch(1)).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    fs::write(dir.join("snap.00000000000FFFFF.generating"), [0; 20]).unwrap();
    assert_eq!(applied(&*open(StoreKind::Sled, &dir)), 1);
}
