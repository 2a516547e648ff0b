//! `millrace link set PATH`: how a link follows its bucket.

use anyhow::Context as _;
use millrace_protocol::admin::{ListLinks, SetLinkOptions};

use super::{auto_export, fetch_policy, propagation, refresh_interval};
use crate::{
    arguments::{AttributesName, LinkSetArguments},
    context::{Context, at},
    exit::Exit,
    output::shown,
    report::{AutoExportReport, LinkReport},
};

/// Sets what was given, leaves the rest, and prints the link.
pub(crate) async fn run(context: &Context, arguments: LinkSetArguments) -> anyhow::Result<Exit> {
    let (connection, path) = context.operate_at(&arguments.path).await?;
    let request = SetLinkOptions {
        path: path.clone(),
        refresh_seconds: arguments.options.refresh,
        attributes: arguments.options.attributes.map(AttributesName::source),
    };
    let set = connection.request(&request).await.context(at(&arguments.path))?.links;
    let links = connection.request(&ListLinks {}).await?.links;
    let link = links.iter().find(|link| set.iter().any(|options| options.id == link.id));
    let link = link.context("the link was removed meanwhile")?;
    auto_export::set(&connection, path.clone(), arguments.options.auto_export).await?;
    fetch_policy::set(&connection, path.clone(), arguments.options.fetch).await?;
    propagation::set(&connection, path.clone(), arguments.options.propagate_deletes).await?;
    refresh_interval::set(&connection, path, arguments.options.refresh_every).await?;
    let exports = auto_export::list(&connection).await?;
    let fetches = fetch_policy::list(&connection).await?;
    let deletes = propagation::list(&connection).await?;
    let refreshes = refresh_interval::list(&connection).await?;
    let report = LinkReport::from(link).with_options(&set).with_deletes(&deletes);
    let report = report.with_refreshes(&refreshes);
    let report = report.with_auto_export(&exports).with_fetches(&fetches);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

fn words(report: &LinkReport) -> String {
    let follows = match &report.options {
        Some(options) if options.refresh_seconds > 0 => {
            format!("looks again after {} s", options.refresh_seconds)
        }
        _ if report.refresh.is_some() => "looks again on command".to_owned(),
        _ => "looks again only on command".to_owned(),
    };
    let refreshes = report.refresh.as_ref().map_or_else(String::new, refresh_interval::words);
    let exports = match &report.auto_export {
        Some(AutoExportReport { quiet_seconds, .. }) => {
            format!("; files go there by themselves after {quiet_seconds} s")
        }
        None => String::new(),
    };
    let deletes = match report.propagate_deletes {
        Some(_) => "; what is removed here is deleted there",
        None => "",
    };
    let fetches = report.fetch.as_ref().map_or("", fetch_policy::words);
    let (path, url) = (shown(&report.path), shown(&report.url));
    format!("{path} shows {url} and {follows}{refreshes}{exports}{deletes}{fetches}")
}
