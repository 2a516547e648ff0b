//! Requests of operators that need nothing but the metadata: status, layouts, lists.
//!
//! What works on buckets and targets (links, jobs, states of files) is in the hydration module.

use std::{collections::HashMap, ops::Bound, time::Duration};

use millrace_protocol::{
    admin::{
        ChunkPlace, ClusterStatus, ClusterStatusReply, Health, LAYOUT_CHUNKS_MAX, LayoutReply,
        LinkStatus, LinksReply, ListLinks, LogStatus, PathBytes, SessionStatus, SetLayout,
        ShowLayout, TargetState, TargetStatus,
    },
    metadata::INLINE_BYTES_MAX,
};
use millrace_types::{ByteLen, ChunkIndex, ErrorKind, Failure, InodeId, PoolId, SessionId};

use super::{Client, Step, broken, cluster::all_links, job, path, read};
use crate::{
    command::{Command, SetDefaults},
    engine::Core,
    namespace::{
        Body, Inode, LayoutDefaults,
        permission::{self, Access},
        tree,
    },
    store::{
        borrow, keys, prefix_end,
        records::{LinkRecord, OpenRecord, PoolRecord, SessionRecord},
    },
    targets::losses,
};

/// Ended jobs that a status shows.
const ENDED_JOBS_SHOWN: usize = 5;

/// By then clients that live have come back to a server that was restarted, and have declared.
const DECLARING_USUAL: Duration = Duration::from_secs(10);

/// State of the whole.
///
/// # Errors
/// When the store is broken.
pub fn status(
    core: &mut Core,
    client: &Client,
    _: &ClusterStatus,
) -> Result<Step<ClusterStatusReply>, Failure> {
    let log = core.syncer().state();
    let targets = targets(core);
    let mut problems = problems(&targets);
    problems.extend(core.older_copies());
    problems.extend(core.own_problems());
    problems.extend(conflicts(core)?);
    problems.extend(removals(core)?);
    problems.extend(losses::pending(core)?.into_iter().map(|target| {
        format!("target {target} is being given up: its groups wait until that is done")
    }));
    problems.extend(losses::problems(core)?);
    problems.extend_from_slice(core.noted_problems());
    // Every restart holds locks up for moments: that is nothing to report.
    if core.now().since(core.started()) > DECLARING_USUAL {
        problems.extend(core.locks.problem());
    }
    problems.extend(core.distrusted()?.map(|doubt| {
        format!(
            "the namespace may have lost files, so no orphans are freed: {}; see `millrace fsck \
             trust --help`",
            doubt.reason
        )
    }));
    let mut jobs = job::all(core, client)?;
    let mut ended = 0;
    jobs.retain(|job| {
        ended += usize::from(job.state.is_final());
        !job.state.is_final() || ended <= ENDED_JOBS_SHOWN
    });
    let file_system = core.file_system()?;
    Ok(Step::Done(ClusterStatusReply {
        health: if problems.is_empty() { Health::Healthy } else { Health::Degraded },
        problems,
        cluster: core.cluster().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: core.started(),
        server_time: core.now(),
        log: LogStatus {
            applied: core.last_index(),
            synced: log.synced,
            size: ByteLen(core.log_bytes()),
        },
        map_epoch: core.map().0.epoch,
        inodes: file_system.inodes,
        sessions: sessions(core)?,
        targets,
        links: link_list(core)?,
        jobs,
        reclaim_entries: file_system.reclaim_entries,
    }))
}

/// The links.
///
/// # Errors
/// When the store is broken.
pub fn links(core: &mut Core, _: &Client, _: &ListLinks) -> Result<Step<LinksReply>, Failure> {
    let links = link_list(core)?;
    Ok(Step::Done(LinksReply { links }))
}

/// The layout of a file, or what a directory gives new files.
///
/// # Errors
/// As [`path::resolve`]; [`ErrorKind::InvalidArgument`] for other kinds of inodes.
pub fn show_layout(
    core: &mut Core,
    client: &Client,
    request: &ShowLayout,
) -> Result<Step<LayoutReply>, Failure> {
    let inode = match path::resolve(core, client, &request.caller, &request.path)? {
        Step::Done(inode) => inode,
        Step::Need(need) => return Ok(Step::Need(need)),
    };
    let caller = client.caller(&request.caller);
    let allowed = permission::check(core.view(), &caller, &inode, Access::Read);
    allowed.map_err(|error| core.failure(error))?;
    layout(core, &inode).map(Step::Done)
}

/// Sets what new files below a directory get.
///
/// # Errors
/// [`ErrorKind::NotPermitted`] for others than the owner and root; [`ErrorKind::NotFound`] for a
/// pool that does not exist.
pub fn set_layout(
    core: &mut Core,
    client: &Client,
    request: &SetLayout,
) -> Result<Step<LayoutReply>, Failure> {
    let inode = match path::resolve(core, client, &request.caller, &request.path)? {
        Step::Done(inode) => inode,
        Step::Need(need) => return Ok(Step::Need(need)),
    };
    let mut defaults = inode.directory()?.defaults;
    if let Some(chunk_size) = request.chunk_size {
        defaults.chunk_size = millrace_types::ChunkSize::new(chunk_size.bytes())?;
    }
    if let Some(count) = request.stripe_count {
        defaults.width = match count {
            -1 => None,
            count => {
                Some(u32::try_from(count).ok().filter(|&count| count > 0).ok_or_else(|| {
                    Failure::new(
                        ErrorKind::InvalidArgument,
                        "the stripe count is at least 1, or -1 for all groups",
                    )
                })?)
            }
        };
    }
    if let Some(pool) = &request.pool {
        defaults.pool = pool_named(core, pool)?;
    }
    if let Some(most) = request.inline_bytes_max {
        if most > INLINE_BYTES_MAX {
            let text = format!("at most {} live in an inode", ByteLen(INLINE_BYTES_MAX.into()));
            return Err(Failure::new(ErrorKind::InvalidArgument, text));
        }
        defaults.inline_bytes_max = most;
    }
    let command = Command::SetDefaults(SetDefaults {
        caller: client.caller(&request.caller),
        directory: inode.id,
        defaults,
    });
    core.execute(None, command)?;
    let inode = tree::inode(core.view(), inode.id).map_err(|error| core.failure(error))?;
    layout(core, &inode).map(Step::Done)
}

fn layout(core: &mut Core, inode: &Inode) -> Result<LayoutReply, Failure> {
    let mut reply = LayoutReply {
        inode: inode.id,
        directory: inode.is_directory(),
        chunk_size: LayoutDefaults::default().chunk_size,
        stripe_count: -1,
        pool: String::new(),
        size: inode.size,
        inline_bytes: 0,
        chunks: Vec::new(),
        truncated: false,
    };
    let count = |width: u32| i32::try_from(width).unwrap_or(i32::MAX);
    match &inode.body {
        Body::Directory(directory) => {
            let defaults = directory.defaults;
            reply.chunk_size = defaults.chunk_size;
            reply.stripe_count = defaults.width.map_or(-1, count);
            reply.pool = pool_name(core, defaults.pool)?;
            reply.inline_bytes = defaults.inline_bytes_max;
        }
        Body::File(file) => {
            reply.chunk_size = file.layout.chunk_size();
            reply.stripe_count = count(file.layout.width());
            reply.pool = pool_name(core, file.layout.pool())?;
            let (here, at_targets) = match file.inline {
                Some(_) => (inode.size, 0),
                None => (0, inode.size),
            };
            reply.inline_bytes = u32::try_from(here).unwrap_or(u32::MAX);
            let chunks = at_targets.div_ceil(file.layout.chunk_size().bytes());
            let shown = chunks.min(LAYOUT_CHUNKS_MAX as u64);
            reply.truncated = shown < chunks;
            let map = core.map().0;
            for index in (0..u32::try_from(shown).unwrap_or(u32::MAX)).map(ChunkIndex) {
                let group = file.layout.group(index);
                let targets = map.group(file.layout.pool(), group);
                reply.chunks.push(ChunkPlace {
                    index,
                    group,
                    targets: targets.map(|group| group.targets.clone()).unwrap_or_default(),
                });
            }
        }
        Body::Symlink(_) | Body::Special => return Err(ErrorKind::InvalidArgument.into()),
    }
    Ok(reply)
}

fn pool_name(core: &mut Core, pool: PoolId) -> Result<String, Failure> {
    let record: Option<PoolRecord> = read(core, &keys::pool(pool))?;
    Ok(record.map(|record| record.name).unwrap_or_default())
}

fn pool_named(core: &mut Core, name: &str) -> Result<PoolId, Failure> {
    let map = core.map().0;
    let pool = map.pools.iter().find(|pool| pool.name == name);
    let missing = || Failure::new(ErrorKind::NotFound, format!("no pool is called {name:?}"));
    Ok(pool.ok_or_else(missing)?.id)
}

fn link_list(core: &mut Core) -> Result<Vec<LinkStatus>, Failure> {
    let mut links = Vec::new();
    for (id, record) in all_links(core)? {
        let path = path_of_link(core, &record)?;
        links.push(LinkStatus { id, path, bucket: record.bucket, mode: record.mode });
    }
    Ok(links)
}

fn path_of_link(core: &mut Core, link: &LinkRecord) -> Result<PathBytes, Failure> {
    let inode = tree::find(core.view(), link.directory).map_err(|error| broken(core, error))?;
    let path = match inode {
        Some(inode) => tree::path(core.view(), &inode).map_err(|error| broken(core, error))?,
        None => None,
    };
    Ok(path.unwrap_or_default())
}

/// A sentence for each link whose removal has begun and not ended.
fn removals(core: &mut Core) -> Result<Vec<String>, Failure> {
    let mut sentences = Vec::new();
    for (_, record) in all_links(core)?.into_iter().filter(|(_, record)| record.removing) {
        let path = path_of_link(core, &record)?;
        sentences.push(format!(
            "the link at {0} is being removed: where that does not end, millrace link remove {0} \
             says what holds it up",
            String::from_utf8_lossy(&path)
        ));
    }
    Ok(sentences)
}

fn sessions(core: &mut Core) -> Result<Vec<SessionStatus>, Failure> {
    let found = tree::scan::<SessionRecord>(core.view(), &keys::sessions(), usize::MAX);
    let found = found.map_err(|error| broken(core, error))?;
    let opens = tree::scan::<OpenRecord>(core.view(), b"O", usize::MAX);
    let opens = write_opens(&opens.map_err(|error| broken(core, error))?);
    let mut sessions = Vec::with_capacity(found.len());
    for (key, record) in found {
        let session = SessionId(keys::number_at(&key, 1).unwrap_or_default());
        sessions.push(SessionStatus {
            session,
            host: record.host,
            host_name: record.host_name,
            expires: core.expiry.expires(session).unwrap_or_default(),
            write_opens: opens.get(&session).copied().unwrap_or_default(),
        });
    }
    Ok(sessions)
}

/// Opens for writing of each session that has any, of all the records there are.
fn write_opens(opens: &[(Vec<u8>, OpenRecord)]) -> HashMap<SessionId, u32> {
    let mut sums: HashMap<SessionId, u32> = HashMap::new();
    for (key, open) in opens {
        if let Some(session) = keys::number_at(key, 9).map(SessionId) {
            let sum = sums.entry(session).or_default();
            *sum = sum.saturating_add(open.writes);
        }
    }
    sums
}

/// Every target ever registered, by its id.
pub(crate) fn targets(core: &mut Core) -> Vec<TargetStatus> {
    let map = core.map().0;
    let groups_of = |target| {
        let groups = map.pools.iter().flat_map(|pool| &pool.groups);
        let count = groups.filter(|group| group.targets.contains(&target)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    core.registry
        .members()
        .map(|(id, member)| {
            let host = map.host_of(id);
            let report = member.report.as_ref();
            TargetStatus {
                id,
                host: member.host,
                host_name: host.map(|host| host.name.clone()).unwrap_or_default(),
                addresses: host.map(|host| host.addresses.clone()).unwrap_or_default(),
                state: member.state(),
                capacity: report.map(|report| report.capacity).unwrap_or_default(),
                used: report.map(|report| report.used).unwrap_or_default(),
                groups: groups_of(id),
                bad_blocks: report.map(|report| report.bad_blocks).unwrap_or_default(),
                heard: member.heard,
            }
        })
        .collect()
}

/// Conflicts that a status counts: beyond it there are "more".
const CONFLICTS_COUNTED: usize = 10_000;

/// A sentence about files that changed here and in their bucket, if there are any.
fn conflicts(core: &mut Core) -> Result<Option<String>, Failure> {
    let prefix = keys::conflicts();
    let end = prefix_end(&prefix);
    let found = core.view().scan(Bound::Included(&prefix), borrow(&end), CONFLICTS_COUNTED + 1);
    let found = found.map_err(|error| broken(core, error))?;
    let Some((first, _)) = found.first() else { return Ok(None) };
    let id = InodeId(keys::number_at(first, 1).unwrap_or_default());
    let inode = tree::find(core.view(), id).map_err(|error| broken(core, error))?;
    let path = match &inode {
        Some(inode) => tree::path(core.view(), inode).map_err(|error| broken(core, error))?,
        None => None,
    };
    let path = path.unwrap_or_else(|| id.to_string().into_bytes());
    let count = match found.len() {
        1 => "1 file".to_owned(),
        count if count > CONFLICTS_COUNTED => format!("more than {CONFLICTS_COUNTED} files"),
        count => format!("{count} files"),
    };
    Ok(Some(format!(
        "{count} changed here and in the bucket (the first: {}): decide with millrace resolve",
        String::from_utf8_lossy(&path)
    )))
}

fn problems(targets: &[TargetStatus]) -> Vec<String> {
    let mut problems = Vec::new();
    if targets.is_empty() {
        problems.push("no storage target has registered: files cannot be made".to_owned());
    }
    for target in targets {
        let name = format!("target {} on {}", target.id, target.host_name);
        match target.state {
            TargetState::Online => {}
            TargetState::Joining => {
                problems.push(format!("{name} has not been heard of since the server's start"));
            }
            TargetState::Suspect => problems.push(format!("{name} is late with its heartbeats")),
            TargetState::Offline => problems.push(format!(
                "{name} does not answer, and who needs it waits; if it will not come back: \
                 millrace target lost {}",
                target.id
            )),
        }
        if target.bad_blocks > 0 {
            problems.push(format!(
                "{name} has {} damaged blocks; millrace target show {} names their files",
                target.bad_blocks, target.id
            ));
        }
        // A twentieth left is when allocation and copy-on-write begin to suffer.
        let nearly_full = target.capacity.0 - target.capacity.0 / 20;
        if target.capacity.0 > 0 && target.used.0 >= nearly_full {
            problems.push(format!(
                "{name} is nearly full, {} used: export, unpin or remove files",
                target.used
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use millrace_types::{HostId, TargetId, Timestamp};

    use super::*;

    #[test]
    fn a_problem_of_a_target_comes_with_what_helps() {
        let id = TargetId([7; 8]);
        let sound = TargetStatus {
            id,
            host: HostId([1; 16]),
            host_name: "store-1".to_owned(),
            addresses: Vec::new(),
            state: TargetState::Online,
            capacity: ByteLen(1000),
            used: ByteLen(949),
            groups: 64,
            bad_blocks: 0,
            heard: Timestamp::default(),
        };
        assert_eq!(problems(std::slice::from_ref(&sound)), Vec::<String>::new());
        let offline = TargetStatus { state: TargetState::Offline, ..sound.clone() };
        let damaged = TargetStatus { bad_blocks: 2, ..sound.clone() };
        let full = TargetStatus { used: ByteLen(950), ..sound };
        for (target, remedy) in [
            (offline, format!("millrace target lost {id}")),
            (damaged, format!("millrace target show {id}")),
            (full, "export, unpin or remove".to_owned()),
        ] {
            let found = problems(&[target]);
            assert!(found.len() == 1 && found[0].contains(&remedy), "{found:?}");
        }
    }

    #[test]
    fn only_opens_for_writing_are_summed_and_each_for_its_session() {
        const SESSIONS: u64 = 500;
        const FILES: u64 = 500;
        let open = |at: u64| {
            let (file, session) = (at / SESSIONS, at % SESSIONS);
            let writes = u32::from(file.is_multiple_of(2)) * 2;
            let key = keys::open(InodeId(file), SessionId(session));
            (key, OpenRecord { writes, reads: writes == 0 })
        };
        let opens: Vec<_> = (0..SESSIONS * FILES).map(open).collect();
        let sums = write_opens(&opens);
        assert_eq!(sums.len(), 500);
        assert!(sums.values().all(|&sum| sum == 500), "two of every other file");
        assert_eq!(sums.get(&SessionId(SESSIONS)), None);
    }
}
