//! What a job waits for.

use std::time::Duration;

use indicatif::HumanDuration;
use millrace_protocol::job_waits::JobWait;
use serde::Serialize;

use crate::output::shown;

/// A bucket at which nobody answers.
#[derive(Serialize, Debug)]
pub(crate) struct WaitReport {
    pub(crate) bucket: String,
    /// Why the job waits.
    pub(crate) error: String,
    /// For how long it does.
    pub(crate) seconds: u64,
    /// When it asks again.
    pub(crate) next_seconds: u64,
    /// When it gives up.
    pub(crate) seconds_left: u64,
}

impl WaitReport {
    /// In words.
    pub(crate) fn words(&self) -> String {
        let human = |seconds| HumanDuration(Duration::from_secs(seconds)).to_string();
        let next = match self.next_seconds {
            0 => "now".to_owned(),
            seconds => format!("in {}", human(seconds)),
        };
        format!(
            "waits for {} for {} (asks again {next}, gives up in {}): {}",
            shown(&self.bucket),
            human(self.seconds),
            human(self.seconds_left),
            shown(&self.error)
        )
    }
}

impl From<JobWait> for WaitReport {
    fn from(wait: JobWait) -> Self {
        let JobWait { bucket, seconds, next_seconds, seconds_left, failure } = wait;
        Self { bucket, error: failure.to_string(), seconds, next_seconds, seconds_left }
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ErrorKind, Failure};

    use super::*;

    #[test]
    fn a_wait_says_for_what_since_when_and_until_when() {
        let failure = Failure::new(ErrorKind::BucketUnavailable, "connection refused");
        let bucket = "s3://data/".to_owned();
        let wait = JobWait { bucket, seconds: 40, next_seconds: 12, seconds_left: 3560, failure };
        let words = WaitReport::from(wait.clone()).words();
        assert_eq!(
            words,
            "waits for s3://data/ for 40 seconds (asks again in 12 seconds, gives up in 59 \
             minutes): the bucket cannot be reached: connection refused"
        );
        let words = WaitReport::from(JobWait { next_seconds: 0, ..wait }).words();
        assert!(words.contains("(asks again now, "), "{words}");
    }
}
