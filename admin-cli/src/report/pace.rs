//! How fast a job is, as a whole and in one directory, and how long what it has found takes at
//! that: from two looks, because the cluster keeps when a job was asked for, and not when it began
//! to work, or to count anew after a restart.

use std::time::Duration;

use indicatif::HumanDuration;
use millrace_protocol::{
    admin::{Job, JobKind},
    job_detail::DirectoryProgress,
};
use millrace_types::ByteLen;
use serde::Serialize;

use crate::output::counted;

/// How fast a job is, and how long what it has found takes at that. What is not known is left out.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PaceReport {
    /// Never of an import, which moves none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<u64>,
    /// Of an import: names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) files_per_second: Option<u64>,
    /// Never of an import, which has done whatever it has found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds_left: Option<u64>,
}

/// What one look shows of a job, or of one directory of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    files_done: u64,
    files_left: u64,
    bytes_done: u64,
    bytes_left: u64,
}

impl PaceReport {
    /// From two looks, the later one some time after the earlier one. None where nothing was done
    /// in between, or that was no time, or the job began to count anew.
    pub(crate) fn between(
        kind: JobKind,
        before: Counts,
        now: Counts,
        elapsed: Duration,
    ) -> Option<Self> {
        if elapsed < PACE_TIME_MIN || now.is_behind(before) {
            return None;
        }
        let files_per_second = per_second(now.files_done - before.files_done, elapsed);
        if kind == JobKind::Import {
            let (bytes_per_second, seconds_left) = (None, None);
            return files_per_second.map(|_| Self {
                bytes_per_second,
                files_per_second,
                seconds_left,
            });
        }
        let bytes_per_second = per_second(now.bytes_done - before.bytes_done, elapsed);
        let seconds_left = match (bytes_per_second, files_per_second) {
            (None, None) => return None,
            (Some(rate), _) if now.bytes_left > 0 => Some(now.bytes_left / rate),
            (None, Some(_)) if now.bytes_left > 0 => None,
            (_, Some(rate)) => Some(now.files_left / rate),
            (Some(_), None) => Some(0),
        };
        Some(Self { bytes_per_second, files_per_second, seconds_left })
    }

    /// In words.
    pub(crate) fn words(self, kind: JobKind) -> String {
        let left = self.left_words().map_or_else(String::new, |left| format!(", {left} left"));
        self.rate_words(kind) + &left
    }

    /// What a second sees done.
    pub(crate) fn rate_words(self, kind: JobKind) -> String {
        let thing = if kind == JobKind::Import { "name" } else { "file" };
        let bytes = self.bytes_per_second.map(|rate| ByteLen(rate).to_string());
        let files = self.files_per_second.map(|rate| counted(rate, thing));
        let both: Vec<_> = bytes.into_iter().chain(files).collect();
        format!("{} a second", both.join(" and "))
    }

    /// How long the rest takes, if that is known.
    pub(crate) fn left_words(self) -> Option<String> {
        self.seconds_left.map(|left| HumanDuration(Duration::from_secs(left)).to_string())
    }
}

/// To the next whole number, so that one file in a second and a little is not nothing.
fn per_second(done: u64, elapsed: Duration) -> Option<u64> {
    let millis = elapsed.as_millis();
    let rate = (u128::from(done) * 1000 + millis / 2).checked_div(millis)?;
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
}

impl Counts {
    /// Whether fewer are done than at an earlier look: after a restart of the server a job counts
    /// from the beginning.
    pub(crate) fn is_behind(self, before: Self) -> bool {
        self.files_done < before.files_done || self.bytes_done < before.bytes_done
    }
}

impl From<&Job> for Counts {
    fn from(job: &Job) -> Self {
        Self {
            files_done: job.files_done,
            files_left: job.files_total.saturating_sub(job.files_done).saturating_sub(job.errors),
            bytes_done: job.bytes_done,
            bytes_left: job.bytes_total.saturating_sub(job.bytes_done),
        }
    }
}

impl From<&DirectoryProgress> for Counts {
    fn from(row: &DirectoryProgress) -> Self {
        Self {
            files_done: row.files_done,
            files_left: row.files_total.saturating_sub(row.files_done).saturating_sub(row.errors),
            bytes_done: row.bytes_done,
            bytes_left: row.bytes_total.saturating_sub(row.bytes_done),
        }
    }
}

/// Servers record what a job has done twice a second: less than two of these say little. Clocks of
/// two hosts may not agree on a second.
const PACE_TIME_MIN: Duration = Duration::from_millis(950);

#[cfg(test)]
mod tests {
    use millrace_types::MIB;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn counts(files_done: u64, bytes_done: u64) -> Counts {
        // Of 10 files and 100 MiB.
        let (files_left, bytes_left) = (10 - files_done, 100 * MIB - bytes_done);
        Counts { files_done, files_left, bytes_done, bytes_left }
    }

    fn told(kind: JobKind, now: Counts, elapsed: Duration) -> Option<String> {
        let pace = PaceReport::between(kind, counts(2, 20 * MIB), now, elapsed);
        pace.map(|pace| pace.words(kind))
    }

    #[test]
    fn rate_and_time_left_are_told_once_they_are_known() {
        let hydrate = |now, elapsed| told(JobKind::Hydrate, now, elapsed);
        let by_bytes = hydrate(counts(2, 40 * MIB), 10 * SECOND).unwrap();
        assert_eq!(by_bytes, "2 MiB a second, 30 seconds left");
        let both = hydrate(counts(5, 23 * MIB), Duration::from_millis(1_500)).unwrap();
        assert_eq!(both, "2 MiB and 2 files a second, 38 seconds left");
        // One file in a little more than a second is one a second.
        let one = hydrate(counts(3, 20 * MIB), Duration::from_millis(1_003)).unwrap();
        assert_eq!(one, "1 file a second");
        let empty_ones = Counts { bytes_left: 0, ..counts(4, 20 * MIB) };
        assert_eq!(hydrate(empty_ones, SECOND).unwrap(), "2 files a second, 3 seconds left");
        let last = Counts { bytes_left: 0, files_left: 0, ..counts(2, 100 * MIB) };
        assert_eq!(hydrate(last, SECOND).unwrap(), "80 MiB a second, 0 seconds left");
    }

    #[test]
    fn nothing_is_told_of_no_time_and_of_what_begins_anew() {
        let export = |now, elapsed| told(JobKind::Export, now, elapsed);
        assert_eq!(export(counts(2, 20 * MIB), 10 * SECOND), None, "nothing was done");
        assert_eq!(export(counts(9, 90 * MIB), Duration::from_millis(900)), None);
        assert_eq!(export(counts(1, 90 * MIB), SECOND), None);
        assert_eq!(export(counts(9, 10 * MIB), SECOND), None);
    }

    #[test]
    fn of_an_import_names_are_told_and_no_end() {
        let import = |now| told(JobKind::Import, now, SECOND);
        assert_eq!(import(counts(9, 90 * MIB)).unwrap(), "7 names a second");
        assert_eq!(import(counts(2, 90 * MIB)), None);
    }

    #[test]
    fn what_failed_is_not_left() {
        let row = DirectoryProgress {
            name: Vec::new(),
            files_total: 10,
            files_done: 3,
            bytes_total: 8,
            bytes_done: 5,
            errors: 2,
        };
        let expected = Counts { files_done: 3, files_left: 5, bytes_done: 5, bytes_left: 3 };
        assert_eq!(Counts::from(&row), expected);
        let more_failed = DirectoryProgress { errors: 20, ..row };
        assert_eq!(Counts::from(&more_failed), Counts { files_left: 0, ..expected });
    }
}
