//! `millrace stripe set [...] DIR`: what new files below a directory get.

use anyhow::Context as _;
use millrace_protocol::admin::SetLayout;

use crate::{
    arguments::StripeSetArguments,
    commands::stripe_show,
    context::{CALLER, Context, at},
    exit::Exit,
    report::StripeReport,
};

/// Sets what was given, leaves the rest, and prints the directory's defaults.
pub(crate) async fn run(context: &Context, arguments: StripeSetArguments) -> anyhow::Result<Exit> {
    let (connection, path) = context.at(&arguments.directory).await?;
    let request = SetLayout {
        caller: CALLER,
        path,
        chunk_size: arguments.layout.chunk_size,
        stripe_count: arguments.layout.count,
        pool: arguments.layout.pool,
        inline_bytes_max: arguments.layout.inline,
    };
    let reply = connection.request(&request).await.context(at(&arguments.directory))?;
    let report = StripeReport::new(arguments.directory.display().to_string(), &reply);
    context.output.result(&report, || stripe_show::words(&report))?;
    Ok(Exit::Done)
}
