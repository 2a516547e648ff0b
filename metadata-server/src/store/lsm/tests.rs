use std::{collections::BTreeMap, fs};

use millrace_runtime::Random;

use super::{super::conformance, attempts::ATTEMPTS_MAX, background::SEALED_MAX, *};

/// The least cache, so that tables are written out and merged all the time.
const CACHE: u64 = 8 << 20;

fn number(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

#[test]
fn the_lsm_store_fulfils_the_contract() {
    let root = tempfile::tempdir().unwrap();
    let mut made = 0;
    conformance::check(|| {
        made += 1;
        let dir = root.path().join(made.to_string());
        Box::new(LsmStore::open(&dir, CACHE).unwrap())
    });
}

#[test]
fn a_checkpoint_is_there_after_opening_again() {
    let root = tempfile::tempdir().unwrap();
    let mut store = LsmStore::open(root.path(), CACHE).unwrap();
    let mut batch = Batch::default();
    batch.put(b"key".to_vec(), b"value".to_vec());
    store.commit(&batch).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let store = LsmStore::open(root.path(), CACHE).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// A few tables' worth of batches; the last one counts. Returns what the store shows.
fn fill(store: &mut LsmStore, random: &Random) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut model = BTreeMap::new();
    for round in 0..12_000_u64 {
        let mut batch = Batch::default();
        for _ in 0..4 {
            let key = number(random.within(0..20_000));
            if random.within(0..4) == 0 {
                model.remove(&key);
                batch.delete(key);
            } else {
                let value = [number(round), vec![b'v'; 200]].concat();
                model.insert(key.clone(), value.clone());
                batch.put(key, value);
            }
        }
        store.commit(&batch).unwrap();
        let files = &store.tree.files;
        assert!(files.sealed_memtable_count() <= SEALED_MAX);
        let active = files.active_memtable().size();
        assert!(active <= store.tree.limits.table + (16 << 10), "{active} bytes in memory");
    }
    model
}

fn shown(store: &LsmStore) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, StoreError> {
    let pairs = store.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX)?;
    Ok(pairs.into_iter().collect())
}

#[test]
fn what_is_in_memory_stays_within_its_bound_and_every_table_is_read_back() {
    let root = tempfile::tempdir().unwrap();
    let mut store = LsmStore::open(root.path(), CACHE).unwrap();
    let model = fill(&mut store, &Random::seeded(1));
    assert!(shown(&store).unwrap() == model);
    assert!(store.tree.files.table_count() > 0, "tables were written out");
    store.checkpoint().unwrap();
    drop(store);
    // With another cache: what it was made with is no matter.
    let mut store = LsmStore::open(root.path(), 8 * CACHE).unwrap();
    assert!(shown(&store).unwrap() == model);
    let model = fill(&mut store, &Random::seeded(2));
    let again = shown(&store).unwrap();
    assert!(model.iter().all(|(key, value)| again.get(key) == Some(value)));
}

#[test]
fn an_end_without_a_checkpoint_leaves_the_first_batches_as_a_whole() {
    let root = tempfile::tempdir().unwrap();
    let mut store = LsmStore::open(root.path(), CACHE).unwrap();
    for count in 1..4000_u64 {
        let mut batch = Batch::default();
        for key in 0..3 {
            batch.put(vec![key], number(count));
        }
        // Beside the others, as the bytes of a small file are.
        batch.put([&[4][..], &number(count)].concat(), vec![7; 5000]);
        store.commit(&batch).unwrap();
    }
    drop(store);
    let store = LsmStore::open(root.path(), CACHE).unwrap();
    let mut shown = shown(&store).unwrap();
    let last = shown.remove(&vec![0]).expect("some tables were written out");
    assert_eq!(
        (shown.remove(&vec![1]), shown.remove(&vec![2])),
        (Some(last.clone()), Some(last.clone()))
    );
    let last = u64::from_be_bytes(last.try_into().unwrap());
    assert!(last < 3999, "the rest was in memory");
    let expected = (1..=last).map(|count| ([&[4][..], &number(count)].concat(), vec![7; 5000]));
    assert!(shown.into_iter().eq(expected));
}

/// Whatever is damaged, it is an error or the state after some batch; never a panic.
#[test]
fn damage_is_an_error_or_an_older_state_and_never_a_panic() {
    let root = tempfile::tempdir().unwrap();
    let sound = root.path().join("sound");
    let mut store = LsmStore::open(&sound, CACHE).unwrap();
    let model = fill(&mut store, &Random::seeded(3));
    store.checkpoint().unwrap();
    drop(store);
    let (mut errors, mut older) = (0, 0);
    for seed in 0..40 {
        let dir = root.path().join(seed.to_string());
        let random = Random::seeded(seed);
        copy(&sound, &dir);
        damage(&dir, &random);
        match LsmStore::open(&dir, CACHE).and_then(|store| shown(&store)) {
            Ok(shown) if shown == model => {}
            Ok(shown) => {
                // Each value names the batch that wrote it: nothing is made up.
                assert!(shown.values().all(|value| value.len() == 208), "seed {seed}");
                older += 1;
            }
            Err(StoreError::Engine { engine: ENGINE, .. }) => errors += 1,
            Err(other) => panic!("seed {seed}: {other}"),
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    assert!(errors > 0, "{errors} errors, {older} older states");
}

/// Overwrites, cuts or removes one file.
fn damage(dir: &Path, random: &Random) {
    let files = files(dir);
    let at = usize::try_from(random.within(0..files.len() as u64)).unwrap();
    let path = &files[at];
    match random.within(0..4) {
        0 => fs::remove_file(path).unwrap(),
        1 => {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
        _ => {
            let mut bytes = fs::read(path).unwrap();
            for _ in 0..8 {
                if !bytes.is_empty() {
                    let len = bytes.len() as u64;
                    bytes[usize::try_from(random.within(0..len)).unwrap()] ^= 0x55;
                }
            }
            fs::write(path, bytes).unwrap();
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_store_whose_opening_ended_the_program_twice_is_not_opened_again() {
    let root = tempfile::tempdir().unwrap();
    drop(LsmStore::open(root.path(), CACHE).unwrap());
    drop(Attempts::begin(root.path()).unwrap());
    drop(LsmStore::open(root.path(), CACHE).unwrap());
    for _ in 0..ATTEMPTS_MAX {
        drop(Attempts::begin(root.path()).unwrap());
    }
    let refused = LsmStore::open(root.path(), CACHE).unwrap_err().to_string();
    assert!(refused.contains("each time"), "{refused}");
    let stores = LsmStores { dir: root.path().to_owned(), cache_bytes: CACHE };
    stores.create().unwrap();
}
