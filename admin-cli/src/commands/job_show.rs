//! `millrace job show ID [--wait]`.

use millrace_protocol::admin::ShowJob;

use crate::{arguments::JobShowArguments, context::Context, exit::Exit, report::JobReport, watch};

/// Asks and prints; with `--wait` follows the job to its end.
pub(crate) async fn run(context: &Context, arguments: JobShowArguments) -> anyhow::Result<Exit> {
    let connection = context.anywhere().await?;
    let request = ShowJob { id: arguments.job.id };
    let job = connection.request(&request).await?.job;
    if arguments.wait {
        return watch::report(context, &connection, job, true).await;
    }
    context.output.result(&JobReport::from(&job), || watch::summary(&job))?;
    Ok(Exit::Done)
}
