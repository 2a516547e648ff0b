//! Between the wire and the daemon: which peer may ask what, decoding, answering.

use std::sync::Arc;

use millrace_protocol::{
    Request, RequestKind,
    ahead::FetchAhead,
    fsck::ListContents,
    requests::CountRequests,
    session::Role,
    storage::{Attach, CopyRange, Read, Seek, Sync, Write, Zero},
    tallied::Tallied,
    target::{
        CheckBucket, DigestPart, Hydrate, MarkExported, MarkExportedAt, Presence, Release,
        StoreInline, StoreObject, Trim, TryBucket, UploadObject, UploadObjectTo, UploadPart,
        UploadPartTo,
    },
    upkeep::{ControlScrub, DescribeTarget},
};
use millrace_transport::{Connection, IncomingCall, Service};
use millrace_types::{ErrorKind, Failure};

use crate::{
    daemon::{Caller, Daemon},
    sessions::{Attached, Cut, Holder},
};

/// The daemon as the transport sees it.
#[derive(Debug)]
pub(crate) struct TargetService {
    daemon: Arc<Daemon>,
}

impl TargetService {
    pub(crate) fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }

    async fn attach(&self, call: IncomingCall) {
        let attached = async {
            let request: Attach = call.decode()?;
            let connection = call.connection();
            let peer = connection.peer();
            let holder = Holder { host: peer.host, fingerprint: peer.fingerprint };
            let cut = Arc::new(CutConnection(Arc::clone(connection)));
            let (session, reply) = self.daemon.attach(holder, cut, &request).await?;
            // A client whose session ended shows the next one on the connection that it has.
            if let Some(before) = connection.state::<Attached>()
                && before.id() != session.id()
            {
                self.daemon.sessions.forget(before.id(), connection.id().0);
            }
            connection.set_state(Arc::new(session));
            // What came before a connection ended is also served afterwards.
            if connection.is_closed() {
                self.disconnected(connection);
            }
            Ok(reply)
        };
        let result = attached.await;
        respond::<Attach>(call, result).await;
    }

    async fn read(&self, call: IncomingCall) {
        let caller = caller(&call);
        let result = match call.decode::<Read>() {
            Ok(request) => self.daemon.read(&caller, &request).await,
            Err(failure) => Err(failure),
        };
        match result {
            Ok((reply, body)) => call.reply_with_body::<Read>(&reply, body).await,
            Err(failure) => call.fail(failure).await,
        }
    }

    async fn write(&self, mut call: IncomingCall) {
        let caller = caller(&call);
        let written = async {
            let request: Write = call.decode()?;
            if call.body_len() != request.place.len as usize {
                let words = "the body is not as long as the write says";
                return Err(Failure::new(ErrorKind::Protocol, words));
            }
            // The body stays with the sender until there is room for it.
            let let_in = self.daemon.let_in(&caller, &request).await?;
            let body = call.read_body().await?.into_pieces();
            self.daemon.write(&caller, request, let_in, body).await
        };
        let result = written.await;
        respond::<Write>(call, result).await;
    }

    async fn data(&self, call: IncomingCall) {
        let (daemon, caller) = (&self.daemon, &caller(&call));
        match call.kind() {
            RequestKind::Zero => {
                answer::<Zero, _>(call, async |request| daemon.zero(caller, request).await).await;
            }
            RequestKind::Seek => {
                answer::<Seek, _>(call, async |request| daemon.seek(caller, request).await).await;
            }
            RequestKind::CopyRange => {
                answer::<CopyRange, _>(call, async |request| daemon.copy(caller, request).await)
                    .await;
            }
            _ => {
                answer::<Sync, _>(call, async |request| daemon.sync(caller, &request).await).await;
            }
        }
    }

    async fn upload(&self, call: IncomingCall) {
        let daemon = &self.daemon;
        match call.kind() {
            RequestKind::UploadPart => {
                answer::<UploadPart, _>(call, async |request| daemon.upload_part(request).await)
                    .await;
            }
            RequestKind::UploadObject => {
                answer::<UploadObject, _>(call, async |request| {
                    daemon.upload_object(request).await
                })
                .await;
            }
            RequestKind::UploadPartTo => {
                answer::<UploadPartTo, _>(call, async |request| {
                    daemon.upload_part_to(request).await
                })
                .await;
            }
            RequestKind::UploadObjectTo => {
                answer::<UploadObjectTo, _>(call, async |request| {
                    daemon.upload_object_to(request).await
                })
                .await;
            }
            RequestKind::StoreObject => {
                answer::<StoreObject, _>(call, async |request| daemon.store_object(request).await)
                    .await;
            }
            RequestKind::DigestPart => {
                answer::<DigestPart, _>(call, async |request| daemon.digest_part(request).await)
                    .await;
            }
            // `control` hands nothing else on.
            _ => call.fail(ErrorKind::NotSupported).await,
        }
    }

    async fn mark(&self, call: IncomingCall) {
        let daemon = &self.daemon;
        if call.kind() == RequestKind::MarkExported {
            answer::<MarkExported, _>(call, async |request| daemon.mark_exported(&request).await)
                .await;
        } else {
            answer::<MarkExportedAt, _>(call, async |request| {
                daemon.mark_exported_at(&request).await
            })
            .await;
        }
    }

    async fn try_bucket(&self, call: IncomingCall) {
        let daemon = &self.daemon;
        if call.kind() == RequestKind::CheckBucket {
            answer::<CheckBucket, _>(call, async |request| daemon.check_bucket(&request).await)
                .await;
        } else {
            answer::<TryBucket, _>(call, async |request| daemon.try_bucket(&request).await).await;
        }
    }

    async fn control(&self, call: IncomingCall) {
        let daemon = &self.daemon;
        match call.kind() {
            RequestKind::Trim => {
                answer::<Trim, _>(call, async |request| daemon.trim(&request).await).await;
            }
            RequestKind::StoreInline => {
                answer::<StoreInline, _>(call, async |request| daemon.store_inline(request).await)
                    .await;
            }
            RequestKind::Hydrate => {
                answer::<Hydrate, _>(call, async |request| daemon.hydrate(request).await).await;
            }
            RequestKind::FetchAhead => {
                answer::<FetchAhead, _>(call, async |request| daemon.fetch_ahead(request).await)
                    .await;
            }
            RequestKind::Release => {
                let given_up = call.cancelled().clone();
                let is_over = move || given_up.is_cancelled();
                answer::<Release, _>(call, |request| async move {
                    daemon.release(&request, is_over).await
                })
                .await;
            }
            RequestKind::Presence => {
                answer::<Presence, _>(call, async |request| daemon.presence(&request).await).await;
            }
            RequestKind::ListContents => {
                answer::<ListContents, _>(call, async |request| {
                    daemon.list_contents(&request).await
                })
                .await;
            }
            RequestKind::UploadPart
            | RequestKind::UploadObject
            | RequestKind::UploadPartTo
            | RequestKind::UploadObjectTo
            | RequestKind::StoreObject
            | RequestKind::DigestPart => self.upload(call).await,
            RequestKind::MarkExported | RequestKind::MarkExportedAt => self.mark(call).await,
            RequestKind::CheckBucket | RequestKind::TryBucket => self.try_bucket(call).await,
            RequestKind::CountRequests => {
                answer::<CountRequests, _>(call, async |request| {
                    Ok(daemon.count_requests(&request))
                })
                .await;
            }
            RequestKind::Tallied => {
                answer::<Tallied, _>(call, async |request| daemon.tallied(request).await).await;
            }
            RequestKind::DescribeTarget => {
                answer::<DescribeTarget, _>(call, async |request| daemon.describe_target(&request))
                    .await;
            }
            RequestKind::ControlScrub => {
                answer::<ControlScrub, _>(call, async |request| daemon.control_scrub(&request))
                    .await;
            }
            // `admits` lets nothing else in.
            _ => call.fail(ErrorKind::NotSupported).await,
        }
    }
}

#[async_trait::async_trait]
impl Service for TargetService {
    fn allowed_roles(&self) -> &[Role] {
        &[Role::Client, Role::Target, Role::Metadata]
    }

    fn admits(&self, role: Role, kind: RequestKind) -> bool {
        match role {
            Role::Client => matches!(
                kind,
                RequestKind::Attach
                    | RequestKind::Read
                    | RequestKind::Write
                    | RequestKind::Zero
                    | RequestKind::Seek
                    | RequestKind::CopyRange
                    | RequestKind::Sync
            ),
            // Exports and copies read from other targets.
            Role::Target => kind == RequestKind::Read,
            Role::Metadata => matches!(
                kind,
                RequestKind::Trim
                    | RequestKind::StoreInline
                    | RequestKind::Hydrate
                    | RequestKind::FetchAhead
                    | RequestKind::Release
                    | RequestKind::Presence
                    | RequestKind::ListContents
                    | RequestKind::UploadPart
                    | RequestKind::UploadObject
                    | RequestKind::UploadPartTo
                    | RequestKind::UploadObjectTo
                    | RequestKind::StoreObject
                    | RequestKind::DigestPart
                    | RequestKind::MarkExported
                    | RequestKind::MarkExportedAt
                    | RequestKind::CheckBucket
                    | RequestKind::TryBucket
                    | RequestKind::CountRequests
                    | RequestKind::Tallied
                    | RequestKind::DescribeTarget
                    | RequestKind::ControlScrub
            ),
            Role::Admin => false,
        }
    }

    async fn handle(&self, call: IncomingCall) {
        let kind = call.kind();
        let _running = self.daemon.counters.requests.begin(kind.name());
        let given_up = call.cancelled().clone();
        let work = async {
            match kind {
                RequestKind::Attach => self.attach(call).await,
                RequestKind::Read => self.read(call).await,
                RequestKind::Write => self.write(call).await,
                RequestKind::Zero
                | RequestKind::Seek
                | RequestKind::CopyRange
                | RequestKind::Sync => self.data(call).await,
                _ => self.control(call).await,
            }
        };
        // What changes the disk runs in tasks of its own and goes on, except that a release drops
        // nothing more; the rest need not.
        tokio::select! {
            () = work => {}
            () = given_up.cancelled() => {}
        }
    }

    fn disconnected(&self, connection: &Arc<Connection>) {
        if let Some(session) = connection.state::<Attached>() {
            self.daemon.sessions.forget(session.id(), connection.id().0);
        }
    }
}

async fn answer<R, F>(call: IncomingCall, work: impl FnOnce(R) -> F)
where
    R: Request,
    F: Future<Output = Result<R::Reply, Failure>>,
{
    let result = match call.decode::<R>() {
        Ok(request) => work(request).await,
        Err(failure) => Err(failure),
    };
    respond::<R>(call, result).await;
}

async fn respond<R: Request>(call: IncomingCall, result: Result<R::Reply, Failure>) {
    match result {
        Ok(reply) => call.reply::<R>(&reply).await,
        Err(failure) => call.fail(failure).await,
    }
}

fn caller(call: &IncomingCall) -> Caller {
    Caller { role: call.peer().role, session: call.connection().state::<Attached>() }
}

/// Lets the sessions end a connection.
#[derive(Debug)]
struct CutConnection(Arc<Connection>);

impl Cut for CutConnection {
    fn id(&self) -> u64 {
        self.0.id().0
    }

    fn cut(&self, reason: &str) {
        self.0.close(reason);
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn is_unwanted(&self) -> bool {
        self.0.state::<Attached>().is_none() && self.0.is_crowded()
    }
}
