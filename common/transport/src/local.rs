//! The same frames over a Unix socket: between the admin CLI and a mount's daemon on one host.
//!
//! There is no TLS: the kernel tells who calls (`SO_PEERCRED`). A connection carries one request at
//! a time and no body.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use millrace_protocol::{
    Request, RequestKind, codec,
    frame::{HEADER_LEN, Header, Shape},
};
use millrace_runtime::Shutdown;
use millrace_types::{ErrorKind, Failure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};

use crate::framing::Outgoing;

/// Connections at a time; further callers wait.
const CONNECTIONS_MAX: usize = 32;

/// Who calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalPeer {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Process, where the kernel tells.
    pub process: Option<i32>,
}

/// What a daemon does with local requests.
#[async_trait::async_trait]
pub trait LocalService: Send + Sync + 'static {
    /// Answers one request with the encoded reply of its kind.
    async fn handle(
        &self,
        peer: LocalPeer,
        kind: RequestKind,
        message: Bytes,
    ) -> Result<Bytes, Failure>;
}

/// A listening socket; its file is removed when this is dropped.
#[derive(Debug)]
pub struct LocalServer {
    path: PathBuf,
    stopping: Shutdown,
}

impl LocalServer {
    /// Listens at `path`, in place of whatever socket an earlier process left there. Everybody on
    /// the host may connect. Must be called within a runtime.
    ///
    /// # Errors
    /// When the path cannot be bound.
    pub fn start(path: &Path, service: Arc<dyn LocalService>) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        let stopping = Shutdown::new();
        drop(stopping.spawn("local socket", accept(listener, service, stopping.clone())));
        Ok(Self { path: path.to_owned(), stopping })
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.stopping.begin("the local socket closes");
        // Fails only when somebody removed it already.
        drop(fs::remove_file(&self.path));
    }
}

async fn accept(listener: UnixListener, service: Arc<dyn LocalService>, stopping: Shutdown) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = stopping.draining() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { continue };
        let (service, ending) = (Arc::clone(&service), stopping.clone());
        drop(stopping.spawn("local connection", async move {
            tokio::select! {
                () = ending.draining() => {}
                served = serve(stream, &*service) => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "local connection ends");
                    }
                }
            }
            drop(permit);
        }));
    }
}

async fn serve(mut stream: UnixStream, service: &dyn LocalService) -> io::Result<()> {
    let credentials = stream.peer_cred()?;
    let peer =
        LocalPeer { uid: credentials.uid(), gid: credentials.gid(), process: credentials.pid() };
    while let Some((header, message)) = receive(&mut stream).await? {
        let Shape::Request { kind, .. } = header.shape else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a reply without a request"));
        };
        let (shape, message) = match service.handle(peer, kind, message).await {
            Ok(reply) => (Shape::Reply, reply),
            Err(failure) => (Shape::Failure { kind: failure.kind }, codec::encode(&failure)),
        };
        send(&mut stream, shape, message).await?;
    }
    Ok(())
}

/// Asks the daemon that listens at `path`.
///
/// # Errors
/// The daemon's failure; [`ErrorKind::Unavailable`] when none listens there;
/// [`ErrorKind::DeadlineExceeded`].
pub async fn call<R: Request>(
    path: &Path,
    request: &R,
    deadline: Duration,
) -> Result<R::Reply, Failure> {
    let unavailable = |error: io::Error| {
        Failure::new(ErrorKind::Unavailable, format!("{}: {error}", path.display()))
    };
    let exchange = async {
        let mut stream = UnixStream::connect(path).await.map_err(unavailable)?;
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let shape = Shape::Request { kind: R::KIND, deadline_ms };
        send(&mut stream, shape, codec::encode(request)).await.map_err(unavailable)?;
        let answer = receive(&mut stream).await.map_err(unavailable)?;
        let (header, message) = answer.ok_or(ErrorKind::Unavailable)?;
        match header.shape {
            Shape::Failure { .. } => {
                Err(codec::decode(&message).unwrap_or_else(|_| ErrorKind::Protocol.into()))
            }
            _ => codec::decode(&message)
                .map_err(|error| Failure::new(ErrorKind::Protocol, error.to_string())),
        }
    };
    let in_time = timeout(deadline, exchange).await;
    in_time.unwrap_or_else(|_| Err(ErrorKind::DeadlineExceeded.into()))
}

async fn send(stream: &mut UnixStream, shape: Shape, message: Bytes) -> io::Result<()> {
    let frame = Outgoing { shape, message, body: &[], request_id: 0 };
    let head = frame.head().map_err(io::Error::other)?;
    stream.write_all(&head).await
}

/// The next frame; `None` when the peer has closed the connection between two of them.
async fn receive(stream: &mut UnixStream) -> io::Result<Option<(Header, Bytes)>> {
    let malformed = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut bytes = [0; HEADER_LEN];
    match stream.read_exact(&mut bytes).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let header = Header::decode(&bytes).map_err(|error| malformed(error.to_string()))?;
    if header.body_len != 0 {
        return Err(malformed("a local request has no body".to_owned()));
    }
    let mut message = vec![0; header.message_len as usize];
    stream.read_exact(&mut message).await?;
    header.check_message(&message).map_err(|error| malformed(error.to_string()))?;
    Ok(Some((header, message.into())))
}
