//! `millrace link add URL PATH`: binds a directory to a bucket and prefix.

use anyhow::{Context as _, bail};
use millrace_protocol::{
    admin::{AddLink, SetLinkOptions},
    cluster::{Bucket, LinkMode},
};

use super::{auto_export, fetch_policy, plain_http, propagation, refresh_interval};
use crate::{
    arguments::{
        AttributesName, AutoExportName, LinkAddArguments, LinkModeName, LinkOptionArguments,
        SwitchName,
    },
    context::Context,
    exit::{Exit, Misuse},
    output::shown,
    report::LinkReport,
};

/// Asks the metadata server, which asks every host whether it reaches the bucket.
pub(crate) async fn run(context: &Context, arguments: LinkAddArguments) -> anyhow::Result<Exit> {
    check_url(&arguments.url)?;
    check_options(&arguments)?;
    let (connection, path) = context.operate_at(&arguments.path).await?;
    let request = AddLink {
        path,
        bucket: Bucket {
            url: arguments.url.clone(),
            endpoint: arguments.endpoint,
            region: arguments.region,
            credentials: arguments.credentials,
        },
        mode: mode_of(arguments.mode),
    };
    // The failure names the hosts and their reasons: the server asked them all.
    let link = match connection.request(&request).await {
        Ok(reply) => reply.link,
        Err(failure) => bail!("cannot link {}: {failure}", arguments.url),
    };
    let options = SetLinkOptions {
        path: link.path.clone(),
        refresh_seconds: arguments.options.refresh,
        attributes: arguments.options.attributes.map(AttributesName::source),
    };
    // Without any of them it only tells what holds.
    let set = connection.request(&options).await;
    let set = set.context("the directory is linked, but its options are not set; see link set")?;
    let others = async {
        auto_export::set(&connection, link.path.clone(), arguments.options.auto_export).await?;
        fetch_policy::set(&connection, link.path.clone(), arguments.options.fetch).await?;
        let deletes = arguments.options.propagate_deletes;
        propagation::set(&connection, link.path.clone(), deletes).await?;
        let every = arguments.options.refresh_every;
        refresh_interval::set(&connection, link.path.clone(), every).await?;
        let (exports, fetches) =
            (auto_export::list(&connection).await?, fetch_policy::list(&connection).await?);
        anyhow::Ok((exports, fetches, refresh_interval::list(&connection).await?))
    };
    let (exports, fetches, refreshes) =
        others.await.context("the directory is linked; see link set")?;
    let deletes = propagation::list(&connection).await?;
    let report = LinkReport::from(&link).with_options(&set.links).with_deletes(&deletes);
    let report = report.with_auto_export(&exports).with_fetches(&fetches);
    let report = report.with_refreshes(&refreshes);
    context.output.result(&report, || {
        format!("{} shows {} ({})", shown(&report.path), shown(&report.url), report.mode)
    })?;
    plain_http::warn(&request.bucket);
    Ok(Exit::Done)
}

/// Refuses what is no bucket before a server is asked.
///
/// # Errors
/// A sentence with what would be right.
pub(crate) fn check_url(url: &str) -> Result<(), Misuse> {
    let known = ["s3://", "gs://", "az://", "file:///"];
    if known.iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) {
        return Ok(());
    }
    Err(Misuse(format!(
        "{url} is no bucket that Millrace can reach; use s3://bucket/prefix, gs://bucket/prefix, \
         az://container/prefix or file:///directory"
    )))
}

/// Refuses what a link of this mode cannot do, which would show only once it is made.
fn check_options(arguments: &LinkAddArguments) -> Result<(), Misuse> {
    match misplaced(mode_of(arguments.mode), &arguments.options) {
        Some(option) => {
            Err(Misuse(format!("{option} is for links that export: add --mode import-export")))
        }
        None => Ok(()),
    }
}

/// An option that is given and that a link of this mode cannot have, if there is one.
pub(super) fn misplaced(mode: LinkMode, options: &LinkOptionArguments) -> Option<&'static str> {
    let exports = matches!(options.auto_export, Some(AutoExportName::After(_)));
    let deletes = options.propagate_deletes == Some(SwitchName::On);
    match mode {
        LinkMode::ImportExport => None,
        _ if exports => Some("--auto-export"),
        _ if deletes => Some("--propagate-deletes"),
        _ => None,
    }
}

fn mode_of(name: LinkModeName) -> LinkMode {
    match name {
        LinkModeName::ReadOnly => LinkMode::ReadOnly,
        LinkModeName::Import => LinkMode::Import,
        LinkModeName::ImportExport => LinkMode::ImportExport,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Cli, Command, LinkCommand};

    fn options(line: &str) -> Result<(), String> {
        let line = format!("millrace link add s3://b/p mr:/p {line}");
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Link(LinkCommand::Add(add)) = cli.command else {
            panic!("another command");
        };
        check_options(&add).map_err(|error| error.to_string())
    }

    #[test]
    fn an_option_that_the_mode_cannot_have_is_refused_before_anything_is_linked() {
        for bad in ["--auto-export 3", "--auto-export 3 --mode import", "--propagate-deletes"] {
            let refused = options(bad).unwrap_err();
            assert!(refused.contains("--mode import-export"), "{bad}: {refused}");
        }
        for good in [
            "--auto-export off --propagate-deletes=off --mode import",
            "--auto-export 3 --propagate-deletes --mode import-export",
            "--refresh 3 --attributes objects --fetch asked",
        ] {
            assert_eq!(options(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn only_urls_of_buckets_are_sent() {
        for good in ["s3://b", "s3://b/p/q", "gs://b", "az://c/p", "file:///srv/data"] {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in ["s3://", "gs://", "b/p", "http://b", "file://data", "abfs://b", ""] {
            assert!(check_url(bad).unwrap_err().to_string().contains("s3://"), "{bad}");
        }
    }
}
