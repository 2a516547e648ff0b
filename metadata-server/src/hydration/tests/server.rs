//! A server for tests: commands are applied as by the engine, targets answer from memory.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_object_source::{Bucket, Buckets, Settings, Tally};
use millrace_protocol::{
    admin::{AddLink, Job, JobKind, JobState, StartJob, TargetState},
    ahead::FetchAhead,
    capability::{Content, Signed},
    cluster::{self, LinkMode, Map},
    kind::Request,
    metadata::NewNode,
    requests::{CountRequests, CountsReply, RequestCounts},
    session::Caller,
    target::{
        Hydrate, Item, ItemResults, MarkExportedAt, Presence, PresenceReply, Present, Release,
        StoreObject, UploadPart, UploadPartTo,
    },
};
use millrace_types::{
    ByteLen, ClusterId, ErrorKind, Failure, FileName, HostId, InodeId, KeyId, LinkId, SessionId,
    TargetId, Timestamp,
};
use tokio_util::sync::CancellationToken;

use self::troubles::Troubles;
pub(super) use self::troubles::writing;
use crate::{
    apply::FEATURE_LEVEL,
    command::{self, Command, Opener, Outcome},
    hydration::{
        Environment, Hydration,
        import::spec_of,
        walk::{Viewpoint, resolve},
    },
    namespace::{Body, Inode, ObjectState},
    store::{View, memory::MemoryStore},
    targets::map,
    written::Written,
};

mod executing;
mod trials;
mod troubles;
mod uploads;

pub(super) const HOST: HostId = HostId([1; 16]);
pub(super) const FIRST: TargetId = TargetId([1; 8]);
pub(super) const SECOND: TargetId = TargetId([2; 8]);
pub(super) const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new() };
const SESSION: SessionId = SessionId(1);

/// Longer than anything takes that comes to an end, also while other tests have the processors.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// What a target does wrong, in the order of the uploads that it is asked for.
#[derive(Debug)]
pub(super) enum Fault {
    /// It does what it is asked, and its answer is lost.
    LoseAnswer,
    /// It refuses, and nothing happens.
    Fail(ErrorKind),
    /// It takes so long before it does what it is asked.
    Stall(Duration),
    /// Somebody opens and closes this file for writing meanwhile.
    Write(InodeId),
    /// The same, and its answer is lost.
    WriteUnheard(InodeId),
    /// Somebody cuts this file to nothing meanwhile.
    Truncate(InodeId),
    /// Somebody replaces this object meanwhile, before the target does what it is asked.
    Put(PathBuf, &'static [u8]),
    /// It does what it is asked, and this happens before it answers.
    Meanwhile(Box<Command>),
    /// It does what it is asked, this happens, and the directory of the bucket is moved away before
    /// its answer is lost.
    Away(PathBuf, Box<Command>),
    /// It does what it is asked, the bucket keeps one byte of this object, and its answer is lost.
    Cut(PathBuf),
    /// It does what it is asked, and the bucket says that this object has other bytes. It has.
    Damage(PathBuf),
    /// Somebody deletes this object meanwhile, before the target does what it is asked.
    Delete(PathBuf),
}

#[derive(Debug)]
pub(super) struct TestServer {
    store: Mutex<MemoryStore>,
    time: AtomicU64,
    /// Nanoseconds that have passed besides one a command.
    passed: AtomicU64,
    random: AtomicU64,
    ids: AtomicU64,
    buckets: Arc<Buckets>,
    pub(super) files: Mutex<BTreeMap<InodeId, Vec<u8>>>,
    pub(super) faults: Mutex<VecDeque<Fault>>,
    /// Requests for items, by the name of the request.
    pub(super) items: Mutex<Vec<(&'static str, Item)>>,
    pub(super) present: Mutex<BTreeMap<InodeId, u64>>,
    /// Where the last of them ends.
    pub(super) ends: Mutex<BTreeMap<InodeId, u64>>,
    /// Contents whose present names are on stable storage, so that targets may hear of them.
    named: Mutex<BTreeSet<InodeId>>,
    /// Up to when everything is on stable storage.
    pub(super) settled: Mutex<Timestamp>,
    /// Files of which targets say once that they, or their objects, are others by now.
    pub(super) changed: Mutex<BTreeMap<InodeId, ErrorKind>>,
    /// What targets answer when they shall take blocks for the bucket's, one after the other.
    pub(super) marks: Mutex<VecDeque<ErrorKind>>,
    /// The uploads that parts went to of exports to other places.
    pub(super) copied_uploads: Mutex<Vec<String>>,
    /// The uploads that parts went to of exports to the bucket of a link.
    pub(super) uploads: Mutex<Vec<String>>,
    /// Targets do not answer what moves bytes.
    pub(super) silent: AtomicBool,
    /// Targets have no room for what nobody asked for.
    pub(super) full: AtomicBool,
    /// Targets do not say what they asked buckets.
    pub(super) uncounted: AtomicBool,
    pub(super) troubles: Troubles,
    written: Written,
    reports: tempfile::TempDir,
}

/// A server, hydration over it, and the directory that plays the bucket.
pub(super) struct World {
    pub(super) server: Arc<TestServer>,
    pub(super) hydration: Hydration<TestServer>,
    pub(super) bucket_dir: tempfile::TempDir,
    pub(super) bucket: Arc<Bucket>,
}

impl World {
    pub(super) async fn new(mode: LinkMode) -> Self {
        let world = Self::unlinked().await;
        world.link(mode).await.unwrap();
        world
    }

    pub(super) async fn unlinked() -> Self {
        let buckets = Arc::new(Buckets::new(Settings::default()));
        let server = Arc::new(TestServer::new(Arc::clone(&buckets)));
        server.set_up().await;
        let hydration = Hydration::new(Arc::clone(&server), Arc::clone(&buckets));
        let bucket_dir = tempfile::tempdir().unwrap();
        let spec = spec_of(&bucket_of(bucket_dir.path())).unwrap();
        let bucket = buckets.bucket(&spec).unwrap();
        Self { server, hydration, bucket_dir, bucket }
    }

    /// Links `/data` to the bucket.
    pub(super) async fn link(&self, mode: LinkMode) -> Result<LinkId, Failure> {
        self.link_at("/data", mode).await
    }

    pub(super) async fn link_at(&self, path: &str, mode: LinkMode) -> Result<LinkId, Failure> {
        let bucket = bucket_of(self.bucket_dir.path());
        let request = AddLink { path: path.as_bytes().to_vec(), bucket, mode };
        self.hydration.add_link(&request).await.map(|link| link.id)
    }

    /// Puts a file into the bucket behind everybody's back: whole at once, as buckets do, because
    /// listings run meanwhile.
    pub(super) fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.object(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        replace(&path, bytes);
    }

    pub(super) fn object(&self, key: &str) -> PathBuf {
        self.bucket_dir.path().join(key)
    }

    pub(super) async fn find(&self, path: &str) -> Result<Inode, Failure> {
        let importer = &self.hydration.importer;
        resolve(&*self.server, importer, Viewpoint::OPERATOR, path.as_bytes()).await
    }

    pub(super) async fn state(&self, path: &str) -> ObjectState {
        let Body::File(body) = self.find(path).await.unwrap().body else { panic!("a file") };
        body.state
    }

    /// Gives a file a further name.
    pub(super) async fn hard_link(&self, inode: InodeId, directory: &str, name: &str) {
        let parent = self.find(directory).await.unwrap().id;
        let name = FileName::parse(name.as_bytes()).unwrap();
        let link = command::MakeLink { caller: ROOT, inode, parent, name };
        self.server.execute(Command::MakeLink(link), false).await.unwrap();
    }

    /// Makes a file, or opens an existing one, and gives it this content.
    pub(super) async fn write(&self, path: &str, bytes: &[u8]) -> InodeId {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let parent = self.find(directory).await.unwrap().id;
        let name = FileName::parse(name.as_bytes()).unwrap();
        self.hydration.before_lookup(parent, &name).await.unwrap();
        let create = command::Create {
            caller: ROOT,
            parent,
            name,
            node: NewNode::Regular,
            mode: 0o640,
            inode: self.server.next_id(),
            seed: 7,
            open: Some(SESSION),
            exclusive: false,
        };
        let outcome = self.server.execute(Command::Create(create), false).await.unwrap();
        let Outcome::Inode(inode) = outcome else { panic!("an inode") };
        self.server.commit(inode, bytes.len() as u64).await;
        self.server.files.lock().unwrap().insert(inode, bytes.to_vec());
        inode
    }

    pub(super) async fn make_directory(&self, path: &str) -> InodeId {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let parent = self.find(directory).await.unwrap().id;
        let create = command::Create {
            caller: ROOT,
            parent,
            name: FileName::parse(name.as_bytes()).unwrap(),
            node: NewNode::Directory,
            mode: 0o755,
            inode: self.server.next_id(),
            seed: 0,
            open: None,
            exclusive: true,
        };
        let outcome = self.server.execute(Command::Create(create), false).await.unwrap();
        let Outcome::Inode(inode) = outcome else { panic!("an inode") };
        inode
    }

    /// Runs a job to its end.
    pub(super) async fn job(&self, kind: JobKind, path: &str) -> Job {
        let request = StartJob { caller: ROOT, kind, path: path.as_bytes().to_vec() };
        let id = self.hydration.start_job(b"", &request).await.unwrap().id;
        self.run_until(|job| job.id == id && job.state.is_final()).await
    }

    /// Runs the queue until a job is as wanted.
    pub(super) async fn run_until(&self, wanted: impl Fn(&Job) -> bool) -> Job {
        let found = self.run_beside(async {
            loop {
                let jobs = self.hydration.list_jobs().await.unwrap();
                if let Some(job) = jobs.into_iter().find(|job| wanted(job)) {
                    return job;
                }
                tokio::task::yield_now().await;
            }
        });
        found.await
    }

    /// Runs everything that goes by itself until `work` is done.
    pub(super) async fn run_beside<T>(&self, work: impl Future<Output = T>) -> T {
        Box::pin(self.run_for(LIMIT, work)).await
    }

    /// The same of what may take that long.
    pub(super) async fn run_for<T>(&self, limit: Duration, work: impl Future<Output = T>) -> T {
        let stop = CancellationToken::new();
        let watch = async {
            let result = work.await;
            stop.cancel();
            result
        };
        let all = Box::pin(self.hydration.run(stop.clone()));
        match tokio::time::timeout(limit, async { tokio::join!(all, watch).1 }).await {
            Ok(result) => result,
            Err(_) => panic!("it does not end: {:?}", self.hydration.list_auto_exports().await),
        }
    }

    /// The same server after a restart: what was in memory is gone.
    pub(super) fn restart(&mut self) {
        let buckets = Arc::clone(&self.server.buckets);
        self.hydration = Hydration::new(Arc::clone(&self.server), buckets);
    }

    pub(super) async fn export(&self, path: &str) {
        let job = self.job(JobKind::Export, path).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    }
}

/// Counts for a job what a target would ask.
fn note_get(moved: u64) {
    if let Some(tally) = Tally::present().filter(|_| moved > 0) {
        tally.counters().merge([0, 0, 1, 0, 0, 0, 0], 0, (moved, 0));
    }
}

fn replace(object: &Path, bytes: &[u8]) {
    let whole = tempfile::NamedTempFile::new().unwrap();
    fs::write(&whole, bytes).unwrap();
    whole.persist(object).unwrap();
}

pub(super) fn bucket_of(path: &Path) -> cluster::Bucket {
    cluster::Bucket {
        url: format!("file://{}", path.display()),
        endpoint: None,
        region: None,
        credentials: None,
    }
}

impl TestServer {
    fn new(buckets: Arc<Buckets>) -> Self {
        Self {
            store: Mutex::default(),
            time: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            random: AtomicU64::new(0),
            ids: AtomicU64::new(2),
            buckets,
            files: Mutex::default(),
            faults: Mutex::default(),
            items: Mutex::default(),
            present: Mutex::default(),
            ends: Mutex::default(),
            named: Mutex::default(),
            settled: Mutex::default(),
            changed: Mutex::default(),
            marks: Mutex::default(),
            copied_uploads: Mutex::default(),
            uploads: Mutex::default(),
            silent: AtomicBool::new(false),
            full: AtomicBool::new(false),
            uncounted: AtomicBool::new(false),
            troubles: Troubles::default(),
            written: Written::default(),
            reports: tempfile::tempdir().unwrap(),
        }
    }

    async fn set_up(&self) {
        let format = command::Format { uid: 0, gid: 0, mode: 0o755 };
        self.execute(Command::Format(format), true).await.unwrap();
        self.execute(Command::SetFeatureLevel(FEATURE_LEVEL), true).await.unwrap();
        self.execute(Command::ReserveIds(InodeId(1 << 20)), true).await.unwrap();
        let register = command::RegisterHost {
            host: HOST,
            name: "storage1".to_owned(),
            addresses: Vec::new(),
            targets: vec![(FIRST, ByteLen(1 << 40)), (SECOND, ByteLen(1 << 40))],
        };
        self.execute(Command::RegisterHost(register), true).await.unwrap();
        let open = command::OpenSession { host: HOST, host_name: "client".to_owned(), nonce: 1 };
        let opened = self.execute(Command::OpenSession(open), true).await.unwrap();
        assert_eq!(opened, Outcome::Session(SESSION));
    }

    /// Lets time pass.
    pub(super) fn pass(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap();
        self.passed.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn moment(&self, commands: u64) -> Timestamp {
        let passed = self.passed.load(Ordering::Relaxed);
        Timestamp(i64::try_from(commands + passed).unwrap())
    }

    /// Commands so far.
    pub(super) fn commands(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    fn next_id(&self) -> InodeId {
        InodeId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// Closes a file that was opened for writing, with a new size.
    pub(super) async fn commit(&self, inode: InodeId, end: u64) {
        let set = command::SetAttributes { inode, size: Some(end), ..Default::default() };
        self.execute(Command::SetAttributes(set), false).await.unwrap();
        let opener = Opener { session: SESSION, inode };
        self.execute(Command::CloseWrite(opener), false).await.unwrap();
    }

    pub(super) async fn open_write(&self, inode: InodeId) {
        let opener = Opener { session: SESSION, inode };
        let open = command::OpenWrite { caller: None, opener, truncate: false };
        self.execute(Command::OpenWrite(open), false).await.unwrap();
    }

    pub(super) fn reports_dir(&self) -> &Path {
        self.reports.path()
    }

    pub(super) fn items_of(&self, request: &str) -> Vec<Item> {
        let items = self.items.lock().unwrap();
        items.iter().filter(|(name, _)| *name == request).map(|(_, item)| item.clone()).collect()
    }

    async fn serve(&self, request: Box<dyn Any + Send>) -> Result<Box<dyn Any + Send>, Failure> {
        let request = match self.trial(request).await {
            Ok(answer) => return answer,
            Err(request) => request,
        };
        let request = match request.downcast::<CountRequests>() {
            Ok(_) if self.uncounted.load(Ordering::Relaxed) => {
                return Err(ErrorKind::Unavailable.into());
            }
            Ok(count) => {
                let one = RequestCounts::new([10, 20, 40, 0, 0, 0, 0], 1, 5, 0);
                return Ok(Box::new(CountsReply { counts: vec![one; count.buckets.len()] }));
            }
            Err(request) => request,
        };
        let into_a_link = |store: &StoreObject| store.bucket.is_none();
        let moves = request.is::<Hydrate>()
            || request.downcast_ref::<StoreObject>().is_some_and(into_a_link)
            || request.is::<UploadPart>()
            || request.is::<UploadPartTo>();
        while moves && self.silent.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let request = match self.upload(request).await {
            Ok(answer) => return answer,
            Err(request) => request,
        };
        let request = match request.downcast::<Presence>() {
            Ok(presence) => return Ok(Box::new(self.presence(&presence)?)),
            Err(request) => request,
        };
        let request = match request.downcast::<FetchAhead>() {
            Ok(ahead) => return Ok(Box::new(self.fetch_ahead(ahead.items))),
            Err(request) => request,
        };
        if request.is::<Release>() && self.meanwhile(&self.troubles.instead_of_release).await {
            return Err(ErrorKind::Busy.into());
        }
        let items = match request.downcast::<Hydrate>() {
            Ok(hydrate) => ("hydrate", hydrate.items),
            Err(request) => match request.downcast::<Release>() {
                Ok(release) => ("release", release.items),
                Err(request) => {
                    ("mark", request.downcast::<MarkExportedAt>().expect("no other request").items)
                }
            },
        };
        self.check_named(&items.1);
        let results = items.1.iter().map(|item| {
            let fault = match items.0 {
                "mark" => self.marks.lock().unwrap().pop_front(),
                _ => self.changed.lock().unwrap().remove(&item.content.inode),
            };
            let away = items.0 == "hydrate"
                && !self.present.lock().unwrap().contains_key(&item.content.inode);
            let moved = if away { item.content.origin_length } else { 0 };
            note_get(moved);
            fault.map_or(Ok(ByteLen(moved)), |kind| Err(kind.into()))
        });
        let results = results.collect();
        let named = items.1.into_iter().map(|item| (items.0, item));
        self.items.lock().unwrap().extend(named);
        Ok(Box::new(ItemResults { results }))
    }

    fn check_named(&self, items: &[Item]) {
        for item in items {
            let inode = item.content.inode;
            assert!(self.named.lock().unwrap().contains(&inode), "{inode} was not named for good");
        }
    }

    fn fetch_ahead(&self, items: Vec<Item>) -> ItemResults {
        self.check_named(&items);
        let full = self.full.load(Ordering::Relaxed);
        let result = |item: &Item| match full {
            true => Err(ErrorKind::NoSpace.into()),
            false => Ok(ByteLen(item.content.origin_length)),
        };
        let results = items.iter().map(result).collect();
        self.items.lock().unwrap().extend(items.into_iter().map(|item| ("ahead", item)));
        ItemResults { results }
    }

    fn presence(&self, presence: &Presence) -> Result<PresenceReply, Failure> {
        self.troubles.check_known(presence.target)?;
        let known = self.present.lock().unwrap();
        let ends = self.ends.lock().unwrap();
        let present = presence.contents.iter().map(|name| {
            // All that is present lies where the file begins.
            let first = self.begins_on(name.inode) == Some(presence.target);
            let clean = known.get(&name.inode).copied().filter(|_| first).unwrap_or(0);
            let end = ends.get(&name.inode).copied().filter(|_| first).unwrap_or(0);
            Present { clean: ByteLen(clean), end, ..Present::default() }
        });
        Ok(PresenceReply { present: present.collect() })
    }
}

impl Environment for TestServer {
    async fn execute(&self, command: Command, synced: bool) -> Result<Outcome, Failure> {
        self.execute_now(command, synced)
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn View) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.troubles.take_time().await;
        query(&*self.store.lock().unwrap())
    }

    async fn settled(&self) -> Result<(), Failure> {
        *self.settled.lock().unwrap() = self.now();
        Ok(())
    }

    async fn reserve_inodes(&self, count: usize) -> Result<Vec<InodeId>, Failure> {
        Ok((0..count).map(|_| self.next_id()).collect())
    }

    async fn named(&self, inodes: Vec<InodeId>) -> Result<(), Failure> {
        self.meanwhile(&self.troubles.before_named).await;
        self.named.lock().unwrap().extend(inodes);
        Ok(())
    }

    async fn sign_read(&self, _content: Content) -> Result<Signed, Failure> {
        Ok(Signed { key: KeyId(1), body: Vec::new(), mac: [0; 32] })
    }

    fn cluster(&self) -> ClusterId {
        ClusterId([9; 16])
    }

    fn is_pressed(&self) -> bool {
        *self.troubles.pressed.borrow()
    }

    async fn give_way(&self) {
        self.troubles.give_way().await;
    }

    fn written(&self) -> &Written {
        &self.written
    }

    async fn map(&self) -> Result<Map, Failure> {
        self.read(|view| Ok(map::read(view).unwrap())).await
    }

    async fn standing(&self) -> Result<BTreeMap<TargetId, TargetState>, Failure> {
        Ok(self.troubles.standing.lock().unwrap().clone())
    }

    async fn ask<R: Request + Send + Sync + 'static>(
        &self,
        host: HostId,
        request: R,
        _timeout: Duration,
    ) -> Result<R::Reply, Failure> {
        assert_eq!(host, HOST);
        let reply = self.serve(Box::new(request)).await?;
        Ok(*reply.downcast::<R::Reply>().expect("each request has its reply"))
    }

    fn reports(&self) -> &Path {
        self.reports.path()
    }

    fn reports_keep_free(&self) -> u64 {
        self.troubles.reports_keep_free.load(Ordering::Relaxed)
    }

    fn now(&self) -> Timestamp {
        self.moment(self.time.load(Ordering::Relaxed))
    }

    fn random(&self) -> u64 {
        self.random.fetch_add(1, Ordering::Relaxed)
    }
}
