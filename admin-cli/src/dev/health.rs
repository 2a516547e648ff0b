//! Waits until the cluster serves, while watching the daemons that were started for it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use millrace_protocol::admin::{ClusterStatus, ClusterStatusReply, TargetState};
use millrace_service::telemetry::in_words;

use crate::{
    connection::Connection,
    context::Context,
    dev::{
        daemon::{Daemon, Started},
        lost,
    },
    settings::AdminSettings,
};

/// Waits until the metadata server answers and all of `targets` are online, but those that were
/// given up.
///
/// # Errors
/// When one of `started` ends, or [`PATIENCE`] passes; the message holds the daemon's last words,
/// or what is missing.
pub(crate) async fn wait(
    context: &Context,
    settings: &AdminSettings,
    targets: &[Daemon],
    started: &mut [Started],
) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut connection = None;
    let mut look = Instant::now() + LOOK;
    loop {
        for daemon in started.iter_mut() {
            daemon.check()?;
        }
        let missing = match ask(context, settings, &mut connection).await {
            Ok(status) => {
                let (online, mut counted) = (online(&status), targets.len());
                if online < counted
                    && Instant::now() > look
                    && let Some(connection) = &connection
                {
                    counted -= lost::find(connection, &status, targets).await.len();
                    look = Instant::now() + LOOK;
                }
                if online >= counted {
                    return Ok(());
                }
                format!("{online} of {counted} targets are online")
            }
            Err(error) => in_words(&error),
        };
        if Instant::now() > deadline {
            let words: Vec<_> = started.iter().map(|daemon| daemon.log.last_words()).collect();
            bail!(
                "the cluster is not ready after {} s: {missing}\n{}",
                PATIENCE.as_secs(),
                words.join("\n")
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// How many targets heartbeat now.
pub(crate) fn online(status: &ClusterStatusReply) -> usize {
    let online = |target: &&_| {
        let target: &millrace_protocol::admin::TargetStatus = target;
        target.state == TargetState::Online
    };
    status.targets.iter().filter(online).count()
}

async fn ask(
    context: &Context,
    settings: &AdminSettings,
    connection: &mut Option<Connection>,
) -> anyhow::Result<ClusterStatusReply> {
    let open = match connection.take() {
        Some(open) => open,
        None => context.connect(&settings.cluster).await?,
    };
    let status = open.request(&ClusterStatus {}).await;
    let status = status.context("the metadata server does not tell its status")?;
    *connection = Some(open);
    Ok(status)
}

/// A metadata server that replays a long log, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Longer than targets take to join: only then it is asked which were given up, and again later.
const LOOK: Duration = Duration::from_secs(3);
