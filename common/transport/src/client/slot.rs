//! The place of one connection: connects once for all who wait, and again after a loss.
//!
//! ```text
//!          a request comes            handshake and hook done
//!  Empty ─────────────────▶ Connecting ───────────────────────▶ Live
//!    ▲                          │ failed                         │ closed or lost
//!    └──────────────────────────┴────────────────────────────────┘
//! ```

use std::{
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use millrace_types::{ErrorKind, Failure};

use super::{Connected, Lane, Live, PeerState, Secured, keep_alive, spread::Standing};
use crate::{
    failure::{self, CloseCode},
    identity::of_connection,
    stream::negotiated,
};

pub(super) struct Slot {
    lane: Lane,
    index: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
enum State {
    #[default]
    Empty,
    /// Nobody dials again before `until`, however many requests come; and who has another
    /// connection not before `spare_until`.
    Failed {
        failure: Failure,
        until: Instant,
        spare_until: Instant,
    },
    Connecting(Connecting),
    Live(Arc<Live>),
}

type Connecting = Shared<BoxFuture<'static, Result<Arc<Live>, Failure>>>;

impl Slot {
    pub(super) fn new(lane: Lane, index: usize) -> Self {
        Self { lane, index, state: Arc::default() }
    }

    /// How the connection stands.
    pub(super) fn standing(&self, peer: &PeerState) -> Standing {
        let mut state = lock(&self.state);
        if let State::Live(live) = &*state
            && (live.is_known_closed() || live.number() < peer.number())
        {
            settle(&mut state, peer);
        }
        match &*state {
            State::Live(live) => Standing::Open(live.in_flight()),
            State::Connecting(_) => Standing::Connecting,
            State::Failed { spare_until, .. } if Instant::now() < *spare_until => Standing::Failed,
            State::Empty | State::Failed { .. } => Standing::Closed,
        }
    }

    /// The connection if it stands.
    pub(super) fn standing_one(&self, peer: &PeerState) -> Option<Arc<Live>> {
        let mut state = lock(&self.state);
        settle(&mut state, peer);
        match &*state {
            State::Live(live) => Some(Arc::clone(live)),
            _ => None,
        }
    }

    /// Returns when the connection is not being made, whatever came of it.
    pub(super) async fn made(&self) {
        let connecting = match &*lock(&self.state) {
            State::Connecting(connecting) => connecting.clone(),
            _ => return,
        };
        drop(connecting.await);
    }

    /// `live` has ended: if it is this one, the next request makes another.
    pub(super) fn forget(&self, live: &Arc<Live>, peer: &PeerState) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Live(held) if Arc::ptr_eq(held, live)) {
            settle(&mut state, peer);
        }
    }

    /// The connection; makes one where there is none. May be dropped: connecting goes on for the
    /// others who wait.
    pub(super) async fn live(&self, peer: &Arc<PeerState>) -> Result<Arc<Live>, Failure> {
        let connecting = {
            let mut state = lock(&self.state);
            settle(&mut state, peer);
            match &*state {
                State::Live(live) => return Ok(Arc::clone(live)),
                State::Failed { failure, until, .. } if Instant::now() < *until => {
                    return Err(failure.clone());
                }
                _ => self.connecting(&mut state, peer),
            }
        };
        connecting.await
    }

    /// Makes a connection where there is none, and waits for nothing.
    pub(super) fn make(&self, peer: &Arc<PeerState>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Empty | State::Failed { .. }) {
            let connecting = self.connecting(&mut state, peer);
            // Somebody must see it end, should its task not come to its end.
            drop(peer.endpoints.control_runtime().spawn(connecting));
        }
    }

    /// What is waited for; connecting begins unless it has.
    fn connecting(&self, state: &mut State, peer: &Arc<PeerState>) -> Connecting {
        let connecting = match mem::take(state) {
            State::Connecting(connecting) => connecting,
            State::Empty | State::Failed { .. } | State::Live(_) => self.start(peer),
        };
        *state = State::Connecting(connecting.clone());
        connecting
    }

    /// Connects on the endpoint's own runtime, and writes down how it went.
    fn start(&self, peer: &Arc<PeerState>) -> Connecting {
        let (peer, state) = (Arc::clone(peer), Arc::clone(&self.state));
        let (lane, index) = (self.lane, self.index);
        let runtime = peer.endpoints.endpoint(lane, index).runtime().clone();
        let task = runtime.spawn(async move {
            let outcome = connect(&peer, lane, index).await;
            let failed = |failure: &Failure| {
                let (now, random) = (Instant::now(), peer.endpoints.random());
                State::Failed {
                    failure: failure.clone(),
                    until: now + random.jitter(FAILURE_PAUSE),
                    spare_until: now + random.jitter(SPARE_PAUSE),
                }
            };
            *lock(&state) =
                outcome.as_ref().map_or_else(failed, |live| State::Live(Arc::clone(live)));
            outcome
        });
        let state = Arc::clone(&self.state);
        async move {
            task.await.unwrap_or_else(|_| {
                // The endpoint's thread has ended, or the hook has panicked.
                *lock(&state) = State::Empty;
                Err(Failure::new(ErrorKind::Unavailable, "connecting was given up"))
            })
        }
        .boxed()
        .shared()
    }
}

/// Lets go of a connection that has ended, or that counts no more because another one of its number
/// was lost: the server ends it as soon as a newer one is there.
fn settle(state: &mut State, peer: &PeerState) {
    let State::Live(live) = &*state else { return };
    if live.is_closed() && !live.ended_in_order() {
        peer.lost(live);
        let failure = Failure::new(ErrorKind::Unavailable, "the connection was lost");
        let now = Instant::now();
        let spare_until = now + peer.endpoints.random().jitter(SPARE_PAUSE);
        *state = State::Failed { failure, until: now, spare_until };
    } else if live.is_closed() || live.number() < peer.number() {
        *state = State::Empty;
    }
}

/// Tries each address once.
async fn connect(peer: &Arc<PeerState>, lane: Lane, index: usize) -> Result<Arc<Live>, Failure> {
    let number = peer.number();
    let target = peer.target().clone();
    let mut last = Failure::new(ErrorKind::Unavailable, "the peer has no address");
    for (at, &address) in target.addresses.iter().enumerate() {
        match dial(peer, lane, index, address).await {
            Ok(secured) => {
                prefer(peer, at, address);
                let share = peer.endpoints.windows().join(&secured.quic);
                let live = Arc::new(Live::new(secured, lane, number, share));
                let runtime = peer.endpoints.endpoint(lane, index).runtime();
                live.find_same_host(peer.endpoints.settings(), runtime).await;
                introduce(peer, &live).await?;
                keep_alive::start(peer, lane, index, &live);
                return Ok(live);
            }
            Err(failure) => {
                let role = target.role.name();
                let message = format!("{role} at {address}: {}", failure.message);
                last = Failure::new(failure.kind, message);
            }
        }
    }
    Err(last)
}

/// Lets the next connection begin with the address that answered.
fn prefer(peer: &PeerState, at: usize, address: SocketAddr) {
    let mut target = peer.target();
    if at > 0 && target.addresses.get(at) == Some(&address) {
        target.addresses.rotate_left(at);
    }
}

/// One handshake with one address.
async fn dial(
    peer: &PeerState,
    lane: Lane,
    index: usize,
    address: SocketAddr,
) -> Result<Secured, Failure> {
    let unavailable = |why: String| Failure::new(ErrorKind::Unavailable, why);
    let (endpoints, target) = (&peer.endpoints, peer.target().clone());
    let endpoint = endpoints.endpoint(lane, index);
    let name = endpoints.server_name(target.role);
    let config = endpoints.config(address);
    let connecting = endpoint
        .quic()
        .connect_with(config, address, &name)
        .map_err(|error| unavailable(error.to_string()))?;
    let quic = tokio::time::timeout(endpoints.settings().connect_timeout(), connecting)
        .await
        .map_err(|_| unavailable("no answer".to_owned()))?
        .map_err(|error| failure::of_connection(&error))?;
    let (version, identity) = (negotiated(&quic)?, of_connection(&quic)?);
    if target.host.is_some_and(|host| host != identity.host) {
        quic.close(CloseCode::Done.code(), b"not the host that was looked for");
        return Err(unavailable(format!("host {} answers there", identity.host)));
    }
    Ok(Secured { quic, version, peer: identity })
}

/// Runs the hook.
async fn introduce(peer: &PeerState, live: &Arc<Live>) -> Result<(), Failure> {
    let Some(hook) = &peer.hook else {
        return Ok(());
    };
    let limit = peer.endpoints.settings().handshake_timeout();
    let introduced = tokio::time::timeout(limit, hook(Connected(Arc::clone(live)))).await;
    let outcome = introduced.unwrap_or_else(|_| {
        Err(Failure::new(ErrorKind::Unavailable, "the introduction was not answered"))
    });
    if outcome.is_err() {
        live.reject();
    }
    outcome
}

/// A panic elsewhere cannot leave the state half written.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a failed attempt answers for the next ones (half to all of it). Long enough to keep a
/// caller without a pause of its own from flooding the network, short enough for a server's return.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection that would have been one more is not tried again (half to all of it): each
/// attempt costs a handshake, and a server that has all the connections it may have is busy.
const SPARE_PAUSE: Duration = Duration::from_secs(10);
