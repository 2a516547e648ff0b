//! The comparison in a world that goes on while it is compared: whatever happens between the lists
//! and the looks, nothing that a file has is named, and nothing that is wrong stays unnamed.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::cluster::{Group, Host, Pool, Target};
use millrace_runtime::Random;
use millrace_types::{ChunkSize, GroupEpoch, HostId, MapEpoch, PoolId};

use super::*;

const TARGETS: u8 = 3;
const GROUPS: u32 = 12;
const CHUNK: u64 = 64 << 10;

fn target(number: u8) -> TargetId {
    TargetId([number; 8])
}

fn map() -> Map {
    let group = |number: u32| Group {
        epoch: GroupEpoch(1),
        targets: vec![target(u8::try_from(number % u32::from(TARGETS)).unwrap())],
    };
    Map {
        epoch: MapEpoch(1),
        hosts: vec![Host { id: HostId([1; 16]), name: String::new(), addresses: Vec::new() }],
        targets: (0..TARGETS).map(|n| Target { id: target(n), host: HostId([1; 16]) }).collect(),
        pools: vec![Pool {
            id: PoolId(0),
            name: "default".to_owned(),
            groups: (0..GROUPS).map(group).collect(),
        }],
    }
}

/// A chunk on a target.
type Place = (TargetId, InodeId, ContentGeneration, ChunkIndex);

/// Namespace, targets, and what is on its way between them.
struct World {
    random: Random,
    map: Map,
    time: i64,
    next: u64,
    files: BTreeMap<InodeId, FileContent>,
    /// Files that only the bucket has filled: their chunks may go at any time.
    clean: BTreeSet<InodeId>,
    held: BTreeSet<Place>,
    /// Chunks that a target lost although their file needs them.
    lost: BTreeSet<Place>,
    /// Contents that wait to be freed.
    queue: Vec<(TargetId, InodeId, ContentGeneration)>,
    /// Ends that were written and not committed: of which content, under which epoch.
    uncommitted: Vec<(InodeId, ContentGeneration, WriteEpoch, u64)>,
    /// Shrinks that the targets have not heard of.
    trims: BTreeMap<InodeId, u64>,
    /// Contents that there were, for clients that come late.
    former: Vec<(InodeId, FileContent)>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::seeded(seed),
            map: map(),
            time: 1,
            next: 2,
            files: BTreeMap::new(),
            clean: BTreeSet::new(),
            held: BTreeSet::new(),
            lost: BTreeSet::new(),
            queue: Vec::new(),
            uncommitted: Vec::new(),
            trims: BTreeMap::new(),
            former: Vec::new(),
        }
    }

    fn now(&mut self) -> Timestamp {
        self.time += 1;
        Timestamp(self.time)
    }

    fn within(&self, end: u64) -> u64 {
        self.random.within(0..end.max(1))
    }

    fn pick(&self) -> Option<InodeId> {
        let at = usize::try_from(self.within(self.files.len() as u64)).unwrap();
        self.files.keys().nth(at).copied()
    }

    fn place(&self, inode: InodeId, file: &FileContent, index: u32) -> Place {
        let group = file.layout.group(ChunkIndex(index));
        let target = self.map.group(PoolId(0), group).unwrap().targets[0];
        (target, inode, file.generation, ChunkIndex(index))
    }

    fn change(&mut self, inode: InodeId, change: impl FnOnce(&mut FileContent)) {
        let now = self.now();
        let file = self.files.get_mut(&inode).unwrap();
        change(file);
        file.changed = now;
    }

    fn create(&mut self) {
        let inode = InodeId(self.next);
        self.next += 1;
        let (width, seed) = (1 + self.within(6), self.within(100));
        let (width, seed) = (u32::try_from(width).unwrap(), u32::try_from(seed).unwrap());
        let layout = Layout::new(ChunkSize::MIN, width, PoolId(0), GROUPS, seed).unwrap();
        let imported = if self.within(3) == 0 { self.within(6 * CHUNK) } else { 0 };
        let file = FileContent {
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout,
            size: imported,
            origin_length: imported,
            may_lack: false,
            is_lost: false,
            changed: self.now(),
        };
        if imported > 0 {
            self.clean.insert(inode);
        }
        self.files.insert(inode, file);
    }

    /// Writes on from the end, or over what is there, and leaves the commit for later.
    fn write(&mut self, inode: InodeId) {
        let file = self.files[&inode];
        if self.trims.contains_key(&inode) {
            return;
        }
        self.clean.remove(&inode);
        let begin = if self.within(2) == 0 { file.size } else { self.within(file.size) };
        let end = begin + 1 + self.within(3 * CHUNK);
        for index in begin / CHUNK..end.div_ceil(CHUNK) {
            let place = self.place(inode, &file, u32::try_from(index).unwrap());
            self.held.insert(place);
            self.lost.remove(&place);
        }
        self.uncommitted.push((inode, file.generation, file.write_epoch, end));
    }

    fn commit(&mut self) {
        let Some((inode, generation, epoch, end)) = self.uncommitted.pop() else { return };
        let current = self.files.get(&inode).copied();
        if current.is_some_and(|f| f.generation == generation && f.write_epoch == epoch) {
            self.change(inode, |file| file.size = file.size.max(end));
        }
    }

    /// The content ends: by a removal, or by a new one.
    fn end_content(&mut self, inode: InodeId, removed: bool) {
        let file = self.files[&inode];
        for number in 0..TARGETS {
            self.queue.push((target(number), inode, file.generation));
        }
        self.former.push((inode, file));
        self.lost.retain(|place| place.1 != inode);
        self.trims.remove(&inode);
        self.clean.remove(&inode);
        if removed {
            self.files.remove(&inode);
            return;
        }
        self.change(inode, |file| {
            file.generation = file.generation.next();
            (file.size, file.origin_length, file.may_lack) = (0, 0, false);
        });
    }

    fn shrink(&mut self, inode: InodeId) {
        let size = self.files[&inode].size;
        if size < 2 || self.trims.contains_key(&inode) {
            return;
        }
        let size = 1 + self.within(size - 1);
        self.clean.remove(&inode);
        self.change(inode, |file| {
            file.write_epoch = file.write_epoch.next();
            file.size = size;
            file.origin_length = file.origin_length.min(size);
        });
        self.trims.insert(inode, size);
    }

    fn trim(&mut self) {
        let Some((inode, size)) = self.trims.pop_first() else { return };
        let beyond = |place: &Place| place.1 == inode && u64::from(place.3.0) * CHUNK >= size;
        let generation = self.files[&inode].generation;
        self.held.retain(|place| !(beyond(place) && place.2 == generation));
        self.lost.retain(|place| !beyond(place));
    }

    /// A target frees the oldest entry of its queue, maybe a second time.
    fn reclaim(&mut self) {
        let Some(&(target, inode, last)) = self.queue.first() else { return };
        self.held.retain(|place| !(place.0 == target && place.1 == inode && place.2 <= last));
        if self.within(4) > 0 {
            self.queue.remove(0);
        }
    }

    /// The bucket's bytes come or go.
    fn hydrate_or_release(&mut self, inode: InodeId) {
        let file = self.files[&inode];
        let clean = self.clean.contains(&inode);
        for index in 0..u32::try_from(file.origin_length.div_ceil(CHUNK)).unwrap() {
            let place = self.place(inode, &file, index);
            if self.within(2) == 0 {
                self.held.insert(place);
                self.lost.remove(&place);
            } else if clean {
                self.held.remove(&place);
            }
        }
    }

    /// All bytes stand in the bucket from now on, and may be dropped here.
    fn export(&mut self, inode: InodeId) {
        let file = self.files[&inode];
        let whole = !self.lost.iter().any(|place| place.1 == inode);
        let quiet = !self.uncommitted.iter().any(|write| write.0 == inode)
            && !self.trims.contains_key(&inode);
        if whole && quiet && file.size > 0 {
            self.change(inode, |file| file.origin_length = file.size);
            self.clean.insert(inode);
        }
    }

    /// A client that was cut off long ago writes into a content that has ended.
    fn write_late(&mut self) {
        let at = usize::try_from(self.within(self.former.len() as u64)).unwrap();
        let Some((inode, file)) = self.former.get(at).copied() else { return };
        let index = u32::try_from(self.within(5)).unwrap();
        let place = self.place(inode, &file, index);
        self.held.insert(place);
    }

    /// A target loses a chunk that its file needs.
    fn lose(&mut self) {
        let at = usize::try_from(self.within(self.held.len() as u64)).unwrap();
        let Some(place) = self.held.iter().nth(at).copied() else { return };
        let (_, inode, generation, index) = place;
        let needed = self.files.get(&inode).is_some_and(|file| {
            let end = ((u64::from(index.0) + 1) * CHUNK).min(file.size);
            file.generation == generation
                && u64::from(index.0) * CHUNK < file.size
                && end > file.origin_length
        });
        if needed && !self.clean.contains(&inode) {
            self.held.remove(&place);
            self.lost.insert(place);
        }
    }

    fn step(&mut self) {
        let what = self.within(26);
        match (what, self.pick()) {
            (0..4, _) | (_, None) => self.create(),
            (4..11, Some(inode)) => self.write(inode),
            (11..16, _) => self.commit(),
            (16, Some(inode)) => self.end_content(inode, true),
            (17, Some(inode)) => self.end_content(inode, false),
            (18, Some(inode)) => self.shrink(inode),
            (19, _) => self.trim(),
            (20, _) => self.reclaim(),
            (21, Some(inode)) => self.hydrate_or_release(inode),
            (22, Some(inode)) => self.export(inode),
            (23, _) => self.write_late(),
            (24, _) => self.lose(),
            // A rename, a chmod: the file has changed, its content has not.
            (_, Some(inode)) => self.change(inode, |_| {}),
        }
    }

    fn steps(&mut self, count: u64) {
        for _ in 0..self.within(count) {
            self.step();
        }
    }

    fn held_on(&self, target: TargetId, inode: InodeId) -> Vec<HeldContent> {
        let mut contents: BTreeMap<ContentGeneration, Vec<ChunkIndex>> = BTreeMap::new();
        for place in self.held.iter().filter(|place| place.0 == target && place.1 == inode) {
            contents.entry(place.2).or_default().push(place.3);
        }
        contents
            .into_iter()
            .map(|(generation, chunks)| HeldContent { generation, chunks })
            .collect()
    }

    fn known(&self, inode: InodeId) -> Known {
        self.files.get(&inode).map_or(Known::Nothing, |file| Known::File(*file))
    }

    /// Both passes, with up to `steps` changes before each look. Checks everything they agree on at
    /// the moment when they do.
    fn check(&mut self, steps: u64) -> Vec<Suspect> {
        let (map, high_water) = (self.map.clone(), InodeId(self.next));
        let frame = Frame { map: &map, high_water };
        let mut first = Vec::new();
        for target in (0..TARGETS).map(target) {
            // Also beyond the mark, where files come into being meanwhile.
            for inode in (0..high_water.0 + 3).map(InodeId) {
                self.steps(steps);
                let listed = self.now();
                let held = self.held_on(target, inode);
                self.steps(steps);
                let known = self.known(inode);
                first.extend(frame.judge(target, inode, &known, &held, listed));
            }
        }
        self.steps(steps * 10);
        let mut confirmed = Vec::new();
        for suspect in &first {
            self.steps(steps);
            let held = self.held_on(suspect.target, suspect.content.inode);
            // A writer may put it back between this list and the look.
            let lost = self.lost.clone();
            self.steps(steps);
            let known = self.known(suspect.content.inode);
            if let Some(again) = frame.confirm(suspect, &known, &held) {
                self.check_truth(&again, &lost);
                confirmed.push(again);
            }
        }
        confirmed
    }

    /// What was confirmed is so, and what is an orphan will be one for ever.
    fn check_truth(&self, found: &Suspect, lost: &BTreeSet<Place>) {
        let ContentName { inode, generation } = found.content;
        let file = self.files.get(&inode);
        match found.kind {
            FsckKind::Orphan => assert!(
                file.is_none_or(|file| generation < file.generation),
                "{found:?} belongs to {file:?}"
            ),
            FsckKind::Missing => {
                let lost = lost.iter().filter(|place| {
                    place.0 == found.target && place.1 == inode && place.2 == generation
                });
                assert!(lost.count() as u64 >= found.chunks, "{found:?} is not lost: {file:?}");
            }
            FsckKind::Misplaced | FsckKind::Newer => panic!("nothing of that kind: {found:?}"),
        }
    }

    /// What is wrong, by a look at every chunk.
    fn wrong(&self) -> BTreeSet<(FsckKind, TargetId, InodeId, ContentGeneration, u64)> {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for &(target, inode, generation, _) in &self.held {
            let file = self.files.get(&inode);
            if file.is_none_or(|file| generation < file.generation) {
                *counts.entry((FsckKind::Orphan, target, inode, generation)).or_default() += 1;
            }
        }
        for &(target, inode, generation, _) in &self.lost {
            if !self.files[&inode].may_lack {
                *counts.entry((FsckKind::Missing, target, inode, generation)).or_default() += 1;
            }
        }
        counts.into_iter().map(|((a, b, c, d), count)| (a, b, c, d, count)).collect()
    }
}

#[test]
fn whatever_changes_between_the_looks_no_live_content_is_named_and_no_loss_invented() {
    let mut confirmed = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            world.step();
        }
        confirmed += world.check(1 + seed % 4).len();
    }
    assert!(confirmed > 300, "the worlds have something to find: {confirmed}");
}

#[test]
fn in_a_world_at_rest_everything_wrong_is_named_with_its_chunks() {
    let mut found = BTreeMap::<_, u32>::new();
    for seed in 0..300 {
        let mut world = World::new(1_000_000 + seed);
        for _ in 0..200 {
            world.step();
        }
        while !world.uncommitted.is_empty() || !world.trims.is_empty() {
            world.commit();
            world.trim();
        }
        let named: BTreeSet<_> = world
            .check(0)
            .iter()
            .map(|s| (s.kind, s.target, s.content.inode, s.content.generation, s.chunks))
            .collect();
        let wrong = world.wrong();
        assert_eq!(named, wrong, "seed {seed}");
        for (kind, ..) in wrong {
            *found.entry(kind).or_default() += 1;
        }
    }
    assert!(found[&FsckKind::Orphan] > 300 && found[&FsckKind::Missing] > 100, "{found:?}");
}

fn file(size: u64) -> FileContent {
    FileContent {
        generation: ContentGeneration(3),
        write_epoch: WriteEpoch(1),
        layout: Layout::new(ChunkSize::MIN, GROUPS, PoolId(0), GROUPS, 0).unwrap(),
        size,
        origin_length: 0,
        may_lack: false,
        is_lost: false,
        changed: Timestamp(5),
    }
}

fn held(generation: u32, chunks: impl IntoIterator<Item = u32>) -> HeldContent {
    let chunks = chunks.into_iter().map(ChunkIndex).collect();
    HeldContent { generation: ContentGeneration(generation), chunks }
}

fn kinds(known: &Known, contents: &[HeldContent]) -> Vec<(FsckKind, u64)> {
    let map = map();
    let frame = Frame { map: &map, high_water: InodeId(100) };
    let suspects = frame.judge(target(0), InodeId(9), known, contents, Timestamp(6));
    suspects.iter().map(|suspect| (suspect.kind, suspect.chunks)).collect()
}

#[test]
fn each_row_of_the_table_has_its_verdict() {
    let known = Known::File(file(0));
    assert_eq!(kinds(&Known::Nothing, &[held(1, [0, 1])]), [(FsckKind::Orphan, 2)]);
    assert_eq!(kinds(&known, &[held(2, [0])]), [(FsckKind::Orphan, 1)]);
    assert_eq!(kinds(&known, &[held(4, [0])]), [(FsckKind::Newer, 1)]);
    assert_eq!(kinds(&Known::Other, &[held(1, [0])]), [(FsckKind::Newer, 1)]);
    assert_eq!(kinds(&Known::Nothing, &[]), []);
    assert_eq!(kinds(&Known::Other, &[]), []);
    // Twelve groups over three targets: every chunk of a file lies on exactly one.
    let whole = file(12 * CHUNK);
    let here = |index: &u32| whole.layout.group(ChunkIndex(*index)).0.is_multiple_of(3);
    let mine: Vec<u32> = (0..12).filter(here).collect();
    let known = Known::File(whole);
    assert_eq!(mine.len(), 4);
    assert_eq!(kinds(&known, &[held(3, mine.clone())]), []);
    assert_eq!(kinds(&known, &[held(3, 0..12)]), [(FsckKind::Misplaced, 8)]);
    assert_eq!(kinds(&known, &[held(3, mine[1..].to_vec())]), [(FsckKind::Missing, 1)]);
    assert_eq!(kinds(&known, &[]), [(FsckKind::Missing, 4)]);
}

#[test]
fn what_may_be_absent_is_not_missing() {
    let whole = file(12 * CHUNK);
    for may_be_absent in [
        FileContent { may_lack: true, ..whole },
        FileContent { origin_length: 12 * CHUNK, ..whole },
        // It changed after the list was asked for: its chunks may have come later.
        FileContent { changed: Timestamp(6), ..whole },
    ] {
        assert_eq!(kinds(&Known::File(may_be_absent), &[]), [], "{may_be_absent:?}");
    }
    // Behind what the bucket backs, bytes are here or nowhere.
    let half = FileContent { origin_length: 6 * CHUNK + 1, ..whole };
    let beyond = (6..12).filter(|index| whole.layout.group(ChunkIndex(*index)).0.is_multiple_of(3));
    assert_eq!(kinds(&Known::File(half), &[]), [(FsckKind::Missing, beyond.count() as u64)]);
}

#[test]
fn of_a_file_of_which_parts_went_with_a_target_nothing_is_missing_anywhere() {
    let (map, whole) = (map(), file(12 * CHUNK));
    let frame = Frame { map: &map, high_water: InodeId(100) };
    let missing = |file: &FileContent, chunks: &[u32]| {
        let (known, held) = (Known::File(*file), [held(3, chunks.iter().copied())]);
        let found = frame.judge(target(0), InodeId(9), &known, &held, Timestamp(6));
        // The second pass sees it the same way.
        let again: Vec<_> =
            found.iter().filter_map(|suspect| frame.confirm(suspect, &known, &held)).collect();
        assert_eq!(again, found);
        found.iter().map(|suspect| suspect.chunks).sum::<u64>()
    };
    let here = |index: &u32| whole.layout.group(ChunkIndex(*index)).0.is_multiple_of(3);
    let mine: Vec<u32> = (0..12).filter(here).collect();
    let lost = FileContent { is_lost: true, ..whole };
    assert_eq!(missing(&lost, &[]), 0, "another target may have had them all");
    assert_eq!(missing(&lost, &mine[1..]), 0, "the bucket may have had the one that is not here");
    assert_eq!(missing(&whole, &mine[1..]), 1, "it has to be there once it was written anew");
    // Between the passes.
    let known = Known::File(whole);
    let found = frame.judge(target(0), InodeId(9), &known, &[], Timestamp(6));
    let again = found.iter().filter_map(|one| frame.confirm(one, &Known::File(lost), &[]));
    assert_eq!((found.len(), again.count()), (1, 0));
}

#[test]
fn ids_from_the_high_water_mark_on_are_nobodys_business() {
    let map = map();
    let contents = [held(1, [0])];
    for (high_water, found) in [(9, 0), (10, 1)] {
        let high_water = InodeId(high_water);
        let frame = Frame { map: &map, high_water };
        let now = Timestamp(6);
        let named = frame.judge(target(0), InodeId(9), &Known::Nothing, &contents, now);
        assert_eq!(named.len(), found);
    }
}

#[test]
fn a_wide_file_is_expected_where_each_chunk_of_it_lies() {
    let map = map();
    let frame = Frame { map: &map, high_water: InodeId(100) };
    for width in 1..=GROUPS {
        let layout = Layout::new(ChunkSize::MIN, width, PoolId(0), GROUPS, 7).unwrap();
        for (start, end) in [(0, 3), (0, 40), (5, 100), (11, 12)] {
            let here = |index: &u32| layout.group(ChunkIndex(*index)).0 % 3 == 1;
            let plain: Vec<_> = (start..end).filter(here).map(ChunkIndex).collect();
            let expected: Vec<_> = frame.expected(&layout, start..end, target(1)).collect();
            assert_eq!(expected, plain, "{width} {start} {end}");
        }
    }
}
