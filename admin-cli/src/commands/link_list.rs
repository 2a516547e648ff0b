//! `millrace link list`.

use millrace_protocol::admin::ListLinks;

use crate::{
    context::Context,
    exit::Exit,
    output::{render, table},
    report::LinkReport,
};

/// Asks and prints.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let reply = connection.request(&ListLinks {}).await?;
    let reports: Vec<_> = reply.links.iter().map(LinkReport::from).collect();
    context.output.result(&reports, || {
        if reports.is_empty() {
            return "no links; make one with `millrace link add URL PATH`".to_owned();
        }
        let mut links = table(&["PATH", "URL", "MODE", "ENDPOINT", "CREDENTIALS"]);
        for link in &reports {
            links.add_row([
                link.path.as_str(),
                link.url.as_str(),
                link.mode,
                link.endpoint.as_deref().unwrap_or("-"),
                link.credentials.as_deref().unwrap_or("-"),
            ]);
        }
        render(&links)
    })?;
    Ok(Exit::Done)
}
