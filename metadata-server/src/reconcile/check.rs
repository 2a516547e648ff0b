//! One check: the namespace by itself, then the first pass over everything on the targets, a lease
//! of waiting, then of each target the second pass over what the first one found, and the freeing
//! of what both call orphans.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use millrace_protocol::{
    admin::TargetState,
    cluster::Map,
    fsck::{FsckCount, FsckState, FsckTarget, LISTED_CHUNKS_MAX, StartFsck},
};
use millrace_types::{Failure, HostId, InodeId, TargetId};

use super::{
    Shared,
    compare::{Frame, Known},
    confirm::SecondPass,
    free::Freeing,
    itself::Itself,
    listing::Listing,
    namespace::{self, InodePage},
    pace::Pace,
    suspects::Suspects,
    tally,
};
use crate::{engine::Core, targets::registry::Member};

/// Inodes of one turn of the engine: well below a millisecond.
const INODES_A_TURN: usize = 256;

/// What a check was begun with.
pub(super) struct Setting {
    map: Arc<Map>,
    high_water: InodeId,
    /// Between the passes.
    pause: Duration,
    targets: Vec<(TargetId, HostId)>,
}

impl Setting {
    pub(super) fn frame(&self) -> Frame<'_> {
        Frame { map: &self.map, high_water: self.high_water }
    }
}

/// Runs a check to its end. May be dropped at any await.
pub(super) async fn run(shared: &Shared, request: &StartFsck) -> Result<(), Failure> {
    let wanted = request.targets.clone();
    let (setting, targets) = shared.engine.turn(move |core| Ok(begin(core, &wanted))).await?;
    shared.update(|report| {
        report.high_water = setting.high_water;
        report.targets = targets;
    });
    let mut pace = Pace::new(shared.settings.contents_per_second);
    if request.targets.is_empty() {
        let repair = shared.state().namespace.repair;
        Itself { shared, repair, pace: &mut pace }.run().await?;
    }
    let suspects = FirstPass::new(shared, &setting).run(&mut pace).await?;
    if suspects.is_empty() {
        return Ok(());
    }
    shared.update(|report| report.state = FsckState::Waiting);
    tokio::time::sleep(setting.pause).await;
    shared.update(|report| report.state = FsckState::Confirming);
    for &(target, host) in &setting.targets {
        let second = SecondPass { shared, setting: &setting, target, host };
        let freeing = Freeing { shared, target, request };
        let ended = async {
            let orphans = second.run(&suspects.of(target), &mut pace).await?;
            freeing.run(orphans, suspects.passed_over(target)).await
        };
        if let Err(failure) = ended.await {
            give_up(shared, target, &failure);
        }
    }
    Ok(())
}

/// Decides what is looked at, in one turn of the engine.
fn begin(core: &Core, wanted: &[TargetId]) -> (Setting, Vec<FsckTarget>) {
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
        let unfit = unfit(core, target, member);
        // Otherwise nothing would be looked at, and all be well.
        let unfit = unfit.or_else(|| (setting.high_water == InodeId(0)).then_some(UNDECLARED));
        let not_checked = unfit.map(str::to_owned);
        if not_checked.is_none() {
            setting.targets.push((target, member.host));
        }
        let host_name = map.host_of(target).map(|host| host.name.clone()).unwrap_or_default();
        shown.push(FsckTarget {
            target,
            host_name,
            chunks: 0,
            not_checked,
            orphans: FsckCount::default(),
            held_back: None,
        });
    }
    (setting, shown)
}

/// Why a target cannot be checked now, if so.
fn unfit(core: &Core, target: TargetId, member: &Member) -> Option<&'static str> {
    match member.state() {
        TargetState::Joining | TargetState::Offline => Some("it does not answer"),
        TargetState::Online | TargetState::Suspect if core.has_compared(target) => None,
        TargetState::Online | TargetState::Suspect => {
            Some("it has not shown yet what it saw of the command log")
        }
    }
}

fn give_up(shared: &Shared, target: TargetId, failure: &Failure) {
    tracing::warn!(%target, %failure, "the target cannot be checked");
    shared.update(|report| {
        if let Some(shown) = tally::target_of(report, target) {
            shown.not_checked = Some(failure.message.clone());
        }
    });
}

/// The first pass: everything on every target beside the whole namespace, in the order of inodes.
struct FirstPass<'a> {
    shared: &'a Shared,
    setting: &'a Setting,
    /// Of the targets that have not failed so far.
    listings: Vec<Listing>,
    suspects: Suspects,
}

/// Why nothing can be checked for some moments after a restart.
const UNDECLARED: &str = "mounts have not said yet which files they are making; try again soon";

impl<'a> FirstPass<'a> {
    fn new(shared: &'a Shared, setting: &'a Setting) -> Self {
        let listing = |&(target, host)| {
            Listing::new(target, host, Arc::clone(&shared.targets), LISTED_CHUNKS_MAX)
        };
        let listings = setting.targets.iter().map(listing).collect();
        Self { shared, setting, listings, suspects: Suspects::default() }
    }

    async fn run(mut self, pace: &mut Pace) -> Result<Suspects, Failure> {
        let mut at = InodeId(0);
        while at < self.setting.high_water {
            self.reach(at).await;
            if self.listings.is_empty() {
                break;
            }
            // Only now: what the namespace does not have after the list it never has again.
            let page = self.namespace_from(at).await?;
            let work = self.compare(&page);
            at = page.complete_below;
            self.tell(&page);
            pace.done(work).await;
        }
        Ok(self.suspects)
    }

    /// Has every target list up to `at`; those that do not are left out from here on, with
    /// everything that was suspected of them.
    async fn reach(&mut self, at: InodeId) {
        let shared = self.shared;
        let now = || shared.engine.now();
        let reached = self.listings.iter_mut().map(|listing| listing.reach(at, now));
        let mut reached = join_all(reached).await.into_iter();
        let suspects = &mut self.suspects;
        self.listings.retain(|listing| match reached.next() {
            Some(Err(failure)) => {
                give_up(shared, listing.target, &failure);
                suspects.forget(listing.target);
                false
            }
            _ => true,
        });
    }

    /// The namespace from an inode on, not further than all targets have listed.
    async fn namespace_from(&self, at: InodeId) -> Result<InodePage, Failure> {
        let high_water = self.setting.high_water;
        let listed = self.listings.iter().filter_map(Listing::known_below).min();
        let end = listed.map_or(high_water, |listed| listed.min(high_water));
        let page = self.shared.engine.turn(move |core| {
            namespace::page(core.view(), at, end, INODES_A_TURN)
                .map_err(|error| core.failure(error.into()))
        });
        page.await
    }

    /// Compares a part of the namespace with what all targets listed; returns how many inodes and
    /// contents that were.
    fn compare(&mut self, page: &InodePage) -> u64 {
        let frame = self.setting.frame();
        let of_targets = self.listings.iter_mut();
        let contents = of_targets.map(|list| compare(&frame, list, page, &mut self.suspects));
        page.inodes.len() as u64 + contents.sum::<u64>()
    }

    fn tell(&self, page: &InodePage) {
        let is_file = |(_, known): &&(_, Known)| matches!(known, Known::File(_));
        let files = page.inodes.iter().filter(is_file).count() as u64;
        self.shared.update(|report| {
            report.position = page.complete_below;
            report.files += files;
            for listing in &self.listings {
                if let Some(shown) = tally::target_of(report, listing.target) {
                    shown.chunks = listing.chunks;
                }
            }
            report.chunks = report.targets.iter().map(|target| target.chunks).sum();
            report.truncated = self.suspects.is_truncated();
        });
    }
}

/// Compares a part of the namespace with one target's list; returns how many contents that were.
fn compare(
    frame: &Frame<'_>,
    listing: &mut Listing,
    page: &InodePage,
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
        for suspect in frame.judge(listing.target, inode, &known, &held, listing.listed) {
            suspects.add(suspect);
        }
    }
}
