//! The mount's local socket: what people at this host may ask without an identity of their own.
//!
//! The kernel tells who calls; the caller's words about that are replaced. Requests about paths are
//! sent on to the metadata server in the caller's name, which demands read permission to look and to
//! hydrate, and the owner or root for the rest. Everything else is refused.

use std::{os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use millrace_protocol::{
    Request, RequestKind,
    admin::{CancelJob, ListJobs, PathBytes, SetLayout, ShowJob, ShowLayout, ShowState, StartJob},
    codec,
    control::MountDescription,
    session::Caller,
};
use millrace_transport::local::{LocalPeer, LocalService};
use millrace_types::{ErrorKind, Failure};

use crate::{caller::caller, cluster::Cluster};

/// Answers on the control socket of one mount.
#[derive(Debug)]
pub(crate) struct Control {
    cluster: Arc<Cluster>,
    description: MountDescription,
    /// The directory that the mount shows, from the top of what this client may see.
    path: PathBuf,
}

impl Control {
    /// Answers for the mount that `description` describes.
    pub(crate) fn new(cluster: Arc<Cluster>, description: MountDescription, path: PathBuf) -> Self {
        Self { cluster, description, path }
    }

    async fn forward<R: Request + Sync>(
        &self,
        message: &[u8],
        amend: impl FnOnce(&mut R) -> Result<(), Failure>,
    ) -> Result<Bytes, Failure> {
        let mut request: R = decode(message)?;
        amend(&mut request)?;
        let reply = self.cluster.ask_once(&request).await?;
        Ok(codec::encode(&reply))
    }

    /// A path from the mount's root becomes one from the file system's root.
    fn whole_path(&self, path: &mut PathBytes) -> Result<(), Failure> {
        let mut whole = self.path.as_os_str().as_bytes().to_vec();
        while whole.last() == Some(&b'/') {
            whole.pop();
        }
        for component in path.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    let words = "a path inside a mount never goes up";
                    return Err(Failure::new(ErrorKind::InvalidArgument, words));
                }
                name => {
                    whole.push(b'/');
                    whole.extend_from_slice(name);
                }
            }
        }
        if whole.is_empty() {
            whole.push(b'/');
        }
        *path = whole;
        Ok(())
    }
}

#[async_trait]
impl LocalService for Control {
    async fn handle(
        &self,
        peer: LocalPeer,
        kind: RequestKind,
        message: Bytes,
    ) -> Result<Bytes, Failure> {
        let process = peer.process.and_then(|process| u32::try_from(process).ok());
        let asking: Caller = caller(peer.uid, peer.gid, process.unwrap_or(0));
        let named = |to: &mut Caller, path: &mut PathBytes| {
            *to = asking.clone();
            self.whole_path(path)
        };
        match kind {
            RequestKind::DescribeMount => Ok(codec::encode(&self.description)),
            RequestKind::ShowLayout => {
                self.forward(&message, |r: &mut ShowLayout| named(&mut r.caller, &mut r.path)).await
            }
            RequestKind::SetLayout => {
                self.forward(&message, |r: &mut SetLayout| named(&mut r.caller, &mut r.path)).await
            }
            RequestKind::ShowState => {
                self.forward(&message, |r: &mut ShowState| named(&mut r.caller, &mut r.path)).await
            }
            RequestKind::StartJob => {
                self.forward(&message, |r: &mut StartJob| named(&mut r.caller, &mut r.path)).await
            }
            RequestKind::ShowJob => self.forward(&message, |_: &mut ShowJob| Ok(())).await,
            RequestKind::ListJobs => self.forward(&message, |_: &mut ListJobs| Ok(())).await,
            RequestKind::CancelJob => {
                let amend = |request: &mut CancelJob| {
                    request.caller = asking.clone();
                    Ok(())
                };
                self.forward(&message, amend).await
            }
            other => {
                let words = format!("{} is not for a mount's socket", other.name());
                Err(Failure::new(ErrorKind::NotSupported, words))
            }
        }
    }
}

fn decode<R: Request>(message: &[u8]) -> Result<R, Failure> {
    codec::decode(message).map_err(|error| Failure::new(ErrorKind::Protocol, error.to_string()))
}
