//! `millrace job list`.

use millrace_protocol::admin::{Job, ListJobs};
use millrace_types::ByteLen;

use crate::{
    context::Context,
    exit::Exit,
    output::{render, table},
    report::JobReport,
};

/// Asks and prints, the newest first.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let connection = context.anywhere().await?;
    let reply = connection.request(&ListJobs {}).await?;
    let reports: Vec<_> = reply.jobs.iter().map(JobReport::from).collect();
    context.output.result(&reports, || words(&reply.jobs))?;
    Ok(Exit::Done)
}

/// Jobs as a table.
pub(crate) fn words(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "no jobs".to_owned();
    }
    let mut lines = table(&["ID", "KIND", "STATE", "FILES", "BYTES", "ERRORS", "PATH"]);
    for job in jobs {
        let report = JobReport::from(job);
        lines.add_row([
            report.id.to_string(),
            report.kind.to_owned(),
            report.state.to_owned(),
            format!("{}/{}", report.files_done, report.files_total),
            format!("{} of {}", ByteLen(report.bytes_done), ByteLen(report.bytes_total)),
            report.errors.to_string(),
            report.path,
        ]);
    }
    render(&lines)
}
