//! One check: the first pass over everything, a lease of waiting, the second pass over what the
//! first one found.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use millrace_protocol::{
    admin::{PathBytes, TargetState},
    cluster::Map,
    fsck::{
        FSCK_FINDINGS_MAX, FsckCount, FsckFinding, FsckKind, FsckReport, FsckState, FsckTarget,
        LISTED_CHUNKS_MAX, StartFsck,
    },
    target::{ContentName, Presence},
};
use millrace_types::{ByteLen, ContentGeneration, Failure, HostId, InodeId, TargetId, Timestamp};
use tokio::time::Instant;

use super::{
    Shared,
    compare::{Frame, HeldContent, Known, Suspect},
    listing::Listing,
    namespace,
};
use crate::{
    command::{BATCH_MAX, Command, Outcome, ReclaimOrphans},
    engine::Core,
};

/// Inodes of one turn of the engine: well below a millisecond.
const INODES_A_TURN: usize = 256;

/// Entries of a reclaim queue looked at in one turn.
const RECLAIMS_A_TURN: usize = 1024;

/// Contents of the second pass worked on together: one turn, one request, one command.
const CONTENTS_TOGETHER: usize = 256;

/// Chunks of a page in the second pass, which jumps from inode to inode.
const CONFIRM_CHUNKS: u32 = 256;

/// Suspicions of one kind that one check follows up; the next check finds the rest.
const SUSPECTS_MAX: usize = 32_768;

/// What a check was begun with.
struct Setting {
    map: Arc<Map>,
    high_water: InodeId,
    /// Between the passes.
    pause: Duration,
    targets: Vec<(TargetId, HostId)>,
}

impl Setting {
    fn frame(&self) -> Frame<'_> {
        Frame { map: &self.map, high_water: self.high_water }
    }
}

/// Runs a check to its end. May be dropped at any await.
pub(super) async fn run(shared: &Shared, request: &StartFsck) -> Result<(), Failure> {
    let wanted = request.targets.clone();
    let setting = shared.engine.turn(move |core| begin(core, &wanted)).await?;
    let (setting, targets) = setting;
    shared.update(|report| {
        report.high_water = setting.high_water;
        report.targets = targets;
    });
    let mut check = Check { shared, pace: Pace::new(shared.settings.contents_per_second) };
    let suspects = check.list(&setting).await?;
    if suspects.iter().next().is_none() {
        return Ok(());
    }
    shared.update(|report| report.state = FsckState::Waiting);
    tokio::time::sleep(setting.pause).await;
    shared.update(|report| report.state = FsckState::Confirming);
    for &(target, host) in &setting.targets {
        let mut of_target: Vec<_> =
            suspects.iter().filter(|found| found.target == target).collect();
        of_target.sort_by_key(|found| found.content.inode);
        if !of_target.is_empty()
            && let Err(failure) = check.confirm(&setting, (target, host), &of_target).await
        {
            check.give_up(target, &failure);
        }
    }
    Ok(())
}

/// What is wrong, in sentences for the state of the cluster.
pub(super) fn problems(report: &FsckReport) -> Vec<String> {
    let mut problems = Vec::new();
    let first = |kind| {
        let finding = report.findings.iter().find(|finding| finding.kind == kind)?;
        let path = finding.path.as_deref().map(String::from_utf8_lossy);
        Some(path.map_or_else(|| finding.content.inode.to_string(), Into::into))
    };
    if report.missing.contents > 0 {
        problems.push(format!(
            "{} contents lack chunks on their targets (the first: {}): see millrace fsck show",
            report.missing.contents,
            first(FsckKind::Missing).unwrap_or_default(),
        ));
    }
    if report.newer.contents > 0 {
        problems.push(format!(
            "targets hold {} contents that are newer than the namespace: see millrace fsck show",
            report.newer.contents,
        ));
    }
    problems
}

/// Decides what is looked at, in one turn of the engine.
fn begin(core: &mut Core, wanted: &[TargetId]) -> Result<(Setting, Vec<FsckTarget>), Failure> {
    let map = core.map().0;
    let mut setting = Setting {
        high_water: core.high_water(),
        pause: core.session_end(),
        targets: Vec::new(),
        map: Arc::clone(&map),
    };
    let mut shown = Vec::new();
    for (target, member) in core.registry.members() {
        if !wanted.is_empty() && !wanted.contains(&target) {
            continue;
        }
        let not_checked = match member.state() {
            TargetState::Online | TargetState::Suspect if core.has_compared(target) => None,
            TargetState::Online | TargetState::Suspect => {
                Some("it has not shown yet what it saw of the command log".to_owned())
            }
            TargetState::Joining | TargetState::Offline => Some("it does not answer".to_owned()),
        };
        if not_checked.is_none() {
            setting.targets.push((target, member.host));
        }
        let host_name = map.host_of(target).map(|host| host.name.clone()).unwrap_or_default();
        shown.push(FsckTarget { target, host_name, chunks: 0, not_checked });
    }
    Ok((setting, shown))
}

struct Check<'a> {
    shared: &'a Shared,
    pace: Pace,
}

impl Check<'_> {
    /// The first pass: everything on every target beside the whole namespace.
    async fn list(&mut self, setting: &Setting) -> Result<Suspects, Failure> {
        let shared = self.shared;
        let listing = |&(target, host)| {
            Listing::new(target, host, Arc::clone(&shared.targets), LISTED_CHUNKS_MAX)
        };
        let mut listings: Vec<_> = setting.targets.iter().map(listing).collect();
        let mut suspects = Suspects::default();
        let mut at = InodeId(0);
        while at < setting.high_water {
            self.reach(&mut listings, at, &mut suspects).await;
            if listings.is_empty() {
                break;
            }
            let known = listings.iter().filter_map(Listing::known_below).min();
            let end = known.map_or(setting.high_water, |known| known.min(setting.high_water));
            let page = shared.engine.turn(move |core| {
                namespace::page(core.view(), at, end, INODES_A_TURN)
                    .map_err(|error| core.failure(error.into()))
            });
            let page = page.await?;
            let mut work = page.inodes.len() as u64;
            for listing in &mut listings {
                work += compare(&setting.frame(), listing, &page, &mut suspects);
            }
            at = page.complete_below;
            let files = page.inodes.iter().filter(|(_, known)| matches!(known, Known::File(_)));
            let files = files.count() as u64;
            shared.update(|report| {
                report.position = at;
                report.files += files;
                for target in &mut report.targets {
                    let listing = listings.iter().find(|listing| listing.target == target.target);
                    target.chunks = listing.map_or(target.chunks, |listing| listing.chunks);
                }
                report.chunks = report.targets.iter().map(|target| target.chunks).sum();
                report.truncated = suspects.truncated;
            });
            self.pace.done(work).await;
        }
        Ok(suspects)
    }

    /// Has every target list up to `at`; those that do not are left out from here on, with
    /// everything that was suspected of them.
    async fn reach(&self, listings: &mut Vec<Listing>, at: InodeId, suspects: &mut Suspects) {
        let now = || self.shared.engine.now();
        let reached = join_all(listings.iter_mut().map(|listing| listing.reach(at, now))).await;
        let mut reached = reached.into_iter();
        listings.retain(|listing| match reached.next() {
            Some(Err(failure)) => {
                self.give_up(listing.target, &failure);
                suspects.forget(listing.target);
                false
            }
            _ => true,
        });
    }

    fn give_up(&self, target: TargetId, failure: &Failure) {
        tracing::warn!(%target, %failure, "the target cannot be checked");
        self.shared.update(|report| {
            for shown in report.targets.iter_mut().filter(|shown| shown.target == target) {
                shown.not_checked = Some(failure.message.clone());
            }
        });
    }

    /// The second pass over what was suspected of one target, in the order of inodes.
    async fn confirm(
        &mut self,
        setting: &Setting,
        (target, host): (TargetId, HostId),
        suspects: &[&Suspect],
    ) -> Result<(), Failure> {
        let targets = Arc::clone(&self.shared.targets);
        let mut listing = Listing::new(target, host, targets, CONFIRM_CHUNKS);
        let queued = self.queued(target, suspects).await?;
        for together in &batches(suspects) {
            let held = self.held(&mut listing, together).await?;
            // Only now: what the namespace does not have after the list it never has again.
            let known = self.look_up(together).await?;
            let mut confirmed = Vec::new();
            for (suspect, (known, path)) in together.iter().copied().zip(known) {
                let content = suspect.content;
                let held = held.get(&content.inode).map_or(&[][..], Vec::as_slice);
                let being_freed = suspect.kind == FsckKind::Orphan
                    && queued.get(&content.inode).is_some_and(|last| content.generation <= *last);
                let again = setting.frame().confirm(suspect, &known, held);
                confirmed.extend(again.filter(|_| !being_freed).map(|again| (again, path)));
            }
            self.settle(target, host, confirmed).await?;
            self.pace.done(together.len() as u64).await;
        }
        Ok(())
    }

    /// Contents of suspected inodes that wait in the target's reclaim queue: the newest of each.
    async fn queued(
        &self,
        target: TargetId,
        suspects: &[&Suspect],
    ) -> Result<BTreeMap<InodeId, ContentGeneration>, Failure> {
        let inodes: BTreeSet<_> = suspects.iter().map(|suspect| suspect.content.inode).collect();
        let mut queued = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.shared.engine.turn(move |core| {
                namespace::reclaims(core.view(), target, after, RECLAIMS_A_TURN)
                    .map_err(|error| core.failure(error.into()))
            });
            let page = page.await?;
            let Some((last, _)) = page.last() else { return Ok(queued) };
            after = Some(*last);
            for (_, name) in page.iter().filter(|(_, name)| inodes.contains(&name.inode)) {
                let newest = queued.entry(name.inode).or_insert(name.generation);
                *newest = name.generation.max(*newest);
            }
        }
    }

    /// What the target holds now of the inodes of some suspects.
    async fn held(
        &self,
        listing: &mut Listing,
        suspects: &[&Suspect],
    ) -> Result<BTreeMap<InodeId, Vec<HeldContent>>, Failure> {
        let mut held = BTreeMap::new();
        for suspect in suspects {
            let inode = suspect.content.inode;
            if !held.contains_key(&inode) {
                listing.skip_to(inode);
                listing.reach(inode, || self.shared.engine.now()).await?;
                held.insert(inode, listing.take(inode));
            }
        }
        Ok(held)
    }

    async fn look_up(
        &self,
        suspects: &[&Suspect],
    ) -> Result<Vec<(Known, Option<PathBytes>)>, Failure> {
        let inodes: Vec<_> = suspects.iter().map(|suspect| suspect.content.inode).collect();
        let with_path = self.shared.state().report.findings.len() < FSCK_FINDINGS_MAX;
        let work = move |core: &mut Core| {
            let known = |inode| namespace::look_up(core.view(), inode, with_path);
            let found: Result<Vec<_>, _> = inodes.into_iter().map(known).collect();
            found.map_err(|error| core.failure(error.into()))
        };
        self.shared.engine.turn(work).await
    }

    /// Reports what both passes saw, and queues orphans for freeing.
    async fn settle(
        &self,
        target: TargetId,
        host: HostId,
        mut confirmed: Vec<(Suspect, Option<PathBytes>)>,
    ) -> Result<(), Failure> {
        let orphans = || {
            let is_orphan = |(suspect, _): &&(Suspect, _)| suspect.kind == FsckKind::Orphan;
            confirmed.iter().filter(is_orphan).map(|(suspect, _)| suspect.content)
        };
        let contents: Vec<ContentName> = orphans().collect();
        if !contents.is_empty() {
            let mut present = Vec::new();
            for contents in contents.chunks(CONTENTS_TOGETHER) {
                let request = Presence { target, contents: contents.to_vec() };
                present.extend(self.shared.targets.presence(host, request).await?.present);
            }
            let of_orphans =
                confirmed.iter_mut().filter(|(suspect, _)| suspect.kind == FsckKind::Orphan);
            for ((suspect, _), present) in of_orphans.zip(present) {
                suspect.bytes = present.clean.0 + present.written.0;
            }
        }
        self.shared.update(|report| {
            for (suspect, path) in &confirmed {
                add(count_of(report, suspect.kind), suspect);
                if report.findings.len() < FSCK_FINDINGS_MAX {
                    report.findings.push(finding(suspect, path.clone()));
                }
            }
        });
        if self.shared.state().report.report_only || contents.is_empty() {
            return Ok(());
        }
        if self.free(target, contents).await? {
            self.shared.update(|report| {
                let orphans =
                    confirmed.iter().filter(|(suspect, _)| suspect.kind == FsckKind::Orphan);
                orphans.for_each(|(suspect, _)| add(&mut report.queued, suspect));
            });
        }
        Ok(())
    }

    /// Queues orphans for freeing, durably; tells whether that was allowed.
    async fn free(&self, target: TargetId, contents: Vec<ContentName>) -> Result<bool, Failure> {
        for contents in contents.chunks(BATCH_MAX) {
            if !self.free_some(target, contents.to_vec()).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn free_some(
        &self,
        target: TargetId,
        contents: Vec<ContentName>,
    ) -> Result<bool, Failure> {
        let asked = contents.len();
        let freeing = self.shared.engine.durable_turn(move |core| {
            if core.distrusted()?.is_some() {
                return Ok(None);
            }
            core.execute(None, Command::ReclaimOrphans(ReclaimOrphans { target, contents }))
                .map(Some)
        });
        match freeing.await {
            Ok(None) => Ok(false),
            Ok(Some(outcome)) => {
                if outcome != Outcome::Queued(u32::try_from(asked).unwrap_or(u32::MAX)) {
                    // Never seen: the command knows better than two passes.
                    tracing::error!(%target, asked, ?outcome, "some orphans belong to files");
                }
                Ok(true)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Compares a part of the namespace with one target's list; returns how many contents that were.
fn compare(
    frame: &Frame<'_>,
    listing: &mut Listing,
    page: &namespace::InodePage,
    suspects: &mut Suspects,
) -> u64 {
    let mut known = page.inodes.iter().peekable();
    let mut contents = 0;
    loop {
        let in_namespace = known.peek().map(|(inode, _)| *inode);
        let on_target = listing.peek_below(page.complete_below);
        let Some(inode) = in_namespace.into_iter().chain(on_target).min() else {
            return contents;
        };
        let found = known.next_if(|(next, _)| *next == inode);
        let known = found.map_or(Known::Nothing, |(_, known)| *known);
        let held = listing.take(inode);
        contents += held.len() as u64;
        let listed: Timestamp = listing.listed;
        for suspect in frame.judge(listing.target, inode, &known, &held, listed) {
            suspects.add(suspect);
        }
    }
}

/// Cuts suspects, which are in the order of their inodes, into parts of about
/// [`CONTENTS_TOGETHER`]; those of one inode stay together, because a list tells it once.
fn batches<'a>(suspects: &[&'a Suspect]) -> Vec<Vec<&'a Suspect>> {
    let mut batches: Vec<Vec<&Suspect>> = Vec::new();
    for of_inode in suspects.chunk_by(|one, other| one.content.inode == other.content.inode) {
        match batches.last_mut() {
            Some(batch) if batch.len() < CONTENTS_TOGETHER => batch.extend_from_slice(of_inode),
            _ => batches.push(of_inode.to_vec()),
        }
    }
    batches
}

/// What the first pass found.
#[derive(Default)]
struct Suspects {
    by_kind: BTreeMap<FsckKind, Vec<Suspect>>,
    truncated: bool,
}

impl Suspects {
    fn add(&mut self, suspect: Suspect) {
        let of_kind = self.by_kind.entry(suspect.kind).or_default();
        if of_kind.len() < SUSPECTS_MAX {
            of_kind.push(suspect);
        } else {
            self.truncated = true;
        }
    }

    fn forget(&mut self, target: TargetId) {
        for of_kind in self.by_kind.values_mut() {
            of_kind.retain(|suspect| suspect.target != target);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Suspect> {
        self.by_kind.values().flatten()
    }
}

fn count_of(report: &mut FsckReport, kind: FsckKind) -> &mut FsckCount {
    match kind {
        FsckKind::Orphan => &mut report.orphans,
        FsckKind::Missing => &mut report.missing,
        FsckKind::Misplaced => &mut report.misplaced,
        FsckKind::Newer => &mut report.newer,
    }
}

fn add(count: &mut FsckCount, suspect: &Suspect) {
    count.contents += 1;
    count.chunks += suspect.chunks;
    count.bytes.0 += suspect.bytes;
}

fn finding(suspect: &Suspect, path: Option<PathBytes>) -> FsckFinding {
    FsckFinding {
        kind: suspect.kind,
        target: suspect.target,
        content: suspect.content,
        path,
        chunks: suspect.chunks,
        first: suspect.first,
        bytes: ByteLen(suspect.bytes),
    }
}

/// Keeps a check from being in the way: so many contents and inodes a second on average.
struct Pace {
    a_second: u64,
    free_at: Instant,
}

impl Pace {
    fn new(a_second: u64) -> Self {
        Self { a_second: a_second.max(1), free_at: Instant::now() }
    }

    async fn done(&mut self, work: u64) {
        let nanoseconds = work.saturating_mul(1_000_000_000) / self.a_second;
        // Time that was not used is not saved up.
        self.free_at = self.free_at.max(Instant::now()) + Duration::from_nanos(nanoseconds);
        tokio::time::sleep_until(self.free_at).await;
    }
}
