//! Answers requests: each becomes turns of the engine, and what must happen between them.
//!
//! Runs on the transport's thread, so nothing here blocks. Buckets and targets are asked from tasks
//! of the daemon's own runtime, which go on when the caller gives up.
//!
//! Modules: `roles` (who may send what), `dispatch` (which request is answered how), `answer` (by
//! what, whatever it is), `execute` (operations, and what must happen between their turns), `rooms`
//! (how much waits in the background), `environment` (what hydration gets from the server), and one
//! for each kind of requests that needs more than an operation.

use async_trait::async_trait;
use millrace_protocol::{RequestKind, session::Role};
use millrace_runtime::Shutdown;
use millrace_transport::{IncomingCall, Service};
use millrace_types::Failure;

use crate::{
    engine::Handle,
    hydration::Hydration,
    metrics::ServerMetrics,
    ops::Client,
    reconcile::Reconciliation,
    targets::{losses::Losses, spills::Spills, trims::Trims, upkeep::Upkeep},
};
use answer::{Answer, Work};
use rooms::Rooms;

mod answer;
mod backup;
mod dispatch;
pub mod environment;
mod execute;
mod fsck;
mod hydrate;
mod jobs;
mod locks;
mod names;
mod recalls;
mod roles;
mod rooms;
mod upkeep;

pub use backup::Backups;
pub use environment::ServerEnvironment;

/// The service behind the listening socket.
#[derive(Debug)]
pub struct MetadataService {
    engine: Handle,
    hydration: Hydration<ServerEnvironment>,
    trims: Trims,
    spills: Spills,
    upkeep: Upkeep,
    losses: Losses,
    reconciliation: Reconciliation,
    /// Where work runs that goes on when its caller gives up.
    background: tokio::runtime::Handle,
    /// Bounds that work.
    rooms: Rooms,
    metrics: ServerMetrics,
    backups: Backups,
    /// Ends what would otherwise wait while the server drains.
    shutdown: Shutdown,
}

/// What works beside the requests, and is asked by some of them.
#[derive(Debug)]
pub struct Workers {
    /// Buckets and jobs.
    pub hydration: Hydration<ServerEnvironment>,
    /// Chunks behind a file's new end.
    pub trims: Trims,
    /// What targets take over from inodes.
    pub spills: Spills,
    /// Targets' health.
    pub upkeep: Upkeep,
    /// Targets that will not come back.
    pub losses: Losses,
    /// Checks of the targets against the namespace.
    pub reconciliation: Reconciliation,
    /// Backups for operators.
    pub backups: Backups,
}

impl MetadataService {
    /// A service over a running engine.
    #[must_use]
    pub fn new(
        engine: Handle,
        workers: Workers,
        background: tokio::runtime::Handle,
        metrics: ServerMetrics,
        shutdown: Shutdown,
    ) -> Self {
        let Workers { hydration, trims, spills, upkeep, losses, reconciliation, backups } = workers;
        Self {
            engine,
            hydration,
            trims,
            spills,
            upkeep,
            losses,
            reconciliation,
            background,
            rooms: Rooms::new(),
            metrics,
            backups,
            shutdown,
        }
    }

    /// What a request is answered with.
    async fn answer(&self, call: &IncomingCall) -> Result<Answer, Failure> {
        match self.dispatch(call)? {
            Work::Operation(durability, attempt) => {
                self.execute(client(call), durability, attempt).await
            }
            Work::Other(answer) => answer.await,
        }
    }
}

#[async_trait]
impl Service for MetadataService {
    fn allowed_roles(&self) -> &[Role] {
        &[Role::Target, Role::Client, Role::Admin]
    }

    fn admits(&self, role: Role, kind: RequestKind) -> bool {
        roles::admits(role, kind)
    }

    async fn handle(&self, call: IncomingCall) {
        let _running = self.metrics.begin(call.kind());
        let cancelled = call.cancelled().clone();
        tokio::select! {
            () = async { respond(self.answer(&call).await, call).await } => {}
            // Nobody waits any more; a turn that was sent runs all the same.
            () = cancelled.cancelled() => {}
        }
    }
}

/// Who asks, as the certificate of its connection says.
fn client(call: &IncomingCall) -> Client {
    let peer = call.peer();
    Client {
        role: peer.role,
        host: peer.host,
        fingerprint: peer.fingerprint,
        subtree: peer.subtree.clone(),
        squash_root: peer.squash_root,
        settled: Vec::new(),
    }
}

async fn respond(answered: Result<Answer, Failure>, call: IncomingCall) {
    match answered {
        Ok(answer) => call.reply_encoded(answer()).await,
        Err(failure) => {
            tracing::debug!(kind = call.kind().name(), peer = %call.peer().host, %failure,
                "request refused");
            call.fail(failure).await;
        }
    }
}
