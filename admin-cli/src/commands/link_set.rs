//! `millrace link set PATH`: how a link follows its bucket.

use anyhow::Context as _;
use millrace_protocol::admin::{ListLinks, SetLinkOptions};

use crate::{
    arguments::{AttributesName, LinkSetArguments},
    context::{Context, at},
    exit::Exit,
    report::LinkReport,
};

/// Sets what was given, leaves the rest, and prints the link.
pub(crate) async fn run(context: &Context, arguments: LinkSetArguments) -> anyhow::Result<Exit> {
    let (connection, path) = context.operate_at(&arguments.path).await?;
    let request = SetLinkOptions {
        path,
        refresh_seconds: arguments.options.refresh,
        attributes: arguments.options.attributes.map(AttributesName::source),
    };
    let set = connection.request(&request).await.context(at(&arguments.path))?.links;
    let links = connection.request(&ListLinks {}).await?.links;
    let link = links.iter().find(|link| set.iter().any(|options| options.id == link.id));
    let link = link.context("the link was removed meanwhile")?;
    let report = LinkReport::from(link).with_options(&set);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

fn words(report: &LinkReport) -> String {
    let follows = match &report.options {
        Some(options) if options.refresh_seconds > 0 => {
            format!("looks again after {} s", options.refresh_seconds)
        }
        _ => "looks again only on command".to_owned(),
    };
    format!("{} shows {} and {follows}", report.path, report.url)
}
