//! The server's end: one socket, and which connection a stream belongs to.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::{fd::AsFd as _, unix::net::UnixListener as StdListener},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use millrace_protocol::same_host::{FoundSocket, TICKET_LEN};
use millrace_runtime::{Random, Shutdown};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::{
    io::AsyncReadExt as _,
    net::{UnixListener, UnixStream},
    runtime::Handle,
    sync::Semaphore,
    task::AbortHandle,
};
use tokio_util::sync::CancellationToken;

use super::{HostStream, stream::BUFFER_BYTES};

/// What a connection knows of its streams.
pub(crate) struct Attached {
    /// The connection has ended, and its streams with it.
    ended: CancellationToken,
    /// Of the connection's socket.
    runtime: Handle,
    places: Arc<Semaphore>,
    /// For streams that wait for a place.
    comers: Arc<Semaphore>,
    ticket: OnceLock<[u8; TICKET_LEN]>,
}

impl Attached {
    /// At most `streams_max` streams. Must be called on the runtime of the connection's socket.
    pub(crate) fn new(streams_max: usize) -> Self {
        let places = || Arc::new(Semaphore::new(streams_max));
        Self {
            ended: CancellationToken::new(),
            runtime: Handle::current(),
            places: places(),
            comers: places(),
            ticket: OnceLock::new(),
        }
    }

    /// Ends all streams, those included that come later.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}

/// The socket of one server. `C` is a connection.
pub(crate) struct HostSocket<C> {
    name: Vec<u8>,
    owner: u32,
    streams_max: usize,
    /// Of all connections together.
    places: Arc<Semaphore>,
    random: Random,
    tickets: Mutex<HashMap<[u8; TICKET_LEN], Weak<C>>>,
    /// Who has shown no ticket, the newest last.
    strangers: Mutex<VecDeque<AbortHandle>>,
}

impl<C: AsRef<Attached> + Send + Sync + 'static> HostSocket<C> {
    /// Listens under a name that nobody else has. A connection gets at most `streams_max` streams,
    /// and all together as many as fit into `budget_bytes` of the kernel's memory.
    pub(crate) fn bind(streams_max: usize, budget_bytes: u64) -> io::Result<(Self, StdListener)> {
        let random = Random::system();
        let mut drawn = [0; 16];
        random.fill(&mut drawn);
        let name = format!("millrace/{:032x}", u128::from_ne_bytes(drawn)).into_bytes();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(&name)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let places = budget_bytes / (2 * u64::try_from(BUFFER_BYTES).unwrap_or(u64::MAX));
        let places = usize::try_from(places).unwrap_or(usize::MAX).clamp(1, PLACES_MAX);
        let host_socket = Self {
            name,
            places: Arc::new(Semaphore::new(places)),
            owner: rustix::process::geteuid().as_raw(),
            streams_max,
            random,
            tickets: Mutex::default(),
            strangers: Mutex::default(),
        };
        Ok((host_socket, StdListener::from(socket)))
    }

    /// How many streams each connection may have.
    pub(crate) fn streams_max(&self) -> usize {
        self.streams_max
    }

    /// The ticket of a connection: what it needs to open streams. It is good until
    /// [`Self::forget`].
    pub(crate) fn show(&self, connection: &Arc<C>) -> FoundSocket {
        let attached: &Attached = (**connection).as_ref();
        let mut tickets = self.lock();
        let ticket = *attached.ticket.get_or_init(|| {
            let mut ticket = [0; TICKET_LEN];
            self.random.fill(&mut ticket);
            ticket
        });
        if !attached.ended.is_cancelled() {
            tickets.insert(ticket, Arc::downgrade(connection));
        }
        drop(tickets);
        FoundSocket {
            name: self.name.clone(),
            owner: self.owner,
            ticket,
            streams_max: u32::try_from(self.streams_max).unwrap_or(u32::MAX),
        }
    }

    /// A connection has ended, and its streams with it: its ticket is worth nothing.
    pub(crate) fn forget(&self, connection: &C) {
        let mut tickets = self.lock();
        if let Some(ticket) = connection.as_ref().ticket.get() {
            tickets.remove(ticket);
        }
    }

    /// Takes streams until the server drains, and hands each to `serve` on the runtime of its
    /// connection.
    pub(crate) async fn serve<F>(
        self: Arc<Self>,
        listener: StdListener,
        shutdown: Shutdown,
        serve: impl Fn(Arc<C>, Arc<HostStream>) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = match UnixListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::warn!(%error, "the local socket is not served"),
        };
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                () = shutdown.draining() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, _)) => {
                    failing = false;
                    self.take(socket, serve.clone());
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "no local stream can be taken");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Begins to serve a stream as soon as it has shown its ticket, which most have by now.
    fn take<F>(
        self: &Arc<Self>,
        mut socket: UnixStream,
        serve: impl Fn(Arc<C>, Arc<HostStream>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut ticket = [0; TICKET_LEN];
        let shown = rustix::io::read(socket.as_fd(), &mut ticket).unwrap_or(0);
        if shown == TICKET_LEN {
            return self.admit(ticket, socket, serve);
        }
        let host_socket = Arc::clone(self);
        let stranger = tokio::spawn(async move {
            let rest = socket.read_exact(&mut ticket[shown..]);
            if matches!(tokio::time::timeout(TICKET_TIMEOUT, rest).await, Ok(Ok(_))) {
                host_socket.admit(ticket, socket, serve);
            }
        });
        // Too many: whoever has said nothing for the longest is hung up on.
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        strangers.retain(|stranger| !stranger.is_finished());
        strangers.push_back(stranger.abort_handle());
        if strangers.len() > STRANGERS_MAX
            && let Some(oldest) = strangers.pop_front()
        {
            tracing::debug!("too many local streams without a ticket");
            oldest.abort();
        }
    }

    /// Serves a stream if its ticket is a connection's.
    fn admit<F>(
        self: &Arc<Self>,
        ticket: [u8; TICKET_LEN],
        socket: UnixStream,
        serve: impl Fn(Arc<C>, Arc<HostStream>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(connection) = self.lock().get(&ticket).and_then(Weak::upgrade) {
            let host_socket = Arc::clone(self);
            let attaching = async move { host_socket.attach(connection, socket, serve).await };
            drop(tokio::spawn(attaching));
        }
    }

    /// Serves a stream of a connection, which may have to wait until it notices that others have
    /// ended.
    async fn attach<F>(
        &self,
        connection: Arc<C>,
        socket: UnixStream,
        serve: impl Fn(Arc<C>, Arc<HostStream>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let attached: &Attached = (*connection).as_ref();
        let place = Arc::clone(&attached.places).acquire_owned();
        let Ok(comer) = Arc::clone(&attached.comers).try_acquire_owned() else {
            return tracing::debug!("a connection opens more local streams than it may have");
        };
        let Ok(Ok(place)) = tokio::time::timeout(PLACE_TIMEOUT, place).await else {
            return tracing::debug!("a connection has as many local streams as it may");
        };
        let Ok(place_of_all) = Arc::clone(&self.places).try_acquire_owned() else {
            return tracing::debug!("all connections have as many local streams as they may");
        };
        drop(comer);
        let (ended, runtime) = (attached.ended.clone(), attached.runtime.clone());
        let Ok(socket) = socket.into_std() else { return };
        drop(runtime.spawn(async move {
            let Ok(socket) = UnixStream::from_std(socket) else { return };
            let stream = HostStream::taken(socket, ended);
            if stream.greet().await.is_err() {
                return;
            }
            let serving = serve(connection, Arc::clone(&stream));
            tokio::pin!(serving);
            tokio::select! {
                () = &mut serving => return,
                () = stream.given_up() => {}
            }
            // Nothing is answered any more, and what is at work takes nobody's place.
            stream.end();
            drop((place, place_of_all));
            serving.await;
        }));
    }

    /// A panic elsewhere cannot leave a table half written.
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; TICKET_LEN], Weak<C>>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the first bytes of the next frame of a stream. `None`: there is none, because the other
/// end has hung up or the connection has ended.
pub(crate) async fn next_frame(stream: &HostStream) -> Option<Bytes> {
    let mut first = Vec::with_capacity(FIRST_BYTES);
    let received = stream.receive(&mut first).await;
    matches!(received, Ok(count) if count > 0).then(|| first.into())
}

/// Of all connections of a server, however much memory there may be.
const PLACES_MAX: usize = 4096;

/// Streams that wait to be taken; a client whose stream finds no room sends over QUIC.
const BACKLOG: i32 = 128;

/// Those that have not shown a ticket yet.
const STRANGERS_MAX: usize = 64;

/// A client sends its ticket with its first request, at once.
const TICKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Who has hung up on one stream may open another at once.
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);

/// After a failure to take one, as when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Header and message of most requests.
const FIRST_BYTES: usize = 4 * 1024;
