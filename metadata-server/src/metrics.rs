//! What the metadata server counts.

use millrace_protocol::RequestKind;
use millrace_service::metrics::{Metrics, RequestMetricNames, RequestMetrics, RunningRequest};

/// The server's measurements of requests. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    requests: RequestMetrics,
}

impl ServerMetrics {
    /// Registers everything.
    pub fn register(metrics: &mut Metrics) -> Self {
        let names = RequestMetricNames {
            duration: "metadata_request_duration",
            running: "metadata_requests_running",
        };
        Self { requests: RequestMetrics::register(metrics, names) }
    }

    /// A request has arrived; what is given back ends with it.
    pub fn begin(&self, kind: RequestKind) -> RunningRequest<'_> {
        self.requests.begin(kind.name())
    }
}
