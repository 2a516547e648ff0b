//! Answers requests: each becomes turns of the engine, and what must happen between them.
//!
//! Runs on the transport's thread, so nothing here blocks. Buckets and targets are asked from tasks
//! of the daemon's own runtime, which go on when the caller gives up.
//!
//! Modules: `roles` (who may send what), `environment` (what hydration gets from the server), and
//! one for each kind of requests that needs more than a turn.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use millrace_protocol::{
    Request, RequestKind, admin, ahead, bucket, cluster, file_list, job_detail, job_options,
    left_out, metadata, refresh, requests, selection,
    session::{self, Role},
    unused,
};
use millrace_runtime::Shutdown;
use millrace_transport::{IncomingCall, Service};
use millrace_types::{ErrorKind, Failure, LogIndex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    engine::{Core, Handle},
    hydration::{Hydration, Listing},
    metrics::ServerMetrics,
    ops::{self, Client, Need, Step},
    reconcile::Reconciliation,
    targets::{losses::Losses, spills::Spills, trims::Trims, upkeep::Upkeep},
};
use recalls::given_back;

mod backup;
pub mod environment;
mod fsck;
mod hydrate;
mod jobs;
mod locks;
mod recalls;
mod roles;
mod upkeep;

pub use environment::ServerEnvironment;

/// The service behind the listening socket.
#[derive(Debug)]
pub struct MetadataService {
    engine: Handle,
    hydration: Hydration<ServerEnvironment>,
    trims: Trims,
    spills: Spills,
    upkeep: Upkeep,
    losses: Losses,
    reconciliation: Reconciliation,
    /// Where work runs that goes on when its caller gives up.
    background: tokio::runtime::Handle,
    /// Bounds that work.
    rooms: Arc<Semaphore>,
    metrics: ServerMetrics,
    backups: backup::Backups,
    /// Ends what would otherwise wait while the server drains.
    shutdown: Shutdown,
}

/// What works beside the requests, and is asked by some of them.
#[derive(Debug)]
pub struct Workers {
    /// Buckets and jobs.
    pub hydration: Hydration<ServerEnvironment>,
    /// Chunks behind a file's new end.
    pub trims: Trims,
    /// What targets take over from inodes.
    pub spills: Spills,
    /// Targets' health.
    pub upkeep: Upkeep,
    /// Targets that will not come back.
    pub losses: Losses,
    /// Checks of the targets against the namespace.
    pub reconciliation: Reconciliation,
}

/// When a reply may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// Once the record is in the kernel.
    Written,
    /// Once the record is on stable storage: others act on it.
    Synced,
}

/// One operation of [`crate::ops`].
type Operation<R> = fn(&mut Core, &Client, &R) -> Result<Step<<R as Request>::Reply>, Failure>;

/// How often one request may need something before it goes on. Each is settled once; more means
/// that others change the same names all the time.
const NEEDS_MAX: usize = 16;

/// How long an operation waits for a bucket in one attempt. A client that hears then that nothing
/// was executed gives it a new number, so that those that overtake it are not held up: see
/// [`session::Operation::SPAN_MAX`].
const BUCKET_WAIT_MAX: Duration = Duration::from_secs(10);

/// Requests that wait for buckets and targets at the same time, with those whose callers gave up:
/// as many as wait for the engine. Each holds a few KiB.
const BACKGROUND_MAX: usize = 4096;

/// Reads something that others act on, with the log index that must be synced before the answer.
type SyncedRead<R> =
    fn(&mut Core, &Client, &R) -> Result<(<R as Request>::Reply, LogIndex), Failure>;

impl MetadataService {
    /// A service over a running engine.
    #[must_use]
    pub fn new(
        engine: Handle,
        workers: Workers,
        background: tokio::runtime::Handle,
        metrics: ServerMetrics,
        shutdown: Shutdown,
    ) -> Self {
        let rooms = Arc::new(Semaphore::new(BACKGROUND_MAX));
        let Workers { hydration, trims, spills, upkeep, losses, reconciliation } = workers;
        let backups = backup::Backups::default();
        Self {
            engine,
            hydration,
            trims,
            spills,
            upkeep,
            losses,
            reconciliation,
            background,
            rooms,
            metrics,
            backups,
            shutdown,
        }
    }

    /// Runs an operation until it is done, and answers.
    async fn run<R>(&self, call: IncomingCall, durability: Durability, operation: Operation<R>)
    where
        R: Request + Sync,
    {
        let result = match call.decode::<R>() {
            Ok(request) => {
                let client = client(&call);
                self.execute(client, Arc::new(request), durability, operation).await
            }
            Err(failure) => Err(failure),
        };
        respond::<R>(call, result).await;
    }

    async fn execute<R>(
        &self,
        mut client: Client,
        request: Arc<R>,
        durability: Durability,
        operation: Operation<R>,
    ) -> Result<R::Reply, Failure>
    where
        R: Request + Sync,
    {
        // Held until it is executed: nothing is granted meanwhile of what was taken back.
        let (mut executed, mut recalled) = (false, Vec::new());
        for _ in 0..NEEDS_MAX {
            let (of_turn, caller) = (Arc::clone(&request), client.clone());
            let waited = recalled.clone();
            let work = move |core: &mut Core| {
                let step = core.attempt(waited, |core| operation(core, &caller, &of_turn));
                Ok((step, core.take_answer_waits()))
            };
            let (step, waits) = match durability {
                Durability::Written => self.engine.turn(work).await?,
                Durability::Synced => self.engine.durable_turn(work).await?,
            };
            if matches!(step, Ok(Step::Done(_)) | Err(_)) && !waits.is_empty() {
                let began = Instant::now();
                let heard = recalls::heard(waits).await;
                self.metrics.handle_recall(began.elapsed());
                heard?;
            }
            match step? {
                Step::Done(reply) => return Ok(reply),
                Step::Need(Need::Recall(wait)) => {
                    let began = Instant::now();
                    let ended = given_back(&wait).await;
                    self.metrics.handle_recall(began.elapsed());
                    ended?;
                    recalled.push(wait);
                }
                Step::Need(Need::Heard(wait)) => {
                    executed = true;
                    given_back(&wait)
                        .await
                        .map_err(|failure| Failure { kind: ErrorKind::Unavailable, ..failure })?;
                }
                Step::Need(need) => {
                    self.settle(need.clone(), 0).await?;
                    if matches!(need, Need::Spill { .. }) {
                        continue;
                    }
                    if matches!(need, Need::Trim(_)) {
                        executed = true;
                    } else {
                        client.settled.push(need);
                    }
                }
            }
        }
        // Only who was certainly not executed is told that the server is busy.
        Err(if executed { ErrorKind::Unavailable } else { ErrorKind::Busy }.into())
    }

    /// Has something happen that an operation needs. Goes on in the background when the caller
    /// gives up.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when a bucket keeps the operation, which is not executed yet, waiting
    /// for [`BUCKET_WAIT_MAX`]; those of the bucket and the targets.
    async fn settle(&self, need: Need, cookie: u64) -> Result<(), Failure> {
        if let Need::Told(waits) = &need {
            recalls::told(waits).await;
            return Ok(());
        }
        let waits = matches!(need, Need::Trim(_) | Need::Spill { .. });
        let listing = matches!(need, Need::Listing(_));
        let is_executed = matches!(need, Need::Trim(_));
        let room = self.room().map_err(|failure| match is_executed {
            // The operation may have been executed.
            true => Failure { kind: ErrorKind::Unavailable, ..failure },
            false => failure,
        })?;
        let (hydration, trims) = (self.hydration.clone(), self.trims.clone());
        let spills = self.spills.clone();
        let work = async move {
            let _room = room;
            match need {
                Need::Name { directory, name } => hydration.before_lookup(directory, &name).await,
                Need::Listing(directory) => match hydration.before_list(directory, cookie).await? {
                    Listing::Growing(_) | Listing::Complete(_) => Ok(()),
                    Listing::Failed(failure) => Err(failure),
                },
                Need::Fresh { directory, name } => {
                    hydration.refresh(directory, name.as_ref()).await;
                    Ok(())
                }
                Need::Trim(inode) => trims.settle(inode).await,
                Need::Spill { inode, by } => spills.settle(inode, by).await,
                Need::Recall(wait) | Need::Heard(wait) => given_back(&wait).await,
                Need::Told(waits) => {
                    recalls::told(&waits).await;
                    Ok(())
                }
            }
        };
        let mut task = self.background.spawn(work);
        let ended = if waits {
            task.await
        } else {
            let Ok(ended) = tokio::time::timeout(BUCKET_WAIT_MAX, &mut task).await else {
                if listing {
                    // The listing itself goes on: this only waited for it.
                    task.abort();
                }
                let text = "the bucket has not answered yet; it goes on being asked";
                return Err(Failure::new(ErrorKind::Busy, text));
            };
            ended
        };
        ended.unwrap_or_else(|error| {
            Err(Failure::new(ErrorKind::Internal, format!("background work failed: {error}")))
        })
    }

    /// A place for work in the background.
    fn room(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.rooms).try_acquire_owned().map_err(|_| {
            Failure::new(ErrorKind::Busy, "too many requests wait for buckets and targets")
        })
    }

    /// Lists a page: of a linked directory that is being listed, what there is already.
    async fn read_directory(&self, call: IncomingCall) {
        let result = match call.decode::<metadata::ReadDirectory>() {
            Ok(request) => self.directory_page(client(&call), Arc::new(request)).await,
            Err(failure) => Err(failure),
        };
        respond::<metadata::ReadDirectory>(call, result).await;
    }

    async fn directory_page(
        &self,
        mut client: Client,
        request: Arc<metadata::ReadDirectory>,
    ) -> Result<metadata::DirectoryPage, Failure> {
        for _ in 0..NEEDS_MAX {
            let (of_turn, caller) = (Arc::clone(&request), client.clone());
            let step =
                self.engine.turn(move |core| ops::directory::read(core, &caller, &of_turn)).await?;
            match step {
                // An empty page that is not the last would look like an end to a careless reader.
                Step::Done(page) if page.entries.is_empty() && !page.last => {
                    client.settled.clear();
                }
                Step::Done(page) => return Ok(page),
                Step::Need(need) => {
                    self.settle(need.clone(), request.cookie).await?;
                    client.settled.push(need);
                }
            }
        }
        Err(ErrorKind::Busy.into())
    }

    /// A commit that is an fsync waits for the sync.
    async fn commit(&self, call: IncomingCall) {
        let result = match call.decode::<metadata::Commit>() {
            Ok(request) => {
                let durability =
                    if request.durable { Durability::Synced } else { Durability::Written };
                let request = Arc::new(request);
                self.execute(client(&call), request, durability, ops::commit::commit).await
            }
            Err(failure) => Err(failure),
        };
        respond::<metadata::Commit>(call, result).await;
    }

    /// fsync of a directory, sync(2): everything acknowledged so far.
    async fn sync(&self, call: IncomingCall) {
        let result = async {
            call.decode::<metadata::SyncMetadata>()?;
            // Everything written here is at least what the caller has seen.
            let index = self.engine.log_state().written;
            self.engine.synced(index).await?;
            Ok(session::Done { index })
        };
        let result = result.await;
        respond::<metadata::SyncMetadata>(call, result).await;
    }

    /// Answers with something that others act on, once it is synced.
    async fn run_synced<R>(&self, call: IncomingCall, read: SyncedRead<R>)
    where
        R: Request + Sync,
    {
        let result = async {
            let request = call.decode::<R>()?;
            let client = client(&call);
            let (reply, index) =
                self.engine.turn(move |core| read(core, &client, &request)).await?;
            self.engine.synced(index).await?;
            Ok(reply)
        };
        let result = result.await;
        respond::<R>(call, result).await;
    }

    async fn dispatch(&self, call: IncomingCall) {
        use Durability::{Synced, Written};
        match call.kind() {
            RequestKind::Hello => self.run(call, Written, ops::session::hello).await,
            RequestKind::OpenSession => self.run(call, Synced, ops::session::open).await,
            RequestKind::RenewTicket => self.run(call, Written, ops::session::renew).await,
            RequestKind::CloseSession => self.run(call, Synced, ops::session::close).await,
            RequestKind::RegisterHost => self.run(call, Synced, ops::cluster::register).await,
            RequestKind::Heartbeat => self.run(call, Written, ops::cluster::heartbeat).await,
            RequestKind::FetchMap => self.run_synced(call, ops::cluster::map).await,
            RequestKind::FetchKeys => self.run(call, Written, ops::cluster::signing_keys).await,
            RequestKind::FetchLinks => self.run_synced(call, ops::cluster::links).await,
            RequestKind::FetchReclaim => self.run(call, Written, ops::cluster::reclaim).await,
            RequestKind::AcknowledgeReclaim => {
                self.run(call, Written, ops::cluster::acknowledge_reclaim).await;
            }
            RequestKind::CompareLog => self.run(call, Synced, ops::fsck::compare_log).await,
            RequestKind::AskRelease => self.run(call, Written, ops::release::ask).await,
            RequestKind::ReportChanged => self.hydrate::<cluster::ReportChanged>(call).await,
            RequestKind::ReportMisses => self.hydrate::<ahead::ReportMisses>(call).await,
            RequestKind::ReadDirectory => self.read_directory(call).await,
            RequestKind::Commit => self.commit(call).await,
            RequestKind::SyncMetadata => self.sync(call).await,
            _ => self.dispatch_names(call).await,
        }
    }

    async fn dispatch_names(&self, call: IncomingCall) {
        use Durability::Written;
        match call.kind() {
            RequestKind::Lookup => self.run(call, Written, ops::lookup::lookup).await,
            RequestKind::GetInode => self.run(call, Written, ops::lookup::inode).await,
            RequestKind::Create => self.run(call, Written, ops::create::create).await,
            RequestKind::CreateMasked => {
                self.run(call, Written, ops::create::create_masked).await;
            }
            RequestKind::CreateUnnamed => {
                self.run(call, Written, ops::create::create_unnamed).await;
            }
            RequestKind::MakeLink => self.run(call, Written, ops::create::make_link).await,
            RequestKind::Remove => self.run(call, Written, ops::remove::remove).await,
            RequestKind::Rename => self.run(call, Written, ops::rename::rename).await,
            RequestKind::SetAttributes => self.run(call, Written, ops::set_attributes::set).await,
            RequestKind::Open => self.run(call, Written, ops::open::open).await,
            RequestKind::Close => self.run(call, Written, ops::open::close).await,
            RequestKind::CloseFiles => self.run(call, Written, ops::open::close_files).await,
            RequestKind::CloseUnwritten => {
                self.run(call, Written, ops::open::close_unwritten).await
            }
            RequestKind::GetXattr => self.run(call, Written, ops::xattr::get).await,
            RequestKind::ListXattrs => self.run(call, Written, ops::xattr::list).await,
            RequestKind::SetXattr => self.run(call, Written, ops::xattr::set).await,
            RequestKind::RemoveXattr => self.run(call, Written, ops::xattr::remove).await,
            RequestKind::FileSystemUse => self.run(call, Written, ops::statfs::read).await,
            RequestKind::TestLock
            | RequestKind::SetLock
            | RequestKind::CancelLock
            | RequestKind::AwaitLocks
            | RequestKind::AwaitAppends
            | RequestKind::Declare => self.locks(call).await,
            RequestKind::FindName => self.run(call, Written, ops::lease::find).await,
            RequestKind::ShowInode => self.run(call, Written, ops::lease::show).await,
            RequestKind::ShowContents => self.run(call, Written, ops::contents::show).await,
            RequestKind::MakeName => self.run(call, Written, ops::kept_change::make).await,
            RequestKind::RemoveName => self.run(call, Written, ops::kept_change::remove).await,
            RequestKind::Delegate => self.run(call, Written, ops::delegation::delegate).await,
            RequestKind::PublishFiles => self.run(call, Written, ops::delegation::publish).await,
            RequestKind::DeclareDelegations => {
                self.run(call, Written, ops::delegation::declare).await;
            }
            RequestKind::NoteReads => self.run(call, Written, ops::access::note).await,
            RequestKind::ListEntries => self.list_entries(call).await,
            RequestKind::AwaitRecalls => self.await_recalls(call).await,
            RequestKind::AwaitNews => self.await_news(call).await,
            _ => self.dispatch_admin(call).await,
        }
    }

    async fn dispatch_admin(&self, call: IncomingCall) {
        use Durability::{Synced, Written};
        match call.kind() {
            RequestKind::ClusterStatus => self.run(call, Written, ops::admin::status).await,
            RequestKind::ShowLayout => self.run(call, Written, ops::admin::show_layout).await,
            RequestKind::SetLayout => self.run(call, Synced, ops::admin::set_layout).await,
            RequestKind::SetPin => self.run(call, Synced, ops::release::set_pin).await,
            RequestKind::ListPins => self.run(call, Written, ops::release::pins).await,
            RequestKind::ListConflicts => self.run(call, Written, ops::conflicts::list).await,
            RequestKind::ListJobs => self.run(call, Written, ops::job::list).await,
            RequestKind::ShowJob => self.run(call, Written, ops::job::show).await,
            RequestKind::StartJob => self.start::<admin::StartJob>(call).await,
            RequestKind::CancelJob => self.cancel_job(call).await,
            RequestKind::StartSelected => self.start::<selection::StartSelected>(call).await,
            RequestKind::StartWithOptions => {
                self.start::<job_options::StartWithOptions>(call).await
            }
            RequestKind::ShowJobOptions => {
                self.about_job::<job_options::ShowJobOptions>(call).await
            }
            RequestKind::FetchReport => self.about_job::<job_options::FetchReport>(call).await,
            RequestKind::PutReport => self.about_job::<job_options::PutReport>(call).await,
            RequestKind::AwaitJob => self.await_job(call).await,
            RequestKind::StartUnused => self.start::<unused::StartUnused>(call).await,
            RequestKind::ShowUnused => self.about_job::<unused::ShowUnused>(call).await,
            RequestKind::ShowJobDetail => self.about_job::<job_detail::ShowJobDetail>(call).await,
            RequestKind::AppendFiles => self.hydrate::<file_list::AppendFiles>(call).await,
            RequestKind::RetryJob => self.retry_job(call).await,
            RequestKind::ShowSelection => self.about_job::<selection::ShowSelection>(call).await,
            RequestKind::ShowFile => self.hydrate::<bucket::ShowFile>(call).await,
            RequestKind::ShowState => self.hydrate::<admin::ShowState>(call).await,
            RequestKind::ResolveConflict => self.hydrate::<admin::ResolveConflict>(call).await,
            RequestKind::ListTargets
            | RequestKind::ShowTarget
            | RequestKind::ScrubTargets
            | RequestKind::CheckDrain
            | RequestKind::LookLoss
            | RequestKind::LoseTarget => self.dispatch_upkeep(call).await,
            RequestKind::StartFsck
            | RequestKind::ShowFsck
            | RequestKind::CancelFsck
            | RequestKind::TrustNamespace
            | RequestKind::StartRepair
            | RequestKind::ShowNamespace => self.fsck(call).await,
            RequestKind::PrepareBackup => self.prepare_backup(call).await,
            RequestKind::ReadBackup => self.read_backup(call).await,
            _ => self.dispatch_link(call).await,
        }
    }

    async fn dispatch_link(&self, call: IncomingCall) {
        match call.kind() {
            RequestKind::CheckLink => self.hydrate::<bucket::CheckLink>(call).await,
            RequestKind::SetAutoExport => self.hydrate::<bucket::SetAutoExport>(call).await,
            RequestKind::ListAutoExports => self.hydrate::<bucket::ListAutoExports>(call).await,
            RequestKind::SetDeletePropagation => {
                self.hydrate::<bucket::SetDeletePropagation>(call).await;
            }
            RequestKind::ListDeletePropagation => {
                self.hydrate::<bucket::ListDeletePropagation>(call).await;
            }
            RequestKind::ListUploads => self.hydrate::<bucket::ListUploads>(call).await,
            RequestKind::SetFetchPolicy => self.hydrate::<ahead::SetFetchPolicy>(call).await,
            RequestKind::ListFetchPolicies => {
                self.hydrate::<ahead::ListFetchPolicies>(call).await;
            }
            RequestKind::ShowLeftOut => self.hydrate::<left_out::ShowLeftOut>(call).await,
            RequestKind::SetRefreshInterval => {
                self.hydrate::<refresh::SetRefreshInterval>(call).await;
            }
            RequestKind::ListRefreshIntervals => {
                self.hydrate::<refresh::ListRefreshIntervals>(call).await;
            }
            RequestKind::ListLinks => self.run(call, Durability::Written, ops::admin::links).await,
            RequestKind::AddLink => self.hydrate::<admin::AddLink>(call).await,
            RequestKind::RemoveLink => self.hydrate::<admin::RemoveLink>(call).await,
            RequestKind::SetLinkOptions => self.hydrate::<admin::SetLinkOptions>(call).await,
            RequestKind::ListLinkOptions => self.hydrate::<admin::ListLinkOptions>(call).await,
            RequestKind::ListRequests => self.hydrate::<requests::ListRequests>(call).await,
            other => {
                // `admits` lets nothing else in.
                let text = format!("{} is no request to a metadata server", other.name());
                call.fail(Failure::new(ErrorKind::NotSupported, text)).await;
            }
        }
    }
}

#[async_trait]
impl Service for MetadataService {
    fn allowed_roles(&self) -> &[Role] {
        &[Role::Target, Role::Client, Role::Admin]
    }

    fn admits(&self, role: Role, kind: RequestKind) -> bool {
        roles::admits(role, kind)
    }

    async fn handle(&self, call: IncomingCall) {
        let _running = self.metrics.begin(call.kind());
        let cancelled = call.cancelled().clone();
        tokio::select! {
            () = self.dispatch(call) => {}
            // Nobody waits any more; a turn that was sent runs all the same.
            () = cancelled.cancelled() => {}
        }
    }
}

/// Who asks, as the certificate of its connection says.
fn client(call: &IncomingCall) -> Client {
    let peer = call.peer();
    Client {
        role: peer.role,
        host: peer.host,
        fingerprint: peer.fingerprint,
        subtree: peer.subtree.clone(),
        squash_root: peer.squash_root,
        settled: Vec::new(),
    }
}

async fn respond<R: Request>(call: IncomingCall, result: Result<R::Reply, Failure>) {
    match result {
        Ok(reply) => call.reply::<R>(&reply).await,
        Err(failure) => {
            tracing::debug!(kind = call.kind().name(), peer = %call.peer().host, %failure,
                "request refused");
            call.fail(failure).await;
        }
    }
}
