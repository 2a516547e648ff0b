//! Messages about jobs over a part of a tree.

use millrace_protocol::{
    admin::{JobKind, JobReply, StartJob},
    selection::{
        RetryJob, Selection, SelectionReply, ShowSelection, StartPublication, StartSelected,
    },
};
use millrace_types::JobId;

use super::{Sample, admin::job, caller, pair};

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
    let publication = StartJob { kind: JobKind::Export, ..start.clone() };
    [
        pair(&StartSelected { start, selection: selection.clone(), dry_run: true }, &reply()),
        pair(&ShowSelection { id: JobId(8) }, &SelectionReply { selection, dry_run: true }),
        pair(&StartPublication { start: publication }, &reply()),
        pair(&RetryJob { caller: caller(), id: JobId(8) }, &reply()),
    ]
    .into_iter()
    .flatten()
    .collect()
}
