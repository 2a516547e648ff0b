//! Closes that programs have seen and this server has not.
//!
//! A kernel answers close(2) before it tells the mount that the last descriptor is gone, and the
//! mount tells the server after that: what is exported right after it was written would be open
//! for writing still.

use std::time::Duration;

use millrace_types::InodeId;

use super::Environment;
use crate::{hydration::import::broken, leases::touched::writers};

/// Between looks: the first is beyond what a close takes to arrive, and all together are short for
/// who exports a file that stays open.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(400)];

/// Whether somebody has a file open for writing, as far as this server can tell now. Whoever
/// freezes the file looks again.
pub(super) async fn is_open<E: Environment>(environment: &E, id: InodeId) -> bool {
    let query = environment.read(move |view| writers(view, id).map_err(broken));
    query.await.is_ok_and(|writers| !writers.is_empty())
}

/// Waits until nobody has a file open for writing any more, 600 ms at most. Whether that came.
pub(super) async fn wait<E: Environment>(environment: &E, id: InodeId) -> bool {
    for pause in PAUSES {
        tokio::time::sleep(pause).await;
        if !is_open(environment, id).await {
            return true;
        }
    }
    false
}
