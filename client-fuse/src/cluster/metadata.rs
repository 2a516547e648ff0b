//! Requests to the metadata server: about names and attributes, and about the session itself.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_protocol::{
    Request,
    cluster::FetchMap,
    lease::{AWAIT_RECALLS_MAX_MS, AwaitNews, AwaitRecalls, MadeName, News, Recalls, RemovedName},
    metadata::{InodeReply, SyncMetadata},
    session::{Done, Operation, RenewTicket},
};
use millrace_service::address::ServerAddress;
use millrace_transport::CallOptions;
use millrace_types::{ErrorKind, Failure, LogIndex, MapEpoch, SessionId};

use crate::cluster::{
    ATTACH_DEADLINE, Cluster, Logged, operations::Number, retry::Patience, session::Asked,
};

impl Cluster {
    /// Asks something that changes nothing, as often as it takes.
    ///
    /// # Errors
    /// What the server answers, and [`ErrorKind::Unavailable`] after the mount's patience.
    pub(crate) async fn ask<R: Request + Sync>(&self, request: &R) -> Result<R::Reply, Failure> {
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            let deadline = attempts.deadline(DEADLINE, Instant::now());
            let answer = self.metadata.call(request, CallOptions::control(deadline)).await;
            let failure = match answer {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            if failure.kind == ErrorKind::SessionGone {
                self.handle_session_gone().await?;
                return Err(failure);
            }
            self.metrics.retries.inc();
            tokio::time::sleep(attempts.handle_failure(failure, Instant::now())?).await;
        }
    }

    /// Listens for what other sessions change: one attempt, which takes
    /// [`AWAIT_RECALLS_MAX_MS`] where there is nothing to hear.
    ///
    /// # Errors
    /// What the server answers, and [`ErrorKind::Unavailable`] when it does not.
    pub(crate) async fn await_recalls(&self, request: &AwaitRecalls) -> Result<Recalls, Failure> {
        let deadline = Duration::from_millis(AWAIT_RECALLS_MAX_MS) + ATTACH_DEADLINE;
        self.metadata.call(request, CallOptions::control(deadline)).await
    }

    /// The same, for what directories show as well.
    ///
    /// # Errors
    /// As [`Self::await_recalls`]; [`ErrorKind::NotSupported`] from a server of before there was
    /// this.
    pub(crate) async fn await_lease_news(&self, request: &AwaitNews) -> Result<News, Failure> {
        let deadline = Duration::from_millis(AWAIT_RECALLS_MAX_MS) + ATTACH_DEADLINE;
        self.metadata.call(request, CallOptions::control(deadline)).await
    }

    /// Asks on behalf of a person who can ask again: one attempt.
    ///
    /// # Errors
    /// What the server answers, and [`ErrorKind::Unavailable`] when it does not.
    pub(crate) async fn ask_once<R: Request + Sync>(
        &self,
        request: &R,
    ) -> Result<R::Reply, Failure> {
        self.metadata.call(request, CallOptions::control(DEADLINE)).await
    }

    /// Changes something exactly once, however often the request has to be sent. Tells also where
    /// that stands in the log.
    ///
    /// When the session has ended, the change is made in a new one only if it cannot have been
    /// made in the old one.
    ///
    /// # Errors
    /// What the server answers; [`ErrorKind::SessionGone`] when nobody knows whether it was made;
    /// [`ErrorKind::Unavailable`] after the mount's patience, when it may be made yet.
    pub(crate) async fn change<R>(
        &self,
        make: impl Fn(Operation) -> R,
    ) -> Result<(R::Reply, Logged), Unmade>
    where
        R: Request<Reply: Indexed> + Sync,
    {
        let mut sending = Sending::new(self.operations.begin(), self.session());
        let changed = self.change_within(self.patience, &mut sending, make).await;
        changed.map_err(|failure| Unmade::new(failure, sending))
    }

    /// The same in `session` alone, for as long as that lasts, however long the server is away: for
    /// what no program waits for. Who gave up and began anew, with another number, could have it
    /// executed twice.
    ///
    /// # Errors
    /// What the server answers; [`ErrorKind::SessionGone`] when the session has ended. Nothing
    /// after which it could be tried again in this session.
    pub(crate) async fn change_in<R>(
        &self,
        session: SessionId,
        make: impl Fn(Operation) -> R,
    ) -> Result<R::Reply, Failure>
    where
        R: Request<Reply: Indexed> + Sync,
    {
        let sending = Sending::new(self.operations.begin(), session);
        self.settle_change(&mut Unsettled(sending), make).await
    }

    /// Asks under the number of a change that was given up, in its session alone and however long
    /// the server is away. What was executed under that number is what the server answers, whatever
    /// is asked. What was not may be yet, until something else is executed under it.
    ///
    /// # Errors
    /// As [`Self::change_in`].
    pub(crate) async fn settle_change<R>(
        &self,
        Unsettled(sending): &mut Unsettled,
        make: impl Fn(Operation) -> R,
    ) -> Result<R::Reply, Failure>
    where
        R: Request<Reply: Indexed> + Sync,
    {
        sending.is_bound = true;
        let changed = self.change_within(Patience { limit: None }, sending, make).await;
        changed.map(|(reply, _)| reply)
    }

    async fn change_within<R>(
        &self,
        patience: Patience,
        sending: &mut Sending,
        make: impl Fn(Operation) -> R,
    ) -> Result<(R::Reply, Logged), Failure>
    where
        R: Request<Reply: Indexed> + Sync,
    {
        let mut attempts = patience.begin(Instant::now());
        loop {
            if sending.is_ahead() {
                // Under the number that it has: those who wait would use up what is left.
                tokio::time::sleep(attempts.handle_failure(ahead(), Instant::now())?).await;
                continue;
            }
            let request = make(sending.number.operation(sending.session));
            let deadline = attempts.deadline(DEADLINE, Instant::now());
            let answer = self.metadata.call(&request, CallOptions::control(deadline)).await;
            let failure = match answer {
                Ok(reply) => {
                    let logged = self.handle_index(reply.index());
                    return Ok((reply, logged));
                }
                Err(failure) => failure,
            };
            if failure.kind == ErrorKind::SessionGone {
                let replaced = self.replace_session(sending.session).await;
                if sending.is_bound {
                    return Err(failure);
                }
                replaced?;
                if sending.is_unanswered || sending.session == self.session() {
                    return Err(failure);
                }
                sending.session = self.session();
                continue;
            }
            if failure.kind != ErrorKind::Busy {
                sending.is_unanswered = true;
            } else if !sending.is_unanswered {
                sending.number.renew();
            }
            self.metrics.retries.inc();
            tokio::time::sleep(attempts.handle_failure(failure, Instant::now())?).await;
        }
    }

    /// Waits for `work`, which goes on without this, no longer than the mount has patience.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] after that.
    pub(crate) async fn wait_patiently<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let Some(limit) = self.patience.limit else { return Ok(work.await) };
        tokio::time::timeout(limit, work).await.map_err(|_| {
            let words = format!("gave up after {} s: it is not answered", limit.as_secs());
            Failure::new(ErrorKind::Unavailable, words)
        })
    }

    /// Whether an older change waits for so long that only what leases wait for may be begun.
    pub(crate) fn is_ahead(&self) -> bool {
        self.operations.are_far_ahead()
    }

    /// Records the log index that a reply shows.
    pub(super) fn handle_index(&self, index: LogIndex) -> Logged {
        self.view.handle_index(index)
    }

    /// Waits until every change that was acknowledged is on stable storage, or is known to be lost
    /// ([`Self::log_ends`]): it may be another life of the server that answers. Tells up to where
    /// that has it.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) async fn sync_metadata(&self) -> Result<Logged, Failure> {
        let index = self.view.seen_index();
        let done = self.ask(&SyncMetadata { index }).await?;
        Ok(self.handle_index(done.index))
    }

    /// Fetches the cluster map, unless it was renewed since `held` was seen to be old.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) async fn refresh_map(&self, held: MapEpoch) -> Result<(), Failure> {
        let _one_at_a_time = self.refreshing.lock().await;
        if self.routing.epoch() > held {
            return Ok(());
        }
        let map = self.ask(&FetchMap { held: self.routing.epoch() }).await?;
        self.routing.handle_map(map);
        self.handle_new_addresses();
        Ok(())
    }

    /// Renews the ticket and shows it to every target that is connected.
    ///
    /// # Errors
    /// What the server answers, and [`ErrorKind::DeadlineExceeded`] when a newer map does not come:
    /// the next renewal finds that it is missing.
    pub(super) async fn renew_ticket(&self) -> Result<(), Failure> {
        let held = self.routing.epoch();
        match self.ask_for_ticket().await? {
            // The map is asked for with the mount's patience, which may have no end, and meanwhile
            // nobody would renew the ticket, or look for a server that has moved.
            Some(epoch) if epoch > held => {
                within(ATTACH_DEADLINE, Box::pin(self.refresh_map(held))).await
            }
            _ => Ok(()),
        }
    }

    /// Renews the ticket, or replaces the session if it has ended; tells the map's epoch if it was
    /// renewed.
    async fn ask_for_ticket(&self) -> Result<Option<MapEpoch>, Failure> {
        let session = self.session();
        let options = CallOptions::control(ATTACH_DEADLINE);
        let asked = Asked::now();
        match self.metadata.call(&RenewTicket { session }, options).await {
            Ok(reply) => {
                let map_epoch = reply.map_epoch;
                self.session.handle_renewal(reply, asked);
                self.show_ticket(false).await;
                Ok(Some(map_epoch))
            }
            Err(failure) if failure.kind == ErrorKind::SessionGone => {
                self.replace_session(session).await.map(|()| None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Somebody says that a session has ended. It may speak of the one before, which has been
    /// replaced already: a target knows the present one only when its ticket has been shown there.
    /// So the present one is asked about where its end is decided, and replaced only then.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) async fn handle_session_gone(&self) -> Result<(), Failure> {
        match self.ask_for_ticket().await {
            // Whoever asks again meets it again.
            Err(failure) if !failure.kind.is_transient() => Err(failure),
            _ => Ok(()),
        }
    }

    /// Opens another session, unless `gone` is not the present one any more.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) async fn replace_session(&self, gone: SessionId) -> Result<(), Failure> {
        let _one_at_a_time = self.replacing.lock().await;
        if self.session() != gone {
            return Ok(());
        }
        tracing::error!(session = %gone, "the session has ended; what it had not stored is lost");
        self.session.replace(&self.metadata, CallOptions::control(DEADLINE)).await?;
        // First: whoever asks from here on does so in the new session, and a target that is away
        // shall not put off that programs hear of the old one. Nor is it lost when this is dropped.
        self.losses.send_modify(|losses| *losses += 1);
        self.show_ticket(true).await;
        Ok(())
    }

    /// Looks the servers' names up again: one may have moved.
    pub(super) async fn find_servers(&self) {
        if let Ok(addresses) = resolve(&self.servers).await {
            self.metadata.set_addresses(addresses);
        }
    }
}

/// A change on its way.
#[derive(Debug)]
struct Sending {
    number: Number,
    session: SessionId,
    /// Whether it is of that session alone.
    is_bound: bool,
    /// Whether it was sent and not answered: it may have been made.
    is_unanswered: bool,
}

/// A change that was given up when it may have been made, or may be yet. While this is kept, the
/// server remembers under its number what became of it.
#[derive(Debug)]
pub(crate) struct Unsettled(Sending);

/// A change that was not made, as far as anybody here knows.
#[derive(Debug)]
pub(crate) struct Unmade {
    /// Why.
    pub(crate) failure: Failure,
    /// What there is to find out about it.
    pub(crate) unsettled: Option<Unsettled>,
}

impl Sending {
    fn new(number: Number, session: SessionId) -> Self {
        Self { number, session, is_bound: false, is_unanswered: false }
    }

    /// Whether it has to wait for an older one. What is of one session alone tells of what this
    /// mount has done, and leases wait for it.
    fn is_ahead(&self) -> bool {
        !self.is_bound && !self.is_unanswered && self.number.is_far_ahead()
    }
}

/// As the server says it of what is ahead of all numbers that there are.
fn ahead() -> Failure {
    let words = "a change of this mount waits for a target or the server, and too many came after";
    Failure::new(ErrorKind::Busy, words)
}

impl Unsettled {
    /// The session in which it was sent.
    pub(crate) fn session(&self) -> SessionId {
        self.0.session
    }
}

impl Unmade {
    fn new(failure: Failure, sending: Sending) -> Self {
        let is_given_up = failure.kind == ErrorKind::Unavailable && sending.is_unanswered;
        Self { failure, unsettled: is_given_up.then_some(Unsettled(sending)) }
    }
}

impl From<Failure> for Unmade {
    fn from(failure: Failure) -> Self {
        Self { failure, unsettled: None }
    }
}

impl From<Unmade> for Failure {
    fn from(unmade: Unmade) -> Self {
        unmade.failure
    }
}

/// A reply that says at which index of the command log its effect stands.
pub(crate) trait Indexed {
    /// The index.
    fn index(&self) -> LogIndex;
}

impl Indexed for InodeReply {
    fn index(&self) -> LogIndex {
        self.index
    }
}

impl Indexed for MadeName {
    fn index(&self) -> LogIndex {
        self.reply.index
    }
}

impl Indexed for RemovedName {
    fn index(&self) -> LogIndex {
        self.done.index
    }
}

impl Indexed for Done {
    fn index(&self) -> LogIndex {
        self.index
    }
}

/// An errand's outcome, unless it takes longer than `limit`.
///
/// # Errors
/// Its own, and [`ErrorKind::DeadlineExceeded`] when it takes longer.
async fn within(
    limit: Duration,
    errand: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tokio::time::timeout(limit, errand).await.unwrap_or_else(|_| {
        let words = format!("the cluster map did not come within {limit:?}");
        Err(Failure::new(ErrorKind::DeadlineExceeded, words))
    })
}

/// The addresses of the metadata servers, in the order of the settings.
pub(super) async fn resolve(servers: &[ServerAddress]) -> Result<Vec<SocketAddr>, Failure> {
    let mut addresses = Vec::new();
    let mut problem = String::from("no metadata server is named");
    for server in servers {
        match server.resolve().await {
            Ok(found) => addresses.extend(found),
            Err(error) => problem = format!("cannot resolve {server}: {error}"),
        }
    }
    if addresses.is_empty() {
        return Err(Failure::new(ErrorKind::Unavailable, problem));
    }
    Ok(addresses)
}

/// One attempt. Long, since the first listing of a bucket's directory waits for the bucket; a
/// server that is gone is noticed by its connection within 2 s.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    #[tokio::test]
    async fn a_renewal_does_not_hang_with_the_map_that_it_fetches() {
        let missed = within(Duration::ZERO, future::pending()).await.unwrap_err();
        assert!(missed.kind.is_transient(), "it is tried again: {missed}");
        assert_eq!(within(Duration::ZERO, future::ready(Ok(()))).await, Ok(()));
        let refused = future::ready(Err(ErrorKind::Forbidden.into()));
        let refused = within(ATTACH_DEADLINE, refused).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Forbidden);
    }
}
