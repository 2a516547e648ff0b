//! What `link add`, `link set` and `link list` share about links that export by themselves.

use anyhow::Context as _;
use millrace_protocol::{
    admin::PathBytes,
    bucket::{AutoExport, ListAutoExports, SetAutoExport},
};
use millrace_types::ErrorKind;

use crate::{
    arguments::AutoExportName,
    connection::Connection,
    output::{counted, shown},
    report::{AutoExportReport, FailureReport, LinkReport},
};

/// Sets what was asked for, if anything was.
pub(crate) async fn set(
    connection: &Connection,
    path: PathBytes,
    wanted: Option<AutoExportName>,
) -> anyhow::Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let request = SetAutoExport { path, quiet_seconds: wanted.quiet_seconds() };
    connection.request(&request).await.context("cannot set --auto-export")?;
    Ok(())
}

/// The links that export by themselves; none of a server that knows of no such.
pub(crate) async fn list(connection: &Connection) -> anyhow::Result<Vec<AutoExport>> {
    match connection.request(&ListAutoExports {}).await {
        Ok(reply) => Ok(reply.links),
        Err(failure) if failure.kind == ErrorKind::NotSupported => Ok(Vec::new()),
        Err(failure) => Err(failure.into()),
    }
}

/// One link in a column: when files go, and what stands in their way.
pub(crate) fn column(link: &LinkReport) -> String {
    let Some(export) = &link.auto_export else { return "-".to_owned() };
    let mut words = format!("{} s", export.quiet_seconds);
    if export.waiting > 0 {
        words += &format!(", {} waiting", export.waiting);
    }
    if export.failing > 0 {
        words += &format!(", {} failing", export.failing);
    }
    words
}

/// What cannot be sent, a line each; empty when everything can.
pub(crate) fn complaints(export: &AutoExportReport) -> Vec<String> {
    let line = |one: &FailureReport| format!("  {}: {}", shown(&one.path), shown(&one.error));
    let mut lines: Vec<_> = export.failures.iter().map(line).collect();
    let others = export.failing.saturating_sub(lines.len() as u64);
    if others > 0 {
        lines.push(format!("  and {} more", counted(others, "file")));
    }
    lines
}
