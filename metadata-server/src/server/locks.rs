//! Requests about locks. Two of them wait: for the end of any of the session's waits, and for
//! anybody who wants to append where the session holds the right to. They hold neither a thread nor
//! a turn of the engine.

use std::{sync::Arc, time::Duration};

use millrace_protocol::{
    RequestKind,
    lock::{AwaitAppends, AwaitAppendsReply, AwaitLocks, AwaitLocksReply},
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure};

use super::{
    MetadataService,
    answer::{Work, other, written},
    client,
};
use crate::{engine::Core, locks::News, ops};

/// How long a request waits for news: less than a client's deadline of a request by far, so that
/// one that is lost is not missed for long.
const NEWS_WAIT_MAX: Duration = Duration::from_secs(20);

impl MetadataService {
    pub(super) fn locks<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        match call.kind() {
            RequestKind::TestLock => written(call, ops::lock::test),
            RequestKind::SetLock => written(call, ops::lock::set),
            RequestKind::CancelLock => written(call, ops::lock::cancel),
            RequestKind::Declare => written(call, ops::lock::declare),
            RequestKind::AwaitAppends => Ok(other::<AwaitAppends>(self.await_appends(call))),
            _ => Ok(other::<AwaitLocks>(self.await_locks(call))),
        }
    }

    async fn await_locks(&self, call: &IncomingCall) -> Result<AwaitLocksReply, Failure> {
        let (request, client) = (call.decode::<AwaitLocks>()?, client(call));
        let look = move |core: &mut Core| ops::lock::watch(core, &client, &request);
        Ok(AwaitLocksReply { ended: self.news(look).await? })
    }

    async fn await_appends(&self, call: &IncomingCall) -> Result<AwaitAppendsReply, Failure> {
        let (request, client) = (call.decode::<AwaitAppends>()?, client(call));
        let look = move |core: &mut Core| ops::lock::watch_appends(core, &client, &request);
        Ok(AwaitAppendsReply { wanted: self.news(look).await? })
    }

    /// Answers when there is news, or at last without any.
    async fn news<T: Send + 'static>(
        &self,
        look: impl Fn(&mut Core) -> Result<News<T>, Failure> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Failure> {
        let look = Arc::new(look);
        let first = Arc::clone(&look);
        let fired = match self.engine.turn(move |core| first(core)).await? {
            News::Now(news) => return Ok(news),
            News::Later(fired) => fired,
        };
        tokio::select! {
            fired = tokio::time::timeout(NEWS_WAIT_MAX, fired) => {
                // Nothing for so long, or a later request of the session took this one's place.
                if !matches!(fired, Ok(Ok(()))) {
                    return Ok(Vec::new());
                }
            }
            () = self.shutdown.draining() => {
                let text = "the metadata server is stopping";
                return Err(Failure::new(ErrorKind::Unavailable, text));
            }
        }
        match self.engine.turn(move |core| look(core)).await? {
            News::Now(news) => Ok(news),
            // Over in between.
            News::Later(_) => Ok(Vec::new()),
        }
    }
}
