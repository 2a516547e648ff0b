//! Points in time, always in the metadata server's clock unless said otherwise.

use std::time::Duration;

use rkyv::{Archive, Deserialize, Serialize};

/// Nanoseconds since 1970-01-01 UTC; negative before it. Covers the years 1678 to 2262.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Debug,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

const NANOS_PER_SECOND: i64 = 1_000_000_000;

impl Timestamp {
    /// Joins seconds and nanoseconds, saturating at the ends of the range.
    #[must_use]
    pub fn from_parts(seconds: i64, nanoseconds: u32) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(i64::from(nanoseconds)))
    }

    /// Whole seconds, rounded towards the past, so that the nanoseconds are never negative.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(NANOS_PER_SECOND)
    }

    /// The nanoseconds within the second, 0 to 999,999,999.
    #[must_use]
    pub fn subsec_nanoseconds(self) -> u32 {
        u32::try_from(self.0.rem_euclid(NANOS_PER_SECOND)).expect("a remainder fits in 30 bits")
    }

    /// This time plus `duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// The time that lies `duration` before.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this time lies; zero when it does not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        u64::try_from(self.0.saturating_sub(earlier.0)).map_or(Duration::ZERO, Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_keep_their_nanoseconds_positive() {
        let time = Timestamp::from_parts(-2, 500_000_000);
        assert_eq!((time.seconds(), time.subsec_nanoseconds()), (-2, 500_000_000));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
