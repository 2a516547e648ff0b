//! Giving up targets that will not come back.
//!
//! ```text
//!   Begin ─▶ look at every inode, mark what is damaged ─▶ a new signing key ─▶ End
//!     nobody serves the target's groups                                      others do
//! ```
//!
//! Each step is in the log, so that a restart goes on where it was. The key comes after the marks:
//! targets that take a group over want capabilities that are as new as that, so that nobody reads
//! by one that takes what is lost for a hole, or for the bucket's.
//!
//! Modules: `damage` (which files still lack something, for the state of the cluster), `trouble`
//! (steps that keep failing).

use std::{
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::{
    admin::TargetState,
    loss::{LOST_PATHS_MAX, LookLoss, LoseTarget, LossPage, LossProgress},
};
use millrace_types::{ErrorKind, Failure, InodeId, TargetId};
use tokio::sync::Notify;

use self::trouble::Trouble;
use super::fate::{Fate, fate, is_damaged};
use crate::{
    command::{Command, Loss},
    engine::{Core, Handle},
    namespace::{Inode, loss::Groups, tree},
    ops::{broken, read},
    store::{
        StoreError, View, keys,
        records::{self, GroupRecord, LostTarget, PoolRecord, ReclaimRecord, TargetRecord},
    },
};

mod damage;
mod trouble;

pub(crate) use damage::{Damage, problems};

/// Inodes looked at in one turn of the engine, and for one reply.
const INODES_PER_TURN: usize = 512;
const INODES_PER_REPLY: u64 = 4096;

/// Entries of a reclaim queue that one command removes.
const ENTRIES_PER_TURN: usize = 4096;

/// How often losses are looked for whose steps failed.
const SWEEP: Duration = Duration::from_secs(5);

/// Between two turns of a look that nobody waits for: a million inodes take some ten seconds.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// How long an operator's request waits for the end before it tells how far it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is given up. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Losses {
    engine: Handle,
    begun: Arc<Notify>,
    ended: Arc<Notify>,
    trouble: Arc<Mutex<Trouble>>,
}

impl Losses {
    /// Over a running engine.
    #[must_use]
    pub fn new(engine: Handle) -> Self {
        let trouble = Arc::default();
        Self { engine, begun: Arc::default(), ended: Arc::default(), trouble }
    }

    /// Begins to give a target up, and tells how far that is. The work goes on when the caller goes
    /// away.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a target that there never was; [`ErrorKind::InUse`] for one that
    /// was heard of less than a lease ago; [`ErrorKind::Unavailable`] when no other is left; why a
    /// step fails again and again.
    pub async fn lose(&self, request: &LoseTarget) -> Result<LossProgress, Failure> {
        let target = request.target;
        let mut ended = std::pin::pin!(self.ended.notified());
        ended.as_mut().enable();
        let progress = self.engine.durable_turn(move |core| begin(core, target)).await?;
        self.begun.notify_one();
        if !progress.ended {
            // Whoever ends first: the caller asks again.
            drop(tokio::time::timeout(PATIENCE, ended).await);
        }
        let query = self.engine.turn(move |core| Ok(progress_of(&lost(core, target)?)));
        let progress = query.await?;
        let reason = self.trouble().reason(target).filter(|_| !progress.ended);
        reason.map_or(Ok(progress), Err)
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks which files the loss of a target damages, or has damaged; before it is given up, also
    /// those of which nobody knows.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a target that there never was.
    pub async fn look(&self, request: &LookLoss) -> Result<LossPage, Failure> {
        let target = request.target;
        let (groups, given_up) = self.engine.turn(move |core| groups_of(core, target)).await?;
        let mut page = LossPage {
            groups: u32::try_from(groups.len()).unwrap_or(u32::MAX),
            given_up,
            inodes: 0,
            files: 0,
            paths: Vec::new(),
            next: request.after,
        };
        let groups = Arc::new(groups);
        let (mut room, mut renamed) = (LOST_PATHS_MAX, Vec::new());
        while page.inodes < INODES_PER_REPLY && room > 0 {
            let (groups, after) = (Arc::clone(&groups), page.next.unwrap_or(InodeId(0)));
            let look = move |core: &mut Core| look_at_some(core, after, &groups, given_up, room);
            let some = self.engine.turn(look).await?;
            room = room.saturating_sub(some.damaged.len() + some.renamed.len());
            page.inodes += some.inodes;
            page.files += some.damaged.len() as u64;
            page.paths.extend(some.damaged);
            renamed.extend(some.renamed);
            page.next = some.next;
            if page.next.is_none() {
                break;
            }
        }
        page.paths.extend(renamed);
        Ok(page)
    }

    /// Takes the steps of what was begun, until dropped.
    pub async fn run(&self) {
        loop {
            match self.engine.turn(pending).await {
                Ok(pending) => {
                    for target in pending {
                        let result = self.settle(target).await;
                        if let Err(failure) = &result {
                            tracing::warn!(%target, %failure, "giving it up goes on later");
                        }
                        self.trouble().handle_attempt(target, result);
                    }
                }
                Err(failure) => tracing::debug!(%failure, "cannot look for what is given up"),
            }
            let rest = async {
                if let Err(failure) = self.look_for_damage().await {
                    tracing::debug!(%failure, "cannot look which files are damaged");
                }
                tokio::time::sleep(SWEEP).await;
            };
            tokio::select! {
                () = self.begun.notified() => {}
                () = rest => {}
            }
        }
    }

    /// Looks which files are damaged, where that is not known, so that the state of the cluster can
    /// tell how many still are.
    ///
    /// # Errors
    /// When the store is broken.
    pub async fn look_for_damage(&self) -> Result<(), Failure> {
        while !self.engine.turn(damage::look_on).await? {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Ok(())
    }

    async fn settle(&self, target: TargetId) -> Result<(), Failure> {
        while !self.engine.turn(move |core| mark_some(core, target)).await? {}
        while !self.engine.turn(move |core| drop_entries(core, target)).await? {}
        self.engine.durable_turn(Core::renew_key).await?;
        self.engine.turn(Core::use_coming_key).await?;
        let end = Command::Loss(Loss::End(target));
        self.engine.durable_turn(move |core| core.execute(None, end)).await?;
        let lost = self.engine.turn(move |core| lost(core, target)).await?;
        tracing::warn!(%target, groups = lost.groups.len(), damaged_files = lost.files,
            "a target is given up: others serve its groups");
        self.ended.notify_waiters();
        Ok(())
    }
}

/// What one turn found.
struct Looked {
    inodes: u64,
    /// Paths.
    damaged: Vec<Vec<u8>>,
    renamed: Vec<Vec<u8>>,
    next: Option<InodeId>,
}

fn look_at_some(
    core: &mut Core,
    after: InodeId,
    groups: &Groups,
    given_up: bool,
    room: usize,
) -> Result<Looked, Failure> {
    let mut some = inodes(core, after, InodeId(u64::MAX))?;
    let is_last = some.len() < INODES_PER_TURN;
    let mut told = Vec::new();
    for inode in &some {
        let fate = fate(core.view(), inode, groups)?;
        let is_told = match given_up {
            true => fate == Fate::Lost,
            false => matches!(fate, Fate::Damaged | Fate::Renamed),
        };
        if is_told {
            told.push((inode.id, fate));
        }
    }
    let is_cut = told.len() > room;
    told.truncate(room);
    if let Some((last, _)) = told.last().filter(|_| is_cut) {
        some.retain(|inode| inode.id <= *last);
    }
    let next = some.last().map(|inode| inode.id).filter(|_| is_cut || !is_last);
    let (mut damaged, mut renamed) = (Vec::new(), Vec::new());
    for (inode, fate) in told {
        let path = path(core, inode)?;
        match fate {
            Fate::Renamed => renamed.push(path),
            _ => damaged.push(path),
        }
    }
    Ok(Looked { inodes: some.len() as u64, damaged, renamed, next })
}

fn begin(core: &mut Core, target: TargetId) -> Result<LossProgress, Failure> {
    if read::<LostTarget>(core, &keys::lost_target(target))?.is_none() {
        match core.registry.state(target) {
            None => return Err(unknown(target)),
            Some(TargetState::Offline) => {}
            Some(_) => {
                let text = format!(
                    "target {target} was heard of less than a lease ago: end its daemon, or take \
                     it out of the daemon's settings, and wait until `millrace target list` \
                     shows it offline"
                );
                return Err(Failure::new(ErrorKind::InUse, text));
            }
        }
        let below = core.new_inode_id()?;
        let begun = core.execute(None, Command::Loss(Loss::Begin { target, below }));
        begun.map_err(|failure| match failure.kind {
            ErrorKind::Unavailable => {
                let text = "no other target is left to take over: add one first";
                Failure::new(ErrorKind::Unavailable, text)
            }
            _ => failure,
        })?;
        tracing::warn!(%target, "a target is being given up");
    }
    Ok(progress_of(&lost(core, target)?))
}

/// Marks what is damaged among the next inodes; returns whether all have been looked at.
fn mark_some(core: &mut Core, target: TargetId) -> Result<bool, Failure> {
    let lost = lost(core, target)?;
    let groups: Groups = lost.groups.iter().copied().collect();
    let some = inodes(core, lost.looked_at, lost.below)?;
    let Some(last) = some.last() else { return Ok(true) };
    let inodes = damaged(core, &some, &groups)?;
    let mark = Loss::Mark { target, inodes, through: last.id };
    core.execute(None, Command::Loss(mark))?;
    Ok(some.len() < INODES_PER_TURN)
}

/// Removes some of what the target was to free; returns whether nothing is left.
fn drop_entries(core: &mut Core, target: TargetId) -> Result<bool, Failure> {
    let queue = keys::reclaims_of(target);
    let found = tree::scan::<ReclaimRecord>(core.view(), &queue, ENTRIES_PER_TURN);
    let found = found.map_err(|error| broken(core, error))?;
    let Some(through) = found.last().and_then(|(key, _)| keys::number_at(key, queue.len())) else {
        return Ok(true);
    };
    core.execute(None, Command::Reclaimed { target, through })?;
    Ok(found.len() < ENTRIES_PER_TURN)
}

/// The inodes after one and below another, as many as one turn looks at.
fn inodes(core: &mut Core, after: InodeId, below: InodeId) -> Result<Vec<Inode>, Failure> {
    let (after, below) = (keys::inode(after), keys::inode(below));
    let range = (Bound::Excluded(&after[..]), Bound::Excluded(&below[..]));
    let found = core.view().scan(range.0, range.1, INODES_PER_TURN);
    let decoded = found
        .and_then(|found| found.iter().map(|(key, value)| records::decode(key, value)).collect());
    decoded.map_err(|error| broken(core, error))
}

/// Which of some inodes the loss of the groups damages.
fn damaged(core: &mut Core, some: &[Inode], groups: &Groups) -> Result<Vec<InodeId>, Failure> {
    let view = core.view();
    let found: Result<Vec<InodeId>, StoreError> = some
        .iter()
        .filter_map(|inode| match is_damaged(view, inode, groups) {
            Ok(damaged) => damaged.then_some(Ok(inode.id)),
            Err(error) => Some(Err(error)),
        })
        .collect();
    found.map_err(|error| broken(core, error))
}

/// The groups of a target, and whether it was given up.
fn groups_of(core: &mut Core, target: TargetId) -> Result<(Groups, bool), Failure> {
    if let Some(lost) = read::<LostTarget>(core, &keys::lost_target(target))? {
        return Ok((lost.groups.into_iter().collect(), true));
    }
    if read::<TargetRecord>(core, &keys::target(target))?.is_none() {
        return Err(unknown(target));
    }
    let groups = served(core.view(), target);
    Ok((groups.map_err(|error| broken(core, error))?, false))
}

fn served(view: &dyn View, target: TargetId) -> Result<Groups, StoreError> {
    let mut groups = Groups::new();
    for (key, _) in tree::scan::<PoolRecord>(view, &keys::pools(), usize::MAX)? {
        let Some(pool) = keys::pool_of(&key) else { continue };
        let all = tree::scan::<GroupRecord>(view, &keys::groups(pool), usize::MAX)?;
        let numbered = (0..).map(millrace_types::GroupId).zip(all);
        let alone = numbered.filter(|(_, (_, group))| group.targets == [target]);
        groups.extend(alone.map(|(group, _)| (pool, group)));
    }
    Ok(groups)
}

/// Targets whose groups nobody serves yet.
pub(crate) fn pending(core: &mut Core) -> Result<Vec<TargetId>, Failure> {
    let found = given_up(core)?.into_iter();
    Ok(found.filter(|(_, lost)| lost.ended.is_none()).map(|(target, _)| target).collect())
}

/// Every target that was given up.
fn given_up(core: &mut Core) -> Result<Vec<(TargetId, LostTarget)>, Failure> {
    let found = tree::scan::<LostTarget>(core.view(), &keys::lost_targets(), usize::MAX);
    let found = found.map_err(|error| broken(core, error))?;
    let target = |key: &[u8]| key.get(1..9)?.try_into().ok().map(TargetId);
    Ok(found.into_iter().filter_map(|(key, lost)| Some((target(&key)?, lost))).collect())
}

fn lost(core: &mut Core, target: TargetId) -> Result<LostTarget, Failure> {
    read(core, &keys::lost_target(target))?.ok_or_else(|| unknown(target))
}

fn progress_of(lost: &LostTarget) -> LossProgress {
    LossProgress {
        groups: u32::try_from(lost.groups.len()).unwrap_or(u32::MAX),
        looked_at: lost.looked_at,
        below: lost.below,
        files: lost.files,
        ended: lost.ended.is_some(),
    }
}

fn path(core: &mut Core, id: InodeId) -> Result<Vec<u8>, Failure> {
    let found = tree::find(core.view(), id).and_then(|inode| match inode {
        Some(inode) => tree::path(core.view(), &inode),
        None => Ok(None),
    });
    let found = found.map_err(|error| broken(core, error))?;
    Ok(found.unwrap_or_else(|| format!("(unnamed) {id}").into_bytes()))
}

fn unknown(target: TargetId) -> Failure {
    Failure::new(ErrorKind::NotFound, format!("no target has the id {target}"))
}
