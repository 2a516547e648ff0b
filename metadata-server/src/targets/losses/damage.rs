//! Which files still lack what went with targets that were given up, for the state of the cluster.
//!
//! No record lists them: a file says so itself, until it is written anew or removed. They are found
//! by a look at every inode, once after each start and after each loss, and only where files were
//! damaged at all. From then on only they are looked at again.

use std::collections::BTreeSet;

use millrace_types::{Failure, InodeId, TargetId};

use super::{given_up, inodes, path};
use crate::{
    engine::Core,
    namespace::{Body, Inode, ObjectState, loss, loss::Groups, tree},
    ops::broken,
    store::records::LostTarget,
};

/// Files that are remembered, each of which a status looks at: some milliseconds.
const FILES_MAX: usize = 1000;

/// What is known of damaged files.
#[derive(Debug)]
pub(crate) struct Damage {
    /// Every inode up to this has been looked at; `None` when all have been.
    looked_at: Option<InodeId>,
    /// The files among them that were damaged.
    files: BTreeSet<InodeId>,
}

impl Default for Damage {
    fn default() -> Self {
        Self { looked_at: Some(InodeId(0)), files: BTreeSet::new() }
    }
}

impl Damage {
    /// Files may be damaged that were not: everything has to be looked at.
    pub(crate) fn handle_loss(&mut self) {
        *self = Self::default();
    }

    /// The inode behind which to look for more; `None` when all are known, or enough.
    fn poll_look(&self) -> Option<InodeId> {
        self.looked_at.filter(|_| self.files.len() < FILES_MAX)
    }

    fn handle_look(&mut self, damaged: impl Iterator<Item = InodeId>, looked_at: Option<InodeId>) {
        self.files.extend(damaged);
        self.looked_at = looked_at;
    }
}

/// Looks at the next inodes; returns whether that is all for now.
pub(super) fn look_on(core: &mut Core) -> Result<bool, Failure> {
    let Some(after) = core.damage.poll_look() else { return Ok(true) };
    let targets = given_up(core)?;
    let are_over = targets.iter().all(|(_, lost)| lost.ended.is_some());
    if !are_over || targets.iter().all(|(_, lost)| lost.files == 0) {
        return Ok(true);
    }
    let some = inodes(core, after, InodeId(u64::MAX))?;
    let damaged = some.iter().filter(|inode| is_lost(inode)).map(|inode| inode.id);
    let is_last = some.len() < super::INODES_PER_TURN;
    let next = some.last().map(|inode| inode.id).filter(|_| !is_last);
    core.damage.handle_look(damaged, next);
    Ok(is_last)
}

/// Sentences about files that lack what went with targets, for the state of the cluster.
///
/// # Errors
/// When the store is broken.
pub(crate) fn problems(core: &mut Core) -> Result<Vec<String>, Failure> {
    let targets = damaging(core)?;
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let files = still_damaged(core)?;
    let is_known = core.damage.looked_at.is_none();
    let mut problems = Vec::new();
    for (target, lost) in targets {
        let groups: Groups = lost.groups.iter().copied().collect();
        let mut of_target = files.iter().filter(|inode| reaches(inode, &groups));
        let see = format!("see millrace target lost {target}");
        match of_target.next() {
            Some(first) if is_known => {
                let (count, first) = (1 + of_target.count() as u64, path(core, first.id)?);
                problems.push(format!(
                    "{} bytes that went with target {target}, which was given up (the first: {}): \
                     {see}",
                    lacking(count),
                    String::from_utf8_lossy(&first),
                ));
            }
            None if is_known => {}
            _ => problems.push(format!(
                "target {target} was given up, with bytes of {} that no bucket has: {see} for \
                 those that lack them still",
                counted(lost.files),
            )),
        }
    }
    Ok(problems)
}

/// Targets with which bytes of files went, and that others have taken over from.
fn damaging(core: &mut Core) -> Result<Vec<(TargetId, LostTarget)>, Failure> {
    let mut targets = given_up(core)?;
    targets.retain(|(_, lost)| lost.ended.is_some() && lost.files > 0);
    Ok(targets)
}

/// The files that were found damaged and still are; the others are forgotten.
fn still_damaged(core: &mut Core) -> Result<Vec<Inode>, Failure> {
    let known: Vec<InodeId> = core.damage.files.iter().copied().collect();
    let mut damaged = Vec::with_capacity(known.len());
    for id in known {
        let found = tree::find(core.view(), id).map_err(|error| broken(core, error))?;
        match found.filter(is_lost) {
            Some(inode) => damaged.push(inode),
            None => {
                core.damage.files.remove(&id);
            }
        }
    }
    Ok(damaged)
}

fn is_lost(inode: &Inode) -> bool {
    matches!(&inode.body, Body::File(file) if file.state == ObjectState::Lost)
}

/// Whether a file has chunks in some groups.
fn reaches(inode: &Inode, groups: &Groups) -> bool {
    inode.file().is_ok_and(|file| loss::touches(&file.layout, inode.size, groups))
}

fn lacking(files: u64) -> String {
    match files {
        1 => "1 file lacks".to_owned(),
        files => format!("{files} files lack"),
    }
}

fn counted(files: u64) -> String {
    match files {
        1 => "1 file".to_owned(),
        files => format!("{files} files"),
    }
}
