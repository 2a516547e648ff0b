//! What the metadata server counts.

use millrace_protocol::RequestKind;
use millrace_service::metrics::{
    Description, MetricUnit, Metrics, RequestMetricNames, RequestMetrics, RunningRequest, Stability,
};
use prometheus_client::metrics::gauge::Gauge;

use crate::locks::Counts;

/// The server's measurements. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    requests: RequestMetrics,
    locks: Gauge,
    lock_waits: Gauge,
    undeclared: Gauge,
}

impl ServerMetrics {
    /// Registers everything.
    pub fn register(metrics: &mut Metrics) -> Self {
        let names = RequestMetricNames {
            duration: "metadata_request_duration",
            running: "metadata_requests_running",
        };
        let mut gauge = |name, help| {
            let (unit, stability) = (MetricUnit::Count, Stability::Experimental);
            metrics.register(Description { name, help, unit, stability }, Gauge::default())
        };
        let locks = gauge("metadata_locks", "Locks on files and on ranges of them that are held");
        let lock_waits = gauge("metadata_lock_waits", "Programs that wait for a lock");
        let undeclared = gauge(
            "metadata_sessions_undeclared",
            "Sessions that have not declared since the restart what they hold",
        );
        Self { requests: RequestMetrics::register(metrics, names), locks, lock_waits, undeclared }
    }

    /// A request has arrived; what is given back ends with it.
    pub fn begin(&self, kind: RequestKind) -> RunningRequest<'_> {
        self.requests.begin(kind.name())
    }

    /// How many locks and waits there are, and sessions that others wait for.
    pub fn show_locks(&self, counts: Counts, undeclared: usize) {
        let show = |gauge: &Gauge, count: usize| {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        show(&self.locks, counts.locks);
        show(&self.lock_waits, counts.waits);
        show(&self.undeclared, undeclared);
    }
}
