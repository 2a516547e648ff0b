//! `millrace link list --requests`: what the buckets of the links were asked: what they cost.

use std::collections::HashMap;

use millrace_protocol::{
    admin::ListLinks,
    requests::{BucketRequests, ListRequests, RequestsReply},
};
use millrace_types::ByteLen;
use serde::Serialize;

use crate::{
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{path_text, render, shown, table},
    report::CountsReport,
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
    #[serde(flatten)]
    counts: CountsReport,
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
        BucketReport { url, paths: known.collect(), counts: counts.into() }
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
        let CountsReport { list, head, get, put, part, upload, other, failed, .. } = &bucket.counts;
        let counts = [list, head, get, put, part, upload, other, failed];
        let mut row = vec![bucket.url.clone(), bucket.paths.join(", ")];
        row.extend(counts.map(ToString::to_string));
        let bytes = [bucket.counts.received_bytes, bucket.counts.sent_bytes];
        row.extend(bytes.map(|n| ByteLen(n).to_string()));
        buckets.add_row(row);
    }
    match report.silent.is_empty() {
        true => render(&buckets),
        false => format!("{}\nwithout {}", render(&buckets), report.silent.join(", ")),
    }
}

/// What each bucket was asked, a line each, to go below a table of links.
pub(super) fn summary(reply: &RequestsReply) -> String {
    let mut text = String::new();
    for bucket in &reply.buckets {
        let (url, words) = (shown(&bucket.url), CountsReport::from(bucket.counts).words());
        text.push_str(&format!("\nsince the daemons began, {url} was asked: {words}"));
    }
    if !reply.silent.is_empty() {
        text.push_str(&format!("\nwithout {}, which say nothing", reply.silent.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use millrace_protocol::requests::RequestCounts;

    use super::*;

    #[test]
    fn a_list_of_links_ends_with_what_their_buckets_were_asked() {
        let counts = RequestCounts::new([1, 0, 20, 0, 0, 0, 0], 0, 5, 0);
        let bucket = BucketRequests { url: "s3://data/".to_owned(), links: Vec::new(), counts };
        let reply = RequestsReply { buckets: vec![bucket], silent: vec!["store-2".to_owned()] };
        let expected = "\nsince the daemons began, s3://data/ was asked: 1 LIST, 20 GET\n\
                        without store-2, which say nothing";
        assert_eq!(summary(&reply), expected);
        assert_eq!(summary(&RequestsReply { buckets: Vec::new(), silent: Vec::new() }), "");
    }
}
