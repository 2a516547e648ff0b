//! What servers were asked, by their metrics.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;

/// Has daemons serve their metrics, at ports of the system's choice.
#[must_use]
pub fn serving() -> (String, String) {
    ("MILLRACE_METRICS__ADDRESS".to_owned(), "127.0.0.1:0".to_owned())
}

/// How many requests of each kind the metadata server has answered since it started.
///
/// # Errors
/// When it does not serve its metrics.
pub fn answered(cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    let text = metrics(cluster, "metadata")?;
    let counts = text.lines().filter_map(|line| {
        let (_, count) = line.split_once("metadata_request_duration_seconds_count{")?;
        let (labels, count) = count.rsplit_once(' ')?;
        Some((labels.split('"').nth(1)?.to_owned(), count.parse().ok()?))
    });
    let counts: BTreeMap<_, _> = counts.collect();
    ensure!(!counts.is_empty(), "no request is counted");
    Ok(counts)
}

/// How many requests to make durable what it has acknowledged a target's daemon has answered since
/// it started.
///
/// # Errors
/// When it does not serve its metrics.
pub fn synced(cluster: &Cluster, daemon: &str) -> Result<u64> {
    number(cluster, daemon, "target_syncs_total ")
}

/// How many requests the metadata server has not answered yet.
///
/// # Errors
/// When it does not serve its metrics.
pub fn running(cluster: &Cluster) -> Result<u64> {
    number(cluster, "metadata", "metadata_requests_running ")
}

/// What a daemon has counted since it started, by a name without labels, such as
/// `target_syncs_total`.
///
/// # Errors
/// When it does not serve its metrics.
pub fn counted(cluster: &Cluster, daemon: &str, name: &str) -> Result<u64> {
    number(cluster, daemon, &format!("{name} "))
}

/// What stands behind a name without labels.
fn number(cluster: &Cluster, daemon: &str, name: &str) -> Result<u64> {
    let text = metrics(cluster, daemon)?;
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let value = lines.find_map(|line| line.split_once(name));
    let (_, value) = value.with_context(|| format!("no {name}: {text}"))?;
    Ok(value.trim().parse()?)
}

fn metrics(cluster: &Cluster, daemon: &str) -> Result<String> {
    let log = cluster.log(daemon);
    let line = log.lines().rev().find(|line| line.contains("metrics are served"));
    let address = line.and_then(|line| line.split("address=").nth(1)).context("metrics")?.trim();
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
