//! What the metadata server counts.

use std::time::Duration;

use millrace_protocol::RequestKind;
use millrace_service::metrics::{Description, MetricUnit, Metrics, Stability, latency_histogram};
use prometheus_client::metrics::{family::Family, histogram::Histogram};

/// Names and values of a metric's labels.
type Labels = Vec<(&'static str, &'static str)>;

/// One histogram of answer times for each kind of request. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    requests: Family<Labels, Histogram, fn() -> Histogram>,
}

impl ServerMetrics {
    /// Registers everything.
    pub fn register(metrics: &mut Metrics) -> Self {
        let family = Family::new_with_constructor(latency_histogram as fn() -> Histogram);
        let requests = metrics.register(
            Description {
                name: "metadata_request_duration",
                help: "Time from a request's arrival to its answer, by kind of request",
                unit: MetricUnit::Seconds,
                stability: Stability::Experimental,
            },
            family,
        );
        Self { requests }
    }

    /// A request was answered or given up.
    pub fn answered(&self, kind: RequestKind, took: Duration) {
        self.requests.get_or_create(&vec![("kind", kind.name())]).observe(took.as_secs_f64());
    }
}
