//! `millrace import|hydrate|export|release PATH [--wait]`: has the cluster work on a file or tree.
//!
//! The verbs differ in the job that they start, and in their help (`arguments`); all the rest is
//! here.

use anyhow::Context as _;
use millrace_protocol::{
    admin::{JobKind, StartJob},
    selection::{StartPublication, StartSelected},
};

use crate::{
    arguments::{ExportArguments, SelectArguments, StartArguments},
    context::{CALLER, Context, at},
    exit::Exit,
    watch,
};

/// Starts the job, and follows it when asked to.
pub(crate) async fn run(
    context: &Context,
    kind: JobKind,
    arguments: StartArguments,
) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.path).await?;
    let request = StartJob { caller: CALLER, kind, path };
    let reply = connection.request(&request).await.context(at(&arguments.path))?;
    watch::report(context, &connection, reply.job, arguments.wait).await
}

/// An export, which may end with a manifest of the whole directory.
pub(crate) async fn export(context: &Context, arguments: ExportArguments) -> anyhow::Result<Exit> {
    let ExportArguments { select, atomic } = arguments;
    if !atomic {
        return run_selected(context, JobKind::Export, select).await;
    }
    let StartArguments { wait, path: named } = select.start;
    let (connection, path) = context.at(&named).await?;
    let request =
        StartPublication { start: StartJob { caller: CALLER, kind: JobKind::Export, path } };
    let reply = connection.request(&request).await.context(at(&named))?;
    watch::report(context, &connection, reply.job, wait).await
}

/// The same over some files of a tree. One over all of them is started as ever, so that an older
/// server does it too.
pub(crate) async fn run_selected(
    context: &Context,
    kind: JobKind,
    arguments: SelectArguments,
) -> anyhow::Result<Exit> {
    let (selection, dry_run) = (arguments.selection(), arguments.dry_run);
    if selection.is_everything() && !dry_run {
        return run(context, kind, arguments.start).await;
    }
    let StartArguments { wait, path: named } = arguments.start;
    let (connection, path) = context.at(&named).await?;
    let start = StartJob { caller: CALLER, kind, path };
    let request = StartSelected { start, selection, dry_run };
    let reply = connection.request(&request).await.context(at(&named))?;
    watch::report(context, &connection, reply.job, wait).await
}
