//! The one suite that every store engine passes.
//!
//! Public, so that an engine in another crate can be held to the same contract.

use std::{collections::BTreeMap, ops::Bound};

use super::{Batch, MetaStore, borrow, keys, memory::is_empty_range, prefix_end};

/// Checks the contract of [`MetaStore`] on fresh stores from `open`.
///
/// # Panics
/// When the engine breaks the contract.
pub fn check(mut open: impl FnMut() -> Box<dyn MetaStore>) {
    gets_what_was_put(&mut *open());
    the_last_change_of_a_key_counts(&mut *open());
    scans_in_byte_order_within_bounds(&mut *open());
    scans_a_prefix_and_nothing_else(&mut *open());
    behaves_like_an_ordered_map(&mut *open());
    keeps_large_values(&mut *open());
    open().checkpoint().expect("an empty store checkpoints");
}

fn gets_what_was_put(store: &mut dyn MetaStore) {
    assert_eq!(get(store, b"a"), None);
    put(store, &[(b"a", Some(b"1")), (b"b", Some(b""))]);
    assert_eq!(get(store, b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(get(store, b"b").as_deref(), Some(&b""[..]));
    put(store, &[(b"a", None), (b"c", None)]);
    assert_eq!(get(store, b"a"), None);
}

fn the_last_change_of_a_key_counts(store: &mut dyn MetaStore) {
    let mut batch = Batch::default();
    batch.put(b"x".to_vec(), b"1".to_vec());
    batch.delete(b"x".to_vec());
    batch.delete(b"y".to_vec());
    batch.put(b"y".to_vec(), b"2".to_vec());
    store.commit(&batch).expect("commit");
    assert_eq!(get(store, b"x"), None);
    assert_eq!(get(store, b"y").as_deref(), Some(&b"2"[..]));
}

fn scans_in_byte_order_within_bounds(store: &mut dyn MetaStore) {
    for key in [&b"\x00"[..], b"\x00\x00", b"a", b"a\xff", b"b", b"\xff"] {
        put(store, &[(key, Some(b"v"))]);
    }
    let keys = |from, to, limit| -> Vec<Vec<u8>> {
        let pairs = store.scan(from, to, limit).expect("scan");
        pairs.into_iter().map(|(key, _)| key).collect()
    };
    let all = keys(Bound::Unbounded, Bound::Unbounded, 100);
    assert!(all.is_sorted() && all.len() == 6);
    assert_eq!(
        keys(Bound::Excluded(b"\x00"), Bound::Excluded(b"b"), usize::MAX),
        [&b"\x00\x00"[..], b"a", b"a\xff"]
    );
    assert_eq!(keys(Bound::Included(b"a"), Bound::Included(b"b"), 2), [&b"a"[..], b"a\xff"]);
    assert!(keys(Bound::Included(b"b"), Bound::Included(b"a"), 9).is_empty());
    assert!(keys(Bound::Excluded(b"a"), Bound::Excluded(b"a"), 9).is_empty());
    assert!(keys(Bound::Unbounded, Bound::Unbounded, 0).is_empty());
}

fn scans_a_prefix_and_nothing_else(store: &mut dyn MetaStore) {
    for key in [&b"k\xfe\xff"[..], b"k\xff", b"k\xff\xff", b"l", b"k"] {
        put(store, &[(key, Some(b"v"))]);
    }
    let end = prefix_end(b"k\xff");
    let pairs = store.scan(Bound::Included(b"k\xff"), borrow(&end), 100).expect("scan");
    let keys: Vec<_> = pairs.iter().map(|(key, _)| key.as_slice()).collect();
    assert_eq!(keys, [&b"k\xff"[..], b"k\xff\xff"]);
}

/// Random batches against a map, in the table that an engine may keep apart and those beside it;
/// the generator is a fixed one, so that every run is the same.
fn behaves_like_an_ordered_map(store: &mut dyn MetaStore) {
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let mut batch = Batch::default();
        for _ in 0..random(12) {
            let key = key(random(60));
            if random(3) == 0 {
                model.remove(&key);
                batch.delete(key);
            } else {
                let value = random(u64::MAX).to_be_bytes().to_vec();
                model.insert(key.clone(), value.clone());
                batch.put(key, value);
            }
        }
        store.commit(&batch).expect("commit");
        let (from, to) = (key(random(60)), key(random(60)));
        let bounds = match random(4) {
            0 => (Bound::Unbounded, Bound::Included(to.as_slice())),
            1 => (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice())),
            2 => (Bound::Excluded(from.as_slice()), Bound::Included(to.as_slice())),
            _ => (Bound::Excluded(from.as_slice()), Bound::Unbounded),
        };
        let limit = usize::try_from(random(30)).expect("small");
        let pairs = store.scan(bounds.0, bounds.1, limit).expect("scan");
        let expected: Vec<_> = match is_empty_range(bounds.0, bounds.1) {
            true => Vec::new(),
            false => model.range::<[u8], _>(bounds).take(limit).collect(),
        };
        assert!(pairs.iter().map(|(key, value)| (key, value)).eq(expected), "{bounds:?} {limit}");
        assert_eq!(get(store, &from).as_ref(), model.get(&from));
    }
    let pairs = store.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX).expect("scan");
    assert_eq!(pairs, model.into_iter().collect::<Vec<_>>());
}

/// One of sixty.
fn key(number: u64) -> Vec<u8> {
    let (table, number) = (number % 3, number / 3);
    let table = keys::CONTENTS - 1 + u8::try_from(table).expect("small");
    // The empty beginning of a table, too.
    let number = u8::try_from(number).expect("small");
    if number == 0 { vec![table] } else { vec![table, number] }
}

fn keeps_large_values(store: &mut dyn MetaStore) {
    // An inode with all its extended attributes and inline data stays below this.
    let large = vec![7_u8; 256 << 10];
    put(store, &[(b"large", Some(&large))]);
    assert_eq!(get(store, b"large"), Some(large));
}

fn get(store: &dyn MetaStore, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).expect("get")
}

fn put(store: &mut dyn MetaStore, changes: &[(&[u8], Option<&[u8]>)]) {
    let mut batch = Batch::default();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(key.to_vec(), value.to_vec()),
            None => batch.delete(key.to_vec()),
        }
    }
    store.commit(&batch).expect("commit");
}
