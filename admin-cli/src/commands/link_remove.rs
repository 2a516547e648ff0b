//! `millrace link remove PATH [--discard]`.

use anyhow::bail;
use millrace_protocol::admin::RemoveLink;
use serde::Serialize;

use crate::{arguments::LinkRemoveArguments, context::Context, exit::Exit, output};

#[derive(Serialize)]
struct Removed {
    path: String,
    removed: bool,
}

/// Asks the metadata server; files that were changed and not exported need `--discard`.
pub(crate) async fn run(context: &Context, arguments: LinkRemoveArguments) -> anyhow::Result<Exit> {
    let (connection, path) = context.operate_at(&arguments.path).await?;
    let request = RemoveLink { path: path.clone(), discard: arguments.discard };
    let plain = output::path_text(&path);
    let shown = output::shown(&plain);
    // What keeps it, and what helps against that, the server says: changed files, or a job.
    if let Err(failure) = connection.request(&request).await {
        bail!("cannot remove the link at {shown}: {failure}");
    }
    let report = Removed { path: plain, removed: true };
    context
        .output
        .result(&report, || format!("the link at {shown} is removed; its bucket is as it was"))?;
    Ok(Exit::Done)
}
