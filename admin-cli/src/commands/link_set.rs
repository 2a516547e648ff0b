//! `millrace link set PATH`: how a link follows its bucket.

use anyhow::Context as _;
use millrace_protocol::admin::{LinkStatus, ListLinks, SetLinkOptions};

use super::{
    auto_export, fetch_policy, link_add::misplaced, propagation, refresh_interval, removal,
};
use crate::{
    arguments::{AttributesName, LinkOptionArguments, LinkSetArguments},
    context::{Context, at},
    exit::{Exit, Misuse},
    output::shown,
    report::{AutoExportReport, LinkReport},
};

/// Sets what was given, leaves the rest, and prints the link. Nothing is set where the link cannot
/// have all of it: each option is a request of its own.
pub(crate) async fn run(context: &Context, arguments: LinkSetArguments) -> anyhow::Result<Exit> {
    let (connection, path) = context.operate_at(&arguments.path).await?;
    // Without any option it only tells what holds.
    let look = SetLinkOptions { path: path.clone(), refresh_seconds: None, attributes: None };
    let known = connection.request(&look).await.context(at(&arguments.path))?.links;
    let links = connection.request(&ListLinks {}).await?.links;
    let link = links.iter().find(|link| known.iter().any(|options| options.id == link.id));
    let link = link.context("the link was removed meanwhile")?;
    check_options(link, &arguments.options)?;
    let request = SetLinkOptions {
        refresh_seconds: arguments.options.refresh,
        attributes: arguments.options.attributes.map(AttributesName::source),
        ..look
    };
    let set = connection.request(&request).await.context(at(&arguments.path))?.links;
    auto_export::set(&connection, path.clone(), arguments.options.auto_export).await?;
    fetch_policy::set(&connection, path.clone(), arguments.options.fetch).await?;
    propagation::set(&connection, path.clone(), arguments.options.propagate_deletes).await?;
    refresh_interval::set(&connection, path, arguments.options.refresh_every).await?;
    let exports = auto_export::list(&connection).await?;
    let fetches = fetch_policy::list(&connection).await?;
    let deletes = propagation::list(&connection).await?;
    let refreshes = refresh_interval::list(&connection).await?;
    let removals = removal::list(&connection).await?;
    let report = LinkReport::from(link).with_options(&set).with_deletes(&deletes);
    let report = report.with_refreshes(&refreshes).with_removals(&removals);
    let report = report.with_auto_export(&exports).with_fetches(&fetches);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// Refuses what a link of this mode cannot do. The mode of a link does not change.
fn check_options(link: &LinkStatus, options: &LinkOptionArguments) -> Result<(), Misuse> {
    let Some(option) = misplaced(link.mode, options) else { return Ok(()) };
    let LinkReport { path, mode, .. } = LinkReport::from(link);
    Err(Misuse(format!(
        "{option} is for links that export, and {} has the mode {mode}: remove the link and add it \
         with --mode import-export; nothing was set",
        shown(&path)
    )))
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use millrace_protocol::cluster::{Bucket, LinkMode};
    use millrace_types::LinkId;

    use super::*;
    use crate::arguments::{Cli, Command, LinkCommand};

    fn refusal(mode: LinkMode, line: &str) -> Option<String> {
        let line = format!("millrace link set mr:/p {line}");
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Link(LinkCommand::Set(set)) = cli.command else {
            panic!("another command");
        };
        let url = "s3://b/p".to_owned();
        let bucket = Bucket { url, endpoint: None, region: None, credentials: None };
        let link = LinkStatus { id: LinkId(1), path: b"/p".to_vec(), bucket, mode };
        check_options(&link, &set.options).err().map(|error| error.to_string())
    }

    #[test]
    fn an_option_that_the_mode_cannot_have_is_refused_before_anything_is_set() {
        for (option, line) in [
            ("--auto-export", "--refresh 300 --attributes objects --auto-export 30"),
            ("--propagate-deletes", "--refresh 300 --propagate-deletes"),
        ] {
            let refused = refusal(LinkMode::ReadOnly, line).unwrap();
            assert!(refused.contains(option) && refused.contains("/p has the mode read-only"));
            assert_eq!(refusal(LinkMode::ImportExport, line), None, "{line}");
        }
        let off = "--refresh 300 --auto-export off --propagate-deletes=off";
        assert_eq!(refusal(LinkMode::Import, off), None);
    }
}
