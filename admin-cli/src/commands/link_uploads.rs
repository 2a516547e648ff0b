//! `millrace link uploads PATH [--abort-older-than AGE]`.

use anyhow::Context as _;
use millrace_protocol::bucket::{ListUploads, UnfinishedUpload};
use serde::Serialize;

use crate::{
    arguments::LinkUploadsArguments,
    context::{Context, at},
    exit::Exit,
    output::{counted, render, table, time_text},
};

/// What it prints.
#[derive(Serialize, Debug)]
struct UploadsReport {
    /// The first of them.
    uploads: Vec<UploadReport>,
    total: u64,
    aborted: u64,
}

#[derive(Serialize, Debug)]
struct UploadReport {
    key: String,
    upload_id: String,
    /// By the bucket's clock; `null` where it does not tell.
    begun: Option<String>,
    /// Whether an export here is using it.
    used: bool,
    aborted: bool,
}

/// Asks and prints.
pub(crate) async fn run(
    context: &Context,
    arguments: LinkUploadsArguments,
) -> anyhow::Result<Exit> {
    let (connection, path) = context.operate_at(&arguments.path).await?;
    let request = ListUploads { path, abort_older_than_seconds: arguments.abort_older_than };
    let reply = connection.request(&request).await.with_context(|| at(&arguments.path))?;
    let uploads = reply.uploads.into_iter().map(UploadReport::from).collect();
    let report = UploadsReport { uploads, total: reply.total, aborted: reply.aborted };
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

impl From<UnfinishedUpload> for UploadReport {
    fn from(upload: UnfinishedUpload) -> Self {
        let UnfinishedUpload { key, upload_id, begun, is_used, aborted } = upload;
        let begun = (begun.0 != i64::MAX).then(|| time_text(begun));
        Self { key, upload_id, begun, used: is_used, aborted }
    }
}

fn words(report: &UploadsReport) -> String {
    if report.total == 0 {
        return "no unfinished uploads".to_owned();
    }
    let mut rows = table(&["KEY", "BEGUN", "STATE"]);
    for upload in &report.uploads {
        let state = match (upload.aborted, upload.used) {
            (true, _) => "aborted",
            (false, true) => "in use",
            (false, false) => "unfinished",
        };
        let begun = upload.begun.as_deref().unwrap_or("-");
        rows.add_row([upload.key.as_str(), begun, state]);
    }
    let all = counted(report.total, "upload");
    format!("{}\n{all}, {} aborted", render(&rows), report.aborted)
}
