//! `millrace import PATH [--wait]`: fetches what is absent.

use anyhow::Context as _;
use millrace_protocol::admin::{JobKind, StartJob};

use crate::{
    arguments::StartArguments,
    context::{CALLER, Context, at},
    exit::Exit,
    watch,
};

/// Starts the job, and follows it when asked to.
pub(crate) async fn run(context: &Context, arguments: StartArguments) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.path).await?;
    let request = StartJob { caller: CALLER, kind: JobKind::Import, path };
    let reply = connection.request(&request).await.context(at(&arguments.path))?;
    watch::report(context, &connection, reply.job, arguments.wait).await
}
