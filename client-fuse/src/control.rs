//! The mount's local socket: what people at this host may ask without an identity of their own.
//!
//! The kernel tells who calls; the caller's words about that are replaced. Requests about paths are
//! sent on to the metadata server in the caller's name, which demands read permission to look and
//! to hydrate, and the owner or root for the rest. Everything else is refused.

use std::{os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use millrace_protocol::{
    Request, RequestKind,
    admin::{
        AwaitJob, CancelJob, ListJobs, PathBytes, ResolveConflict, SetLayout, ShowJob, ShowLayout,
        ShowState, StartJob,
    },
    by_state::{ShowStates, StartByState},
    control::{DescribeMount, MountDescription},
    file_list::AppendFiles,
    job_detail::ShowJobDetail,
    job_options::{FetchReport, PutReport, ShowJobOptions, StartWithOptions},
    job_waits::ShowJobWaits,
    known_state::ShowKnownState,
    left_out::ShowLeftOut,
    release::SetPin,
    selection::{RetryJob, ShowSelection, StartSelected},
    session::Caller,
    unused::{ShowUnused, StartUnused},
};
use millrace_transport::local::{LocalCall, LocalService};
use millrace_types::{ErrorKind, Failure};
use tokio::sync::Semaphore;

use crate::{caller::connected, cluster::Cluster};

/// Answers on the control socket of one mount.
#[derive(Debug)]
pub(crate) struct Control {
    cluster: Arc<Cluster>,
    description: MountDescription,
    /// The directory that the mount shows, from the top of what this client may see.
    path: PathBuf,
    /// Of the streams to the server that programs need, as few as four where there are very many
    /// hosts, waits for jobs may keep one. Who finds none asks again and again.
    waits: Semaphore,
}

impl Control {
    /// Answers for the mount that `description` describes.
    pub(crate) fn new(cluster: Arc<Cluster>, description: MountDescription, path: PathBuf) -> Self {
        Self { cluster, description, path, waits: Semaphore::new(1) }
    }

    async fn forward<R: Request + Sync>(
        &self,
        call: LocalCall,
        amend: impl FnOnce(&mut R) -> Result<(), Failure>,
    ) {
        let answer = async {
            let mut request: R = call.decode()?;
            amend(&mut request)?;
            self.cluster.ask_once(&request).await
        };
        match answer.await {
            Ok(reply) => call.reply::<R>(&reply),
            Err(failure) => call.fail(failure),
        }
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
    async fn handle(&self, call: LocalCall) {
        let peer = call.caller();
        let process = peer.pid.and_then(|process| u32::try_from(process).ok());
        let asking: Caller = connected(peer.uid, peer.gid, process.unwrap_or(0));
        let named = |to: &mut Caller, path: &mut PathBytes| {
            *to = asking.clone();
            self.whole_path(path)
        };
        match call.kind() {
            RequestKind::DescribeMount => call.reply::<DescribeMount>(&self.description),
            RequestKind::ShowLayout => {
                self.forward(call, |r: &mut ShowLayout| named(&mut r.caller, &mut r.path)).await;
            }
            RequestKind::SetLayout => {
                self.forward(call, |r: &mut SetLayout| named(&mut r.caller, &mut r.path)).await;
            }
            RequestKind::ShowState => {
                self.forward(call, |r: &mut ShowState| named(&mut r.caller, &mut r.path)).await;
            }
            RequestKind::ShowKnownState => {
                let amend = |r: &mut ShowKnownState| named(&mut r.of.caller, &mut r.of.path);
                self.forward(call, amend).await;
            }
            RequestKind::StartJob => {
                self.forward(call, |r: &mut StartJob| named(&mut r.caller, &mut r.path)).await;
            }
            RequestKind::ResolveConflict => {
                let amend = |r: &mut ResolveConflict| named(&mut r.caller, &mut r.path);
                self.forward(call, amend).await;
            }
            RequestKind::SetPin => {
                self.forward(call, |r: &mut SetPin| named(&mut r.caller, &mut r.path)).await;
            }
            RequestKind::ShowLeftOut => {
                self.forward(call, |r: &mut ShowLeftOut| named(&mut r.caller, &mut r.path)).await;
            }
            RequestKind::StartSelected => {
                let amend = |r: &mut StartSelected| named(&mut r.start.caller, &mut r.start.path);
                self.forward(call, amend).await;
            }
            RequestKind::StartWithOptions => {
                let amend =
                    |r: &mut StartWithOptions| named(&mut r.start.caller, &mut r.start.path);
                self.forward(call, amend).await;
            }
            RequestKind::StartUnused => {
                let amend =
                    |r: &mut StartUnused| named(&mut r.job.start.caller, &mut r.job.start.path);
                self.forward(call, amend).await;
            }
            RequestKind::StartByState => {
                let amend =
                    |r: &mut StartByState| named(&mut r.job.start.caller, &mut r.job.start.path);
                self.forward(call, amend).await;
            }
            _ => self.handle_job(call, asking).await,
        }
    }
}

impl Control {
    /// Requests about jobs and lists that there are, in the name of who asks.
    async fn handle_job(&self, call: LocalCall, asking: Caller) {
        let own = |to: &mut Caller| {
            *to = asking.clone();
            Ok(())
        };
        match call.kind() {
            RequestKind::FetchReport => {
                self.forward(call, |r: &mut FetchReport| own(&mut r.caller)).await;
            }
            RequestKind::PutReport => {
                self.forward(call, |r: &mut PutReport| own(&mut r.caller)).await;
            }
            RequestKind::AppendFiles => {
                self.forward(call, |r: &mut AppendFiles| own(&mut r.caller)).await;
            }
            RequestKind::ShowJobDetail => self.forward(call, |_: &mut ShowJobDetail| Ok(())).await,
            RequestKind::ShowJobWaits => self.forward(call, |_: &mut ShowJobWaits| Ok(())).await,
            RequestKind::ShowJobOptions => {
                self.forward(call, |_: &mut ShowJobOptions| Ok(())).await;
            }
            RequestKind::RetryJob => {
                self.forward(call, |r: &mut RetryJob| own(&mut r.caller)).await;
            }
            RequestKind::ShowSelection => self.forward(call, |_: &mut ShowSelection| Ok(())).await,
            RequestKind::ShowJob => self.forward(call, |_: &mut ShowJob| Ok(())).await,
            RequestKind::ShowStates => self.forward(call, |_: &mut ShowStates| Ok(())).await,
            RequestKind::ShowUnused => self.forward(call, |_: &mut ShowUnused| Ok(())).await,
            RequestKind::AwaitJob => match self.waits.try_acquire() {
                Ok(_wait) => self.forward(call, |_: &mut AwaitJob| Ok(())).await,
                Err(_) => call.fail(Failure::from(ErrorKind::NotSupported)),
            },
            RequestKind::ListJobs => self.forward(call, |_: &mut ListJobs| Ok(())).await,
            RequestKind::CancelJob => {
                self.forward(call, |r: &mut CancelJob| own(&mut r.caller)).await;
            }
            other => {
                let words = format!("{} is not for a mount's socket", other.name());
                call.fail(Failure::new(ErrorKind::NotSupported, words));
            }
        }
    }
}
