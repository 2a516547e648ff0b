//! A cluster's authority, its metadata server, and hosts that talk to it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_metadata_server::{daemon::Daemon, settings::Settings};
use millrace_protocol::{
    Request,
    cluster::{RegisterHost, TargetReport},
    metadata::{Create, GetInode, InodeReply, Lookup, NewNode},
    session::{Caller, OpenSession, Operation, Role, SessionReply},
};
use millrace_runtime::{Clock, Shutdown, VirtualTime};
use millrace_transport::{
    Authority, CallOptions, ClientEndpoints, Grant, Identity, Peer, PeerTarget, TransportSettings,
    identity::write_private,
};
use millrace_types::{
    ByteLen, ClusterId, ErrorKind, Failure, FileName, GIB, HostId, InodeId, SessionId, TargetId,
    Timestamp,
};
use tempfile::TempDir;

/// Longer than anything here takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The host that serves the targets, and where.
pub(super) const STORAGE: (u8, &str) = (0x7a, "127.0.0.1:1");

pub(super) struct Cluster {
    pub(super) authority: Authority,
    pub(super) time: VirtualTime,
    daemon: Option<Daemon>,
    settings: Settings,
    clock: Clock,
    _dir: TempDir,
}

/// A node that sends requests; clients have a session.
pub(super) struct Node {
    pub(super) peer: Peer,
    pub(super) identity: Identity,
    pub(super) session: SessionId,
    sequence: u64,
    // Its sockets live as long as this.
    endpoints: ClientEndpoints,
}

impl Cluster {
    /// A running server with two targets, whose clock only the test moves.
    pub(super) async fn start() -> Self {
        Self::start_with(|settings| settings).await
    }

    /// The same with other settings.
    pub(super) async fn start_with(change: impl FnOnce(Settings) -> Settings) -> Self {
        let dir = TempDir::new().unwrap();
        let authority = Authority::create(ClusterId([0xc1; 16])).unwrap();
        let identity = dir.path().join("metadata.pem");
        let bundle = authority.issue(&grant(Role::Metadata, 0x5e)).unwrap();
        write_private(&identity, &bundle).unwrap();
        let settings = change(settings(identity, dir.path().join("data")));
        let (clock, time) = Clock::manual(Timestamp::from_parts(1_800_000_000, 0));
        let daemon = Daemon::start_by(&settings, clock.clone()).await.unwrap();
        let daemon = Some(daemon);
        let cluster = Self { authority, time, daemon, settings, clock, _dir: dir };
        cluster.register_targets().await;
        cluster
    }

    /// Stops the server and starts it again; it listens elsewhere then, which every node is told by
    /// [`Node::find_again`].
    pub(super) async fn restart(&mut self) {
        self.daemon.take().expect("it runs").stop().await.unwrap();
        self.daemon = Some(Daemon::start_by(&self.settings, self.clock.clone()).await.unwrap());
    }

    pub(super) async fn stop(mut self) {
        self.daemon.take().expect("it runs").stop().await.unwrap();
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.daemon.as_ref().expect("it runs").address()
    }

    /// The server's directory.
    pub(super) fn data(&self) -> &Path {
        &self.settings.data
    }

    /// Applies every deadline that has passed by the test's clock.
    pub(super) async fn tick(&self) {
        let engine = self.daemon.as_ref().expect("it runs").engine();
        engine.handle().turn(|core| core.tick()).await.unwrap();
    }

    /// Lets time pass in which the server looks again and again at who is silent.
    pub(super) async fn pass(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(Duration::from_secs(1));
            self.time.advance(step);
            self.tick().await;
            left -= step;
        }
    }

    pub(super) fn node(&self, grant: &Grant) -> Node {
        let identity = Identity::from_pem(&self.authority.issue(grant).unwrap()).unwrap();
        // A connection is tried once, and a machine that is busy with other tests answers late.
        let settings = TransportSettings {
            connect_timeout_ms: 30_000,
            handshake_timeout_ms: 30_000,
            idle_timeout_ms: 60_000,
            ..TransportSettings::default()
        };
        let endpoints =
            ClientEndpoints::start(identity.clone(), settings, &Shutdown::new()).unwrap();
        let addresses = vec![self.address()];
        let target = PeerTarget { role: Role::Metadata, host: None, addresses };
        let peer = Peer::new(&endpoints, target);
        Node { peer, identity, session: SessionId(0), sequence: 0, endpoints }
    }

    /// A client with a session.
    pub(super) async fn client(&self, grant: &Grant) -> Node {
        let mut node = self.node(grant);
        node.session = node.open_session(1).await.unwrap().session;
        node
    }

    async fn register_targets(&self) {
        let (host, address) = STORAGE;
        let register = registration(address, &[1, 2]);
        self.node(&grant(Role::Target, host)).ask(&register).await.unwrap();
    }
}

/// What a daemon at `address` announces.
pub(super) fn registration(address: &str, targets: &[u8]) -> RegisterHost {
    let report = |&number| TargetReport {
        id: TargetId([number; 8]),
        capacity: ByteLen(GIB),
        used: ByteLen(0),
        inode_max: InodeId(0),
        loss_count: 0,
        bad_blocks: 0,
        blank: false,
    };
    RegisterHost {
        addresses: vec![address.to_owned()],
        host_name: "storage".to_owned(),
        targets: targets.iter().map(report).collect(),
    }
}

pub(super) fn grant(role: Role, host: u8) -> Grant {
    Grant { role, host: HostId([host; 16]), subtree: None, squash_root: false }
}

/// The server waits for nodes as long as they do for it. For targets it does not: there are none.
const SETTINGS: &str = r#"
    listen = "127.0.0.1:0"
    [store]
    cache = "8MiB"
    [network]
    handshake_timeout_ms = 30000
    idle_timeout_ms = 60000
"#;

fn settings(identity: PathBuf, data: PathBuf) -> Settings {
    let text = format!("identity = {identity:?}\ndata = {data:?}\n{SETTINGS}");
    toml::from_str(&text).unwrap()
}

pub(super) fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: Vec::new() }
}

pub(super) fn name(text: &str) -> FileName {
    FileName::parse(text.as_bytes()).unwrap()
}

impl Node {
    /// Looks for the restarted server, over connections of its own: the old one may not be known to
    /// be lost yet, and a request over it would be.
    pub(super) fn find_again(&mut self, cluster: &Cluster) {
        let target = PeerTarget { addresses: vec![cluster.address()], ..self.peer.target() };
        self.peer = Peer::new(&self.endpoints, target);
    }

    pub(super) async fn ask<R: Request + Sync>(&self, request: &R) -> Result<R::Reply, Failure> {
        self.peer.call(request, CallOptions::control(PATIENCE)).await
    }

    /// What the request is refused with.
    pub(super) async fn refusal<R: Request + Sync>(&self, request: &R) -> ErrorKind {
        match self.ask(request).await {
            Ok(_) => panic!("{} was let through", R::KIND.name()),
            Err(failure) => failure.kind,
        }
    }

    pub(super) async fn open_session(&self, nonce: u64) -> Result<SessionReply, Failure> {
        self.ask(&OpenSession { nonce, host_name: "client".to_owned() }).await
    }

    pub(super) fn operation(&mut self) -> Operation {
        self.sequence += 1;
        let (sequence, lowest_pending) = (self.sequence, self.sequence);
        Operation { session: self.session, sequence, lowest_pending }
    }

    pub(super) fn create(
        &mut self,
        caller: Caller,
        parent: InodeId,
        text: &str,
        node: NewNode,
        mode: u16,
    ) -> Create {
        let operation = self.operation();
        let (open, exclusive) = (false, true);
        Create { caller, operation, parent, name: name(text), node, mode, open, exclusive }
    }

    /// Makes something of root's.
    pub(super) async fn make(
        &mut self,
        parent: InodeId,
        text: &str,
        node: NewNode,
        mode: u16,
    ) -> InodeId {
        let request = self.create(Caller::ROOT, parent, text, node, mode);
        self.ask(&request).await.unwrap().attributes.inode
    }

    pub(super) async fn lookup(&self, parent: InodeId, text: &str) -> Result<InodeReply, Failure> {
        self.ask(&Lookup { caller: Caller::ROOT, parent, name: name(text) }).await
    }

    pub(super) async fn show(&self, inode: InodeId) -> Result<InodeReply, Failure> {
        let session = Some(self.session);
        self.ask(&GetInode { caller: Caller::ROOT, session, inode }).await
    }
}
