//! The second pass over one target: what the first pass suspected is looked at again.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use millrace_protocol::{admin::PathBytes, fsck::FsckKind, target::Presence};
use millrace_types::{ContentGeneration, Failure, HostId, InodeId, TargetId};

use super::{
    Shared,
    check::Setting,
    compare::{HeldContent, Known, Suspect},
    listing::Listing,
    namespace,
    pace::Pace,
    suspects::batches,
    tally,
};
use crate::engine::Core;

/// Contents worked on together: one turn and one request.
const CONTENTS_TOGETHER: usize = 256;

/// Chunks of a page: the list jumps from inode to inode.
const CONFIRM_CHUNKS: u32 = 256;

/// Entries of a reclaim queue looked at in one turn.
const RECLAIMS_A_TURN: usize = 1024;

/// The newest content of each inode that waits in a target's reclaim queue.
type Queued = BTreeMap<InodeId, ContentGeneration>;

/// What is looked at again, and where.
pub(super) struct SecondPass<'a> {
    pub(super) shared: &'a Shared,
    pub(super) setting: &'a Setting,
    pub(super) target: TargetId,
    pub(super) host: HostId,
}

impl SecondPass<'_> {
    /// Reports what both passes see, and returns the orphans among it. `suspects` are in the order
    /// of their inodes.
    pub(super) async fn run(
        &self,
        suspects: &[&Suspect],
        pace: &mut Pace,
    ) -> Result<Vec<Suspect>, Failure> {
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let targets = Arc::clone(&self.shared.targets);
        let mut listing = Listing::new(self.target, self.host, targets, CONFIRM_CHUNKS);
        let queued = self.queued(suspects).await?;
        let mut orphans = Vec::new();
        for together in &batches(suspects, CONTENTS_TOGETHER) {
            let mut confirmed = self.confirm(&mut listing, together, &queued).await?;
            self.measure(&mut confirmed).await?;
            self.shared.found(&confirmed);
            let found = confirmed.into_iter().map(|(suspect, _)| suspect);
            orphans.extend(found.filter(|suspect| suspect.kind == FsckKind::Orphan));
            pace.done(together.len() as u64).await;
        }
        Ok(orphans)
    }

    /// Those of some suspicions that still hold.
    async fn confirm(
        &self,
        listing: &mut Listing,
        suspects: &[&Suspect],
        queued: &Queued,
    ) -> Result<Vec<(Suspect, Option<PathBytes>)>, Failure> {
        let held = self.held(listing, suspects).await?;
        // Only now: what the namespace does not have after the list it never has again.
        let known = self.look_up(suspects).await?;
        let frame = self.setting.frame();
        let again = |(suspect, (known, path)): (&&Suspect, _)| {
            let held = held.get(&suspect.content.inode).map_or(&[][..], Vec::as_slice);
            let confirmed = frame.confirm(suspect, &known, held)?;
            (!is_being_freed(&confirmed, queued)).then_some((confirmed, path))
        };
        Ok(suspects.iter().zip(known).filter_map(again).collect())
    }

    /// Contents of suspected inodes that wait in the target's reclaim queue.
    async fn queued(&self, suspects: &[&Suspect]) -> Result<Queued, Failure> {
        let inodes: BTreeSet<_> = suspects.iter().map(|suspect| suspect.content.inode).collect();
        let mut queued = Queued::new();
        let (target, mut after) = (self.target, None);
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
            let Entry::Vacant(entry) = held.entry(inode) else { continue };
            listing.skip_to(inode);
            listing.reach(inode, || self.shared.engine.now()).await?;
            entry.insert(listing.take(inode));
        }
        Ok(held)
    }

    async fn look_up(
        &self,
        suspects: &[&Suspect],
    ) -> Result<Vec<(Known, Option<PathBytes>)>, Failure> {
        // What is not told in full needs no path.
        let wanted = |suspect: &&Suspect| {
            let with_path = tally::has_room(&self.shared.state().report, suspect.kind);
            (suspect.content.inode, with_path)
        };
        let wanted: Vec<_> = suspects.iter().map(wanted).collect();
        let work = move |core: &mut Core| {
            let known = |(inode, with_path)| namespace::look_up(core.view(), inode, with_path);
            let found: Result<Vec<_>, _> = wanted.into_iter().map(known).collect();
            found.map_err(|error| core.failure(error.into()))
        };
        self.shared.engine.turn(work).await
    }

    /// Asks how many bytes the orphans have.
    async fn measure(&self, confirmed: &mut [(Suspect, Option<PathBytes>)]) -> Result<(), Failure> {
        let found = confirmed.iter_mut().map(|(suspect, _)| suspect);
        let mut orphans: Vec<_> = found.filter(|found| found.kind == FsckKind::Orphan).collect();
        for some in orphans.chunks_mut(CONTENTS_TOGETHER) {
            let contents = some.iter().map(|orphan| orphan.content).collect();
            let request = Presence { target: self.target, contents };
            let reply = self.shared.targets.presence(self.host, request).await?;
            for (orphan, present) in some.iter_mut().zip(reply.present) {
                orphan.bytes = present.clean.0 + present.written.0;
            }
        }
        Ok(())
    }
}

fn is_being_freed(suspect: &Suspect, queued: &Queued) -> bool {
    let newest = queued.get(&suspect.content.inode);
    suspect.kind == FsckKind::Orphan
        && newest.is_some_and(|newest| suspect.content.generation <= *newest)
}
