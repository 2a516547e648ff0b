//! What `link add`, `link set` and `link list` share about links that are listed by themselves.

use anyhow::Context as _;
use millrace_protocol::{
    admin::PathBytes,
    refresh::{ListRefreshIntervals, RefreshInterval, SetRefreshInterval},
};
use millrace_types::ErrorKind;

use crate::{
    arguments::RefreshEvery,
    connection::Connection,
    output::shown,
    report::{LinkReport, RefreshReport},
};

/// Sets what was asked for, if anything was.
pub(crate) async fn set(
    connection: &Connection,
    path: PathBytes,
    wanted: Option<RefreshEvery>,
) -> anyhow::Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let request = SetRefreshInterval { path, every_seconds: wanted.every_seconds() };
    connection.request(&request).await.context("cannot set --refresh-every")?;
    Ok(())
}

/// The links that are listed by themselves; none of a server that knows of no such.
pub(crate) async fn list(connection: &Connection) -> anyhow::Result<Vec<RefreshInterval>> {
    match connection.request(&ListRefreshIntervals {}).await {
        Ok(reply) => Ok(reply.links),
        Err(failure) if failure.kind == ErrorKind::NotSupported => Ok(Vec::new()),
        Err(failure) => Err(failure.into()),
    }
}

/// One link in a column: by age when somebody looks, and by itself.
pub(crate) fn column(link: &LinkReport) -> String {
    let by_age = match &link.options {
        Some(options) if options.refresh_seconds > 0 => {
            Some(format!("{} s", options.refresh_seconds))
        }
        _ => None,
    };
    let by_itself = link.refresh.as_ref().map(|refresh| {
        let running = if refresh.running { ", running" } else { "" };
        format!("every {} s{running}", refresh.every_seconds)
    });
    match (by_age, by_itself) {
        (None, None) => "-".to_owned(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(age), Some(itself)) => format!("{age}, {itself}"),
    }
}

/// What is said behind how a link follows its bucket.
pub(crate) fn words(refresh: &RefreshReport) -> String {
    format!(", and by itself every {} s", refresh.every_seconds)
}

/// What could not be listed, a line; nothing when all could.
pub(crate) fn complaint(link: &LinkReport) -> Option<String> {
    let refresh = link.refresh.as_ref().filter(|refresh| refresh.failed > 0)?;
    let why = refresh.failure.as_deref().unwrap_or("for reasons unknown");
    Some(format!("  {}: {} times, last: {}", shown(&link.path), refresh.failed, shown(why)))
}
