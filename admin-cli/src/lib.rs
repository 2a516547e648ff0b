//! The operator's tool: every command is a protocol message, or starts daemons on this machine.
//!
//! Owns nothing: no state outside the directory of a dev cluster, and no decision that a server
//! could make. It links no server's code; daemons are separate programs that it starts.
//!
//! Modules, in reading order: [`arguments`] (what can be said), `commands` (one file each),
//! `context`, `place` (what PATH means), `connection`, `report` (the JSON), `output`, `named_file`
//! (where a result may go), `whole_file` (how it gets there), `watch` (progress of jobs),
//! `mounting`, `dev` (a cluster on this machine).

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Parser as _;
use millrace_protocol::admin::JobKind;
use millrace_service::telemetry::in_words;

pub mod arguments;
mod authority;
mod commands;
mod connection;
mod context;
mod dev;
mod exit;
mod mountinfo;
mod mounting;
mod named_file;
mod output;
mod place;
mod programs;
mod report;
mod settings;
mod watch;
mod whole_file;

pub use settings::AdminSettings;

use arguments::{
    Cli, ClusterCommand, Command, ConflictsCommand, DevCommand, JobCommand, LinkCommand,
    MetadataCommand, StripeCommand, TargetCommand,
};
use context::Context;
use exit::Exit;

/// Runs one command line; `arguments` starts with the program's name.
///
/// Called as `mount.millrace`, it takes the arguments of mount(8)'s helpers instead.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    let cli = if name.is_some_and(|name| name == mounting::HELPER_NAME) {
        mounting::HelperArguments::try_parse_from(&arguments)
            .map(mounting::HelperArguments::into_command)
    } else {
        Cli::try_parse_from(&arguments)
    };
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => {
            // Without standard streams there is nobody to tell; the exit code says it too.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(error) => {
            watch::say(&format!("millrace: {}", in_words(&error)));
            exit::of_error(&error)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let context = Context::new(cli.globals);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let ended = Box::pin(dispatch(&context, cli.command)).await;
        context.close().await;
        ended
    })
}

async fn dispatch(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Cluster(ClusterCommand::Init) => commands::cluster_init::run(context),
        Command::Cluster(ClusterCommand::Invite(arguments)) => {
            commands::cluster_invite::run(context, arguments)
        }
        Command::Dev(DevCommand::Up(arguments)) => commands::dev_up::run(context, arguments).await,
        Command::Dev(DevCommand::Down) => commands::dev_down::run(context).await,
        Command::Dev(DevCommand::Status) => commands::dev_status::run(context).await,
        Command::Status => commands::status::run(context).await,
        Command::Mount(arguments) => commands::mount::run(context, arguments).await,
        Command::Umount(arguments) => commands::umount::run(context, arguments).await,
        Command::Stripe(StripeCommand::Set(arguments)) => {
            commands::stripe_set::run(context, arguments).await
        }
        Command::Stripe(StripeCommand::Show(arguments)) => {
            commands::stripe_show::run(context, arguments).await
        }
        Command::Link(command) => dispatch_link(context, command).await,
        Command::Hydrate(arguments) => {
            commands::start_job::run_selected(context, JobKind::Hydrate, arguments).await
        }
        Command::Import(arguments) => commands::start_job::import(context, arguments).await,
        Command::Export(arguments) => commands::start_job::export(context, arguments).await,
        Command::Release(arguments) => {
            commands::start_job::run_selected(context, JobKind::Release, arguments).await
        }
        Command::Pin(arguments) => match &arguments.path {
            Some(path) => commands::pin::set(context, path, true).await,
            None => commands::pin::list(context).await,
        },
        Command::Unpin(arguments) => commands::pin::set(context, &arguments.path, false).await,
        Command::Conflicts(ConflictsCommand::List) => commands::conflicts_list::run(context).await,
        Command::Resolve(arguments) | Command::Conflicts(ConflictsCommand::Resolve(arguments)) => {
            commands::resolve::run(context, arguments).await
        }
        Command::State(arguments) => commands::state::run(context, arguments).await,
        Command::Target(command) => dispatch_target(context, command).await,
        Command::Fsck(command) => commands::fsck::run(context, command).await,
        Command::Metadata(command) => dispatch_metadata(context, command).await,
        Command::Job(command) => dispatch_job(context, command).await,
    }
}

async fn dispatch_job(context: &Context, command: JobCommand) -> anyhow::Result<Exit> {
    match command {
        JobCommand::List => commands::job_list::run(context).await,
        JobCommand::Show(arguments) => commands::job_show::run(context, arguments).await,
        JobCommand::Retry(arguments) => commands::job_retry::run(context, arguments).await,
        JobCommand::Cancel(arguments) => commands::job_cancel::run(context, arguments).await,
        JobCommand::Report(arguments) => commands::job_report::run(context, arguments).await,
    }
}

async fn dispatch_link(context: &Context, command: LinkCommand) -> anyhow::Result<Exit> {
    match command {
        LinkCommand::Add(arguments) => commands::link_add::run(context, arguments).await,
        LinkCommand::Check(arguments) => commands::link_check::run(context, arguments).await,
        LinkCommand::LeftOut(arguments) => commands::link_left_out::run(context, arguments).await,
        LinkCommand::List(arguments) => commands::link_list::run(context, arguments).await,
        LinkCommand::Set(arguments) => commands::link_set::run(context, arguments).await,
        LinkCommand::Uploads(arguments) => commands::link_uploads::run(context, arguments).await,
        LinkCommand::Remove(arguments) => commands::link_remove::run(context, arguments).await,
    }
}

async fn dispatch_metadata(context: &Context, command: MetadataCommand) -> anyhow::Result<Exit> {
    match command {
        MetadataCommand::Backup(arguments) => {
            commands::metadata_backup::run(context, arguments).await
        }
        MetadataCommand::Restore(arguments) => commands::metadata_restore::run(context, &arguments),
    }
}

async fn dispatch_target(context: &Context, command: TargetCommand) -> anyhow::Result<Exit> {
    match command {
        TargetCommand::Add(arguments) => commands::target_add::run(context, arguments).await,
        TargetCommand::List => commands::target_list::run(context).await,
        TargetCommand::Show(arguments) => commands::target_show::run(context, arguments).await,
        TargetCommand::Scrub(arguments) => commands::target_scrub::run(context, arguments).await,
        TargetCommand::DrainCheck(arguments) => {
            commands::target_drain_check::run(context, arguments).await
        }
        TargetCommand::Lost(arguments) => commands::target_lost::run(context, arguments).await,
    }
}
