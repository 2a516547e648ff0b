//! `millrace link remove PATH [--discard]`.

use anyhow::bail;
use millrace_protocol::admin::RemoveLink;
use millrace_types::{ErrorKind, Failure};
use serde::Serialize;

use crate::{
    arguments::LinkRemoveArguments, connection::Connection, context::Context, exit::Exit, output,
    watch::say,
};

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
    if let Err(failure) = remove(&connection, &request, &shown).await {
        bail!("cannot remove the link at {shown}: {failure}");
    }
    let report = Removed { path: plain, removed: true };
    context
        .output
        .result(&report, || format!("the link at {shown} is removed; its bucket is as it was"))?;
    Ok(Exit::Done)
}

/// Asks until the server tells an end: with many names it works for longer than one answer may
/// take, and goes on with that whether anybody waits or not.
async fn remove(connection: &Connection, request: &RemoveLink, path: &str) -> Result<(), Failure> {
    let mut waits = false;
    loop {
        match connection.request(request).await {
            Err(failure) if failure.kind == ErrorKind::DeadlineExceeded => {
                if !waits {
                    say(&format!(
                        "the metadata server is still at work on {path}; it goes on also after \
                         Ctrl-C, and millrace link list has the link until it is removed"
                    ));
                }
                waits = true;
            }
            // It was removed between two questions.
            Err(failure) if waits && failure.kind == ErrorKind::NotFound => return Ok(()),
            answer => return answer.map(|_| ()),
        }
    }
}
