//! What clients give back: the waits of those who change it, and the requests that stay open to
//! hear of it.

use std::{sync::Arc, time::Duration};

use millrace_protocol::lease::{
    AWAIT_RECALLS_MAX_MS, AwaitRecalls, EntriesPage, ListEntries, ListFrom, Recalls,
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure};
use tokio::time::Instant;

use super::{BUCKET_WAIT_MAX, MetadataService, NEEDS_MAX, client, respond};
use crate::{
    leases::Wait,
    ops::{self, Client, Step},
};

/// Waits until the others have given back what an operation changes, which is not executed yet.
///
/// # Errors
/// [`ErrorKind::Busy`] when one of them takes longer than one attempt may: it is cut off when its
/// lease has run out.
pub(super) async fn given_back(wait: &Wait) -> Result<(), Failure> {
    tokio::time::timeout(BUCKET_WAIT_MAX, wait.given_back()).await.map_err(|_| {
        Failure::new(ErrorKind::Busy, "a client has not given back yet what this changes")
    })
}

impl MetadataService {
    /// Answers when something is taken back from the session.
    pub(super) async fn await_recalls(&self, call: IncomingCall) {
        let result = match call.decode::<AwaitRecalls>() {
            Ok(request) => self.recalls_of(client(&call), request).await,
            Err(failure) => Err(failure),
        };
        respond::<AwaitRecalls>(call, result).await;
    }

    async fn recalls_of(&self, client: Client, request: AwaitRecalls) -> Result<Recalls, Failure> {
        let limit = Instant::now() + Duration::from_millis(AWAIT_RECALLS_MAX_MS);
        let (asks, asked) = (client.clone(), request.clone());
        let index = self.engine.turn(move |core| ops::lease::enrol(core, &asks, &asked)).await?;
        if let Some(index) = index {
            // A restart must know of the session before it keeps anything.
            self.engine.synced(index).await?;
        }
        let (asks, asked) = (client.clone(), request.clone());
        let mut news =
            self.engine.turn(move |core| ops::lease::listen(core, &asks, &asked)).await?;
        loop {
            let (asks, session) = (client.clone(), request.session);
            news.mark_unchanged();
            let recalls =
                self.engine.turn(move |core| ops::lease::recalls(core, &asks, session)).await?;
            if !recalls.recalls.is_empty() || Instant::now() >= limit {
                return Ok(recalls);
            }
            tokio::select! {
                changed = news.changed() => {
                    // Its queue is gone: so is the session.
                    changed.map_err(|_| ErrorKind::SessionGone)?;
                }
                () = tokio::time::sleep_until(limit) => {}
                () = self.shutdown.draining() => {
                    let text = "the metadata server is stopping";
                    return Err(Failure::new(ErrorKind::Unavailable, text));
                }
            }
        }
    }

    /// Lists a page: of a linked directory that is being listed, what there is already.
    pub(super) async fn list_entries(&self, call: IncomingCall) {
        let result = match call.decode::<ListEntries>() {
            Ok(request) => self.entries_page(client(&call), Arc::new(request)).await,
            Err(failure) => Err(failure),
        };
        respond::<ListEntries>(call, result).await;
    }

    async fn entries_page(
        &self,
        mut client: Client,
        request: Arc<ListEntries>,
    ) -> Result<EntriesPage, Failure> {
        let cookie = match request.from {
            ListFrom::Cookie(cookie) => Some(cookie),
            ListFrom::Name(_) => None,
        };
        for _ in 0..NEEDS_MAX {
            let (of_turn, caller) = (Arc::clone(&request), client.clone());
            let step =
                self.engine.turn(move |core| ops::lease::list(core, &caller, &of_turn)).await?;
            match step {
                // An empty page that is not the last would look like an end to a careless reader.
                Step::Done(page) if page.entries.is_empty() && !page.last && cookie.is_some() => {
                    client.settled.clear();
                }
                Step::Done(page) => return Ok(page),
                Step::Need(need) => {
                    self.settle(need.clone(), cookie.unwrap_or_default()).await?;
                    client.settled.push(need);
                }
            }
        }
        Err(ErrorKind::Busy.into())
    }
}
