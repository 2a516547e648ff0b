//! The listening side of a local socket.

use std::{
    fmt, fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use millrace_protocol::{Request, RequestKind, codec, frame::Shape};
use millrace_runtime::Shutdown;
use millrace_types::{ErrorKind, Failure};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::oneshot,
};
use tokio_util::sync::CancellationToken;

use super::{
    places::{Place, Places},
    read_frame, write_frame,
};

/// What a daemon does with requests from its machine.
#[async_trait]
pub trait LocalService: Send + Sync + 'static {
    /// Answers one request. A call that is dropped without an answer is answered
    /// [`Internal`](ErrorKind::Internal).
    async fn handle(&self, call: LocalCall);
}

/// Who calls, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalCaller {
    /// Effective user when it connected.
    pub uid: u32,
    /// Effective group when it connected.
    pub gid: u32,
    /// Process, where the kernel tells.
    pub pid: Option<i32>,
}

/// A request on a local socket.
pub struct LocalCall {
    caller: LocalCaller,
    kind: RequestKind,
    message: Bytes,
    deadline: Option<Instant>,
    cancelled: CancellationToken,
    answer: oneshot::Sender<(Shape, Bytes)>,
}

impl LocalCall {
    /// Who asks.
    #[must_use]
    pub fn caller(&self) -> LocalCaller {
        self.caller
    }

    /// Which request it is.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// The encoded message.
    #[must_use]
    pub fn message(&self) -> &Bytes {
        &self.message
    }

    /// When the caller stops waiting, if it says.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Fires when the caller has hung up, or the daemon stops.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// The message, checked.
    ///
    /// # Errors
    /// [`Protocol`](ErrorKind::Protocol) when it is no `R`.
    ///
    /// # Panics
    /// When the call is none of `R`'s kind.
    pub fn decode<R: Request>(&self) -> Result<R, Failure> {
        assert_eq!(self.kind, R::KIND, "the call is of another kind");
        Ok(codec::decode(&self.message)?)
    }

    /// Answers. The bytes are sent in the background.
    ///
    /// # Panics
    /// When the call is none of `R`'s kind.
    pub fn reply<R: Request>(self, reply: &R::Reply) {
        assert_eq!(self.kind, R::KIND, "the call is of another kind");
        // The caller may have hung up.
        drop(self.answer.send((Shape::Reply, codec::encode(reply))));
    }

    /// Answers with a failure. The bytes are sent in the background.
    pub fn fail(self, failure: impl Into<Failure>) {
        drop(self.answer.send(failed(&failure.into())));
    }
}

impl fmt::Debug for LocalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCall")
            .field("caller", &self.caller)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// A listening local socket. It goes on when this handle is dropped; shutdown ends it and removes
/// its file.
#[derive(Debug)]
pub struct LocalServer {
    path: PathBuf,
}

impl LocalServer {
    /// Listens at `path`. Everybody on the machine may connect; the service decides by caller.
    ///
    /// A file that a dead daemon left there is replaced. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `AddrInUse` when a daemon listens there already; others when the directory is not writable.
    pub fn start(
        path: &Path,
        service: Arc<dyn LocalService>,
        shutdown: &Shutdown,
    ) -> io::Result<Self> {
        Self::start_with(path, service, shutdown, Limits::default())
    }

    /// The same within other limits.
    pub(super) fn start_with(
        path: &Path,
        service: Arc<dyn LocalService>,
        shutdown: &Shutdown,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = bind(path)?;
        let file = SocketFile { path: path.to_owned(), inode: inode(path)? };
        let server = Self { path: path.to_owned() };
        let host = Host { service, shutdown: shutdown.clone(), idle_max: limits.idle };
        let places = Places::new(limits.connections, limits.connections_of_user);
        drop(shutdown.spawn("local socket", serve(listener, file, Arc::new(host), places)));
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// The name in the file system. Dropping it removes the name, unless another daemon has taken it
/// meanwhile.
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|found| found == self.inode) {
            drop(fs::remove_file(&self.path));
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// What callers may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How long one may say nothing while nothing is answered to it, and take nothing of an answer.
    pub(super) idle: Duration,
    /// Of root, and of all others together.
    pub(super) connections: usize,
    /// Of a user other than root.
    pub(super) connections_of_user: usize,
}

impl Default for Limits {
    /// Commands of people: more at once are a defect or an attack.
    fn default() -> Self {
        Self { idle: Duration::from_secs(30), connections: 64, connections_of_user: 16 }
    }
}

/// What every connection needs.
struct Host {
    service: Arc<dyn LocalService>,
    shutdown: Shutdown,
    idle_max: Duration,
}

impl Host {
    /// Writes an answer, while the caller takes it. An error ends the connection: part of it may be
    /// on its way.
    async fn tell(
        &self,
        stream: &mut UnixStream,
        id: u64,
        (shape, message): (Shape, Bytes),
    ) -> Result<(), Failure> {
        let written = write_frame(stream, shape, id, &message);
        let late =
            || Failure::new(ErrorKind::DeadlineExceeded, "the caller does not take its answer");
        tokio::select! {
            written = tokio::time::timeout(self.idle_max, written) => {
                written.unwrap_or_else(|_| Err(late()))
            }
            () = self.shutdown.stopped() => Err(late()),
        }
    }
}

async fn serve(listener: UnixListener, _file: SocketFile, host: Arc<Host>, places: Places) {
    loop {
        let accepted = tokio::select! {
            () = host.shutdown.draining() => break,
            accepted = listener.accept() => accepted,
        };
        let accepted = accepted.and_then(|(stream, _)| Ok((caller(&stream)?, stream)));
        match accepted {
            Ok((caller, stream)) => {
                let Some(place) = places.take(caller.uid) else {
                    tracing::warn!(uid = caller.uid, "local connection refused: too many");
                    continue;
                };
                let serving = Arc::clone(&host);
                drop(host.shutdown.spawn("local connection", async move {
                    if let Err(failure) = connection(stream, caller, place, &serving).await {
                        tracing::debug!(%failure, "local connection ended");
                    }
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "local connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Who has connected.
fn caller(stream: &UnixStream) -> io::Result<LocalCaller> {
    let credentials = stream.peer_cred()?;
    Ok(LocalCaller { uid: credentials.uid(), gid: credentials.gid(), pid: credentials.pid() })
}

/// Serves one connection until the caller hangs up, or asks nothing for too long.
async fn connection(
    mut stream: UnixStream,
    caller: LocalCaller,
    place: Place,
    host: &Host,
) -> Result<(), Failure> {
    // Given back before the caller sees the end.
    let _place = place;
    let (service, shutdown) = (host.service.as_ref(), &host.shutdown);
    loop {
        let read = tokio::select! {
            () = shutdown.draining() => return Ok(()),
            read = tokio::time::timeout(host.idle_max, read_frame(&mut stream)) => read,
        };
        let Ok(read) = read else {
            tracing::debug!(uid = caller.uid, "a local connection asks nothing and is ended");
            return Ok(());
        };
        let (header, message) = match read {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(()),
            Err(failure) => {
                tracing::warn!(%failure, uid = caller.uid, "malformed frame on the local socket");
                return host.tell(&mut stream, 0, failed(&failure)).await;
            }
        };
        let id = header.request_id;
        let Shape::Request { kind, deadline_ms } = header.shape else {
            let failure = Failure::new(ErrorKind::Protocol, "an answer where a request belongs");
            return host.tell(&mut stream, id, failed(&failure)).await;
        };
        let cancelled = CancellationToken::new();
        let (answer, answered) = oneshot::channel();
        let call = LocalCall {
            caller,
            kind,
            message,
            deadline: deadline(deadline_ms),
            cancelled: cancelled.clone(),
            answer,
        };
        let _cancel = cancelled.drop_guard();
        let mut answering = std::pin::pin!(answer_of(service, call, answered));
        let answer = tokio::select! {
            answer = &mut answering => answer,
            () = hung_up(&stream) => return Ok(()),
            () = shutdown.stopped() => return Ok(()),
        };
        host.tell(&mut stream, id, answer).await?;
    }
}

/// Has the service answer.
async fn answer_of(
    service: &dyn LocalService,
    call: LocalCall,
    answered: oneshot::Receiver<(Shape, Bytes)>,
) -> (Shape, Bytes) {
    let kind = call.kind;
    let ((), answer) = tokio::join!(service.handle(call), answered);
    answer.unwrap_or_else(|_| {
        tracing::error!(kind = kind.name(), "local request dropped without an answer");
        failed(&Failure::new(ErrorKind::Internal, "the request was dropped"))
    })
}

/// Returns when the caller has closed its end, or sends what it may not send yet.
async fn hung_up(stream: &UnixStream) {
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The end, an error, or a byte before the answer.
            _ => return,
        }
    }
}

fn failed(failure: &Failure) -> (Shape, Bytes) {
    let kind = failure.kind;
    (Shape::Failure { kind }, codec::encode(failure))
}

fn deadline(ms: u32) -> Option<Instant> {
    (ms > 0).then(|| Instant::now() + Duration::from_millis(ms.into()))
}

/// After an error that may last, such as no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
