//! Messages about jobs over a part of a tree.

use millrace_protocol::{
    admin::{FileState, JobKind, JobReply, StartJob},
    by_state::{ShowStates, StartByState, StatesReply},
    file_list::FileListId,
    job_options::{
        Destination, FetchReport, JobOptions, JobOptionsReply, ReportPage, ShowJobOptions,
        StartWithOptions,
    },
    selection::{RetryJob, Selection, SelectionReply, ShowSelection, StartSelected},
    unused::{ShowUnused, StartUnused, UnusedReply},
};
use millrace_types::JobId;

use super::{Sample, admin::job, caller, cluster::bucket, pair};

pub(super) fn all() -> Vec<Sample> {
    let selection = Selection {
        include: vec!["*.jpg".into(), "val/**".into()],
        exclude: vec!["*.tmp".into()],
        size_min: Some(1),
        size_max: Some(1 << 40),
        age_min: Some(60),
        age_max: Some(86_400),
    };
    let start = StartJob { caller: caller(), kind: JobKind::Hydrate, path: b"/train".to_vec() };
    let reply = || JobReply { job: job() };
    let options = JobOptions {
        atomic: true,
        priority: -3,
        bytes_per_second: Some(1 << 28),
        report: true,
        files: Some(FileListId(0x0102_0304_0506_0708)),
        destination: Some(Destination { bucket: bucket(), overwrite: true }),
    };
    let with_options = StartWithOptions {
        start: StartJob { kind: JobKind::Export, ..start.clone() },
        selection: Selection::default(),
        dry_run: false,
        options: options.clone(),
    };
    let states = vec![FileState::Released, FileState::Partial];
    let by_state =
        StartByState { job: with_options.clone(), unused: Some(604_800), states: states.clone() };
    let fetch = FetchReport { caller: caller(), id: JobId(8), offset: 9 };
    let page = ReportPage { lines: b"{}\n".to_vec(), next: Some(12) };
    [
        pair(&StartSelected { start, selection: selection.clone(), dry_run: true }, &reply()),
        pair(&ShowSelection { id: JobId(8) }, &SelectionReply { selection, dry_run: true }),
        pair(&StartUnused { job: with_options.clone(), seconds: 604_800 }, &reply()),
        pair(&ShowUnused { id: JobId(8) }, &UnusedReply { seconds: Some(604_800) }),
        pair(&by_state, &reply()),
        pair(&ShowStates { id: JobId(8) }, &StatesReply { states }),
        pair(&with_options, &reply()),
        pair(&ShowJobOptions { id: JobId(8) }, &JobOptionsReply { options }),
        pair(&fetch, &page),
        pair(&RetryJob { caller: caller(), id: JobId(8) }, &reply()),
    ]
    .into_iter()
    .flatten()
    .collect()
}
