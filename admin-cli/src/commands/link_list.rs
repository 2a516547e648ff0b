//! `millrace link list [--requests]`.

use millrace_protocol::admin::{ListLinkOptions, ListLinks};

use super::{auto_export, fetch_policy, link_requests, refresh_interval};
use crate::{
    arguments::LinkListArguments,
    context::Context,
    exit::Exit,
    output::{render, table},
    report::LinkReport,
};

/// Asks and prints.
pub(crate) async fn run(context: &Context, arguments: LinkListArguments) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    if arguments.requests {
        return link_requests::run(context, &connection).await;
    }
    let reply = connection.request(&ListLinks {}).await?;
    let options = connection.request(&ListLinkOptions {}).await?.links;
    let exports = auto_export::list(&connection).await?;
    let fetches = fetch_policy::list(&connection).await?;
    let refreshes = refresh_interval::list(&connection).await?;
    let report = |link| {
        let report = LinkReport::from(link).with_options(&options);
        let report = report.with_auto_export(&exports).with_fetches(&fetches);
        report.with_refreshes(&refreshes)
    };
    let reports: Vec<_> = reply.links.iter().map(report).collect();
    context.output.result(&reports, || {
        if reports.is_empty() {
            return "no links; make one with `millrace link add URL PATH`".to_owned();
        }
        let mut links = table(&[
            "PATH",
            "URL",
            "MODE",
            "REFRESH",
            "AUTO-EXPORT",
            "FETCH",
            "ENDPOINT",
            "CREDENTIALS",
        ]);
        for link in &reports {
            links.add_row([
                link.path.as_str(),
                link.url.as_str(),
                link.mode,
                refresh_interval::column(link).as_str(),
                auto_export::column(link).as_str(),
                fetch_policy::column(link).as_str(),
                link.endpoint.as_deref().unwrap_or("-"),
                link.credentials.as_deref().unwrap_or("-"),
            ]);
        }
        let failing = reports.iter().filter_map(|link| link.auto_export.as_ref());
        let failing: Vec<_> = failing.flat_map(auto_export::complaints).collect();
        let unlisted: Vec<_> = reports.iter().filter_map(refresh_interval::complaint).collect();
        let mut words = render(&links);
        for (what, lines) in [("cannot be sent", failing), ("could not be listed", unlisted)] {
            if !lines.is_empty() {
                words += &format!("\n{what}:\n{}", lines.join("\n"));
            }
        }
        words
    })?;
    Ok(Exit::Done)
}
