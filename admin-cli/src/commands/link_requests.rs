//! `millrace link list --requests`: what the buckets of the links were asked, and so what they cost.

use std::collections::HashMap;

use millrace_protocol::{
    admin::ListLinks,
    requests::{BucketRequests, ListRequests, RequestCounts},
};
use millrace_types::ByteLen;
use serde::Serialize;

use crate::{
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{path_text, render, table},
};

/// All buckets.
#[derive(Serialize, Debug)]
struct RequestsReport {
    buckets: Vec<BucketReport>,
    /// Daemons that do not answer, or know no such counts: theirs are missing.
    silent: Vec<String>,
}

/// One bucket, since the daemons began.
#[derive(Serialize, Debug)]
struct BucketReport {
    url: String,
    /// The directories that are linked to it.
    paths: Vec<String>,
    list: u64,
    head: u64,
    get: u64,
    put: u64,
    part: u64,
    upload: u64,
    other: u64,
    failed: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

/// Asks and prints.
pub(super) async fn run(context: &Context, connection: &Connection) -> anyhow::Result<Exit> {
    let links = connection.request(&ListLinks {}).await?.links;
    let path = |link: &millrace_protocol::admin::LinkStatus| (link.id, path_text(&link.path));
    let paths: HashMap<_, _> = links.iter().map(path).collect();
    let reply = connection.request(&ListRequests {}).await?;
    let bucket = |BucketRequests { url, links, counts }| {
        // A link may be made or removed between the two questions.
        let known = links.iter().filter_map(|id| paths.get(id).cloned());
        BucketReport::new(url, known.collect(), counts)
    };
    let buckets: Vec<_> = reply.buckets.into_iter().map(bucket).collect();
    let report = RequestsReport { buckets, silent: reply.silent };
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

fn words(report: &RequestsReport) -> String {
    if report.buckets.is_empty() {
        return "no links; make one with `millrace link add URL PATH`".to_owned();
    }
    let mut buckets = table(&[
        "BUCKET", "LINKS", "LIST", "HEAD", "GET", "PUT", "PART", "UPLOAD", "OTHER", "FAILED",
        "RECEIVED", "SENT",
    ]);
    for bucket in &report.buckets {
        let BucketReport { list, head, get, put, part, upload, other, failed, .. } = bucket;
        let counts = [list, head, get, put, part, upload, other, failed];
        let mut row = vec![bucket.url.clone(), bucket.paths.join(", ")];
        row.extend(counts.map(ToString::to_string));
        row.extend([bucket.received_bytes, bucket.sent_bytes].map(|n| ByteLen(n).to_string()));
        buckets.add_row(row);
    }
    match report.silent.is_empty() {
        true => render(&buckets),
        false => format!("{}\nwithout {}", render(&buckets), report.silent.join(", ")),
    }
}

impl BucketReport {
    fn new(url: String, paths: Vec<String>, counts: RequestCounts) -> Self {
        let RequestCounts { list, head, get, put, part, upload, other, failed, .. } = counts;
        let RequestCounts { received_bytes, sent_bytes, .. } = counts;
        Self {
            url,
            paths,
            list,
            head,
            get,
            put,
            part,
            upload,
            other,
            failed,
            received_bytes,
            sent_bytes,
        }
    }
}
