//! `millrace job cancel ID`.

use millrace_protocol::admin::CancelJob;

use crate::{
    arguments::JobArgument,
    context::{CALLER, Context},
    exit::Exit,
    report::JobReport,
    watch,
};

/// Asks the job to stop and prints where it stands.
pub(crate) async fn run(context: &Context, arguments: JobArgument) -> anyhow::Result<Exit> {
    let connection = context.anywhere().await?;
    let request = CancelJob { caller: CALLER, id: arguments.id };
    let job = connection.request(&request).await?.job;
    context.output.result(&JobReport::from(&job), || watch::summary(&job))?;
    Ok(Exit::Done)
}
