//! Takes whiteouts away that nobody needs any more, behind the removal of the directories that had
//! them: some with each command, so that nobody waits for all of them.
//!
//! Which there are is recorded by the command that removed the directory, so that it goes on after
//! a restart.

use std::{ops::Bound, time::Duration};

use millrace_types::Failure;
use tokio_util::sync::CancellationToken;

use super::{environment::Environment, import::broken};
use crate::{
    command::Command,
    store::{View, borrow, keys, prefix_end},
};

/// How often it is looked whether there is something to take away.
const LOOK: Duration = Duration::from_secs(10);

/// Between two commands: ten thousand records a second, and the engine is there for others nearly
/// all of the time.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes away what there is, until `stop`.
pub(super) async fn run<E: Environment>(environment: &E, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = Box::pin(work(environment)) => {}
    }
}

async fn work<E: Environment>(environment: &E) {
    loop {
        let pause = match sweep(environment).await {
            Ok(true) => PAUSE,
            Ok(false) => LOOK,
            // With a full disk above all. Nobody waits for it.
            Err(failure) => {
                tracing::debug!(%failure, "whiteouts that nobody needs stay for now");
                LOOK
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Takes some away; returns whether there were any.
async fn sweep<E: Environment>(environment: &E) -> Result<bool, Failure> {
    if !environment.read(is_due).await? {
        return Ok(false);
    }
    environment.give_way().await;
    environment.execute(Command::SweepWhiteouts, false).await?;
    Ok(true)
}

fn is_due(view: &dyn View) -> Result<bool, Failure> {
    let all = [keys::SWEEPS];
    let end = prefix_end(&all);
    let found = view.scan(Bound::Included(&all), borrow(&end), 1).map_err(broken)?;
    Ok(!found.is_empty())
}
