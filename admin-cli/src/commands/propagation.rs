//! What `link add`, `link set` and `link list` share about links whose removals reach the bucket.

use anyhow::Context as _;
use millrace_protocol::{
    admin::PathBytes,
    bucket::{DeletePropagation, ListDeletePropagation, SetDeletePropagation},
};
use millrace_types::ErrorKind;

use crate::{
    arguments::SwitchName,
    connection::Connection,
    output::{counted, shown},
    report::{FailureReport, LinkReport, PropagationReport},
};

/// Sets what was asked for, if anything was.
pub(crate) async fn set(
    connection: &Connection,
    path: PathBytes,
    wanted: Option<SwitchName>,
) -> anyhow::Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let request = SetDeletePropagation { path, on: wanted == SwitchName::On };
    connection.request(&request).await.context("cannot set --propagate-deletes")?;
    Ok(())
}

/// The links whose removals reach the bucket; none of a server that knows of no such.
pub(crate) async fn list(connection: &Connection) -> anyhow::Result<Vec<DeletePropagation>> {
    match connection.request(&ListDeletePropagation {}).await {
        Ok(reply) => Ok(reply.links),
        Err(failure) if failure.kind == ErrorKind::NotSupported => Ok(Vec::new()),
        Err(failure) => Err(failure.into()),
    }
}

/// One link in a column.
pub(crate) fn column(link: &LinkReport) -> String {
    let Some(deletes) = &link.propagate_deletes else { return "-".to_owned() };
    let mut words = "on".to_owned();
    if deletes.waiting > 0 {
        words += &format!(", {} waiting", deletes.waiting);
    }
    if deletes.failing > 0 {
        words += &format!(", {} failing", deletes.failing);
    }
    words
}

/// What cannot be deleted, a line each.
pub(crate) fn complaints(deletes: &PropagationReport) -> Vec<String> {
    let line = |one: &FailureReport| format!("  {}: {}", shown(&one.path), shown(&one.error));
    let mut lines: Vec<_> = deletes.failures.iter().map(line).collect();
    let others = deletes.failing.saturating_sub(lines.len() as u64);
    if others > 0 {
        lines.push(format!("  and {} more", counted(others, "object")));
    }
    lines
}
