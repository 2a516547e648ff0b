//! What every server measures of its requests: how long each kind takes, and how many run.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::metrics::{family::Family, gauge::Gauge, histogram::Histogram};

use super::{Description, MetricUnit, Metrics, Stability, latency_histogram};

/// Names and values of a metric's labels.
type Labels = Vec<(&'static str, &'static str)>;

/// The names under which a server registers what it measures of requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestMetricNames {
    /// The histogram of durations by kind, such as `target_request_duration`.
    pub duration: &'static str,
    /// The gauge of requests that run, such as `target_requests_running`.
    pub running: &'static str,
}

/// Measures requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    running: Arc<Gauge>,
}

/// A request that runs; dropping it, also when its caller gave up, counts it.
#[derive(Debug)]
#[must_use]
pub struct RunningRequest<'a> {
    metrics: &'a RequestMetrics,
    kind: &'static str,
    begun: Instant,
}

impl RequestMetrics {
    /// Registers both.
    ///
    /// # Panics
    /// As [`Metrics::register`].
    pub fn register(metrics: &mut Metrics, names: RequestMetricNames) -> Self {
        let duration = Description {
            name: names.duration,
            help: "Time from a request's arrival to its answer, by kind of request",
            unit: MetricUnit::Seconds,
            stability: Stability::Experimental,
        };
        let running = Description {
            name: names.running,
            help: "Requests that have arrived and are not answered yet",
            unit: MetricUnit::Count,
            stability: Stability::Experimental,
        };
        let family = Family::new_with_constructor(latency_histogram as fn() -> Histogram);
        let durations = metrics.register(duration, family);
        let running = Arc::new(metrics.register(running, Gauge::default()));
        Self { durations, running }
    }

    /// A request of `kind` has arrived.
    pub fn begin(&self, kind: &'static str) -> RunningRequest<'_> {
        self.running.inc();
        RunningRequest { metrics: self, kind, begun: Instant::now() }
    }

    fn observe(&self, kind: &'static str, took: Duration) {
        self.running.dec();
        self.durations.get_or_create(&vec![("kind", kind)]).observe(took.as_secs_f64());
    }
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        self.metrics.observe(self.kind, self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_histogram_and_a_dropped_request_counts() {
        let mut metrics = Metrics::new();
        let names = RequestMetricNames { duration: "a_duration", running: "a_running" };
        let requests = RequestMetrics::register(&mut metrics, names);
        let read = requests.begin("read");
        drop(requests.begin("write"));
        let text = metrics.encode();
        assert!(text.contains("millrace_a_running 1"), "{text}");
        assert!(text.contains(r#"millrace_a_duration_seconds_count{kind="write"} 1"#), "{text}");
        assert!(!text.contains(r#"kind="read""#), "{text}");
        drop(read);
        let text = metrics.encode();
        assert!(text.contains("millrace_a_running 0"), "{text}");
        assert!(text.contains(r#"millrace_a_duration_seconds_count{kind="read"} 1"#), "{text}");
    }
}
