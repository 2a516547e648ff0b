//! What hydration gets from the server: the engine, and the target daemons.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_object_source::Tally;
use millrace_protocol::{
    Request, RequestKind,
    admin::TargetState,
    capability::{Content, Rights, SYSTEM_SESSION, Signed},
    cluster::Map,
    codec,
    requests::RequestCounts,
    tallied::{Tallied, TalliedReply},
};
use millrace_runtime::Random;
use millrace_types::{ClusterId, ErrorKind, Failure, HostId, InodeId, TargetId, Timestamp};

use crate::{
    command::{Command, Outcome},
    engine::{Core, Handle},
    hydration::Environment,
    store::View,
    targets::peers::Peers,
    written::Written,
};

/// The engine and the connections to the target daemons.
#[derive(Debug)]
pub struct ServerEnvironment {
    engine: Handle,
    peers: Peers,
    random: Random,
    cluster: ClusterId,
    reports: PathBuf,
    reports_keep_free: u64,
}

impl ServerEnvironment {
    /// Over a running engine of this cluster. Reports of jobs are kept in `reports`, on whose disk
    /// they leave so many bytes free.
    #[must_use]
    pub fn new(
        engine: Handle,
        peers: Peers,
        random: Random,
        cluster: ClusterId,
        (reports, reports_keep_free): (PathBuf, u64),
    ) -> Self {
        Self { engine, peers, random, cluster, reports, reports_keep_free }
    }
}

impl ServerEnvironment {
    /// Executes a command, and returns when clients show nothing any more as it was before that.
    /// One that takes too long is not waited for: it hears of it all the same.
    async fn execute_heard(&self, command: Command, synced: bool) -> Result<Outcome, Failure> {
        let turn = move |core: &mut Core| core.execute_heard(command);
        let (outcome, heard) = match synced {
            true => self.engine.durable_turn(turn).await?,
            false => self.engine.turn(turn).await?,
        };
        let all = async {
            for wait in &heard {
                wait.given_back().await;
            }
        };
        if tokio::time::timeout(HEARD_MAX, all).await.is_err() {
            tracing::debug!("a client has not heard yet of what changed in a bucket");
        }
        Ok(outcome)
    }
}

impl Environment for ServerEnvironment {
    async fn execute(&self, command: Command, synced: bool) -> Result<Outcome, Failure> {
        if command.follows_bucket() {
            return self.execute_heard(command, synced).await;
        }
        let turn = move |core: &mut Core| core.execute(None, command);
        if synced { self.engine.durable_turn(turn).await } else { self.engine.turn(turn).await }
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn View) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.engine.turn(move |core| query(core.view())).await
    }

    async fn settled(&self) -> Result<(), Failure> {
        self.engine.durable_turn(|_| Ok(())).await
    }

    async fn reserve_inodes(&self, count: usize) -> Result<Vec<InodeId>, Failure> {
        self.engine.turn(move |core| (0..count).map(|_| core.new_inode_id()).collect()).await
    }

    async fn named(&self, inodes: Vec<InodeId>) -> Result<(), Failure> {
        let note = move |core: &mut Core| {
            inodes.into_iter().for_each(|inode| core.note_name(inode));
            Ok(())
        };
        self.engine.turn(note).await
    }

    async fn sign_read(&self, content: Content) -> Result<Signed, Failure> {
        self.named(vec![content.inode]).await?;
        Ok(self.engine.keyring().capability(Rights::Read, SYSTEM_SESSION, content)?)
    }

    async fn map(&self) -> Result<Map, Failure> {
        Ok((*self.peers.map().await?).clone())
    }

    async fn standing(&self) -> Result<BTreeMap<TargetId, TargetState>, Failure> {
        let members = |core: &mut Core| {
            Ok(core.registry.members().map(|(target, member)| (target, member.state())).collect())
        };
        self.engine.turn(members).await
    }

    async fn ask<R: Request + Send + Sync + 'static>(
        &self,
        host: HostId,
        request: R,
        timeout: Duration,
    ) -> Result<R::Reply, Failure> {
        let counted = [
            RequestKind::Hydrate,
            RequestKind::UploadPart,
            RequestKind::UploadObject,
            RequestKind::UploadPartTo,
            RequestKind::UploadObjectTo,
            RequestKind::StoreObject,
            RequestKind::DigestPart,
        ];
        let tally = Tally::present().filter(|_| counted.contains(&R::KIND));
        let Some(tally) = tally else { return self.peers.ask(host, &request, timeout).await };
        let kind = R::KIND.code();
        let wrapped = Tallied { kind, request: codec::encode(&request).to_vec() };
        match self.peers.ask(host, &wrapped, timeout).await {
            Ok(TalliedReply { answer, requests }) => {
                add(&requests, &tally);
                Ok(codec::decode(&answer?)?)
            }
            // A target daemon from before there was this: what it asks is not counted for the job.
            Err(failure) if failure.kind == ErrorKind::NotSupported => {
                self.peers.ask(host, &request, timeout).await
            }
            Err(failure) => Err(failure),
        }
    }

    fn is_pressed(&self) -> bool {
        self.engine.is_pressed()
    }

    async fn give_way(&self) {
        self.engine.give_way().await;
    }

    fn written(&self) -> &Written {
        self.engine.written()
    }

    fn cluster(&self) -> ClusterId {
        self.cluster
    }

    fn reports(&self) -> &Path {
        &self.reports
    }

    fn reports_keep_free(&self) -> u64 {
        self.reports_keep_free
    }

    fn now(&self) -> Timestamp {
        self.engine.now()
    }

    fn random(&self) -> u64 {
        self.random.number()
    }
}

/// How long clients may take to hear of what a bucket changes.
const HEARD_MAX: Duration = Duration::from_secs(10);

/// Counts what a target asked for the same work.
fn add(requests: &RequestCounts, tally: &Tally) {
    let RequestCounts { list, head, get, put, part, upload, other, failed, .. } = *requests;
    let bytes = (requests.received_bytes, requests.sent_bytes);
    tally.counters().merge([list, head, get, put, part, upload, other], failed, bytes);
}
