//! `millrace import|hydrate|export|release PATH [--wait]`: has the cluster work on a file or tree.
//!
//! The verbs differ in the job that they start, and in their help (`arguments`); all the rest is
//! here.

use std::path::PathBuf;

use anyhow::Context as _;
use millrace_protocol::{
    admin::{FileState, JobKind, JobReply, StartJob},
    by_state::{ShowStates, StartByState, StatesReply},
    job_options::{JobOptions, StartWithOptions},
    selection::{Selection, StartSelected},
    unused::StartUnused,
};
use millrace_types::{ErrorKind, Failure, JobId};

use super::{file_list, link_left_out, preview};
use crate::{
    arguments::{ExportArguments, ImportArguments, SelectArguments, StartArguments},
    connection::Connection,
    context::{CALLER, Context, at, path_from_root},
    exit::Exit,
    place, watch,
};

/// An import, of all directories of a tree or of some.
pub(crate) async fn import(context: &Context, arguments: ImportArguments) -> anyhow::Result<Exit> {
    let selection = arguments.selection()?;
    let ImportArguments { start: arguments, dry_run, .. } = arguments;
    let options = arguments.options();
    let work = Work { selection, dry_run, options, ..Work::default() };
    start(context, JobKind::Import, arguments, work).await
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
    let (unused, states) = (arguments.unused, arguments.states());
    let SelectArguments { start: arguments, files_from, null, .. } = arguments;
    let files = files_from.map(|file| Files { file, zero_ended: null });
    let work = Work { selection, unused, states, dry_run, options, files };
    start(context, kind, arguments, work).await
}

/// What a job does of its tree, and how.
#[derive(Default)]
struct Work {
    selection: Selection,
    /// Seconds for which nobody has used them.
    unused: Option<u64>,
    /// One of which they are in; empty: any.
    states: Vec<FileState>,
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
    let Work { selection, unused, states, dry_run, mut options, files } = work;
    // Before it is started: a moment later it may have been done.
    let is_told = kind == JobKind::Hydrate && !dry_run;
    let is_listed_dry = kind == JobKind::Import && dry_run;
    let known = match is_told || is_listed_dry {
        true => preview::look(&connection, &start.path).await,
        false => None,
    };
    let looks = unused.is_some() || !states.is_empty();
    let is_part = !selection.is_everything() || looks || files.is_some();
    if let Some(Files { file, zero_ended }) = files {
        let mut tops = place::spellings(&named);
        // As reports have it. What can be both is meant as the caller names the directory.
        tops.push(path_from_root(&connection, &path).await?);
        options.files = Some(file_list::send(&connection, &file, zero_ended, tops).await?);
    }
    let reply = if !states.is_empty() {
        let job = StartWithOptions { start, selection, dry_run, options };
        start_by_state(&connection, &StartByState { job, unused, states }).await
    } else if let Some(seconds) = unused {
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
        preview::tell(&connection, &job, known.as_ref(), is_part).await;
    }
    if is_listed_dry {
        watch::say(&preview::unlisted(known.as_ref()));
    }
    let exit = watch::report(context, &connection, job, wait).await?;
    if kind == JobKind::Import
        && wait
        && !dry_run
        && let Some(words) = link_left_out::after_import(&connection, path).await
    {
        watch::say(&words);
    }
    Ok(exit)
}

async fn start_by_state(
    connection: &Connection,
    request: &StartByState,
) -> Result<JobReply, Failure> {
    let refused = match connection.request(request).await {
        Err(failure) if failure.kind == ErrorKind::NotSupported => failure,
        answer => return answer,
    };
    // Or something else of the job is not supported. There is no such job, which only who knows the
    // question can say.
    let states = connection.request(&ShowStates { id: JobId(0) }).await;
    Err(refusal(refused, states, connection.peer()))
}

/// What is told of a refused job, by what was answered about the states of some job: a server, or
/// the daemon of a mount, may be from before there were such.
fn refusal(refused: Failure, states: Result<StatesReply, Failure>, peer: &str) -> Failure {
    let is_old = states.is_err_and(|failure| failure.kind == ErrorKind::NotSupported);
    if !is_old {
        return refused;
    }
    let words = format!(
        "{peer}, or the metadata server behind it, is older than this tool and knows no --state: \
         upgrade it, the metadata server first, or choose the files otherwise; nothing was begun"
    );
    Failure::new(ErrorKind::NotSupported, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_older_server_it_is_told_that_it_must_be_upgraded_and_of_others_what_they_say() {
        let refused = Failure::new(ErrorKind::NotSupported, "this bucket takes no such keys");
        let told = |states| refusal(refused.clone(), states, "meta-1:7440");
        let old = told(Err(ErrorKind::NotSupported.into()));
        assert!(old.message.contains("meta-1:7440") && old.message.contains("upgrade"), "{old}");
        assert_eq!(told(Ok(StatesReply { states: Vec::new() })), refused);
        assert_eq!(told(Err(ErrorKind::NotFound.into())), refused);
        assert_eq!(told(Err(ErrorKind::Unavailable.into())), refused);
    }
}
