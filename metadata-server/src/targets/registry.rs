//! What heartbeats tell of all targets. In memory only.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use millrace_protocol::{
    admin::TargetState,
    cluster::{Map, TargetReport},
};
use millrace_types::{HostId, TargetId, Timestamp};

use super::liveness::Liveness;

/// Every target of the map, with its last report.
#[derive(Debug)]
pub struct Registry {
    lease: Duration,
    targets: BTreeMap<TargetId, Member>,
}

/// One target.
#[derive(Debug, Clone)]
pub struct Member {
    /// The daemon that serves it.
    pub host: HostId,
    /// Its last report, since the server's start.
    pub report: Option<TargetReport>,
    /// When the last report came, in server time.
    pub heard: Timestamp,
    /// The last entry of its reclaim queue that it was told, since the server's start.
    reclaim_told: Option<u64>,
    liveness: Liveness,
}

impl Member {
    /// Whether it answers.
    #[must_use]
    pub fn state(&self) -> TargetState {
        self.liveness.state()
    }
}

impl Registry {
    /// Starts with the targets of the map, none of them heard of yet.
    #[must_use]
    pub fn new(map: &Map, now: Instant, lease: Duration) -> Self {
        let mut registry = Self { lease, targets: BTreeMap::new() };
        registry.handle_map(map, now);
        registry
    }

    /// The map changed: targets may have joined, moved, or been given up.
    pub fn handle_map(&mut self, map: &Map, now: Instant) {
        let known: BTreeSet<TargetId> = map.targets.iter().map(|target| target.id).collect();
        self.targets.retain(|id, _| known.contains(id));
        for target in &map.targets {
            let member = self.targets.entry(target.id).or_insert_with(|| Member {
                host: target.host,
                report: None,
                heard: Timestamp::default(),
                reclaim_told: None,
                liveness: Liveness::new(now, self.lease),
            });
            member.host = target.host;
        }
    }

    /// A daemon reports. Targets that it does not serve according to the map are passed over, and
    /// returned.
    pub fn handle_report(
        &mut self,
        host: HostId,
        reports: &[TargetReport],
        now: Instant,
        time: Timestamp,
    ) -> Vec<TargetId> {
        let mut strangers = Vec::new();
        for report in reports {
            match self.targets.get_mut(&report.id) {
                Some(member) if member.host == host => {
                    member.liveness.handle_heartbeat(now);
                    member.report = Some(report.clone());
                    member.heard = time;
                }
                _ => strangers.push(report.id),
            }
        }
        strangers
    }

    /// Nobody could report for so long before `now`.
    pub fn forgive(&mut self, unheard: Duration, now: Instant) {
        self.targets.values_mut().for_each(|member| member.liveness.forgive(unheard, now));
    }

    /// A target is told its reclaim queue up to and with this position.
    pub fn handle_reclaim_told(&mut self, target: TargetId, position: u64) {
        if let Some(member) = self.targets.get_mut(&target) {
            member.reclaim_told = member.reclaim_told.max(Some(position));
        }
    }

    /// The last position of its reclaim queue that a target was told in this run of the server.
    #[must_use]
    pub fn reclaim_told(&self, target: TargetId) -> Option<u64> {
        self.targets.get(&target)?.reclaim_told
    }

    /// Applies the deadlines that have passed; returns the targets whose state changed.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<(TargetId, TargetState)> {
        let mut changed = Vec::new();
        for (id, member) in &mut self.targets {
            if member.liveness.handle_timeout(now) {
                changed.push((*id, member.state()));
            }
        }
        changed
    }

    /// Whether a target answers; `None` for one that the map does not name.
    #[must_use]
    pub fn state(&self, target: TargetId) -> Option<TargetState> {
        self.targets.get(&target).map(Member::state)
    }

    /// Every target.
    pub fn members(&self) -> impl Iterator<Item = (TargetId, &Member)> {
        self.targets.iter().map(|(id, member)| (*id, member))
    }

    /// Targets that have not reported since the server's start.
    pub fn unreported(&self) -> impl Iterator<Item = TargetId> {
        self.targets.iter().filter(|(_, member)| member.report.is_none()).map(|(id, _)| *id)
    }

    /// Capacity and use of the targets that have reported, by their last reports, in bytes.
    #[must_use]
    pub fn capacity(&self) -> (u64, u64) {
        let reports = self.targets.values().filter_map(|member| member.report.as_ref());
        reports.fold((0, 0), |(capacity, used), report| {
            let capacity: u64 = capacity;
            let used: u64 = used;
            (capacity.saturating_add(report.capacity.0), used.saturating_add(report.used.0))
        })
    }
}
