//! Operators' questions about targets: what their daemons tell, with what only the metadata knows.

use std::{ops::Bound, time::Duration};

use futures::future::join_all;
use millrace_protocol::{
    admin::{PathBytes, TargetState, TargetStatus},
    cluster::Map,
    target::{ContentName, Presence, Present},
    upkeep::{
        CheckDrain, ControlScrub, DescribeTarget, DescribedTarget, DrainReply, FILES_PER_REPLY_MAX,
        FINDINGS_PER_REPLY_MAX, Fault, ListTargets, ScrubTargets, ScrubsReply, ShowTarget,
        TARGETS_PER_REPLY_MAX, TargetDetail, TargetReply, TargetScrub, TargetsReply,
    },
};
use millrace_types::{ByteLen, ErrorKind, Failure, GroupId, HostId, InodeId, TargetId};

use super::{
    fate::{Fate, fate},
    peers::Peers,
};
use crate::{
    engine::{Core, Handle},
    namespace::{Body, Inode, loss::Groups, tree},
    ops::{admin, broken},
    store::{borrow, keys, prefix_end, records},
};

/// How long a daemon may take to tell: an operator waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long one whose heartbeats do not come may: it is hardly there, and the others have told.
const SILENT_PATIENCE: Duration = Duration::from_secs(1);

/// How long it may take to look for what it holds of some thousand files.
const PRESENCE_PATIENCE: Duration = Duration::from_secs(30);

/// Inodes looked at in one turn of the engine, and for one reply. Of files that agree with their
/// objects the paths are looked up, too.
const INODES_PER_TURN: usize = 256;
const INODES_PER_REPLY: usize = 4096;

/// The engine, and the connections to the daemons.
#[derive(Debug, Clone)]
pub struct Upkeep {
    engine: Handle,
    peers: Peers,
}

impl Upkeep {
    /// Over a running engine.
    #[must_use]
    pub fn new(engine: Handle, peers: Peers) -> Self {
        Self { engine, peers }
    }

    /// Targets, each with what its daemon tells; all daemons are asked at once.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub async fn list(&self, request: &ListTargets) -> Result<TargetsReply, Failure> {
        let mut statuses = self.engine.turn(|core| Ok(admin::targets(core))).await?;
        statuses.retain(|status| request.after.is_none_or(|after| status.id > after));
        let more = statuses.len() > TARGETS_PER_REPLY_MAX;
        statuses.truncate(TARGETS_PER_REPLY_MAX);
        let asked = statuses.into_iter().map(|status| async {
            let question = DescribeTarget { target: status.id, after: None, findings_max: 0 };
            let detail = self.peers.ask(status.host, &question, patience(status.state)).await;
            DescribedTarget { status, detail }
        });
        Ok(TargetsReply { targets: join_all(asked).await, more })
    }

    /// Everything about a target, with the names of the files that its findings are in.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a target that never registered.
    pub async fn show(&self, request: &ShowTarget) -> Result<TargetReply, Failure> {
        let status = self.status(request.target).await?;
        let question = DescribeTarget {
            target: request.target,
            after: request.after,
            findings_max: request.findings_max.min(FINDINGS_PER_REPLY_MAX),
        };
        let detail = self.peers.ask(status.host, &question, PATIENCE).await;
        let findings = detail.as_ref().map(|detail| detail.findings.clone()).unwrap_or_default();
        let paths = self
            .engine
            .turn(move |core| {
                let paths = findings.iter().map(|finding| match finding.fault {
                    Fault::Index => Ok(None),
                    _ => path_of(core, finding.place.chunk.inode),
                });
                paths.collect()
            })
            .await?;
        Ok(TargetReply { target: DescribedTarget { status, detail }, paths })
    }

    /// Has scrubs do something; all daemons are asked at once.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a target that never registered; nothing is then done.
    pub async fn scrub(&self, request: &ScrubTargets) -> Result<ScrubsReply, Failure> {
        let map = self.peers.map().await?;
        let wanted: Vec<(TargetId, HostId)> = match &request.targets[..] {
            [] => map.targets.iter().map(|target| (target.id, target.host)).collect(),
            some => {
                let host = |&id: &TargetId| Ok((id, host_of(&map, id)?));
                some.iter().map(host).collect::<Result<_, Failure>>()?
            }
        };
        let asked = wanted.into_iter().map(|(target, host)| async move {
            let question = ControlScrub { target, action: request.action };
            let scrub = self.peers.ask(host, &question, PATIENCE).await;
            TargetScrub { target, scrub }
        });
        Ok(ScrubsReply { scrubs: join_all(asked).await })
    }

    /// What would be lost if a target went away now, of some of the files.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; those of its daemon, without which nobody can tell.
    pub async fn check_drain(&self, request: &CheckDrain) -> Result<DrainReply, Failure> {
        let target = request.target;
        let map = self.peers.map().await?;
        let host = host_of(&map, target)?;
        let question = DescribeTarget { target, after: None, findings_max: 0 };
        let detail: TargetDetail = self.peers.ask(host, &question, PATIENCE).await?;
        let groups = groups_of(&map, target);
        let mut reply = DrainReply {
            detail,
            groups: u32::try_from(groups.len()).unwrap_or(u32::MAX),
            inodes: 0,
            backed_files: 0,
            lost_files: 0,
            lost: ByteLen(0),
            paths: Vec::new(),
            next: request.after,
        };
        let mut suspects = Vec::new();
        for _ in 0..INODES_PER_REPLY / INODES_PER_TURN {
            let (after, groups) = (reply.next, groups.clone());
            let page = self.engine.turn(move |core| files(core, after, &groups)).await?;
            reply.inodes += page.inodes;
            reply.backed_files += page.backed;
            suspects.extend(page.suspects);
            reply.next = page.next;
            if page.next.is_none() {
                break;
            }
        }
        self.weigh(host, target, suspects, &mut reply).await?;
        Ok(reply)
    }

    /// Asks the daemon what it holds of files that no bucket may have as they are.
    async fn weigh(
        &self,
        host: HostId,
        target: TargetId,
        suspects: Vec<Suspect>,
        reply: &mut DrainReply,
    ) -> Result<(), Failure> {
        if suspects.is_empty() {
            return Ok(());
        }
        let contents = suspects.iter().map(|suspect| suspect.content).collect();
        let question = Presence { target, contents };
        let present = self.peers.ask(host, &question, PRESENCE_PATIENCE).await?.present;
        if present.len() != suspects.len() {
            return Err(ErrorKind::Protocol.into());
        }
        let mut lost = Vec::new();
        for (suspect, present) in suspects.into_iter().zip(present) {
            let (is_lost, bytes) = suspect.loss(&present);
            reply.lost_files += u64::from(is_lost);
            reply.lost.0 += bytes;
            if is_lost && lost.len() < FILES_PER_REPLY_MAX {
                lost.push(suspect.content.inode);
            }
        }
        let named = move |core: &mut Core| {
            let paths = lost.into_iter().map(|inode| {
                let path = path_of(core, inode)?;
                Ok(path.unwrap_or_else(|| format!("(unnamed) {inode}").into_bytes()))
            });
            paths.collect::<Result<_, Failure>>()
        };
        reply.paths = self.engine.turn(named).await?;
        Ok(())
    }

    async fn status(&self, target: TargetId) -> Result<TargetStatus, Failure> {
        let statuses = self.engine.turn(|core| Ok(admin::targets(core))).await?;
        let found = statuses.into_iter().find(|status| status.id == target);
        found.ok_or_else(|| unknown(target))
    }
}

fn patience(state: TargetState) -> Duration {
    match state {
        TargetState::Joining | TargetState::Online => PATIENCE,
        TargetState::Suspect | TargetState::Offline => SILENT_PATIENCE,
    }
}

/// Some files, as a drain sees them.
#[derive(Debug, Default)]
struct Files {
    inodes: u64,
    backed: u64,
    suspects: Vec<Suspect>,
    next: Option<InodeId>,
}

/// A file that no bucket may have as it is.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    content: ContentName,
    fate: Fate,
}

impl Suspect {
    /// Whether it loses something with what a target holds of it, and how much.
    fn loss(&self, present: &Present) -> (bool, u64) {
        let own = present.written.0 + present.zero.0;
        match self.fate {
            // Marked it is whatever lies there, and then all that is absent is lost.
            Fate::Damaged => (true, own),
            // What came from an object is all that there may be of it.
            _ => (own + present.clean.0 > 0, own + present.clean.0),
        }
    }
}

/// Looks at the inodes after `after`.
fn files(core: &mut Core, after: Option<InodeId>, groups: &Groups) -> Result<Files, Failure> {
    let start = keys::inode(after.unwrap_or(InodeId(0)));
    let prefix = [start[0]];
    let end = prefix_end(&prefix);
    let found = core.view().scan(Bound::Excluded(&start), borrow(&end), INODES_PER_TURN);
    let found = found.map_err(|error| broken(core, error))?;
    let mut files = Files { inodes: found.len() as u64, ..Files::default() };
    let more = found.len() == INODES_PER_TURN;
    for (key, value) in found {
        let inode: Inode = records::decode(&key, &value).map_err(|error| broken(core, error))?;
        files.next = more.then_some(inode.id);
        let Body::File(file) = &inode.body else { continue };
        let content = ContentName { inode: inode.id, generation: file.generation };
        match fate(core.view(), &inode, groups)? {
            Fate::Untouched => {}
            Fate::Backed => files.backed += 1,
            fate => files.suspects.push(Suspect { content, fate }),
        }
    }
    Ok(files)
}

/// The groups that have nothing but a target.
fn groups_of(map: &Map, target: TargetId) -> Groups {
    let of_pool = |pool: &millrace_protocol::cluster::Pool| {
        let id = pool.id;
        let numbered = (0..).map(GroupId).zip(&pool.groups);
        let alone = numbered.filter(|(_, group)| group.targets == [target]);
        alone.map(|(group, _)| (id, group)).collect::<Vec<_>>()
    };
    map.pools.iter().flat_map(of_pool).collect()
}

fn path_of(core: &mut Core, inode: InodeId) -> Result<Option<PathBytes>, Failure> {
    let found = tree::find(core.view(), inode).map_err(|error| broken(core, error))?;
    let Some(inode) = found else { return Ok(None) };
    tree::path(core.view(), &inode).map_err(|error| broken(core, error))
}

fn host_of(map: &Map, target: TargetId) -> Result<HostId, Failure> {
    let found = map.targets.iter().find(|known| known.id == target);
    found.map(|known| known.host).ok_or_else(|| unknown(target))
}

fn unknown(target: TargetId) -> Failure {
    Failure::new(ErrorKind::NotFound, format!("no target has the id {target}"))
}

#[cfg(test)]
mod tests {
    use millrace_protocol::cluster::{Group, Pool};
    use millrace_types::{ContentGeneration, GroupEpoch, MapEpoch, PoolId};

    use super::*;

    #[test]
    fn who_is_silent_does_not_hold_up_the_answers_of_the_others() {
        assert_eq!(patience(TargetState::Online), PATIENCE);
        assert!(patience(TargetState::Offline) < PATIENCE);
    }

    #[test]
    fn of_a_file_without_an_object_of_its_own_all_that_is_there_counts() {
        let loss = |fate, written: u64, clean: u64| {
            let generation = ContentGeneration(1);
            let content = ContentName { inode: InodeId(5), generation };
            let (clean, written) = (ByteLen(clean), ByteLen(written));
            Suspect { content, fate }.loss(&Present { clean, written, ..Present::default() })
        };
        assert_eq!(loss(Fate::Damaged, 7, 9), (true, 7), "a bucket has the rest");
        assert_eq!(loss(Fate::Damaged, 0, 0), (true, 0), "it is marked all the same");
        for fate in [Fate::Renamed, Fate::Lost] {
            assert_eq!(loss(fate, 7, 9), (true, 16));
            assert_eq!(loss(fate, 0, 9), (true, 9));
            assert_eq!(loss(fate, 0, 0), (false, 0));
        }
    }

    #[test]
    fn only_groups_without_another_target_go_with_one() {
        let (one, other) = (TargetId([1; 8]), TargetId([2; 8]));
        let group =
            |targets: &[TargetId]| Group { epoch: GroupEpoch(1), targets: targets.to_vec() };
        let groups = vec![group(&[one]), group(&[other]), group(&[one, other]), group(&[one])];
        let pool = Pool { id: PoolId(3), name: "p".into(), groups };
        let map =
            Map { epoch: MapEpoch(1), hosts: Vec::new(), targets: Vec::new(), pools: vec![pool] };
        let expected = [(PoolId(3), GroupId(0)), (PoolId(3), GroupId(3))].into();
        assert_eq!(groups_of(&map, one), expected);
        assert_eq!(host_of(&map, one).unwrap_err().kind, ErrorKind::NotFound);
    }
}
