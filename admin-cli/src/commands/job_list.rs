//! `millrace job list`.

use millrace_protocol::admin::ListJobs;
use millrace_types::ByteLen;

use crate::{
    context::Context,
    exit::Exit,
    output::{render, shown, table},
    report::JobReport,
    watch,
};

/// Asks and prints, the newest first.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let connection = context.anywhere().await?;
    let reply = connection.request(&ListJobs {}).await?;
    let mut reports = Vec::new();
    for job in &reply.jobs {
        // Some twenty are at work at the same time; of others nothing is asked.
        let waits = watch::waits(&connection, job).await;
        reports.push(JobReport { waits, ..JobReport::from(job) });
    }
    context.output.result(&reports, || words(&reports))?;
    Ok(Exit::Done)
}

/// Jobs as a table.
fn words(jobs: &[JobReport]) -> String {
    if jobs.is_empty() {
        return "no jobs".to_owned();
    }
    let mut lines = table(&["ID", "KIND", "STATE", "FILES", "BYTES", "ERRORS", "PATH"]);
    for report in jobs {
        let state = match report.waits.first() {
            Some(wait) => format!("waits for {}", shown(&wait.bucket)),
            None => report.state.to_owned(),
        };
        lines.add_row([
            report.id.to_string(),
            report.kind.to_owned(),
            state,
            format!("{}/{}", report.files_done, report.files_total),
            format!("{} of {}", ByteLen(report.bytes_done), ByteLen(report.bytes_total)),
            report.errors.to_string(),
            report.path.clone(),
        ]);
    }
    render(&lines)
}
