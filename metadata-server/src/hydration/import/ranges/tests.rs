//! Each name is found once, whatever names there are and in whatever order pages come.

use std::collections::BTreeMap;

use millrace_object_source::{LeftOutReason, ObjectVersion, Tag};
use millrace_types::{FileName, Timestamp};
use proptest::prelude::*;

use super::*;

/// A bucket's directory, by key below its prefix; names that end in a slash are directories, and no
/// name is its own mark.
struct Directory {
    keys: Vec<String>,
    page_len: usize,
    requests: usize,
    /// Pages begin at the first key, whatever name they are to begin behind.
    ignores_names: bool,
    /// Directories come, and lie behind what one begins behind, as names and not as keys.
    goes_by_names: bool,
}

impl Directory {
    fn new(keys: impl IntoIterator<Item = String>, page_len: usize) -> Self {
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort();
        keys.dedup();
        Self { keys, page_len, requests: 0, ignores_names: false, goes_by_names: false }
    }

    /// As SeaweedFS: a name is a file or a directory.
    fn by_names(keys: impl IntoIterator<Item = String>, page_len: usize) -> Self {
        let mut directory = Self::new(keys, page_len);
        directory.keys.sort_by_key(|key| key.trim_end_matches('/').to_owned());
        directory.keys.dedup_by_key(|key| key.trim_end_matches('/').to_owned());
        Self { goes_by_names: true, ..directory }
    }

    /// A page, and where the next begins: cursors are positions, as names that no key has.
    fn page(&mut self, after: Option<&Continuation>) -> Page {
        self.requests += 1;
        let from = match after.map(place) {
            None => 0,
            Some((true, cursor)) => cursor.parse().unwrap(),
            Some((false, _)) if self.ignores_names => 0,
            Some((false, name)) if self.goes_by_names => {
                self.keys.partition_point(|key| key.trim_end_matches('/') <= name.as_str())
            }
            Some((false, name)) => self.keys.partition_point(|key| *key <= name),
        };
        let to = self.keys.len().min(from + self.page_len);
        let mut page = Page::default();
        for key in &self.keys[from..to] {
            let name = key.trim_end_matches('/');
            match FileName::parse(name.as_bytes()) {
                Ok(name) if key.ends_with('/') => {
                    page.entries.push(Entry { name, kind: EntryKind::Directory });
                }
                Ok(name) => page.entries.push(Entry { name, kind: object() }),
                Err(_) => {
                    let key = key.clone();
                    page.left_out.push(LeftOut { key, reason: LeftOutReason::DotPart });
                    page.skipped += 1;
                }
            }
        }
        page.next = (to < self.keys.len()).then(|| Continuation::cursor(&to.to_string()));
        page
    }
}

fn object() -> EntryKind {
    let tag = Tag::new("\"t\"").unwrap();
    EntryKind::Object(ObjectVersion { tag, size: 1, modified: Timestamp(0) })
}

fn place(continuation: &Continuation) -> (bool, String) {
    match continuation.cursor_text() {
        Some(cursor) => (true, cursor.to_owned()),
        None => (false, continuation.name_text().unwrap().to_owned()),
    }
}

/// Lists everything, with answers in an order that `choose` draws. Counts how often each key came,
/// and the most requests that were on their way together.
fn list(
    directory: &mut Directory,
    mut choose: impl FnMut(usize) -> usize,
) -> (BTreeMap<String, usize>, usize) {
    let mut ranges = Ranges::new(true);
    let (mut waiting, mut most) = (Vec::new(), 0);
    let mut found = BTreeMap::new();
    loop {
        while let Some(ask) = ranges.next() {
            waiting.push(ask);
        }
        most = most.max(waiting.len());
        if waiting.is_empty() {
            assert!(ranges.is_done());
            return (found, most);
        }
        let ask = waiting.swap_remove(choose(waiting.len()));
        let mut page = directory.page(ask.after.as_ref());
        if ranges.handle(ask.range, "", &mut page).unwrap() == Handed::BeginsAgain {
            found.clear();
            continue;
        }
        assert_eq!(page.skipped, page.left_out.len() as u64);
        for entry in &page.entries {
            *found.entry(String::from_utf8(key_of(entry)).unwrap()).or_default() += 1;
        }
        for out in page.left_out {
            *found.entry(out.key).or_default() += 1;
        }
    }
}

fn once(directory: &Directory) -> BTreeMap<String, usize> {
    directory.keys.iter().map(|key| (key.clone(), 1)).collect()
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{1,4}/?",
        "img-[0-9]{1,8}\\.jpg",
        "[\u{e0}-\u{ff}a~]{1,3}",
        "[0-9a-f]{1,12}",
        Just("..".to_owned()),
        Just(String::new()),
        Just("a-b".to_owned()),
        "[a-c]{1,2}-[0-9]{1,3}/?",
    ]
}

proptest! {
    #[test]
    fn each_key_is_found_once_whatever_keys_there_are(
        keys in prop::collection::vec(key(), 0..400),
        page_len in 1_usize..20,
        order in prop::collection::vec(any::<u16>(), 1..50),
    ) {
        let mut directory = Directory::new(keys, page_len);
        let mut turn = 0;
        let (found, most) = list(&mut directory, |len| {
            turn += 1;
            usize::from(order[turn % order.len()]) % len
        });
        prop_assert_eq!(found, once(&directory));
        prop_assert!(most <= RANGES_MAX);
    }

    #[test]
    fn each_key_is_found_once_by_a_server_that_goes_by_names(
        keys in prop::collection::vec(key(), 0..400),
        page_len in 1_usize..20,
        order in prop::collection::vec(any::<u16>(), 1..50),
    ) {
        let mut directory = Directory::by_names(keys, page_len);
        let mut turn = 0;
        let (found, _) = list(&mut directory, |len| {
            turn += 1;
            usize::from(order[turn % order.len()]) % len
        });
        prop_assert_eq!(found, once(&directory));
    }
}

#[test]
fn directories_with_the_names_of_cuts_are_found() {
    for by_names in [false, true] {
        let keys = (0..20_000).map(|at| format!("{at}/"));
        let mut directory = match by_names {
            false => Directory::new(keys, 1000),
            true => Directory::by_names(keys, 1000),
        };
        let (found, most) = list(&mut directory, |_| 0);
        assert_eq!(found, once(&directory));
        assert!(most > 1, "it was cut");
    }
}

#[test]
fn a_directory_of_many_names_is_listed_in_parallel_and_cuts_cost_few_requests() {
    let numbered = (0..100_000).map(|nth| format!("sample-{nth:010}.jpg"));
    let hashed =
        (0..100_000_u64).map(|nth| format!("{:016x}", nth.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    for keys in [numbered.collect::<Vec<_>>(), hashed.collect()] {
        let mut directory = Directory::new(keys, 1000);
        // The one that waits longest is answered first, as by a bucket.
        let (mut rounds, mut waits) = (0, 0);
        let (found, most) = list(&mut directory, |len| {
            if waits == 0 {
                (rounds, waits) = (rounds + 1, len);
            }
            waits -= 1;
            0
        });
        assert_eq!(found, once(&directory));
        assert!(most >= RANGES_MAX - 2, "{most} at a time");
        assert!(directory.requests < 200, "{} for 100 pages", directory.requests);
        assert!(rounds < 75, "{rounds} one after the other");
    }
}

#[test]
fn a_directory_whose_mark_has_bytes_is_cut_as_others_are() {
    let requests = |mark: Option<&str>| {
        let names = (0..100_000).map(|nth| format!("sample-{nth:010}.jpg"));
        let mut directory = Directory::new(names.chain(mark.map(str::to_owned)), 1000);
        let (found, most) = list(&mut directory, |_| 0);
        assert_eq!(found, once(&directory));
        (directory.requests, most)
    };
    let (without, most) = requests(None);
    let (with, most_with) = requests(Some(""));
    assert_eq!(most_with, most);
    assert!(with <= without + 2, "{with} requests, and {without} without a mark");
}

#[test]
fn a_small_directory_costs_no_more_than_its_pages() {
    let mut directory = Directory::new((0..1500).map(|nth| format!("{nth:06}")), 1000);
    list(&mut directory, |_| 0);
    assert_eq!(directory.requests, 2);
}

#[test]
fn a_bucket_that_takes_no_names_to_begin_behind_is_listed_from_its_beginning() {
    let mut directory = Directory::new((0..20_000).map(|nth| format!("{nth:06}")), 1000);
    directory.ignores_names = true;
    let (found, _) = list(&mut directory, |_| 0);
    assert!(directory.keys.iter().all(|key| found.contains_key(key)), "nothing is missing");
}

#[test]
fn pages_that_go_in_a_ring_are_an_error() {
    let entry = Entry { name: FileName::parse(b"a").unwrap(), kind: object() };
    for entries in [vec![entry], Vec::new()] {
        let mut ranges = Ranges::new(true);
        let next = || Some(Continuation::cursor("again"));
        let page = || Page { entries: entries.clone(), next: next(), ..Page::default() };
        let mut handed = 0;
        let ended = loop {
            let ask = ranges.next().unwrap();
            handed += 1;
            if let Err(error) = ranges.handle(ask.range, "", &mut page()) {
                break error;
            }
            assert!(handed < 10);
        };
        assert_eq!(ended, NoEnd);
    }
}
