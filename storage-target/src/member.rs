//! This daemon as a member of its cluster: announces itself, beats, learns, reclaims.
//!
//! One loop. Each answered heartbeat says what is new; the loop fetches that, and tells the rest of
//! the daemon through `Cluster` and `Links`. A request that misses something wakes it early.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use millrace_protocol::{
    Request,
    cluster::{
        AcknowledgeReclaim, CompareLog, FetchKeys, FetchLinks, FetchMap, FetchReclaim, Heartbeat,
        HeartbeatReply, RegisterHost,
    },
};
use millrace_service::address::ServerAddress;
use millrace_transport::{CallOptions, Peer};
use millrace_types::{ErrorKind, Failure, TargetId};

use self::{comparisons::Comparisons, lookup::Lookup, reclaims::Reclaims};
use crate::{
    addresses::{Addresses, Announced},
    daemon::Daemon,
    store::Store,
};

mod comparisons;
mod lookup;
mod reclaims;

/// Between heartbeats.
const BEAT: Duration = Duration::from_secs(1);

/// Between two heartbeats that requests ask for.
const BEAT_MIN: Duration = Duration::from_millis(50);

/// How long one request to the metadata server may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long heartbeats are held up because it is told where this host is reached now.
const MOVE: Duration = Duration::from_secs(1);

/// How long a heartbeat is put off because names are looked up.
const LOOKUP: Duration = Duration::from_secs(1);

/// How long targets are served, or registered with a restarted server, later because some are slow
/// to show what they have seen of its log.
const COMPARISON: Duration = Duration::from_secs(1);

/// Reclaim entries asked for at once.
const RECLAIM_ENTRIES: u32 = 4096;

/// The loop's possessions.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) metadata: Peer,
    pub(crate) servers: Vec<ServerAddress>,
    /// Where the servers were found, or why they have not been yet.
    pub(crate) found: Result<Vec<SocketAddr>, Failure>,
    pub(crate) addresses: Addresses,
    pub(crate) announced: Announced,
    pub(crate) name: String,
}

impl Member {
    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut incarnation = None;
        let mut failing = false;
        let mut comparisons = Comparisons::default();
        let mut reclaims = Reclaims::default();
        let mut lookup = Lookup::default();
        let mut announced = 0;
        loop {
            let sent = Instant::now();
            let open = self.daemon.stores.open_count();
            if open > announced {
                // Of one whose disk came later the server does not know.
                incarnation = None;
            }
            match self.tell(incarnation.is_some(), &mut comparisons).await {
                Ok(news) => {
                    if failing || incarnation.is_none() {
                        tracing::info!(
                            incarnation = news.incarnation,
                            "the cluster knows this host"
                        );
                    }
                    failing = false;
                    // One whose disk came later is held back by itself.
                    let is_first = self.daemon.cluster.newest_key().is_none();
                    let restarted = incarnation.is_some_and(|known| known != news.incarnation);
                    // A restarted server is told everything again at once.
                    incarnation = (!restarted).then_some(news.incarnation);
                    announced = open;
                    self.daemon.cluster.handle_heartbeat(&news, sent, Instant::now());
                    comparisons.add(self.daemon.stores.values().map(Store::id));
                    comparisons.begin(news.incarnation, Instant::now(), |target| {
                        compare_log(Arc::clone(&self.daemon), self.metadata.clone(), target)
                    });
                    if is_first || restarted {
                        // Without map and keys nobody is served: from an older copy of a target
                        // nothing shall be. And what targets have seen of a server's log says more
                        // than what they hold, of which they tell when they register.
                        comparisons.settle(COMPARISON).await;
                    }
                    self.learn(&news).await;
                    if news.reclaim_waiting {
                        self.reclaim(&mut reclaims);
                    }
                    if restarted {
                        continue;
                    }
                }
                Err(failure) => {
                    if !failing {
                        tracing::warn!(%failure, "the metadata server cannot be told of this host");
                    }
                    failing = true;
                    if !failure.kind.is_transient() {
                        incarnation = None;
                    }
                    self.resolve(&mut lookup).await;
                }
            }
            self.pause(failing).await;
        }
    }

    /// Begins to free what is to be freed on the targets that are served.
    fn reclaim(&self, reclaims: &mut Reclaims) {
        let served = self.daemon.stores.values().filter(|store| store.held_back().is_none());
        reclaims.begin(served.map(Store::id), Instant::now(), |target| {
            reclaim(Arc::clone(&self.daemon), self.metadata.clone(), target)
        });
    }

    async fn pause(&self, failing: bool) {
        let daemon = &self.daemon;
        let asked = async {
            tokio::select! {
                () = daemon.cluster.wanted() => {}
                () = daemon.links.wanted() => {}
            }
            tokio::time::sleep(BEAT_MIN).await;
        };
        // A server that comes back must find its targets within a second.
        let beat = if failing { BEAT / 4 } else { BEAT };
        drop(tokio::time::timeout(beat, asked).await);
    }

    /// Tells the server what it does not know: of this host, or only that it is alive.
    async fn tell(
        &mut self,
        is_known: bool,
        comparisons: &mut Comparisons,
    ) -> Result<HeartbeatReply, Failure> {
        if !is_known {
            // Until it has shown again what it saw of the log, it is not checked.
            comparisons.forget();
            return self.register(PATIENCE).await;
        }
        // First: its targets are known, and would be taken for dead without heartbeats.
        let news = self.beat().await?;
        if !self.has_moved() {
            return Ok(news);
        }
        match self.register(MOVE).await {
            Ok(newer) => {
                // For a new registration as for the first.
                comparisons.forget();
                Ok(newer)
            }
            Err(failure) => {
                tracing::debug!(%failure, "where this host is reached now is told later");
                // Without an answer the server may have registered it all the same.
                let is_unknown = failure.kind.is_transient();
                if is_unknown {
                    comparisons.forget();
                }
                self.announced.put_off(is_unknown);
                Ok(news)
            }
        }
    }

    /// Whether others reach this host elsewhere than the cluster knows.
    fn has_moved(&mut self) -> bool {
        let Ok(found) = &self.found else { return false };
        self.announced.has_moved(self.addresses.for_others(found), Instant::now())
    }

    /// Announces this host, as soon as it is known where others reach it.
    async fn register(&mut self, patience: Duration) -> Result<HeartbeatReply, Failure> {
        let found = self.found.as_ref().map_err(Failure::clone)?;
        let addresses = self.addresses.to_announce(found)?;
        let request = RegisterHost {
            addresses: addresses.iter().map(SocketAddr::to_string).collect(),
            host_name: self.name.clone(),
            targets: self.daemon.reports(),
        };
        let reply = self.metadata.call(&request, CallOptions::control(patience)).await?;
        if self.addresses.is_of_this_host_alone(&addresses) {
            tracing::warn!(
                ?addresses,
                "only this host can reach what was announced: the metadata server is on it, and no \
                 route leads elsewhere; for other hosts set advertise"
            );
        }
        // A metadata server that starts again is registered with again, and nothing is lost by it.
        self.daemon.introduced.store(true, Ordering::Relaxed);
        tracing::info!(?addresses, "where others reach this host is announced");
        self.announced.handle_registered(addresses);
        Ok(reply.news)
    }

    async fn beat(&self) -> Result<HeartbeatReply, Failure> {
        let request = Heartbeat {
            targets: self.daemon.reports(),
            hydrated_bytes: self.daemon.hydrated_bytes(),
        };
        self.call(&request).await
    }

    async fn learn(&self, news: &HeartbeatReply) {
        if let Err(failure) = self.fetch(news).await {
            // The next heartbeat tries again.
            tracing::debug!(%failure, "fetching what is new failed");
        }
    }

    async fn fetch(&self, news: &HeartbeatReply) -> Result<(), Failure> {
        let cluster = &self.daemon.cluster;
        let held = cluster.map().epoch;
        let map = match held == news.map_epoch {
            true => None,
            false => Some(self.call(&FetchMap { held }).await?),
        };
        // After the map: keys that are older than what moved in it must not pass for the newest.
        if map.is_some() || cluster.newest_key() != Some(news.newest_key) {
            cluster.replace_keys(&self.call(&FetchKeys {}).await?);
        }
        if let Some(map) = map {
            cluster.replace_map(map);
        }
        if self.daemon.links.version() != news.links_version {
            self.daemon.links.replace(self.call(&FetchLinks {}).await?);
        }
        Ok(())
    }

    async fn call<R: Request>(&self, request: &R) -> Result<R::Reply, Failure> {
        self.metadata.call(request, CallOptions::control(PATIENCE)).await
    }

    /// Looks the servers' names up again: a server may have moved. While there is an address to go
    /// on with, a lookup that takes its time is left for the next call.
    async fn resolve(&mut self, lookup: &mut Lookup<Result<Vec<SocketAddr>, Failure>>) {
        let patience = if self.found.is_ok() { LOOKUP } else { Duration::MAX };
        let servers = self.servers.clone();
        let begin = || async move { resolve(&servers).await };
        let Some(looked_up) = lookup.result(patience, begin).await else { return };
        match looked_up {
            Ok(found) => {
                self.metadata.set_addresses(found.clone());
                self.found = Ok(found);
            }
            Err(failure) => {
                tracing::debug!(%failure, "the metadata server is looked for where it was");
                if self.found.is_err() {
                    self.found = Err(failure);
                }
            }
        }
    }
}

/// Shows the server what a target has seen of its log; returns which run of the server it was. Only
/// after it has looked at that does the target remember something newer. Of a run that is new to it
/// the target shows that at once: from then on the server knows an older copy of it.
async fn compare_log(
    daemon: Arc<Daemon>,
    metadata: Peer,
    target: TargetId,
) -> Result<u64, Failure> {
    loop {
        let shown = daemon.log_witness(target).await;
        let witness = shown.inspect_err(|failure| {
            daemon.handle_compared(target, Some(failure));
        })?;
        let request = CompareLog { targets: vec![witness] };
        let compared = metadata.call(&request, CallOptions::control(PATIENCE)).await;
        daemon.handle_compared(target, compared.as_ref().err());
        let point = compared?;
        daemon.note_log(target, point).await?;
        if witness.seen.is_some_and(|seen| seen.incarnation == point.incarnation) {
            return Ok(point.incarnation);
        }
    }
}

/// The addresses of servers, as far as their names can be looked up now.
///
/// # Errors
/// [`ErrorKind::Unavailable`] when none can, with the reasons.
pub(crate) async fn resolve(servers: &[ServerAddress]) -> Result<Vec<SocketAddr>, Failure> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for server in servers {
        match server.resolve().await {
            Ok(addresses) => found.extend(addresses),
            Err(error) => problems.push(format!("{server}: {error}")),
        }
    }
    if found.is_empty() {
        let text = format!("no metadata server can be looked up: {}", problems.join("; "));
        return Err(Failure::new(ErrorKind::Unavailable, text));
    }
    Ok(found)
}

/// Works off a target's reclaim queue, once; returns whether anything was in it.
async fn reclaim(daemon: Arc<Daemon>, metadata: Peer, target: TargetId) -> Result<bool, Failure> {
    let options = CallOptions::control(PATIENCE);
    let mut found = false;
    loop {
        if !daemon.cluster.may_write() {
            return Err(ErrorKind::Unavailable.into());
        }
        let fetch = FetchReclaim { target, entries_max: RECLAIM_ENTRIES };
        let batch = metadata.call(&fetch, options).await?;
        let Some(through) = daemon.reclaim(target, &batch).await? else { return Ok(found) };
        found = true;
        metadata.call(&AcknowledgeReclaim { target, through }, options).await?;
    }
}
