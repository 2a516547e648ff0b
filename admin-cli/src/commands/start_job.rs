//! `millrace import|hydrate|export|release PATH [--wait]`: has the cluster work on a file or tree.
//!
//! The verbs differ in the job that they start, and in their help (`arguments`); all the rest is
//! here.

use std::path::PathBuf;

use anyhow::Context as _;
use millrace_protocol::{
    admin::{JobKind, StartJob},
    job_options::{JobOptions, StartWithOptions},
    selection::{Selection, StartSelected},
    unused::StartUnused,
};

use super::{file_list, link_left_out, preview};
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
    let destination = arguments.destination()?;
    let ExportArguments { select, atomic, .. } = arguments;
    let options = JobOptions { atomic, destination, ..select.options() };
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
    let unused = arguments.unused;
    let SelectArguments { start: arguments, files_from, null, .. } = arguments;
    let files = files_from.map(|file| Files { file, zero_ended: null });
    start(context, kind, arguments, Work { selection, unused, dry_run, options, files }).await
}

/// What a job does of its tree, and how.
#[derive(Default)]
struct Work {
    selection: Selection,
    /// Seconds for which nobody has used them.
    unused: Option<u64>,
    dry_run: bool,
    options: JobOptions,
    files: Option<Files>,
}

/// Where its files are named.
struct Files {
    file: PathBuf,
    zero_ended: bool,
}

/// Sends the plainest request that says it, so that an older server does what it can.
async fn start(
    context: &Context,
    kind: JobKind,
    arguments: StartArguments,
    work: Work,
) -> anyhow::Result<Exit> {
    let StartArguments { wait, path: named, .. } = arguments;
    // To another place only operators may export.
    let (connection, path) = match work.options.destination {
        Some(_) => context.operate_at(&named).await?,
        None => context.at(&named).await?,
    };
    let start = StartJob { caller: CALLER, kind, path: path.clone() };
    let Work { selection, unused, dry_run, mut options, files } = work;
    // Before it is started: a moment later it may have been done.
    let is_told = kind == JobKind::Hydrate && !dry_run;
    let state = match is_told {
        true => preview::look(&connection, &start.path).await,
        false => None,
    };
    let is_part = !selection.is_everything() || unused.is_some() || files.is_some();
    if let Some(Files { file, zero_ended }) = files {
        options.files = Some(file_list::send(&connection, &file, zero_ended, &named).await?);
    }
    let reply = if let Some(seconds) = unused {
        let job = StartWithOptions { start, selection, dry_run, options };
        connection.request(&StartUnused { job, seconds }).await
    } else if options != JobOptions::default() {
        let request = StartWithOptions { start, selection, dry_run, options };
        connection.request(&request).await
    } else if !selection.is_everything() || dry_run {
        connection.request(&StartSelected { start, selection, dry_run }).await
    } else {
        connection.request(&start).await
    };
    let job = reply.context(at(&named))?.job;
    if is_told {
        preview::tell(&connection, &job, state.as_ref(), is_part).await;
    }
    let exit = watch::report(context, &connection, job, wait).await?;
    if kind == JobKind::Import
        && wait
        && let Some(words) = link_left_out::after_import(&connection, path).await
    {
        watch::say(&words);
    }
    Ok(exit)
}
