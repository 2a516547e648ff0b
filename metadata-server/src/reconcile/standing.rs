//! What stands until it is looked at again: of each target what the last check found that saw it to
//! its end, and of the namespace what the last check of everything left.
//!
//! A check of some targets says nothing about the others, and neither does one that some did not
//! answer.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::fsck::{FsckCount, FsckKind, FsckReport, NamespaceReport};
use millrace_types::TargetId;

use super::{compare::Suspect, itself::flaws_left, tally};

/// What was found of one target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) orphans: FsckCount,
    pub(super) missing: FsckCount,
    newer: FsckCount,
    /// The path of the first content that lacks chunks, else its inode.
    first_missing: Option<String>,
    /// Why its orphans are kept.
    held_back: Option<String>,
}

/// A target since a check looked at it.
#[derive(Debug, Default)]
struct Looked {
    /// The check that found this.
    run: u64,
    found: Found,
    /// Whether the last check that was to look at it could not, or not to its end.
    is_unchecked: bool,
}

/// What stands. Kept in memory only.
#[derive(Debug, Default)]
pub(super) struct Standing {
    targets: BTreeMap<TargetId, Looked>,
    flaws: u64,
}

impl Found {
    /// Counts what both passes agree on.
    pub(super) fn add(&mut self, suspect: &Suspect, path: Option<&[u8]>) {
        let count = match suspect.kind {
            FsckKind::Orphan => &mut self.orphans,
            FsckKind::Missing => &mut self.missing,
            FsckKind::Newer => &mut self.newer,
            FsckKind::Misplaced => return,
        };
        tally::add(count, suspect);
        if suspect.kind == FsckKind::Missing && self.first_missing.is_none() {
            self.first_missing = Some(match path {
                Some(path) => String::from_utf8_lossy(path).into_owned(),
                None => suspect.content.inode.to_string(),
            });
        }
    }
}

impl Standing {
    /// A check has come to its end and `found` this. Targets other than `members` are forgotten.
    pub(super) fn handle_end(
        &mut self,
        report: &FsckReport,
        namespace: &NamespaceReport,
        mut found: BTreeMap<TargetId, Found>,
        members: &BTreeSet<TargetId>,
    ) {
        if namespace.run == report.run {
            self.flaws = flaws_left(namespace);
        }
        for target in &report.targets {
            let mut found = found.remove(&target.target).unwrap_or_default();
            found.held_back.clone_from(&target.held_back);
            let looked = self.targets.entry(target.target).or_default();
            looked.is_unchecked = target.not_checked.is_some();
            // What it found before it gave up is so, and takes nothing back.
            if !looked.is_unchecked || looked.found == Found::default() {
                (looked.run, looked.found) = (report.run, found);
            }
        }
        self.targets.retain(|target, _| members.contains(target));
    }

    /// What is wrong, in sentences for the state of the cluster; `last` is the last check.
    pub(super) fn problems(&self, last: u64) -> Vec<String> {
        let mut problems = Vec::new();
        if self.flaws > 0 {
            problems.push(format!(
                "the namespace does not agree with itself in {} places: see millrace fsck show, \
                 and millrace fsck start --repair",
                self.flaws
            ));
        }
        let (missing, place) = self.contents(last, |found| found.missing);
        if missing > 0 {
            let mut firsts = self.found().filter_map(|found| found.first_missing.as_deref());
            problems.push(format!(
                "{missing} contents lack chunks on their targets (the first: {}): {place}",
                firsts.next().unwrap_or_default()
            ));
        }
        let (newer, place) = self.contents(last, |found| found.newer);
        if newer > 0 {
            problems.push(format!(
                "targets hold {newer} contents that are newer than the namespace: {place}"
            ));
        }
        let held_back = self.targets.iter().filter_map(|(target, looked)| {
            let why = looked.found.held_back.as_ref()?;
            Some(format!("orphans on target {target} are kept: {why}"))
        });
        problems.extend(held_back);
        problems
    }

    /// Of each target what was found.
    pub(super) fn found(&self) -> impl Iterator<Item = &Found> {
        self.targets.values().map(|looked| &looked.found)
    }

    /// Targets that the last check which was to look at them did not see to their end.
    pub(super) fn unchecked(&self) -> usize {
        self.targets.values().filter(|looked| looked.is_unchecked).count()
    }

    /// Targets whose orphans are kept.
    pub(super) fn held_back(&self) -> usize {
        self.found().filter(|found| found.held_back.is_some()).count()
    }

    /// Where the namespace does not agree with itself.
    pub(super) fn flaws(&self) -> u64 {
        self.flaws
    }

    /// Contents of one kind on all targets, and where they are told one by one.
    fn contents(&self, last: u64, of: fn(&Found) -> FsckCount) -> (u64, &'static str) {
        let (mut all, mut place) = (0, IN_LAST);
        for looked in self.targets.values() {
            let contents = of(&looked.found).contents;
            all += contents;
            if contents > 0 && looked.run != last {
                place = IN_EARLIER;
            }
        }
        (all, place)
    }
}

const IN_LAST: &str = "see millrace fsck show";

/// Nobody can be shown any more what a check before the last one found.
const IN_EARLIER: &str =
    "not all of it was found by the last check; millrace fsck start looks again";

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        fsck::{FlawCount, FlawKind, FsckTarget},
        target::ContentName,
    };
    use millrace_types::{ChunkIndex, ContentGeneration, InodeId};

    use super::*;

    const TARGETS: [TargetId; 2] = [TargetId([1; 8]), TargetId([2; 8])];

    fn report(run: u64, targets: &[TargetId]) -> FsckReport {
        let shown = |target: &TargetId| FsckTarget {
            target: *target,
            host_name: "store-1".to_owned(),
            chunks: 1,
            not_checked: None,
            orphans: FsckCount::default(),
            held_back: None,
        };
        FsckReport { run, targets: targets.iter().map(shown).collect(), ..FsckReport::default() }
    }

    /// One content of this kind on a target.
    fn one(kind: FsckKind, target: TargetId, path: Option<&[u8]>) -> BTreeMap<TargetId, Found> {
        let suspect = Suspect {
            kind,
            target,
            content: ContentName { inode: InodeId(70), generation: ContentGeneration(1) },
            chunks: 2,
            first: ChunkIndex(0),
            bytes: 5,
            seen: None,
        };
        let mut found = Found::default();
        found.add(&suspect, path);
        BTreeMap::from([(target, found)])
    }

    #[test]
    fn a_target_that_is_gone_is_forgotten_with_what_was_wrong_with_it() {
        let (mut standing, namespace) = (Standing::default(), NamespaceReport::default());
        let both = BTreeSet::from(TARGETS);
        let found = one(FsckKind::Newer, TARGETS[0], None);
        standing.handle_end(&report(1, &TARGETS), &namespace, found, &both);
        let told = standing.problems(1);
        assert!(told[0].contains("1 contents that are newer") && told[0].contains(IN_LAST));
        let (other, left) = (&TARGETS[1..], BTreeSet::from([TARGETS[1]]));
        standing.handle_end(&report(2, other), &namespace, BTreeMap::new(), &both);
        assert!(standing.problems(2)[0].contains(IN_EARLIER), "{:?}", standing.problems(2));
        standing.handle_end(&report(3, other), &namespace, BTreeMap::new(), &left);
        assert!(standing.problems(3).is_empty(), "{:?}", standing.problems(3));
    }

    #[test]
    fn a_look_that_was_given_up_adds_what_it_saw_and_takes_nothing_back() {
        let (mut standing, namespace) = (Standing::default(), NamespaceReport::default());
        let both = BTreeSet::from(TARGETS);
        let mut given_up = report(1, &TARGETS);
        given_up.targets[0].not_checked = Some("it went away".to_owned());
        let found = one(FsckKind::Missing, TARGETS[0], Some(b"/a"));
        standing.handle_end(&given_up, &namespace, found, &both);
        assert!(standing.problems(1)[0].contains("/a"), "{:?}", standing.problems(1));
        given_up.run = 2;
        standing.handle_end(&given_up, &namespace, BTreeMap::new(), &both);
        assert!(standing.problems(2)[0].contains("/a"), "{:?}", standing.problems(2));
        assert_eq!(standing.unchecked(), 1);
        standing.handle_end(&report(3, &TARGETS), &namespace, BTreeMap::new(), &both);
        assert!(standing.problems(3).is_empty());
        assert_eq!(standing.unchecked(), 0);
    }

    #[test]
    fn only_a_check_of_everything_says_how_the_namespace_is() {
        let mut standing = Standing::default();
        let flaw = FlawCount { kind: FlawKind::WrongLinks, found: 3, repaired: 1 };
        let mut namespace =
            NamespaceReport { run: 1, flaws: vec![flaw], ..NamespaceReport::default() };
        let both = BTreeSet::from(TARGETS);
        standing.handle_end(&report(1, &TARGETS), &namespace, BTreeMap::new(), &both);
        assert!(standing.problems(1)[0].contains("in 2 places"), "{:?}", standing.problems(1));
        // One of everything was cancelled, and then came one of a target.
        namespace = NamespaceReport { run: 2, ..NamespaceReport::default() };
        standing.handle_end(&report(3, &TARGETS[..1]), &namespace, BTreeMap::new(), &both);
        assert_eq!(standing.flaws(), 2);
    }
}
