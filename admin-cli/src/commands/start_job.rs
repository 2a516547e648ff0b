//! `millrace import|hydrate|export|release PATH [--wait]`: has the cluster work on a file or tree.
//!
//! The verbs differ in the job that they start, and in their help (`arguments`); all the rest is
//! here.

use anyhow::Context as _;
use millrace_protocol::admin::{JobKind, StartJob};

use crate::{
    arguments::StartArguments,
    context::{CALLER, Context, at},
    exit::Exit,
    watch,
};

/// Starts the job, and follows it when asked to.
pub(crate) async fn run(
    context: &Context,
    kind: JobKind,
    arguments: StartArguments,
) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.path).await?;
    let request = StartJob { caller: CALLER, kind, path };
    let reply = connection.request(&request).await.context(at(&arguments.path))?;
    watch::report(context, &connection, reply.job, arguments.wait).await
}
