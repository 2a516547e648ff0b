//! Closes that programs have seen and this server has not.
//!
//! A kernel answers close(2) before it tells the mount that the last descriptor is gone, and the
//! mount tells the server after that: what is exported right after it was written would be open
//! for writing still.

use std::time::Duration;

use millrace_types::{Failure, InodeId};

use super::Environment;
use crate::{hydration::import::broken, leases::touched::writers};

/// Between looks: the first is beyond what a close takes to arrive, and all together are short for
/// who exports many files that stay open.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(400)];

/// Waits until nobody has a file open for writing, 600 ms at most. Who has it open still is found
/// by whoever freezes it.
pub(super) async fn wait<E: Environment>(environment: &E, id: InodeId) -> Result<(), Failure> {
    for pause in PAUSES {
        let open = environment.read(move |view| writers(view, id).map_err(broken));
        if open.await?.is_empty() {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    Ok(())
}
