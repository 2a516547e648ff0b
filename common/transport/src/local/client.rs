//! The calling side of a local socket.

use std::{fmt, path::Path, time::Duration};

use millrace_protocol::{Request, codec, frame::Shape};
use millrace_types::{ErrorKind, Failure};
use tokio::{net::UnixStream, sync::Mutex};

use super::{gone, read_frame, write_frame};

/// A connection to a daemon on this machine. Requests wait for one another.
pub struct LocalClient {
    owner: u32,
    state: Mutex<State>,
}

struct State {
    /// `None` after a request that was given up: its answer would pass for the next one's.
    stream: Option<UnixStream>,
    next_request: u64,
}

impl LocalClient {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when nobody listens there, `PermissionDenied` when
    /// the caller may not connect.
    pub async fn connect(path: &Path) -> Result<Self, Failure> {
        let refused = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                _ => ErrorKind::Unavailable,
            };
            Failure::new(kind, format!("cannot connect to {}: {error}", path.display()))
        };
        let stream = UnixStream::connect(path).await.map_err(refused)?;
        let owner = stream.peer_cred().map_err(refused)?.uid();
        Ok(Self { owner, state: Mutex::new(State { stream: Some(stream), next_request: 1 }) })
    }

    /// The effective user of the daemon when it began to listen, as the kernel says: whoever else
    /// listens at a known path is not that daemon.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Sends a request and waits at most `deadline` for the answer. Dropping this future cancels
    /// the request and ends the connection.
    ///
    /// # Errors
    /// What the daemon answered; `Unavailable` when it is gone, `DeadlineExceeded`, `Protocol`.
    pub async fn call<R: Request>(
        &self,
        request: &R,
        deadline: Duration,
    ) -> Result<R::Reply, Failure> {
        tokio::time::timeout(deadline, self.exchange(request, deadline)).await.unwrap_or_else(
            |_| {
                let message = format!("no answer to {} within {deadline:?}", R::KIND.name());
                Err(Failure::new(ErrorKind::DeadlineExceeded, message))
            },
        )
    }

    async fn exchange<R: Request>(
        &self,
        request: &R,
        deadline: Duration,
    ) -> Result<R::Reply, Failure> {
        let ended = || Failure::new(ErrorKind::Unavailable, "the daemon has hung up");
        let mut state = self.state.lock().await;
        let mut stream = state.stream.take().ok_or_else(ended)?;
        let id = state.next_request;
        state.next_request += 1;
        let shape = Shape::Request {
            kind: R::KIND,
            deadline_ms: u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX).max(1),
        };
        write_frame(&mut stream, shape, id, &codec::encode(request)).await?;
        let (header, message) = read_frame(&mut stream).await?.ok_or_else(ended)?;
        if header.request_id != id {
            let error = std::io::Error::other("the answer is for another request");
            return Err(gone(&error));
        }
        let answer = match header.shape {
            Shape::Reply => Ok(codec::decode(&message)?),
            Shape::Failure { .. } => Err(codec::decode::<Failure>(&message)?),
            Shape::Request { .. } => {
                return Err(Failure::new(ErrorKind::Protocol, "the answer is a request"));
            }
        };
        state.stream = Some(stream);
        answer
    }
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalClient")
    }
}
