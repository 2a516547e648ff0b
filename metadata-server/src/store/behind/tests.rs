use std::sync::mpsc;

use millrace_runtime::Random;

use super::{
    super::{conformance, memory::MemoryStore},
    *,
};

/// A store in memory whose clones are one, whose commits wait for a gate, and which fails on one
/// key.
#[derive(Clone, Default)]
struct Gated(Arc<Inner>);

#[derive(Default)]
struct Inner {
    store: Mutex<MemoryStore>,
    committed: Mutex<Vec<Batch>>,
    checkpoints: Mutex<usize>,
    is_shut: Mutex<bool>,
    opened: Condvar,
}

const FAILS: &[u8] = b"fails";

impl Gated {
    fn shut(&self, is_shut: bool) {
        *self.0.is_shut.lock().unwrap() = is_shut;
        self.0.opened.notify_all();
    }

    /// Lets commits through when this is dropped, also by a test that fails: the end of a store
    /// waits for them.
    fn opens_at_the_end(&self) -> impl Drop {
        struct Opens(Gated);
        impl Drop for Opens {
            fn drop(&mut self) {
                self.0.shut(false);
            }
        }
        Opens(self.clone())
    }

    fn committed(&self) -> Vec<Batch> {
        self.0.committed.lock().unwrap().clone()
    }
}

impl View for Gated {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.store.lock().unwrap().get(key)
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.0.store.lock().unwrap().scan(from, to, limit)
    }
}

impl MetaStore for Gated {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let is_shut = self.0.is_shut.lock().unwrap();
        drop(self.0.opened.wait_while(is_shut, |is_shut| *is_shut).unwrap());
        if batch.get(FAILS).is_some() {
            return Err(StoreError::Inconsistent("it was asked to".to_owned()));
        }
        self.0.committed.lock().unwrap().push(batch.clone());
        self.0.store.lock().unwrap().commit(batch)
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        *self.0.checkpoints.lock().unwrap() += 1;
        Ok(())
    }
}

/// Nobody is waited for.
const AT_ONCE: Pace =
    Pace { delay: Duration::ZERO, group_bytes: 200, hurry_bytes: 0, behind_bytes: 4 << 20 };

/// A batch is written when somebody waits for it.
const NEVER: Pace = Pace {
    delay: Duration::from_secs(3600),
    group_bytes: 200,
    hurry_bytes: usize::MAX,
    behind_bytes: usize::MAX,
};

fn put(key: &[u8], value: &[u8]) -> Batch {
    let mut batch = Batch::default();
    batch.put(key.to_vec(), value.to_vec());
    batch
}

fn behind(pace: Pace) -> (Gated, Behind<Gated>) {
    let store = Gated::default();
    (store.clone(), Behind::new(store, pace).unwrap())
}

#[test]
fn a_store_behind_fulfils_the_contract_written_or_not() {
    for pace in [AT_ONCE, NEVER, Pace::default()] {
        conformance::check(|| Box::new(behind(pace).1));
    }
}

#[test]
fn what_is_not_written_yet_is_read_over_what_is() {
    for seed in 0..30 {
        let random = Random::seeded(seed);
        let (gate, mut store) = behind(AT_ONCE);
        let _opens = gate.opens_at_the_end();
        let mut model = MemoryStore::default();
        for _ in 0..100 {
            let mut batch = Batch::default();
            for _ in 0..random.within(1..6) {
                let key = vec![u8::try_from(random.within(0..40)).unwrap()];
                match random.within(0..3) {
                    0 => batch.delete(key),
                    _ => batch.put(key, random.number().to_le_bytes().to_vec()),
                }
            }
            gate.shut(random.within(0..2) == 0);
            model.commit(&batch).unwrap();
            store.commit(&batch).unwrap();
            let key = |end| [u8::try_from(random.within(0..end)).unwrap()];
            let (from, to) = (key(40), key(45));
            let limits = [1, 2, 7, 20, usize::MAX];
            let limit = limits[usize::try_from(random.within(0..5)).unwrap()];
            for bounds in [
                (Bound::Unbounded, Bound::Unbounded),
                (Bound::Included(&from[..]), Bound::Unbounded),
                (Bound::Excluded(&from[..]), Bound::Excluded(&to[..])),
                (Bound::Included(&from[..]), Bound::Included(&to[..])),
            ] {
                let want = model.scan(bounds.0, bounds.1, limit).unwrap();
                let got = store.scan(bounds.0, bounds.1, limit).unwrap();
                assert_eq!(got, want, "seed {seed}, {bounds:?}, {limit}");
            }
            assert_eq!(store.get(&from).unwrap(), model.get(&from).unwrap());
        }
        gate.shut(false);
        store.checkpoint().unwrap();
        assert!(store.recent.by_key.is_empty() && store.recent.batches.is_empty());
        let all = gate.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX).unwrap();
        assert_eq!(all, model.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX).unwrap());
    }
}

#[test]
fn groups_are_whole_batches_in_their_order_and_say_once_what_they_say_often() {
    let (gate, mut store) = behind(NEVER);
    let mut batches = Vec::new();
    for number in 0..40_u64 {
        let mut batch = put(b"applied", &number.to_le_bytes());
        batch.put(format!("inode {number}").into_bytes(), vec![0; 20]);
        if number == 20 {
            batch.put(b"large".to_vec(), vec![0; 1000]);
        }
        store.commit(&batch).unwrap();
        batches.push(batch);
    }
    assert!(gate.committed().is_empty(), "nobody waits for it");
    store.checkpoint().unwrap();
    let groups = gate.committed();
    let mut whole = batches.iter();
    for group in &groups {
        let mut made = Batch::default();
        while made != *group {
            made.extend(whole.next().expect("a group is some of the batches that come next"));
        }
        let is_large = group.get(b"large").is_some();
        assert!(group.bytes() <= NEVER.group_bytes || is_large, "{}", group.bytes());
    }
    assert_eq!(whole.next(), None);
    assert!((5..20).contains(&groups.len()), "{}", groups.len());
    assert_eq!(*gate.0.checkpoints.lock().unwrap(), 1);
}

#[test]
fn who_is_far_ahead_waits() {
    let (gate, mut store) = behind(Pace { behind_bytes: 100, ..AT_ONCE });
    gate.shut(true);
    store.commit(&put(b"a", &[0; 80])).unwrap();
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        store.commit(&put(b"b", &[0; 80])).unwrap();
        tell.send(()).unwrap();
        store
    });
    let waits = told.recv_timeout(Duration::from_millis(100));
    assert_eq!(waits, Err(mpsc::RecvTimeoutError::Timeout));
    gate.shut(false);
    told.recv().unwrap();
    let store = thread.join().unwrap();
    assert!(store.writer.shared.lock().behind_bytes <= 100);
}

#[test]
fn a_store_that_fails_is_told_of_once_with_its_reason_and_never_changed_again() {
    let (gate, mut store) = behind(NEVER);
    store.commit(&put(b"before", b"1")).unwrap();
    store.checkpoint().unwrap();
    store.commit(&put(FAILS, b"1")).unwrap();
    let error = store.checkpoint().unwrap_err();
    assert!(error.to_string().contains("it was asked to"), "{error}");
    let error = store.commit(&put(b"after", b"1")).unwrap_err();
    assert!(error.to_string().contains(ENDED), "{error}");
    assert!(store.checkpoint().is_err());
    assert_eq!(gate.committed().len(), 1);
    assert_eq!(store.get(b"before").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_writer_that_panics_is_no_wait_without_an_end() {
    #[derive(Clone)]
    struct Panics;
    impl View for Panics {
        fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            Ok(None)
        }
        fn scan(
            &self,
            _: Bound<&[u8]>,
            _: Bound<&[u8]>,
            _: usize,
        ) -> Result<Vec<Pair>, StoreError> {
            Ok(Vec::new())
        }
    }
    impl MetaStore for Panics {
        fn commit(&mut self, _: &Batch) -> Result<(), StoreError> {
            panic!("as an engine may")
        }
        fn checkpoint(&mut self) -> Result<(), StoreError> {
            Ok(())
        }
    }
    let mut store = Behind::new(Panics, NEVER).unwrap();
    store.commit(&put(b"key", b"1")).unwrap();
    assert!(store.checkpoint().is_err());
}

#[test]
fn what_is_committed_is_written_before_the_store_is_let_go() {
    let (gate, mut store) = behind(NEVER);
    store.commit(&put(b"key", b"1")).unwrap();
    drop(store);
    assert_eq!(gate.get(b"key").unwrap().as_deref(), Some(&b"1"[..]));
}
