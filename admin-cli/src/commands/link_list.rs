//! `millrace link list [--requests]`.

use millrace_protocol::{
    admin::{ListLinkOptions, ListLinks},
    requests::{ListRequests, RequestsReply},
};

use super::{auto_export, fetch_policy, link_requests, propagation, refresh_interval, removal};
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
    // An older server does not count for others.
    let requests = connection.request(&ListRequests {}).await.ok();
    let deletes = propagation::list(&connection).await?;
    let refreshes = refresh_interval::list(&connection).await?;
    let removals = removal::list(&connection).await?;
    let report = |link| {
        let report = LinkReport::from(link).with_options(&options).with_deletes(&deletes);
        let report = report.with_auto_export(&exports).with_fetches(&fetches);
        let report = report.with_refreshes(&refreshes).with_removals(&removals);
        match &requests {
            Some(reply) => report.with_requests(reply),
            None => report,
        }
    };
    let reports: Vec<_> = reply.links.iter().map(report).collect();
    context.output.result(&reports, || {
        if reports.is_empty() {
            return "no links; make one with `millrace link add URL PATH`".to_owned();
        }
        words_of(&reports, requests.as_ref())
    })?;
    Ok(Exit::Done)
}

/// The table, and below it what is wrong.
fn words_of(reports: &[LinkReport], requests: Option<&RequestsReply>) -> String {
    let mut links = table(&[
        "PATH",
        "URL",
        "MODE",
        "REFRESH",
        "AUTO-EXPORT",
        "DELETES",
        "FETCH",
        "ENDPOINT",
        "CREDENTIALS",
    ]);
    for link in reports {
        links.add_row([
            link.path.as_str(),
            link.url.as_str(),
            removal::mode_column(link).as_str(),
            refresh_interval::column(link).as_str(),
            auto_export::column(link).as_str(),
            propagation::column(link).as_str(),
            fetch_policy::column(link).as_str(),
            link.endpoint.as_deref().unwrap_or("-"),
            link.credentials.as_deref().unwrap_or("-"),
        ]);
    }
    let failing = reports.iter().filter_map(|link| link.auto_export.as_ref());
    let failing: Vec<_> = failing.flat_map(auto_export::complaints).collect();
    let undeleted = reports.iter().filter_map(|link| link.propagate_deletes.as_ref());
    let undeleted: Vec<_> = undeleted.flat_map(propagation::complaints).collect();
    let unlisted: Vec<_> = reports.iter().filter_map(refresh_interval::complaint).collect();
    let mut words = render(&links);
    if let Some(requests) = requests {
        words.push_str(&link_requests::summary(requests));
    }
    let complaints = [
        ("cannot be sent", failing),
        ("cannot be deleted", undeleted),
        ("could not be listed", unlisted),
    ];
    for (what, lines) in complaints {
        if !lines.is_empty() {
            words += &format!("\n{what}:\n{}", lines.join("\n"));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        admin::{LinkStatus, Removal},
        cluster::{Bucket, LinkMode},
    };
    use millrace_types::LinkId;

    use super::*;

    #[test]
    fn the_table_says_of_a_link_that_it_is_being_removed() {
        let url = "s3://b/p".to_owned();
        let bucket = Bucket { url, endpoint: None, region: None, credentials: None };
        let (link, mode) = (LinkId(1), LinkMode::Import);
        let status = LinkStatus { id: link, path: b"/p".to_vec(), bucket, mode };
        let line = |removals: &[Removal]| {
            let report = LinkReport::from(&status).with_removals(removals);
            words_of(&[report], None).lines().nth(1).unwrap().to_owned()
        };
        assert!(!line(&[]).contains("removed"), "{}", line(&[]));
        for (discard, words) in
            [(false, "import, being removed "), (true, "import, being removed with --discard ")]
        {
            let line = line(&[Removal { link, discard }]);
            assert!(line.starts_with("/p") && line.contains(words), "{line}");
        }
    }
}
