//! What `link add`, `link set` and `link list` share about what is fetched behind reads.

use anyhow::Context as _;
use millrace_protocol::{
    admin::PathBytes,
    ahead::{LinkFetches, ListFetchPolicies, SetFetchPolicy},
};
use millrace_types::{ByteLen, ErrorKind};

use crate::{
    arguments::FetchName,
    connection::Connection,
    report::{FetchReport, LinkReport},
};

/// Sets what was asked for, if anything was.
pub(crate) async fn set(
    connection: &Connection,
    path: PathBytes,
    wanted: Option<FetchName>,
) -> anyhow::Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let request = SetFetchPolicy { path, policy: wanted.policy() };
    connection.request(&request).await.context("cannot set --fetch")?;
    Ok(())
}

/// What all links fetch behind reads; nothing of a server that knows of no such.
pub(crate) async fn list(connection: &Connection) -> anyhow::Result<Vec<LinkFetches>> {
    match connection.request(&ListFetchPolicies {}).await {
        Ok(reply) => Ok(reply.links),
        Err(failure) if failure.kind == ErrorKind::NotSupported => Ok(Vec::new()),
        Err(failure) => Err(failure.into()),
    }
}

/// One link in a column: its policy, and how much came of it.
pub(crate) fn column(link: &LinkReport) -> String {
    let Some(fetch) = &link.fetch else { return "-".to_owned() };
    match fetch.bytes {
        0 => fetch.policy.to_owned(),
        bytes => format!("{}, {}", fetch.policy, ByteLen(bytes)),
    }
}

/// The end of a sentence about a link.
pub(crate) fn words(fetch: &FetchReport) -> &'static str {
    match fetch.policy {
        "asked" => "; nothing is fetched that nobody asked for",
        "chunk" => "; the rest of a chunk is fetched behind its reader",
        "file" => "; the rest of a file is fetched behind its reader",
        _ => "",
    }
}
