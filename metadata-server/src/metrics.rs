//! What the metadata server counts.

use std::time::Duration;

use millrace_protocol::RequestKind;
use millrace_service::metrics::{
    Description, MetricUnit, Metrics, RequestMetricNames, RequestMetrics, RunningRequest,
    Stability, latency_histogram,
};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

use crate::{leases, locks};

/// The server's measurements. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    requests: RequestMetrics,
    locks: Gauge,
    lock_waits: Gauge,
    undeclared: Gauge,
    leases: Gauge,
    delegations: Gauge,
    limited: Gauge,
    takes_no_changes: Gauge,
    granted: Counter,
    recalled: Counter,
    recall_duration: Histogram,
}

impl ServerMetrics {
    /// Registers everything.
    pub fn register(metrics: &mut Metrics) -> Self {
        let names = RequestMetricNames {
            duration: "metadata_request_duration",
            running: "metadata_requests_running",
        };
        let describe = |name, help, unit| {
            let stability = Stability::Experimental;
            Description { name, help, unit, stability }
        };
        let count = |name, help| describe(name, help, MetricUnit::Count);
        let mut gauge = |name, help| metrics.register(count(name, help), Gauge::default());
        let locks = gauge("metadata_locks", "Locks on files and on ranges of them that are held");
        let lock_waits = gauge("metadata_lock_waits", "Programs that wait for a lock");
        let undeclared = gauge(
            "metadata_sessions_undeclared",
            "Sessions that have not declared since the restart what they hold",
        );
        let leases = gauge("metadata_leases", "Leases that mounts hold, by mount and directory");
        let delegations =
            gauge("metadata_delegations", "Directories in which a mount makes files by itself");
        let limited = gauge(
            "metadata_small_files_limited",
            "1 while new files of 4 to 16 KiB go to the targets for want of room",
        );
        let takes_no_changes = gauge(
            "metadata_takes_no_changes",
            "1 while no change is taken, for want of room or after a failure of the disk",
        );
        let mut counter = |name, help| metrics.register(count(name, help), Counter::default());
        let granted = counter("metadata_leases_granted", "Leases that mounts were granted");
        let recalled = counter(
            "metadata_recalls",
            "Names, attributes and leases that were taken back from a mount for a change elsewhere",
        );
        let waited = describe(
            "metadata_recall_duration",
            "How long a change waited until others had given back what it concerned",
            MetricUnit::Seconds,
        );
        let recall_duration = metrics.register(waited, latency_histogram());
        let requests = RequestMetrics::register(metrics, names);
        Self {
            requests,
            locks,
            lock_waits,
            undeclared,
            leases,
            delegations,
            limited,
            takes_no_changes,
            granted,
            recalled,
            recall_duration,
        }
    }

    /// A request has arrived; what is given back ends with it.
    pub fn begin(&self, kind: RequestKind) -> RunningRequest<'_> {
        self.requests.begin(kind.name())
    }

    /// How many locks, waits for them and leases there are, and how many sessions have not declared
    /// all that they hold: `undeclared` of them locks.
    pub fn show(&self, locks: locks::Counts, undeclared: usize, leases: leases::Counts) {
        let show = |gauge: &Gauge, count: usize| {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        show(&self.locks, locks.locks);
        show(&self.lock_waits, locks.waits);
        // One that has died has declared neither.
        show(&self.undeclared, undeclared.max(leases.undeclared));
        show(&self.leases, leases.leases);
        show(&self.delegations, leases.delegations);
        for (counter, count) in [(&self.granted, leases.granted), (&self.recalled, leases.recalled)]
        {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// Whether new files beyond a page have to go to the targets.
    pub fn show_small_files(&self, are_limited: bool) {
        self.limited.set(are_limited.into());
    }

    /// Whether changes are refused.
    pub fn show_refusal(&self, takes_no_changes: bool) {
        self.takes_no_changes.set(takes_no_changes.into());
    }

    /// A change waited so long until others had given back what it concerned, or for nothing.
    pub fn handle_recall(&self, waited: Duration) {
        self.recall_duration.observe(waited.as_secs_f64());
    }
}
