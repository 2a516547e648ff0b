//! Requests about locks. One of them waits: it stands for all waits of its session, and holds
//! neither a thread nor a turn of the engine.

use std::time::Duration;

use millrace_protocol::{
    RequestKind,
    lock::{AwaitLocks, AwaitLocksReply},
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure};

use super::{Durability::Written, MetadataService, client, respond};
use crate::{locks::News, ops};

/// How long a request waits for news: less than a client's deadline of a request by far, so that
/// one that is lost is not missed for long.
const NEWS_WAIT_MAX: Duration = Duration::from_secs(20);

impl MetadataService {
    pub(super) async fn locks(&self, call: IncomingCall) {
        match call.kind() {
            RequestKind::TestLock => self.run(call, Written, ops::lock::test).await,
            RequestKind::SetLock => self.run(call, Written, ops::lock::set).await,
            RequestKind::CancelLock => self.run(call, Written, ops::lock::cancel).await,
            RequestKind::Declare => self.run(call, Written, ops::lock::declare).await,
            _ => {
                let result = match call.decode::<AwaitLocks>() {
                    Ok(request) => self.await_locks(&call, request).await,
                    Err(failure) => Err(failure),
                };
                respond::<AwaitLocks>(call, result).await;
            }
        }
    }

    /// Answers when a wait ends, or at last without any.
    async fn await_locks(
        &self,
        call: &IncomingCall,
        request: AwaitLocks,
    ) -> Result<AwaitLocksReply, Failure> {
        let (first, second) = (request.clone(), request);
        let (looking, again) = (client(call), client(call));
        let news = self.engine.turn(move |core| ops::lock::watch(core, &looking, &first)).await?;
        let fired = match news {
            News::Ended(ended) => return Ok(AwaitLocksReply { ended }),
            News::Later(fired) => fired,
        };
        tokio::select! {
            fired = tokio::time::timeout(NEWS_WAIT_MAX, fired) => {
                // Nothing for so long, or a later request of the session took this one's place.
                if !matches!(fired, Ok(Ok(()))) {
                    return Ok(AwaitLocksReply { ended: Vec::new() });
                }
            }
            () = self.shutdown.draining() => {
                let text = "the metadata server is stopping";
                return Err(Failure::new(ErrorKind::Unavailable, text));
            }
        }
        let news = self.engine.turn(move |core| ops::lock::watch(core, &again, &second)).await?;
        let ended = match news {
            News::Ended(ended) => ended,
            // Cancelled in between.
            News::Later(_) => Vec::new(),
        };
        Ok(AwaitLocksReply { ended })
    }
}
