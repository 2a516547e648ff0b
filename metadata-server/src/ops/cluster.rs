//! Target daemons: registration, heartbeats, the map, keys, links and the reclaim queue.

use std::{net::SocketAddr, ops::Bound};

use millrace_protocol::{
    admin::TargetState,
    cluster::{
        AcknowledgeReclaim, FetchKeys, FetchLinks, FetchMap, FetchReclaim, Heartbeat,
        HeartbeatReply, Keys, Link, Links, Map, ReclaimBatch, ReclaimEntry, RegisterHost,
        RegisterHostReply, TARGETS_PER_HOST_MAX,
    },
    session::Done,
};
use millrace_types::{ErrorKind, Failure, LinkId, LogIndex, TargetId};

use super::{Client, Step, broken, read};
use crate::{
    apply::POSITION_BITS,
    command::{self, Command},
    engine::Core,
    namespace::tree,
    store::{
        borrow, keys, prefix_end,
        records::{self, LinkRecord, LostTarget, ReclaimRecord, TargetRecord},
    },
};

/// The most entries of one reclaim batch.
const RECLAIM_ENTRIES_MAX: usize = 4096;

/// The most targets of a cluster, and the most daemons: their map travels in one message.
const TARGETS_MAX: usize = 512;

/// The longest host name that is kept, in bytes.
const HOST_NAME_LEN_MAX: usize = 255;

/// The most addresses of one daemon.
const ADDRESSES_MAX: usize = 8;

/// A daemon announces itself. The answer must wait for the sync: others act on the map.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when the announcement makes no sense; [`ErrorKind::NoSpace`] when
/// the cluster map would become larger than a message; [`ErrorKind::InUse`] when another daemon
/// serves with the same identity.
pub fn register(
    core: &mut Core,
    client: &Client,
    request: &RegisterHost,
) -> Result<Step<RegisterHostReply>, Failure> {
    check_registration(request)?;
    check_room(core, client, request)?;
    check_identity(core, client, request)?;
    for report in &request.targets {
        core.skip_inode_ids(report.inode_max)?;
    }
    let known = core.map().0;
    let is_known = |id: TargetId| known.targets.iter().any(|target| target.id == id);
    let command = Command::RegisterHost(command::RegisterHost {
        host: client.host,
        name: request.host_name.clone(),
        addresses: request.addresses.clone(),
        targets: request.targets.iter().map(|report| (report.id, report.capacity)).collect(),
    });
    core.execute(None, command)?;
    for report in &request.targets {
        if is_lost(core, report.id)? {
            tracing::error!(target = %report.id, host = request.host_name,
                "a target is back that was given up: others have its groups, and it stays unused; \
                 take it out of the daemon's settings, or empty its disk to have it join anew");
        } else if report.blank && is_known(report.id) {
            tracing::error!(target = %report.id, "a target came back without its data");
            core.execute(None, Command::TargetBlank(report.id))?;
        }
    }
    tracing::info!(host = %client.host, name = request.host_name,
        targets = request.targets.len(), "target daemon registered");
    for report in &request.targets {
        // What comes back may be another copy of the disk: it has to show what it saw of the log.
        core.forget_compared(report.id);
    }
    heard(core, client, &request.targets)?;
    let news = news(core, client)?;
    Ok(Step::Done(RegisterHostReply { news }))
}

/// A daemon is alive.
///
/// # Errors
/// [`ErrorKind::NotFound`] when it serves a target that is not registered as its own: it must
/// register first.
pub fn heartbeat(
    core: &mut Core,
    client: &Client,
    request: &Heartbeat,
) -> Result<Step<HeartbeatReply>, Failure> {
    heard(core, client, &request.targets)?;
    news(core, client).map(Step::Done)
}

/// The cluster map, and the index that must be synced before it is sent.
///
/// # Errors
/// None today.
pub fn map(core: &mut Core, _: &Client, _: &FetchMap) -> Result<(Map, LogIndex), Failure> {
    let (map, index) = core.map();
    Ok(((*map).clone(), index))
}

/// The signing keys; all of them are synced.
///
/// # Errors
/// None today.
pub fn signing_keys(core: &mut Core, _: &Client, _: &FetchKeys) -> Result<Step<Keys>, Failure> {
    Ok(Step::Done(core.keyring().keys()))
}

/// The links, and the index that must be synced before they are sent.
///
/// # Errors
/// When the store is broken.
pub fn links(core: &mut Core, _: &Client, _: &FetchLinks) -> Result<(Links, LogIndex), Failure> {
    let found = all_links(core)?;
    let version = core.file_system()?.links_version;
    let links =
        found.into_iter().map(|(id, record)| Link { id, bucket: record.bucket, mode: record.mode });
    let links = Links { version, links: links.collect() };
    Ok((links, core.links_index()))
}

/// Every link in the order in which they were made.
pub(crate) fn all_links(core: &mut Core) -> Result<Vec<(LinkId, LinkRecord)>, Failure> {
    let found = tree::scan::<LinkRecord>(core.view(), &keys::links(), usize::MAX);
    let found = found.map_err(|error| broken(core, error))?;
    let id = |key: &[u8]| {
        let bytes = key.get(1..5).and_then(|bytes| bytes.try_into().ok());
        LinkId(bytes.map_or(0, u32::from_be_bytes))
    };
    Ok(found.into_iter().map(|(key, record)| (id(&key), record)).collect())
}

/// The first entries of a target's reclaim queue, as far as they are synced, or as far as there are
/// any for one that is full; and the index that must be synced before they are sent.
///
/// # Errors
/// [`ErrorKind::Forbidden`] for a target of another daemon.
pub fn reclaim(
    core: &mut Core,
    client: &Client,
    request: &FetchReclaim,
) -> Result<(ReclaimBatch, LogIndex), Failure> {
    check_own_target(core, client, request.target)?;
    let limit = usize::try_from(request.entries_max).unwrap_or(usize::MAX);
    let through = match request.entries_max {
        FetchReclaim::AT_ONCE => core.last_index(),
        _ => core.syncer().state().synced,
    };
    let limit = limit.min(RECLAIM_ENTRIES_MAX);
    let entries = reclaim_entries(core, request.target, limit, through)?;
    let Some(last) = entries.last().map(|entry| entry.position) else {
        return Ok((ReclaimBatch { entries }, LogIndex(0)));
    };
    core.registry.handle_reclaim_told(request.target, last);
    Ok((ReclaimBatch { entries }, LogIndex(last >> POSITION_BITS)))
}

/// Takes freed entries out of a target's queue: those that this run of the server has told the
/// target. An answer to another run may be about a log that was put back from an older copy since,
/// where other entries stand at the same positions. What is not taken out is told once more, and
/// freed once more, which changes nothing.
///
/// # Errors
/// [`ErrorKind::Forbidden`] for a target of another daemon.
pub fn acknowledge_reclaim(
    core: &mut Core,
    client: &Client,
    request: &AcknowledgeReclaim,
) -> Result<Step<Done>, Failure> {
    check_own_target(core, client, request.target)?;
    if let Some(told) = core.registry.reclaim_told(request.target) {
        let through = request.through.min(told);
        core.execute(None, Command::Reclaimed { target: request.target, through })?;
    }
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

fn reclaim_entries(
    core: &mut Core,
    target: TargetId,
    limit: usize,
    through: LogIndex,
) -> Result<Vec<ReclaimEntry>, Failure> {
    let prefix = keys::reclaims_of(target);
    let end = prefix_end(&prefix);
    let found = core
        .view()
        .scan(Bound::Included(&prefix), borrow(&end), limit)
        .map_err(|error| broken(core, error))?;
    let mut entries = Vec::with_capacity(found.len());
    for (key, value) in found {
        let record: ReclaimRecord =
            records::decode(&key, &value).map_err(|error| broken(core, error))?;
        let position = keys::number_at(&key, 9).unwrap_or_default();
        if LogIndex(position >> POSITION_BITS) > through {
            break;
        }
        entries.push(ReclaimEntry { position, inode: record.inode, generation: record.generation });
    }
    Ok(entries)
}

fn check_registration(request: &RegisterHost) -> Result<(), Failure> {
    let invalid = |text: &str| Err(Failure::new(ErrorKind::InvalidArgument, text));
    if request.targets.is_empty() || request.targets.len() > TARGETS_PER_HOST_MAX {
        return invalid("a daemon serves 1 to 64 targets");
    }
    if request.addresses.is_empty() || request.addresses.len() > ADDRESSES_MAX {
        return invalid("a daemon has 1 to 8 addresses");
    }
    if request.host_name.len() > HOST_NAME_LEN_MAX {
        return invalid("a host's name has at most 255 bytes");
    }
    for address in &request.addresses {
        let Ok(address) = address.parse::<SocketAddr>() else {
            return invalid("an address is no ip:port");
        };
        if address.ip().to_canonical().is_unspecified() || address.port() == 0 {
            let text = format!("nobody can reach a daemon at {address}: set listen or advertise");
            return invalid(&text);
        }
    }
    let mut ids: Vec<_> = request.targets.iter().map(|report| report.id).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != request.targets.len() {
        return invalid("a target is named twice");
    }
    Ok(())
}

/// Refuses targets and daemons that the cluster map cannot hold.
fn check_room(core: &Core, client: &Client, request: &RegisterHost) -> Result<(), Failure> {
    let map = core.map().0;
    let is_new = |id: TargetId| map.targets.iter().all(|target| target.id != id);
    let joining = request.targets.iter().filter(|report| is_new(report.id)).count();
    let new_host = map.hosts.iter().all(|host| host.id != client.host);
    let fits = map.targets.len() + joining <= TARGETS_MAX
        && map.hosts.len() + usize::from(new_host) <= TARGETS_MAX;
    if fits {
        return Ok(());
    }
    let text = format!("a cluster has at most {TARGETS_MAX} targets, with those that are gone");
    Err(Failure::new(ErrorKind::NoSpace, text))
}

/// Refuses a daemon elsewhere with the identity of one that serves: its addresses would take the
/// place of the other's, whose targets nobody would find any more.
fn check_identity(core: &Core, client: &Client, request: &RegisterHost) -> Result<(), Failure> {
    let map = core.map().0;
    let Some(known) = map.hosts.iter().find(|host| host.id == client.host) else { return Ok(()) };
    if known.addresses == request.addresses {
        return Ok(());
    }
    // A daemon that has moved names what it serves, and what it serves no more falls silent.
    let is_named = |id: TargetId| request.targets.iter().any(|report| report.id == id);
    let is_served = |id: TargetId| core.registry.state(id) == Some(TargetState::Online);
    let mut others = map.targets.iter().filter(|target| target.host == client.host);
    let Some(other) = others.find(|target| !is_named(target.id) && is_served(target.id)) else {
        return Ok(());
    };
    let (target, addresses) = (other.id, known.addresses.join(", "));
    let text = format!(
        "another daemon with this identity serves target {target} at {addresses}: give each \
         storage host an identity of its own (`millrace cluster invite --role target`)"
    );
    Err(Failure::new(ErrorKind::InUse, text))
}

/// Refuses a target that is registered for another daemon.
pub(super) fn check_own_target(
    core: &mut Core,
    client: &Client,
    target: TargetId,
) -> Result<(), Failure> {
    match read::<TargetRecord>(core, &keys::target(target))? {
        Some(record) if record.host == client.host => Ok(()),
        _ => Err(Failure::new(
            ErrorKind::Forbidden,
            format!("target {target} is not registered for this daemon"),
        )),
    }
}

fn heard(
    core: &mut Core,
    client: &Client,
    reports: &[millrace_protocol::cluster::TargetReport],
) -> Result<(), Failure> {
    let (now, time) = (core.instant(), core.now());
    for stranger in core.registry.handle_report(client.host, reports, now, time) {
        if is_lost(core, stranger)? {
            continue;
        }
        return Err(Failure::new(
            ErrorKind::NotFound,
            "a target is not registered for this daemon: register first",
        ));
    }
    Ok(())
}

/// Whether a target was given up: it is none any more, whatever its daemon believes.
pub(crate) fn is_lost(core: &mut Core, target: TargetId) -> Result<bool, Failure> {
    Ok(read::<LostTarget>(core, &keys::lost_target(target))?.is_some())
}

fn news(core: &mut Core, client: &Client) -> Result<HeartbeatReply, Failure> {
    let map = core.map().0;
    let mut reclaim_waiting = false;
    let synced = core.syncer().state().synced;
    for target in map.targets.iter().filter(|target| target.host == client.host) {
        reclaim_waiting |= !reclaim_entries(core, target.id, 1, synced)?.is_empty();
    }
    Ok(HeartbeatReply {
        server_time: core.now(),
        lease_ms: u32::try_from(core.lease().as_millis()).unwrap_or(u32::MAX),
        incarnation: core.incarnation(),
        map_epoch: map.epoch,
        newest_key: core.keyring().newest(),
        links_version: core.file_system()?.links_version,
        reclaim_waiting,
    })
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        cluster::{Group, Host, Pool, Target, TargetReport},
        codec::{self, MESSAGE_LEN_MAX},
    };
    use millrace_types::{ByteLen, GroupEpoch, HostId, InodeId, MapEpoch};

    use super::*;
    use crate::apply::GROUPS_PER_TARGET;

    #[test]
    fn a_daemon_that_nobody_could_reach_is_refused() {
        let report = TargetReport {
            id: TargetId([1; 8]),
            capacity: ByteLen(1 << 30),
            used: ByteLen(0),
            inode_max: InodeId(0),
            loss_count: 0,
            bad_blocks: 0,
            blank: false,
        };
        let check = |address: &str| {
            check_registration(&RegisterHost {
                addresses: vec!["10.1.0.7:7441".to_owned(), address.to_owned()],
                host_name: "store-1".to_owned(),
                targets: vec![report.clone()],
            })
        };
        for sound in ["10.1.0.8:1", "[2001:db8::7]:7441", "127.0.0.1:7441"] {
            assert_eq!(check(sound), Ok(()), "{sound}");
        }
        for wrong in ["[::]:7441", "0.0.0.0:7441", "[::ffff:0.0.0.0]:7441", "10.1.0.8:0"] {
            let refused = check(wrong).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{wrong}");
            assert!(refused.message.contains("advertise"), "{wrong}: {refused}");
        }
        assert!(check("store-1:7441").is_err());
    }

    #[test]
    fn the_map_of_the_largest_cluster_fits_into_a_message() {
        let numbers = 0..u8::try_from(TARGETS_MAX / 2 - 1).unwrap();
        let hosts = numbers.clone().cycle().take(TARGETS_MAX).map(|number| Host {
            id: HostId([number; 16]),
            name: "n".repeat(64),
            addresses: vec!["[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535".to_owned(); 2],
        });
        let targets = numbers
            .cycle()
            .take(TARGETS_MAX)
            .map(|number| Target { id: TargetId([number; 8]), host: HostId([number; 16]) });
        let group = Group { epoch: GroupEpoch(1), targets: vec![TargetId([1; 8])] };
        let groups = vec![group; TARGETS_MAX * GROUPS_PER_TARGET as usize];
        let map = Map {
            epoch: MapEpoch(1),
            hosts: hosts.collect(),
            targets: targets.collect(),
            pools: vec![Pool { id: millrace_types::PoolId(0), name: "default".to_owned(), groups }],
        };
        let len = codec::encode(&map).len();
        assert!(len <= MESSAGE_LEN_MAX, "{len} bytes");
    }
}
