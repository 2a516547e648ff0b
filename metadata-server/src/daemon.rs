//! A whole metadata server in one value: for `main`, and for tests that run it in their process.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use millrace_object_source::Buckets;
use millrace_protocol::session::Role;
use millrace_runtime::{Clock, Drained, Random, Shutdown};
use millrace_service::{daemon::DaemonSettings as _, metrics::Metrics};
use millrace_transport::{ClientEndpoints, Identity, Server};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{
        Engine, EngineSettings,
        restore::{self, Restored},
    },
    hydration::Hydration,
    metrics::ServerMetrics,
    reconcile::Reconciliation,
    server::{Backups, MetadataService, ServerEnvironment, Workers},
    settings::Settings,
    targets::{losses::Losses, peers::Peers, spills::Spills, trims::Trims, upkeep::Upkeep},
};

/// Puts a backup back into the data directory, while no server runs on it.
///
/// # Errors
/// With a sentence for the operator.
pub fn restore(settings: &Settings, backup: &Path) -> anyhow::Result<Restored> {
    settings.check().map_err(anyhow::Error::msg)?;
    let cluster = identity(settings)?.peer().cluster;
    Ok(restore::restore(&settings.engine(cluster), backup)?)
}

/// The server's identity, which must be one of a metadata server.
fn identity(settings: &Settings) -> anyhow::Result<Identity> {
    let identity = Identity::load(&settings.identity)?;
    anyhow::ensure!(
        identity.peer().role == Role::Metadata,
        "{} is the identity of a {}, not of a metadata server",
        settings.identity.display(),
        identity.peer().role.name(),
    );
    Ok(identity)
}

/// A running metadata server.
#[derive(Debug)]
pub struct Daemon {
    engine: Arc<Engine>,
    server: Server,
    shutdown: Shutdown,
    drain: Duration,
    metrics: Arc<Metrics>,
}

/// How often leases and heartbeats are looked at.
const TICK: Duration = Duration::from_millis(250);

impl Daemon {
    /// Recovers, then listens. Must be called within a tokio runtime, on which bucket work runs.
    ///
    /// # Errors
    /// With a sentence for the operator.
    pub async fn start(settings: &Settings) -> anyhow::Result<Self> {
        Self::start_by(settings, Clock::system()).await
    }

    /// As [`Self::start`], with leases and times by another clock than the machine's.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_by(settings: &Settings, clock: Clock) -> anyhow::Result<Self> {
        settings.check().map_err(anyhow::Error::msg)?;
        let identity = identity(settings)?;
        let engine_settings = EngineSettings { clock, ..settings.engine(identity.peer().cluster) };
        // So that changes are not refused while a report finds out that it does not fit.
        let reports_keep_free = engine_settings.reserve().saturating_mul(2);
        let starting = tokio::task::spawn_blocking(move || Engine::start(engine_settings));
        let engine = Arc::new(starting.await??);
        let shutdown = Shutdown::new();
        let endpoints =
            ClientEndpoints::start(identity.clone(), settings.network.clone(), &shutdown)?;
        let handle = engine.handle().clone();
        let peers = Peers::new(handle.clone(), endpoints);
        let trims = Trims::new(handle.clone(), peers.clone());
        let spills = Spills::new(handle.clone(), peers.clone());
        let upkeep = Upkeep::new(handle.clone(), peers.clone());
        let losses = Losses::new(handle.clone());
        let environment = {
            let (cluster, random) = (identity.peer().cluster, Random::system());
            let reports = (settings.data.join("reports"), reports_keep_free);
            ServerEnvironment::new(handle.clone(), peers.clone(), random, cluster, reports)
        };
        let buckets = Arc::new(Buckets::new(settings.bucket_access()));
        let hydration = Hydration::new(Arc::new(environment), buckets);
        let reconciliation =
            Reconciliation::new(handle.clone(), Arc::new(peers), settings.fsck.clone());
        let mut metrics = Metrics::new();
        hydration.register_metrics(&mut metrics);
        reconciliation.register_metrics(&mut metrics);
        engine.register_metrics(&mut metrics);
        spills.register_metrics(&mut metrics);
        let runtime = tokio::runtime::Handle::current();
        let backups = Backups::new(runtime.clone());
        let workers = Workers { hydration, trims, spills, upkeep, losses, reconciliation, backups };
        let counters = ServerMetrics::register(&mut metrics);
        spawn_ticker(&engine, &shutdown, workers.backups.clone(), counters.clone());
        spawn_background(&shutdown, &workers);
        let service = MetadataService::new(handle, workers, runtime, counters, shutdown.clone());
        let metrics = Arc::new(metrics);
        millrace_service::metrics::serve(&settings.metrics, Arc::clone(&metrics)).await?;
        let (network, listen) = (settings.network.clone(), settings.listen);
        let server = Server::start(&identity, listen, network, Arc::new(service), &shutdown)?;
        tracing::info!(address = %server.local_addr(), "serves");
        Ok(Self { engine, server, shutdown, drain: settings.drain, metrics })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// The engine, for tests and tools in the same process.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Begins to drain: nothing new is let in.
    pub fn begin_stop(&self, why: &str) {
        self.shutdown.begin(why);
    }

    /// Waits until draining has begun.
    pub async fn stopping(&self) {
        self.shutdown.draining().await;
    }

    /// Finishes requests, then syncs and closes log and store.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn stop(self) -> anyhow::Result<Drained> {
        let drained = self.shutdown.finish(self.drain).await;
        let engine = self.engine;
        tokio::task::spawn_blocking(move || engine.stop()).await??;
        Ok(drained)
    }
}

/// Looks after leases, heartbeats and what nobody asks about any more.
fn spawn_ticker(
    engine: &Arc<Engine>,
    shutdown: &Shutdown,
    backups: Backups,
    counters: ServerMetrics,
) {
    let (ticking, stopping) = (engine.handle().clone(), shutdown.clone());
    drop(shutdown.spawn("leases", async move {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                () = stopping.draining() => return,
            }
            backups.forget_idle(ticking.now());
            let ticked = ticking.turn(|core| {
                let ticked = core.tick();
                let (locks, leases) = (&core.locks, core.leases.counts());
                let refusals = (core.are_small_files_limited(), core.takes_no_changes());
                Ok((ticked, locks.counts(), locks.undeclared(), leases, refusals))
            });
            match ticked.await {
                Ok((ticked, locks, undeclared, leases, (are_limited, takes_no_changes))) => {
                    counters.show(locks, undeclared, leases);
                    counters.show_small_files(are_limited);
                    counters.show_refusal(takes_no_changes);
                    if let Err(failure) = ticked {
                        tracing::warn!(%failure, "leases cannot be looked after");
                    }
                }
                Err(failure) => tracing::warn!(%failure, "leases cannot be looked after"),
            }
        }
    }));
}

fn spawn_background(shutdown: &Shutdown, workers: &Workers) {
    let (trims, stopping) = (workers.trims.clone(), shutdown.clone());
    drop(shutdown.spawn("trims", async move {
        tokio::select! {
            () = trims.run() => {}
            () = stopping.draining() => {}
        }
    }));
    let (losses, stopping) = (workers.losses.clone(), shutdown.clone());
    drop(shutdown.spawn("losses", async move {
        tokio::select! {
            () = losses.run() => {}
            () = stopping.draining() => {}
        }
    }));
    let (reconciliation, stopping) = (workers.reconciliation.clone(), shutdown.clone());
    drop(shutdown.spawn("fsck", async move {
        tokio::select! {
            () = reconciliation.run() => {}
            () = stopping.draining() => {}
        }
    }));
    let (hydration, stopping) = (workers.hydration.clone(), shutdown.clone());
    drop(shutdown.spawn("jobs", async move {
        let stop = CancellationToken::new();
        let running = hydration.run(stop.clone());
        tokio::pin!(running);
        tokio::select! {
            () = &mut running => return,
            () = stopping.draining() => stop.cancel(),
        }
        running.await;
    }));
}
