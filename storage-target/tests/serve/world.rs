//! One target daemon, a metadata server that only targets talk to, and clients.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_lc_rs::hmac;
use bytes::Bytes;
use millrace_object_source::{Bucket, LinkSpec};
use millrace_protocol::{
    RequestKind,
    capability::{Capability, Content, Origin, Purpose, Rights, Signed},
    cluster::{
        AcknowledgeReclaim, FetchKeys, FetchLinks, FetchMap, FetchReclaim, Group, Heartbeat,
        HeartbeatReply, Host, Keys, Link, LinkMode, Links, Map, Pool, ReclaimBatch, ReclaimEntry,
        RegisterHost, RegisterHostReply, SigningKey, Target,
    },
    codec,
    session::{Done, Role, Ticket},
    storage::{Attach, Place, Read, ReadReply, Write, WriteReply},
};
use millrace_runtime::Shutdown;
use millrace_storage_target::{Running, Settings};
use millrace_transport::{
    Authority, CallOptions, ClientEndpoints, Grant, Identity, IncomingCall, Peer, PeerTarget,
    Server, Service, TransportSettings, identity::write_private,
};
use millrace_types::{
    ChunkIndex, ChunkSize, ClusterId, ContentGeneration, Crc32c, Failure, GroupEpoch, HostId,
    InodeId, KeyId, Layout, LinkId, MapEpoch, PoolId, SessionId, TargetId, Timestamp, WriteEpoch,
    WriteNumber,
};

pub(crate) const SESSION: SessionId = SessionId(11);

const CLUSTER: ClusterId = ClusterId([3; 16]);
const SECRET: [u8; 32] = [42; 32];
const KEY: KeyId = KeyId(5);
/// The metadata server's clock stands still here.
const NOW: Timestamp = Timestamp(1_000_000_000_000);

pub(crate) struct World {
    authority: Authority,
    pub(crate) metadata: Arc<Metadata>,
    metadata_stop: Shutdown,
    settings: Settings,
    running: Option<Running>,
    runtime: tokio::runtime::Handle,
    pub(crate) target: TargetId,
    pub(crate) bucket: tempfile::TempDir,
    dir: tempfile::TempDir,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| String::new()).await
    }

    /// With further tables in the settings, for a directory.
    pub(crate) async fn start_with(tables: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bucket = tempfile::tempdir().unwrap();
        let authority = Authority::create(CLUSTER).unwrap();
        let metadata = Arc::new(Metadata::new(bucket.path()));
        let metadata_stop = Shutdown::new();
        let server = Server::start(
            &identity(&authority, Role::Metadata),
            ([127, 0, 0, 1], 0).into(),
            patient(TransportSettings::metadata()),
            Arc::clone(&metadata) as Arc<dyn Service>,
            &metadata_stop,
        )
        .unwrap();
        let bundle = dir.path().join("identity.pem");
        write_private(&bundle, &bundle_of(&authority, Role::Target)).unwrap();
        let text = format!(
            "listen = \"127.0.0.1:0\"\ndata = {:?}\n[cluster]\nservers = [\"{}\"]\n\
             identity = {:?}\n{}",
            dir.path().join("data"),
            server.local_addr(),
            bundle,
            tables(dir.path()),
        );
        let file = dir.path().join("target.toml");
        std::fs::write(&file, text).unwrap();
        let mut settings: Settings =
            millrace_service::config::load_with(Some(&file), "MILLRACE_", []).unwrap();
        settings.network = patient(settings.network);
        let runtime = tokio::runtime::Handle::current();
        let running = Running::start(settings.clone(), runtime.clone()).await.unwrap();
        let target = metadata.wait_for_target().await;
        Self {
            authority,
            metadata,
            metadata_stop,
            settings,
            running: Some(running),
            runtime,
            target,
            bucket,
            dir,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn restart(&mut self) {
        self.restart_after(|_| ()).await;
        assert_eq!(self.metadata.wait_for_target().await, self.target);
    }

    /// Stops the daemon, does something in its directory, and starts it again.
    pub(crate) async fn restart_after(&mut self, work: impl FnOnce(&Path)) {
        let running = self.running.take().unwrap();
        running.shutdown().begin("test");
        running.until_drained().await.unwrap();
        self.metadata.forget_target();
        work(self.dir.path());
        self.running =
            Some(Running::start(self.settings.clone(), self.runtime.clone()).await.unwrap());
    }

    pub(crate) async fn stop(mut self) {
        let running = self.running.take().unwrap();
        running.shutdown().begin("test");
        running.until_drained().await.unwrap();
        drop(self.metadata_stop.finish(Duration::from_secs(5)).await);
    }

    pub(crate) fn control() -> CallOptions {
        CallOptions::control(Duration::from_secs(60))
    }

    pub(crate) fn bulk() -> CallOptions {
        CallOptions::bulk(Duration::from_secs(60))
    }

    /// A file that somebody writes.
    pub(crate) fn content(&self, inode: u64) -> Content {
        Content {
            inode: InodeId(inode),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(0),
            layout: Layout::new(ChunkSize::DEFAULT, 4, PoolId(0), 4, 1).unwrap(),
            origin: None,
            origin_length: 0,
            sparse: false,
        }
    }

    /// A file that lies in the bucket.
    pub(crate) async fn imported(&self, inode: u64, key: &str) -> Content {
        let version = self.open_bucket().head(key).await.unwrap().version;
        let origin = Origin {
            link: LinkId(1),
            key: key.to_owned(),
            size: version.size,
            tag: version.tag.as_str().to_owned(),
            modified: version.modified,
        };
        Content { origin_length: version.size, origin: Some(origin), ..self.content(inode) }
    }

    pub(crate) fn open_bucket(&self) -> Bucket {
        let url = format!("file://{}", self.bucket.path().display());
        let spec = LinkSpec::new(&url, None, None, None).unwrap();
        Bucket::open(&spec, &millrace_object_source::Settings::default()).unwrap()
    }

    pub(crate) fn place(
        &self,
        content: &Content,
        chunk: u32,
        (offset, len): (usize, usize),
        (session, rights): (SessionId, Rights),
    ) -> Place {
        let capability = Capability { rights, session, content: content.clone() };
        Place {
            target: self.target,
            group_epoch: GroupEpoch(3),
            capability: sign(Purpose::Capability, codec::encode(&capability)),
            chunk: ChunkIndex(chunk),
            offset: u32::try_from(offset).unwrap(),
            len: u32::try_from(len).unwrap(),
        }
    }

    /// A peer of some role that talks to the target; with a session, it shows a ticket.
    pub(crate) fn peer(&self, role: Role, session: Option<(SessionId, u64)>) -> Peer {
        let identity = identity(&self.authority, role);
        let me = identity.peer().clone();
        let endpoints = ClientEndpoints::start(
            identity,
            patient(TransportSettings::default()),
            self.running.as_ref().unwrap().shutdown(),
        )
        .unwrap();
        let address = self.running.as_ref().unwrap().local_addr();
        let target = PeerTarget { role: Role::Target, host: None, addresses: vec![address] };
        let Some((session, number)) = session else { return Peer::new(&endpoints, target) };
        let expires = NOW.plus(Duration::from_secs(3600));
        let ticket = Ticket { session, host: me.host, fingerprint: me.fingerprint, expires };
        let ticket = sign(Purpose::Ticket, codec::encode(&ticket));
        Peer::with_hook(&endpoints, target, move |connected| {
            let attach = Attach { ticket: ticket.clone(), connection_number: number };
            async move { connected.call(&attach, Self::control()).await.map(drop) }
        })
    }

    pub(crate) async fn client(&self, session: SessionId) -> Peer {
        self.attached(session, 1).await.unwrap()
    }

    /// A client whose connection has shown its ticket under `number`.
    pub(crate) async fn attached(&self, session: SessionId, number: u64) -> Result<Peer, Failure> {
        let peer = self.peer(Role::Client, Some((session, number)));
        let sync = millrace_protocol::storage::Sync { target: self.target };
        peer.call(&sync, Self::control()).await?;
        Ok(peer)
    }

    pub(crate) async fn write(
        &self,
        content: &Content,
        chunk: u32,
        offset: usize,
        body: Bytes,
        number: u64,
    ) -> Result<WriteReply, Failure> {
        let place = self.place(content, chunk, (offset, body.len()), (SESSION, Rights::ReadWrite));
        let request = Write {
            place,
            checksum: Crc32c::of(&body),
            number: WriteNumber(number),
            lowest_pending: WriteNumber(1),
            durable: false,
        };
        let client = self.client(SESSION).await;
        client.exchange(&request, body, Self::bulk()).await.map(|(reply, _)| reply)
    }

    pub(crate) async fn read(
        &self,
        content: &Content,
        chunk: u32,
        offset: usize,
        len: usize,
    ) -> Result<(ReadReply, Bytes), Failure> {
        let place = self.place(content, chunk, (offset, len), (SESSION, Rights::Read));
        let client = self.client(SESSION).await;
        let request = Read { place, sequential: true };
        let (reply, body) = client.exchange(&request, Bytes::new(), Self::bulk()).await?;
        Ok((reply, body.into_contiguous()))
    }
}

/// For a busy machine, on which a handshake may take seconds.
fn patient(settings: TransportSettings) -> TransportSettings {
    TransportSettings {
        connect_timeout_ms: 20_000,
        handshake_timeout_ms: 20_000,
        idle_timeout_ms: 30_000,
        ..settings
    }
}

fn sign(purpose: Purpose, body: Bytes) -> Signed {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &SECRET);
    let mac = hmac::sign(&key, &Signed::signed_bytes(purpose, KEY, &body));
    Signed { key: KEY, body: body.to_vec(), mac: mac.as_ref().try_into().unwrap() }
}

fn bundle_of(authority: &Authority, role: Role) -> String {
    let host = HostId([role as u8; 16]);
    authority.issue(&Grant { role, host, subtree: None, squash_root: false }).unwrap()
}

fn identity(authority: &Authority, role: Role) -> Identity {
    Identity::from_pem(&bundle_of(authority, role)).unwrap()
}

/// Answers what targets ask of a metadata server, for one target.
pub(crate) struct Metadata {
    target: tokio::sync::watch::Sender<Option<TargetId>>,
    /// All that have registered with it, in order.
    targets: tokio::sync::watch::Sender<Vec<TargetId>>,
    /// What a daemon has asked for since its start.
    asked: tokio::sync::watch::Sender<Vec<RequestKind>>,
    reclaim: tokio::sync::watch::Sender<Vec<ReclaimEntry>>,
    addresses: Mutex<Vec<String>>,
    url: String,
}

impl Metadata {
    fn new(bucket: &Path) -> Self {
        Self {
            target: tokio::sync::watch::Sender::new(None),
            targets: tokio::sync::watch::Sender::new(Vec::new()),
            asked: tokio::sync::watch::Sender::new(Vec::new()),
            reclaim: tokio::sync::watch::Sender::new(Vec::new()),
            addresses: Mutex::default(),
            url: format!("file://{}", bucket.display()),
        }
    }

    /// Waits until it has registered, and knows what it needs to serve: it asks for the links only
    /// when it has taken keys and map.
    async fn wait_for_target(&self) -> TargetId {
        let needed = [RequestKind::FetchMap, RequestKind::FetchKeys, RequestKind::FetchLinks];
        let mut asked = self.asked.subscribe();
        let all = |asked: &Vec<_>| needed.iter().all(|kind| asked.contains(kind));
        drop(asked.wait_for(all).await.unwrap());
        let mut registered = self.target.subscribe();
        let target = registered.wait_for(Option::is_some).await.unwrap();
        target.expect("waited for")
    }

    fn forget_target(&self) {
        self.target.send_replace(None);
        self.targets.send_replace(Vec::new());
        self.asked.send_replace(Vec::new());
    }

    /// Waits until so many have registered together.
    pub(crate) async fn wait_for_targets(&self, count: usize) -> Vec<TargetId> {
        let mut registered = self.targets.subscribe();
        let targets = registered.wait_for(|targets| targets.len() == count).await.unwrap();
        targets.clone()
    }

    pub(crate) fn reclaim(&self, inode: InodeId, generation: ContentGeneration) {
        let entry = ReclaimEntry { position: 8, inode, generation };
        self.reclaim.send_modify(|entries| entries.push(entry));
    }

    pub(crate) async fn wait_until_reclaimed(&self) {
        let mut queue = self.reclaim.subscribe();
        drop(queue.wait_for(Vec::is_empty).await.unwrap());
    }

    fn news(&self) -> HeartbeatReply {
        HeartbeatReply {
            server_time: NOW,
            lease_ms: 30_000,
            incarnation: 1,
            map_epoch: MapEpoch(2),
            newest_key: KEY,
            links_version: 4,
            reclaim_waiting: !self.reclaim.borrow().is_empty(),
        }
    }

    fn map(&self) -> Map {
        let target = self.target.borrow().unwrap();
        let host = HostId([Role::Target as u8; 16]);
        let addresses = self.addresses.lock().unwrap().clone();
        let group = Group { epoch: GroupEpoch(3), targets: vec![target] };
        Map {
            epoch: MapEpoch(2),
            hosts: vec![Host { id: host, name: "target".to_owned(), addresses }],
            targets: vec![Target { id: target, host }],
            pools: vec![Pool { id: PoolId(0), name: "default".to_owned(), groups: vec![group; 4] }],
        }
    }

    fn links(&self) -> Links {
        let bucket = millrace_protocol::cluster::Bucket {
            url: self.url.clone(),
            endpoint: None,
            region: None,
            credentials: None,
        };
        let link = Link { id: LinkId(1), bucket, mode: LinkMode::ImportExport };
        Links { version: 4, links: vec![link] }
    }
}

#[async_trait::async_trait]
impl Service for Metadata {
    fn allowed_roles(&self) -> &[Role] {
        &[Role::Target]
    }

    fn admits(&self, _: Role, _: RequestKind) -> bool {
        true
    }

    async fn handle(&self, call: IncomingCall) {
        self.asked.send_modify(|asked| asked.push(call.kind()));
        match call.kind() {
            RequestKind::RegisterHost => {
                let request: RegisterHost = call.decode().unwrap();
                *self.addresses.lock().unwrap() = request.addresses;
                let mut targets: Vec<_> = request.targets.iter().map(|target| target.id).collect();
                self.target.send_replace(targets.first().copied());
                targets.sort_unstable();
                self.targets.send_replace(targets);
                call.reply::<RegisterHost>(&RegisterHostReply { news: self.news() }).await;
            }
            RequestKind::Heartbeat => call.reply::<Heartbeat>(&self.news()).await,
            RequestKind::FetchKeys => {
                let keys = vec![SigningKey { id: KEY, secret: SECRET }];
                call.reply::<FetchKeys>(&Keys { keys }).await;
            }
            RequestKind::FetchMap => call.reply::<FetchMap>(&self.map()).await,
            RequestKind::FetchLinks => call.reply::<FetchLinks>(&self.links()).await,
            RequestKind::FetchReclaim => {
                let entries = self.reclaim.borrow().clone();
                call.reply::<FetchReclaim>(&ReclaimBatch { entries }).await;
            }
            RequestKind::AcknowledgeReclaim => {
                let request: AcknowledgeReclaim = call.decode().unwrap();
                self.reclaim.send_modify(|entries| {
                    entries.retain(|entry| entry.position > request.through);
                });
                call.reply::<AcknowledgeReclaim>(&Done::default()).await;
            }
            other => panic!("targets do not ask {}", other.name()),
        }
    }
}
