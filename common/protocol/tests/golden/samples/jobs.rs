//! Messages about lists of files, and about more of a job than its counts.

use millrace_protocol::{
    RequestKind,
    file_list::{AppendFiles, FileListId, FilesReply},
    job_detail::{DirectoryProgress, JobDetail, JobDetailReply, ShowJobDetail},
    job_options::{PutReport, PutReportReply},
    job_waits::{JobWait, JobWaitsReply, ShowJobWaits},
    requests::RequestCounts,
    tallied::{Tallied, TalliedReply},
};
use millrace_types::{ErrorKind, Failure, JobId};

use super::{Sample, caller, pair};

pub(super) fn all() -> Vec<Sample> {
    let list = FileListId(0x0102_0304_0506_0708);
    let append = AppendFiles {
        caller: caller(),
        list: Some(list),
        offset: 9,
        paths: b"a.jpg\0val/b.jpg\0".to_vec(),
    };
    let requests = RequestCounts::new([1, 2, 3, 4, 5, 6, 7], 8, 1 << 40, 1 << 30);
    let directory = DirectoryProgress {
        name: b"val".to_vec(),
        files_total: 11,
        files_done: 12,
        bytes_total: 13,
        bytes_done: 14,
        errors: 15,
    };
    let others = DirectoryProgress { name: Vec::new(), files_total: 16, ..directory.clone() };
    let detail = JobDetail { requests, directories: vec![directory], others };
    let source = Some("s3://data/train/".to_owned());
    let detail_reply = JobDetailReply { detail, targets: 17, source };
    let put = PutReport { caller: caller(), id: JobId(8), to: "logs/8".into(), table: true };
    let put_reply = PutReportReply { url: "s3://data/logs/8".into(), size: 18 };
    let wait = JobWait {
        bucket: "s3://data/".into(),
        seconds: 19,
        next_seconds: 20,
        seconds_left: 21,
        failure: Failure::new(ErrorKind::BucketUnavailable, "no answer"),
    };
    let tallied = Tallied { kind: RequestKind::Hydrate.code(), request: vec![1, 2, 3] };
    [
        pair(&append, &FilesReply { list }),
        pair(&ShowJobDetail { id: JobId(8) }, &detail_reply),
        pair(&put, &put_reply),
        pair(&ShowJobWaits { id: JobId(8) }, &JobWaitsReply { waits: vec![wait] }),
        pair(&tallied, &TalliedReply { answer: Ok(vec![4, 5]), requests }),
    ]
    .into_iter()
    .flatten()
    .collect()
}
