//! `millrace link check [PATH]`.

use anyhow::Context as _;
use millrace_protocol::{
    admin::{ListLinks, PathBytes},
    bucket::{CheckLink, HostCheck, HostTrial, TryLink, TryLinkReply},
    target::Tried,
};
use millrace_types::{ErrorKind, Failure};

use super::plain_http;
use crate::{
    arguments::LinkCheckArguments,
    connection::Connection,
    context::{Context, at},
    exit::Exit,
    output::{path_text, shown},
    report::{HostCheckReport, LinkCheckReport},
};

/// What a metadata server from before [`TryLink`] has nobody try.
const OLDER: &str = "reading was not tried: the metadata server is older than that, upgrade it";

/// Has every host try the bucket of one link, or of each; the exit code is 1 where one cannot use
/// it.
pub(crate) async fn run(context: &Context, arguments: LinkCheckArguments) -> anyhow::Result<Exit> {
    let (mut reports, mut buckets) = (Vec::new(), Vec::new());
    match &arguments.path {
        Some(path) => {
            let (connection, place) = context.operate_at(path).await?;
            let reply = try_link(&connection, &place).await.context(at(path))?;
            reports.push(LinkCheckReport::new(path_text(&place), &reply));
            buckets.push(reply.bucket);
        }
        None => {
            let connection = context.cluster().await?;
            for link in connection.request(&ListLinks {}).await?.links {
                let reply = try_link(&connection, &link.path).await?;
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

async fn try_link(connection: &Connection, path: &PathBytes) -> Result<TryLinkReply, Failure> {
    match connection.request(&TryLink { path: path.clone() }).await {
        Err(failure) if failure.kind == ErrorKind::NotSupported => {}
        answer => return answer,
    }
    let reply = connection.request(&CheckLink { path: path.clone() }).await?;
    let trial = |HostCheck { host, took_ms, result }| {
        let tried = |()| Tried { deletes: false, untried: vec![OLDER.to_owned()] };
        let result = result.map(tried);
        HostTrial { host, took_ms, result }
    };
    let hosts = reply.hosts.into_iter().map(trial).collect();
    Ok(TryLinkReply { bucket: reply.bucket, mode: reply.mode, hosts })
}

fn words(report: &LinkCheckReport) -> String {
    let used = if report.mode == "import-export" { "read and written" } else { "read" };
    let (path, url) = (shown(&report.path), shown(&report.url));
    let mut text = match report.usable {
        true => format!("{path}: {url} can be {used} by every host"),
        false => format!("{path}: {url} cannot be {used} by every host"),
    };
    for host in &report.hosts {
        let said = host.error.as_deref().map_or_else(|| fine(host), str::to_owned);
        text.push_str(&format!(
            "\n  {} ({} ms): {}",
            shown(&host.host),
            host.took_ms,
            shown(&said)
        ));
    }
    text
}

fn fine(host: &HostCheckReport) -> String {
    let fine = if host.deletes { "fine, and may delete" } else { "fine" };
    match host.untried.is_empty() {
        true => fine.to_owned(),
        false => format!("{fine}, but {}", host.untried.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_a_line() {
        let host = |host: &str, error: Option<&str>| HostCheckReport {
            host: host.to_owned(),
            took_ms: 12,
            error: error.map(str::to_owned),
            deletes: false,
            untried: Vec::new(),
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
        report.hosts[0].untried = vec!["reading was not tried: nothing there to read".to_owned()];
        let fine = words(&report);
        assert!(fine.contains("can be read by every host\n"), "{fine}");
        assert!(fine.ends_with("fine, but reading was not tried: nothing there to read"), "{fine}");
        report.hosts[0].deletes = true;
        assert!(words(&report).contains("(12 ms): fine, and may delete, but reading was not"));
        report.usable = false;
        report.hosts.push(host("target host a", Some("no such bucket")));
        assert!(words(&report).ends_with("target host a (12 ms): no such bucket"));
    }
}
