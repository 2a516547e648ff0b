//! `millrace job retry ID [--wait]`.

use millrace_protocol::selection::RetryJob;

use crate::{
    arguments::JobShowArguments,
    context::{CALLER, Context},
    exit::Exit,
    watch,
};

/// Starts a job once more that has ended, and follows it when asked to.
pub(crate) async fn run(context: &Context, arguments: JobShowArguments) -> anyhow::Result<Exit> {
    let connection = context.anywhere().await?;
    let request = RetryJob { caller: CALLER, id: arguments.job.id };
    let job = connection.request(&request).await?.job;
    watch::report(context, &connection, job, arguments.wait).await
}
