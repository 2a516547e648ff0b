//! `millrace resolve PATH... --keep local|bucket`: which version of a file in conflict stays.

use anyhow::Context as _;
use millrace_protocol::admin::{Keep, ResolveConflict};
use millrace_types::ByteLen;

use super::resolve_several;
use crate::{
    arguments::{KeepName, ResolveArguments},
    context::{CALLER, Context, at},
    exit::Exit,
    output::shown,
    report::ResolveReport,
};

/// Asks the metadata server, which looks at the objects as they are now.
pub(crate) async fn run(context: &Context, arguments: ResolveArguments) -> anyhow::Result<Exit> {
    let keep = match arguments.keep {
        KeepName::Local => Keep::Local,
        KeepName::Bucket => Keep::Bucket,
    };
    let ResolveArguments { recursive, dry_run, files_from, paths, .. } = &arguments;
    let [file] = paths.as_slice() else {
        return resolve_several::run(context, keep, arguments).await;
    };
    if *recursive || *dry_run || files_from.is_some() {
        return resolve_several::run(context, keep, arguments).await;
    }
    let (connection, path) = context.at(file).await?;
    let request = ResolveConflict { caller: CALLER, path, keep };
    let reply = connection.request(&request).await.context(at(file))?;
    let report = ResolveReport::new(file.display().to_string(), keep, &reply);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// What became of a file.
pub(super) fn words(report: &ResolveReport) -> String {
    let (path, size) = (shown(&report.path), ByteLen(report.size_bytes));
    match (report.keep, report.origin.as_ref().map(|origin| shown(&origin.url))) {
        _ if report.removed => format!("{path} is gone, as its object is"),
        ("local", Some(url)) => {
            format!("{path} stays as it is here ({size}); an export will replace {url}")
        }
        ("local", None) => format!("{path} stays as it is here ({size}); the bucket has no object"),
        (_, Some(url)) => format!("{path} is now {url} ({size})"),
        (_, None) => format!("{path} is now the bucket's ({size})"),
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::admin::ResolveReply;

    use super::*;

    #[test]
    fn the_words_say_what_becomes_of_both_versions() {
        let object = || Some(("s3://b/k".to_owned(), "t".to_owned()));
        let said = |keep, removed, origin| {
            let reply = ResolveReply { removed, size: ByteLen(4), origin };
            words(&ResolveReport::new("/m/f".to_owned(), keep, &reply))
        };
        assert!(said(Keep::Local, false, object()).contains("an export will replace s3://b/k"));
        assert!(said(Keep::Local, false, None).contains("no object"));
        assert!(said(Keep::Bucket, false, object()).contains("is now s3://b/k"));
        assert!(said(Keep::Bucket, true, None).contains("is gone"));
    }
}
