//! `millrace import|hydrate|export|release PATH [--wait]`: has the cluster work on a file or tree.
//!
//! The verbs differ in the job that they start, and in their help (`arguments`); all the rest is
//! here.

use anyhow::Context as _;
use millrace_protocol::{
    admin::{JobKind, StartJob},
    job_options::{JobOptions, StartWithOptions},
    selection::{Selection, StartSelected},
};

use super::link_left_out;
use crate::{
    arguments::{ExportArguments, SelectArguments, StartArguments},
    context::{CALLER, Context, at},
    exit::Exit,
    watch,
};

/// Starts the job over all of a tree, and follows it when asked to.
pub(crate) async fn run(
    context: &Context,
    kind: JobKind,
    arguments: StartArguments,
) -> anyhow::Result<Exit> {
    let options = arguments.options();
    start(context, kind, arguments, Work { options, ..Work::default() }).await
}

/// An export, which may end with a manifest of the whole directory.
pub(crate) async fn export(context: &Context, arguments: ExportArguments) -> anyhow::Result<Exit> {
    let ExportArguments { select, atomic } = arguments;
    let options = JobOptions { atomic, ..select.options() };
    run_with(context, JobKind::Export, select, options).await
}

/// The same over some files of a tree.
pub(crate) async fn run_selected(
    context: &Context,
    kind: JobKind,
    arguments: SelectArguments,
) -> anyhow::Result<Exit> {
    let options = arguments.options();
    run_with(context, kind, arguments, options).await
}

async fn run_with(
    context: &Context,
    kind: JobKind,
    arguments: SelectArguments,
    options: JobOptions,
) -> anyhow::Result<Exit> {
    let (selection, dry_run) = (arguments.selection(), arguments.dry_run);
    start(context, kind, arguments.start, Work { selection, dry_run, options }).await
}

/// What a job does of its tree, and how.
#[derive(Default)]
struct Work {
    selection: Selection,
    dry_run: bool,
    options: JobOptions,
}

/// Sends the plainest request that says it, so that an older server does what it can.
async fn start(
    context: &Context,
    kind: JobKind,
    arguments: StartArguments,
    work: Work,
) -> anyhow::Result<Exit> {
    let StartArguments { wait, path: named, .. } = arguments;
    let (connection, path) = context.at(&named).await?;
    let start = StartJob { caller: CALLER, kind, path: path.clone() };
    let Work { selection, dry_run, options } = work;
    let reply = if options != JobOptions::default() {
        let request = StartWithOptions { start, selection, dry_run, options };
        connection.request(&request).await
    } else if !selection.is_everything() || dry_run {
        connection.request(&StartSelected { start, selection, dry_run }).await
    } else {
        connection.request(&start).await
    };
    let job = reply.context(at(&named))?.job;
    let exit = watch::report(context, &connection, job, wait).await?;
    if kind == JobKind::Import
        && wait
        && let Some(words) = link_left_out::after_import(&connection, path).await
    {
        watch::say(&words);
    }
    Ok(exit)
}
