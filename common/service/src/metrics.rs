//! The metrics of a daemon: a registry that knows each one's unit and stability, and its endpoint.
//!
//! A daemon keeps one [`Metrics`], registers everything while it is being built, and then serves it
//! with [`serve`] when `metrics.address` is set. The text is OpenMetrics; names start with
//! `millrace_` and end with the unit. Counting never allocates, locks or waits: only a scrape walks
//! the registry.

use std::fmt;

use prometheus_client::{
    metrics::{MetricType, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};

mod endpoint;
mod requests;

pub use endpoint::{BindError, MetricsSettings, serve};
pub use requests::{RequestMetricNames, RequestMetrics, RunningRequest};

/// How much a metric's name and meaning may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stability {
    /// Kept as it is; a change is announced in the change log one release before.
    Stable,
    /// May change with any release, of which the change log then tells: look through what alerts
    /// on it with each upgrade.
    Experimental,
    /// For the authors of Millrace.
    Internal,
}

impl fmt::Display for Stability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stable => "stable",
            Self::Experimental => "experimental",
            Self::Internal => "internal",
        })
    }
}

/// What one number counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricUnit {
    /// Bytes.
    Bytes,
    /// Seconds, also fractions of one.
    Seconds,
    /// A share of 0 to 1.
    Ratio,
    /// Things; the name says which, in the plural.
    Count,
}

/// One metric as the documentation lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Description {
    /// The name without the prefix `millrace_` and without the unit, such as `target_read`; lower
    /// case, digits and `_`.
    pub name: &'static str,
    /// One sentence without a full stop.
    pub help: &'static str,
    /// What it counts.
    pub unit: MetricUnit,
    /// How much it may change.
    pub stability: Stability,
}

/// The registry of one daemon.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    descriptions: Vec<Description>,
    names: Vec<String>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry without metrics.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::with_prefix(PREFIX);
        Self { registry, descriptions: Vec::new(), names: Vec::new() }
    }

    /// Adds `metric` (a cheap clone of the one that is counted on) and gives it back.
    ///
    /// # Panics
    /// When the name is taken or has other characters than lower case, digits and `_`: both are
    /// mistakes of the program, found by the first test that builds the daemon.
    pub fn register<M: Metric + Clone>(&mut self, description: Description, metric: M) -> M {
        let well_formed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(
            description.name.bytes().all(well_formed),
            "metric {:?} is named with lower case, digits and underscores",
            description.name
        );
        assert!(
            self.descriptions.iter().all(|other| other.name != description.name),
            "metric {:?} is registered once",
            description.name
        );
        let help = format!("{} [{}]", description.help, description.stability);
        self.names.extend(names(&description, metric.metric_type()));
        let added = metric.clone();
        match description.unit {
            MetricUnit::Bytes => self.with_unit(description.name, help, Unit::Bytes, added),
            MetricUnit::Seconds => self.with_unit(description.name, help, Unit::Seconds, added),
            MetricUnit::Ratio => self.with_unit(description.name, help, Unit::Ratios, added),
            MetricUnit::Count => self.registry.register(description.name, help, added),
        }
        self.descriptions.push(description);
        metric
    }

    fn with_unit(&mut self, name: &str, help: String, unit: Unit, metric: impl Metric) {
        self.registry.register_with_unit(name, help, unit, metric);
    }

    /// Every metric in the order of registration, for the documentation and its test.
    #[must_use]
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// The whole names under which [`Self::encode`] shows them, also of those that have nothing to
    /// show yet: with prefix, unit and ending. A histogram has that of its family and those of its
    /// parts.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The present values in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing to a string never fails");
        text
    }
}

/// What every name begins with.
const PREFIX: &str = "millrace";

fn names(description: &Description, kind: MetricType) -> Vec<String> {
    let unit = match description.unit {
        MetricUnit::Bytes => "_bytes",
        MetricUnit::Seconds => "_seconds",
        MetricUnit::Ratio => "_ratios",
        MetricUnit::Count => "",
    };
    let endings: &[&str] = match kind {
        MetricType::Counter => &["_total"],
        MetricType::Histogram => &["", "_bucket", "_count", "_sum"],
        MetricType::Gauge | MetricType::Info | MetricType::Unknown => &[""],
    };
    let name = |ending| format!("{PREFIX}_{}{unit}{ending}", description.name);
    endings.iter().map(name).collect()
}

/// A histogram of how long requests take: 24 buckets from 10 us, each twice the one before, so that
/// it reaches from a page-cache answer to 84 s, past the longest request deadline.
#[must_use]
pub fn latency_histogram() -> Histogram {
    Histogram::new((0..24).map(|power| 10e-6 * f64::from(1 << power)))
}

/// A histogram of request sizes: 10 buckets from 4 KiB (a page) to 1 GiB, each four times the one
/// before.
#[must_use]
pub fn size_histogram() -> Histogram {
    Histogram::new((0..10).map(|power| 4096.0 * f64::from(1 << (2 * power))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

    use super::*;

    const READ: Description = Description {
        name: "target_read",
        help: "Bytes read from disk",
        unit: MetricUnit::Bytes,
        stability: Stability::Stable,
    };

    #[test]
    fn a_metric_appears_with_its_unit_and_stability() {
        let mut metrics = Metrics::new();
        let read = metrics.register(READ, Counter::<u64>::default());
        read.inc_by(7);
        let text = metrics.encode();
        assert!(text.contains("millrace_target_read_bytes_total 7"), "{text}");
        assert!(text.contains("Bytes read from disk [stable]"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert_eq!(metrics.descriptions(), [READ]);
    }

    #[test]
    fn names_are_those_that_a_scrape_shows_and_told_before_anything_is_counted() {
        let mut metrics = Metrics::new();
        let named = |name, unit| Description { name, unit, ..READ };
        metrics.register(READ, Counter::<u64>::default());
        metrics.register(named("a_syncs", MetricUnit::Count), Counter::<u64>::default());
        metrics.register(named("a_used", MetricUnit::Bytes), Gauge::<i64>::default());
        metrics.register(named("a_share", MetricUnit::Ratio), Gauge::<i64>::default());
        metrics.register(named("a_latency", MetricUnit::Seconds), latency_histogram());
        let family = Family::<Vec<(&str, &str)>, Counter>::default();
        let family = metrics.register(named("a_moved", MetricUnit::Bytes), family);
        let told: BTreeSet<_> = metrics.names().iter().cloned().collect();
        assert!(told.contains("millrace_a_moved_bytes_total"), "{told:?}");
        family.get_or_create(&vec![("operation", "read")]).inc();
        let text = metrics.encode();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let histograms = families.filter_map(|line| line.strip_suffix(" histogram"));
        let shown: BTreeSet<_> = samples
            .filter_map(|line| line.split(['{', ' ']).next())
            .chain(histograms)
            .map(str::to_owned)
            .collect();
        assert_eq!(told, shown);
    }

    #[test]
    #[should_panic(expected = "registered once")]
    fn a_name_is_used_once() {
        let mut metrics = Metrics::new();
        metrics.register(READ, Counter::<u64>::default());
        metrics.register(READ, Counter::<u64>::default());
    }

    #[test]
    fn histograms_reach_from_the_quickest_to_the_slowest_request() {
        let mut metrics = Metrics::new();
        let latency = Description { name: "request_latency", unit: MetricUnit::Seconds, ..READ };
        metrics.register(latency, latency_histogram()).observe(0.5);
        let text = metrics.encode();
        assert!(text.contains("millrace_request_latency_seconds_bucket"), "{text}");
        assert!(text.contains("le=\"83.88608\""), "{text}");
        let size = Description { name: "request_size", ..READ };
        metrics.register(size, size_histogram()).observe(4096.0);
        assert!(metrics.encode().contains("le=\"1073741824.0\""));
    }
}
