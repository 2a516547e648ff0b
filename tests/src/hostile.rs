//! An HTTP proxy before a bucket that does what bad networks and bad servers do.
//!
//! It speaks HTTP/1.1 on both sides and hands requests on as they came, `Host` and signature
//! included, so that the server sees what the client signed. What goes wrong is said by [`Rule`]s
//! (the next GET of this key is cut after so many bytes), or drawn from a seed ([`Storm`]): the
//! same request gets the same fault in each run, whatever other requests do meanwhile.
//!
//! Modules, in reading order: `request` (what is asked), `fault` (what goes wrong), `gate` (what
//! waits for a test), `storm` (what goes wrong by chance), `answer` (replies and damaged bodies),
//! `listing` (damaged listings), `serve` (connections).

use std::{
    collections::{BTreeMap, HashMap},
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{runtime::Runtime, sync::watch};

pub use self::{
    fault::{Fault, Hook, ListFault, Rule},
    gate::Gate,
    request::Asked,
    storm::Storm,
};
use self::{listing::Pages, request::Request};

mod answer;
mod fault;
mod gate;
mod listing;
mod request;
mod serve;
mod storm;

/// A running proxy. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct HostileProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    // Taken when it is dropped: a runtime must not be waited for by whoever is in one.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    state: Mutex<State>,
    /// Counts the times that the weather became fair: requests that are held end with it.
    cleared: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    storm: Option<Storm>,
    /// How often each request came since the storm began.
    seen: HashMap<Request, u64>,
    done: BTreeMap<(Asked, &'static str), u64>,
    held: usize,
    /// How often each kind of request was signed with each key.
    signed: BTreeMap<(Asked, String), u64>,
    /// The first answer of each listing that passed undamaged: what a stale server goes on saying.
    listings: HashMap<String, String>,
    pages: Pages,
}

impl HostileProxy {
    /// Starts a proxy on a free port of loopback for a server named by an `http://` address. It
    /// does nothing bad yet.
    ///
    /// # Errors
    /// When the address is of another kind, or no port can be had.
    pub fn for_endpoint(endpoint: &str) -> Result<Self> {
        let upstream = endpoint.strip_prefix("http://").context("not an http address")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (cleared, _) = watch::channel(0);
        let shared = Arc::new(Shared { upstream, state: Mutex::default(), cleared });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let accepting = Arc::clone(&shared);
        runtime.spawn(serve::accept(listener, accepting));
        Ok(Self { address, shared, runtime: Some(runtime) })
    }

    /// The proxy's own address, for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule. Of several for one request the one that was added first is followed.
    pub fn add(&self, rule: Rule) {
        self.shared.state().rules.push(rule);
    }

    /// Has faults drawn from a seed from now on, for what no rule is about.
    pub fn storm(&self, storm: Storm) {
        let mut state = self.shared.state();
        state.seen.clear();
        state.storm = Some(storm);
    }

    /// Forgets every rule and the storm. Requests that were held are cut, slow bodies go on fast.
    pub fn clear(&self) {
        let mut state = self.shared.state();
        state.rules.clear();
        state.storm = None;
        state.pages = Pages::default();
        drop(state);
        self.shared.cleared.send_modify(|times| *times += 1);
    }

    /// How often a fault of this name ([`Fault::name`]) was done to requests of this kind.
    #[must_use]
    pub fn done(&self, asked: Asked, fault: &str) -> u64 {
        let state = self.shared.state();
        let of_kind = state.done.iter().filter(|((kind, _), _)| *kind == asked);
        of_kind.filter(|((_, name), _)| *name == fault).map(|(_, count)| count).sum()
    }

    /// How many faults were done in all.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.shared.state().done.values().sum()
    }

    /// All that was done, for people.
    #[must_use]
    pub fn told(&self) -> String {
        let state = self.shared.state();
        let line =
            |((asked, fault), count): (&(Asked, &str), &u64)| format!("{asked:?} {fault} {count}");
        state.done.iter().map(line).collect::<Vec<_>>().join(", ")
    }

    /// The keys, by their public ids, that S3 requests of this kind were signed with since the last
    /// call, and how many were.
    #[must_use]
    pub fn signers(&self, asked: Asked) -> BTreeMap<String, u64> {
        let mut state = self.shared.state();
        let of_kind = state.signed.extract_if(.., |(kind, _), _| *kind == asked);
        of_kind.map(|((_, key), count)| (key, count)).collect()
    }

    /// Requests that are held now ([`Fault::Silence`]).
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.state().held
    }
}

impl Drop for HostileProxy {
    fn drop(&mut self) {
        self.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }

    /// What is to go wrong with a request, if anything.
    fn fault(&self, request: &Request) -> Option<Fault> {
        let mut state = self.state();
        let ordinal = state.seen.entry(request.clone()).or_default();
        *ordinal += 1;
        let ordinal = *ordinal;
        let rule = state.rules.iter_mut().find(|rule| rule.is_for(request));
        let fault = match rule {
            Some(rule) => Some(rule.take()),
            None => state.storm.as_ref().and_then(|storm| storm.draw(request, ordinal)),
        }?;
        *state.done.entry((request.asked, fault.name())).or_default() += 1;
        Some(fault)
    }
}

#[cfg(test)]
mod tests;
