//! What a job works on, and how it is done.

use millrace_protocol::{
    admin::FileState,
    cluster::Bucket,
    job_options::{Destination, JobOptions},
    selection::SelectionReply,
};
use millrace_types::ByteLen;
use serde::Serialize;

use crate::output::shown;

/// Which files of its tree; what is `null` or empty leaves nothing out.
#[derive(Serialize, Debug, PartialEq, Eq)]
pub(crate) struct SelectionReport {
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) larger_bytes: Option<u64>,
    pub(crate) smaller_bytes: Option<u64>,
    pub(crate) older_seconds: Option<u64>,
    pub(crate) newer_seconds: Option<u64>,
    pub(crate) unused_seconds: Option<u64>,
    pub(crate) states: Vec<&'static str>,
    pub(crate) dry_run: bool,
}

impl SelectionReport {
    /// Nothing for a job that does all of its tree.
    pub(crate) fn of(
        reply: SelectionReply,
        unused_seconds: Option<u64>,
        states: &[FileState],
    ) -> Option<Self> {
        let SelectionReply { selection, dry_run } = reply;
        let looks = unused_seconds.is_some() || !states.is_empty();
        let is_part = !selection.is_everything() || looks;
        (dry_run || is_part).then_some(Self {
            include: selection.include,
            exclude: selection.exclude,
            larger_bytes: selection.size_min,
            smaller_bytes: selection.size_max,
            older_seconds: selection.age_min,
            newer_seconds: selection.age_max,
            unused_seconds,
            states: states.iter().map(|state| state.name()).collect(),
            dry_run,
        })
    }

    /// In words.
    pub(crate) fn words(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.include.iter().map(|glob| format!("--include '{}'", shown(glob))));
        words.extend(self.exclude.iter().map(|glob| format!("--exclude '{}'", shown(glob))));
        words.extend(self.larger_bytes.map(|bytes| format!("--larger {}", size(bytes))));
        words.extend(self.smaller_bytes.map(|bytes| format!("--smaller {}", size(bytes))));
        words.extend(self.older_seconds.map(|age| format!("--older {age}s")));
        words.extend(self.newer_seconds.map(|age| format!("--newer {age}s")));
        words.extend(self.unused_seconds.map(|age| format!("--unused {age}s")));
        let named = (!self.states.is_empty()).then(|| self.states.join(","));
        words.extend(named.map(|names| format!("--state {names}")));
        words.extend(self.dry_run.then(|| "--dry-run".to_owned()));
        words.join(" ")
    }
}

/// How a job is done, if that is in some way of its own.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(crate) struct JobOptionsReport {
    pub(crate) atomic: bool,
    pub(crate) priority: i8,
    pub(crate) rate_bytes_per_second: Option<u64>,
    pub(crate) report: bool,
    /// Whether it works on the files of a list.
    pub(crate) files: bool,
    pub(crate) destination: Option<DestinationReport>,
}

/// Where files go that do not go to the bucket of their link.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(crate) struct DestinationReport {
    pub(crate) url: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) credentials: Option<String>,
    pub(crate) overwrite: bool,
}

impl JobOptionsReport {
    /// Nothing for a job without options.
    pub(crate) fn of(options: JobOptions) -> Option<Self> {
        if options == JobOptions::default() {
            return None;
        }
        let JobOptions { atomic, priority, bytes_per_second, report, files, destination } = options;
        let destination = destination.map(|Destination { bucket, overwrite }| {
            let Bucket { url, endpoint, region, credentials } = bucket;
            DestinationReport { url, endpoint, region, credentials, overwrite }
        });
        Some(Self {
            atomic,
            priority,
            rate_bytes_per_second: bytes_per_second,
            report,
            files: files.is_some(),
            destination,
        })
    }

    /// In words.
    pub(crate) fn words(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.atomic.then(|| "--atomic".to_owned()));
        words.extend((self.priority != 0).then(|| format!("--priority {}", self.priority)));
        words.extend(self.rate_bytes_per_second.map(|rate| format!("--rate {}", size(rate))));
        words.extend(self.report.then(|| "--report".to_owned()));
        words.extend(self.files.then(|| "--files-from (a list)".to_owned()));
        if let Some(to) = &self.destination {
            words.push(format!("--to {}", shown(&to.url)));
            words.extend(to.endpoint.as_ref().map(|url| format!("--endpoint {}", shown(url))));
            words.extend(to.region.as_ref().map(|name| format!("--region {}", shown(name))));
            let credentials = to.credentials.as_ref();
            words.extend(credentials.map(|name| format!("--credentials {}", shown(name))));
            words.extend(to.overwrite.then(|| "--overwrite".to_owned()));
        }
        words.join(" ")
    }
}

fn size(bytes: u64) -> String {
    ByteLen(bytes).to_string().replace(' ', "")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{file_list::FileListId, selection::Selection};

    use super::*;

    #[test]
    fn options_are_told_as_they_are_written() {
        assert_eq!(JobOptionsReport::of(JobOptions::default()), None);
        let options = JobOptions {
            atomic: true,
            priority: -2,
            bytes_per_second: Some(200 << 20),
            report: true,
            files: Some(FileListId(7)),
            destination: Some(Destination {
                bucket: Bucket {
                    url: "s3://b/p".to_owned(),
                    endpoint: None,
                    region: None,
                    credentials: Some("archive".to_owned()),
                },
                overwrite: true,
            }),
        };
        let told = JobOptionsReport::of(options).unwrap().words();
        let expected = "--atomic --priority -2 --rate 200MiB --report --files-from (a list) --to \
                        s3://b/p --credentials archive --overwrite";
        assert_eq!(told, expected);
    }

    #[test]
    fn a_selection_is_told_as_it_is_written() {
        let reply = |selection, dry_run| SelectionReply { selection, dry_run };
        let everything = || reply(Selection::default(), false);
        assert_eq!(SelectionReport::of(everything(), None, &[]), None);
        let unused = SelectionReport::of(everything(), Some(86_400), &[]);
        assert_eq!(unused.unwrap().words(), "--unused 86400s");
        let states = [FileState::Dirty, FileState::Conflict];
        let by_state = SelectionReport::of(everything(), None, &states);
        assert_eq!(by_state.unwrap().words(), "--state dirty,conflict");
        let selection = Selection {
            include: vec!["*.jpg".into(), "a/**".into()],
            exclude: vec!["b".into()],
            size_min: Some(1 << 30),
            size_max: None,
            age_min: Some(60),
            age_max: None,
        };
        let told = SelectionReport::of(reply(selection, true), None, &[]).unwrap().words();
        let expected = "--include '*.jpg' --include 'a/**' --exclude 'b' --larger 1GiB --older 60s";
        assert_eq!(told, format!("{expected} --dry-run"));
    }
}
