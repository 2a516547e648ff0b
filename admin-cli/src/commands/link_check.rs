//! `millrace link check [PATH]`.

use anyhow::Context as _;
use millrace_protocol::{admin::ListLinks, bucket::CheckLink};

use super::plain_http;
use crate::{
    arguments::LinkCheckArguments,
    context::{Context, at},
    exit::Exit,
    output::{path_text, shown},
    report::LinkCheckReport,
};

/// Has every host try the bucket of one link, or of each; the exit code is 1 where one cannot use
/// it.
pub(crate) async fn run(context: &Context, arguments: LinkCheckArguments) -> anyhow::Result<Exit> {
    let (mut reports, mut buckets) = (Vec::new(), Vec::new());
    match &arguments.path {
        Some(path) => {
            let (connection, place) = context.operate_at(path).await?;
            let reply = connection.request(&CheckLink { path: place.clone() }).await;
            let reply = reply.context(at(path))?;
            reports.push(LinkCheckReport::new(path_text(&place), &reply));
            buckets.push(reply.bucket);
        }
        None => {
            let connection = context.cluster().await?;
            for link in connection.request(&ListLinks {}).await?.links {
                let reply = connection.request(&CheckLink { path: link.path.clone() }).await?;
                reports.push(LinkCheckReport::new(path_text(&link.path), &reply));
                buckets.push(reply.bucket);
            }
        }
    }
    context.output.result(&reports, || match reports.is_empty() {
        true => "no links; make one with `millrace link add URL PATH`".to_owned(),
        false => reports.iter().map(words).collect::<Vec<_>>().join("\n"),
    })?;
    buckets.iter().for_each(plain_http::warn);
    let fine = reports.iter().all(|report| report.usable);
    Ok(if fine { Exit::Done } else { Exit::Failed })
}

fn words(report: &LinkCheckReport) -> String {
    let used = if report.mode == "import-export" { "read and written" } else { "read" };
    let (path, url) = (shown(&report.path), shown(&report.url));
    let mut text = match report.usable {
        true => format!("{path}: {url} can be {used} by every host"),
        false => format!("{path}: {url} cannot be {used} by every host"),
    };
    for host in &report.hosts {
        let said = shown(host.error.as_deref().unwrap_or("fine"));
        text.push_str(&format!("\n  {} ({} ms): {said}", shown(&host.host), host.took_ms));
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::report::HostCheckReport;

    use super::*;

    #[test]
    fn each_host_is_a_line() {
        let host = |host: &str, error: Option<&str>| HostCheckReport {
            host: host.to_owned(),
            took_ms: 12,
            error: error.map(str::to_owned),
        };
        let mut report = LinkCheckReport {
            path: "/train".to_owned(),
            url: "s3://b/train".to_owned(),
            mode: "read-only",
            usable: true,
            hosts: vec![host("the metadata server", None)],
        };
        let fine = words(&report);
        assert!(fine.starts_with("/train: s3://b/train can be read by every host\n"), "{fine}");
        assert!(fine.ends_with("  the metadata server (12 ms): fine"), "{fine}");
        report.usable = false;
        report.hosts.push(host("target host a", Some("no such bucket")));
        assert!(words(&report).ends_with("target host a (12 ms): no such bucket"));
    }
}
