use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::mpsc,
};

use millrace_types::InodeId;

use super::{super::conformance, *};

#[test]
fn the_sled_store_fulfils_the_contract() {
    let root = tempfile::tempdir().unwrap();
    let mut made = 0;
    conformance::check(|| {
        made += 1;
        let dir = root.path().join(made.to_string());
        Box::new(SledStore::open(&dir, 1 << 20).unwrap())
    });
}

#[test]
fn a_store_that_is_held_for_moments_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
    let mut batch = Batch::default();
    batch.put(b"key".to_vec(), b"value".to_vec());
    store.commit(&batch).unwrap();
    let holder = thread::spawn(move || {
        thread::sleep(AGAIN * 5);
        drop(store);
    });
    let store = SledStore::open(root.path(), 1 << 20).unwrap();
    assert_eq!(store.get(b"key").unwrap(), Some(b"value".to_vec()));
    holder.join().unwrap();
}

#[test]
fn a_checkpoint_is_there_after_opening_again() {
    let root = tempfile::tempdir().unwrap();
    let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
    let mut batch = Batch::default();
    batch.put(b"key".to_vec(), b"value".to_vec());
    store.commit(&batch).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let store = SledStore::open(root.path(), 1 << 20).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_batch_of_an_older_program_is_completed_once() {
    let root = tempfile::tempdir().unwrap();
    let mut batch = Batch::default();
    batch.put(b"key".to_vec(), b"older".to_vec());
    let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
    let copy = copy::encode(batch.iter()).unwrap();
    store.copies(0).unwrap().insert(COPY_OLD, copy).unwrap();
    drop(store);
    store = SledStore::open(root.path(), 1 << 20).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"older"[..]));
    batch.put(b"key".to_vec(), b"newer".to_vec());
    store.commit(&batch).unwrap();
    drop(store);
    let store = SledStore::open(root.path(), 1 << 20).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"newer"[..]));
}

#[test]
fn a_batch_in_many_pieces_is_completed_and_one_that_has_only_begun_is_not() {
    let root = tempfile::tempdir().unwrap();
    let large = |byte| {
        let mut batch = Batch::default();
        for key in 0..4_u8 {
            batch.put(vec![key], vec![byte; PIECE_BYTES]);
        }
        batch
    };
    let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
    store.commit(&large(1)).unwrap();
    // Killed after the copy of the first, among the changes.
    store.set(&[3], Some(b"as before")).unwrap();
    drop(store);
    let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
    assert_eq!(store.get(&[3]).unwrap(), Some(vec![1; PIECE_BYTES]));
    // Killed before the first piece of the next.
    store.commit(&large(2)).unwrap();
    let first = store.copies(0).unwrap().get(PIECE).unwrap().unwrap();
    store.commit(&large(3)).unwrap();
    (0..4).for_each(|key| store.set(&[key], Some(&vec![2; PIECE_BYTES])).unwrap());
    store.copies(0).unwrap().insert(PIECE, first).unwrap();
    drop(store);
    let store = SledStore::open(root.path(), 1 << 20).unwrap();
    assert_eq!(store.get(&[3]).unwrap(), Some(vec![2; PIECE_BYTES]));
}

#[test]
fn the_bytes_of_small_files_are_in_no_copy_of_a_batch() {
    let root = tempfile::tempdir().unwrap();
    let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
    let (one, other) = (keys::contents(InodeId(1)), keys::contents(InodeId(2)));
    let mut batch = Batch::default();
    batch.put(one.clone(), vec![7; 16 << 10]);
    batch.put(b"key".to_vec(), b"value".to_vec());
    batch.delete(other.clone());
    store.commit(&batch).unwrap();
    let (_, copy) = store.piece(0).unwrap().unwrap();
    let changes: Vec<_> = copy::decode(&copy).map(Option::unwrap).collect();
    assert_eq!(changes, [(&b"key"[..], Some(&b"value"[..])), (&other, None)]);
    assert_eq!(store.get(&one).unwrap(), Some(vec![7; 16 << 10]));
    assert_eq!(store.handles().db.get(&one).unwrap(), None, "they are in their own tree");
}

#[test]
fn bytes_that_an_older_program_put_among_the_rest_are_found() {
    let root = tempfile::tempdir().unwrap();
    let store = SledStore::open(root.path(), 1 << 20).unwrap();
    let key = keys::contents(InodeId(1));
    store.handles().db.insert(&key, b"bytes").unwrap();
    drop(store);
    let store = SledStore::open(root.path(), 1 << 20).unwrap();
    assert_eq!(store.get(&key).unwrap().as_deref(), Some(&b"bytes"[..]));
    let pairs = store.scan(Bound::Unbounded, Bound::Unbounded, 9).unwrap();
    assert_eq!(pairs, [(key, b"bytes".to_vec())]);
}

#[test]
fn a_store_that_failed_is_let_go_of_at_once() {
    let root = tempfile::tempdir().unwrap();
    let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
    fs::remove_dir_all(root.path().join("blobs")).unwrap();
    let mut batch = Batch::default();
    batch.put(b"large".to_vec(), vec![7; 256 << 10]);
    store.commit(&batch).unwrap_err();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        drop(store);
        tell.send(()).unwrap();
    });
    told.recv_timeout(HELD).expect("it waits without an end");
}

#[test]
fn a_batch_is_whole_after_the_process_was_killed() {
    for round in 0..10 {
        let root = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "store::sled::tests::commits_until_it_is_killed"])
            .arg("--nocapture")
            .env(DIRECTORY, root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let committed = lines.map_while(Result::ok).filter(|line| line == COMMITTED);
        let seen = committed.take(20 + 7 * round).count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen, 20 + 7 * round, "it commits until it is killed");
        let store = SledStore::open(root.path(), 1 << 20).unwrap();
        let values: Vec<_> = (0..KEYS).map(|key| store.get(&[key]).unwrap()).collect();
        assert!(values.iter().all(|value| *value == values[0]), "round {round}: {values:?}");
        // Of the batches that are there the small files are there too.
        let last = values[0].as_ref().and_then(|value| value.first_chunk()).unwrap();
        let last = u64::from_le_bytes(*last);
        for number in last.saturating_sub(KEPT - 1)..=last {
            let found = store.get(&keys::contents(InodeId(number))).unwrap();
            assert_eq!(found, Some(vec![3; 5000]), "round {round}: {number} of {last}");
        }
        let old = keys::contents(InodeId(last.saturating_sub(KEPT)));
        assert!(last < KEPT || store.get(&old).unwrap().is_none(), "round {round}: {last}");
    }
}

/// Each batch gives one value to all keys; now and then one is large.
#[test]
#[ignore = "run by the test that kills it"]
#[expect(clippy::print_stdout, reason = "the test that kills it counts the lines")]
fn commits_until_it_is_killed() {
    let Some(root) = std::env::var_os(DIRECTORY) else { return };
    let mut store = SledStore::open(Path::new(&root), 1 << 20).unwrap();
    for number in 0_u64.. {
        let mut batch = Batch::default();
        // In one piece, in several, and in longer ones.
        let len = match number % 10 {
            6 => PIECE_BYTES / 10,
            9 => PIECE_BYTES * 2,
            _ => 100,
        };
        let value = [number.to_le_bytes().to_vec(), vec![7; len]].concat();
        (0..KEYS).for_each(|key| batch.put(vec![key], value.clone()));
        batch.put(keys::contents(InodeId(number)), vec![3; 5000]);
        if let Some(old) = number.checked_sub(KEPT) {
            batch.delete(keys::contents(InodeId(old)));
        }
        store.commit(&batch).unwrap();
        if number % 10 == 3 {
            // As the flusher does all the time.
            store.handles().db.flush().unwrap();
        }
        println!("{COMMITTED}");
    }
}

const KEYS: u8 = 24;
/// Small files that are there at a time.
const KEPT: u64 = 5;
const COMMITTED: &str = "committed";
const DIRECTORY: &str = "MILLRACE_TEST_SLED_DIRECTORY";
