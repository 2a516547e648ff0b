//! Exchanges about locks with the metadata server.
//!
//! Each has a number of its own sequence, and is sent until it is answered. Attempts stand aside
//! while the session declares its locks to a server that was restarted: what is declared is then
//! what was answered before.

use std::time::{Duration, Instant};

use millrace_protocol::{
    Request,
    lock::{
        AwaitAppends, AwaitAppendsReply, AwaitLocks, AwaitLocksReply, CancelLock, Lock, SetLock,
        SetLockReply, TestLock,
    },
    session::{DECLARED_MAX, Declare, Held, Operation},
};
use millrace_transport::CallOptions;
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};

use crate::cluster::Cluster;

impl Cluster {
    /// Takes, changes or gives back a lock of `session`, or looks how a wait for one stands.
    ///
    /// # Errors
    /// What the server answers; [`ErrorKind::SessionGone`] when the session has ended, and with it
    /// its locks; [`ErrorKind::Unavailable`] after the mount's patience.
    pub(crate) async fn set_lock(
        &self,
        session: SessionId,
        lock: Lock,
        wait: u64,
    ) -> Result<SetLockReply, Failure> {
        self.exchange(session, |operation| SetLock { operation, lock, wait }).await
    }

    /// Ends a wait of `session`.
    ///
    /// # Errors
    /// As [`Self::set_lock`].
    pub(crate) async fn cancel_lock(&self, session: SessionId, wait: u64) -> Result<(), Failure> {
        self.exchange(session, |operation| CancelLock { operation, wait }).await.map(drop)
    }

    /// Asks which lock is in the way.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) async fn test_lock(
        &self,
        lock: Lock,
    ) -> Result<Option<millrace_protocol::lock::LockConflict>, Failure> {
        Ok(self.ask(&TestLock { session: self.session(), lock }).await?.conflict)
    }

    /// Waits for the end of a wait of `session` that is not in `known`. One attempt; may be dropped
    /// at any time.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn await_locks(
        &self,
        session: SessionId,
        known: Vec<u64>,
    ) -> Result<AwaitLocksReply, Failure> {
        self.await_news(session, &AwaitLocks { session, known }).await
    }

    /// Waits until somebody wants to append to a file where `session` holds the right to, and that
    /// is not in `known`. One attempt; may be dropped at any time.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn await_appends(
        &self,
        session: SessionId,
        known: Vec<InodeId>,
    ) -> Result<AwaitAppendsReply, Failure> {
        self.await_news(session, &AwaitAppends { session, known }).await
    }

    async fn await_news<R: Request + Sync>(
        &self,
        session: SessionId,
        request: &R,
    ) -> Result<R::Reply, Failure> {
        let answer = self.metadata.call(request, CallOptions::control(NEWS_DEADLINE)).await;
        if let Err(failure) = &answer
            && failure.kind == ErrorKind::SessionGone
        {
            self.replace_session(session).await?;
        }
        answer
    }

    /// Tells a server that was restarted what the session holds; `snapshot` is taken while no
    /// exchange is on its way. Returns what could not be kept.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) async fn declare(
        &self,
        snapshot: impl FnOnce(SessionId) -> Vec<Held>,
    ) -> Result<Vec<Held>, Failure> {
        let _alone = self.declaring.write().await;
        let session = self.session();
        let held = snapshot(session);
        let mut lost = Vec::new();
        let parts = held.len().div_ceil(DECLARED_MAX).max(1);
        for part in 0..parts {
            let from = part * DECLARED_MAX;
            let some = held[from..held.len().min(from + DECLARED_MAX)].to_vec();
            let request = Declare { session, held: some, last: part + 1 == parts };
            let reply = self.ask(&request).await?;
            let places = reply.lost.iter().filter_map(|&place| usize::try_from(place).ok());
            lost.extend(places.filter_map(|place| request.held.get(place).cloned()));
        }
        Ok(lost)
    }

    async fn exchange<R: Request + Sync>(
        &self,
        session: SessionId,
        make: impl Fn(Operation) -> R,
    ) -> Result<R::Reply, Failure> {
        let mut number = self.locks.begin();
        let mut attempts = self.patience.begin(Instant::now());
        let mut sent_without_answer = false;
        loop {
            let answer = {
                let _not_declaring = self.declaring.read().await;
                if self.session() != session {
                    return Err(ErrorKind::SessionGone.into());
                }
                let request = make(number.operation(session));
                let deadline = attempts.deadline(DEADLINE, Instant::now());
                self.metadata.call(&request, CallOptions::control(deadline)).await
            };
            let failure = match answer {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            if failure.kind == ErrorKind::SessionGone {
                self.replace_session(session).await?;
                return Err(failure);
            }
            if failure.kind != ErrorKind::Busy {
                sent_without_answer = true;
            } else if !sent_without_answer {
                number.renew();
            }
            self.metrics.retries.inc();
            tokio::time::sleep(attempts.handle_failure(failure, Instant::now())?).await;
        }
    }
}

/// One attempt: nothing is waited for at the server. Short, since declaring waits for attempts.
const DEADLINE: Duration = Duration::from_secs(10);

/// The server answers after 20 s at the latest.
const NEWS_DEADLINE: Duration = Duration::from_secs(30);
