//! The life of a mount, from connecting to the last flush.
//!
//! ```text
//!   connect ─▶ find the root ─▶ mount ─▶ tune, control socket ─▶ ready ─▶ serve
//!                                                                           │
//!        SIGTERM ─▶ unmount ─▶ ┐                                            │
//!        umount(8) ────────────┴─▶ kernel is done ─▶ flush, commit, close ◀─┘
//! ```

use std::{
    io::{self, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millrace_fuse_server::{Mountpoint, PreparedMountpoint, Session, SessionError};
use millrace_protocol::{
    cluster::{FetchMap, Map},
    control::MountDescription,
    metadata::{FileKind, GetInode, Lookup},
    session::Caller,
};
use millrace_runtime::Shutdown;
use millrace_service::{
    control_socket,
    daemon::{Ended, StopSignals, until_stopped_by},
    metrics::{self, Metrics},
    systemd,
};
use millrace_transport::{
    ClientEndpoints, Identity, client::ClientError, identity::IdentityError, local::LocalServer,
};
use millrace_types::{Failure, FileName, InodeId, MapEpoch};
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::task::TaskTracker;

use crate::{
    cache::{contents::Contents, names::Names},
    cluster::{Cluster, retry::Patience},
    control::Control,
    fs::FileSystem,
    fuse::{
        Adapter,
        init::expires_names,
        notices::{self, NamesWay},
        places::Places,
    },
    metrics::ClientMetrics,
    mountpoint,
    settings::Settings,
};

/// Mounts as `settings` say and serves until the file system is unmounted, here or elsewhere.
///
/// `ready` is called once the mount can be used, and before its control socket answers. Blocks the
/// calling thread.
///
/// # Errors
/// [`MountError`] when the mount cannot be made.
pub fn run(settings: &Settings, ready: impl FnOnce()) -> Result<Ended, MountError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(serve(settings, ready));
    // The thread that waits for the kernel goes on for as long as somebody uses the mount.
    runtime.shutdown_background();
    ended
}

async fn serve(settings: &Settings, ready: impl FnOnce()) -> Result<Ended, MountError> {
    let cluster_settings = settings.cluster.as_ref().ok_or(MountError::Incomplete)?;
    let mountpoint = settings.mount.mountpoint.as_ref().ok_or(MountError::Incomplete)?;
    let identity = Identity::load(&cluster_settings.identity)?;
    let names = identity.peer().clone();
    let (shutdown, network) = (Shutdown::new(), settings.network.clone());
    let endpoints = ClientEndpoints::start(identity, network, &shutdown)?;
    let runtimes = (endpoints.control_runtime().clone(), endpoints.bulk_runtime().clone());
    let limit = (!settings.mount.hard).then_some(settings.mount.timeout);
    let mut registry = Metrics::new();
    let counters = ClientMetrics::new(&mut registry);
    let servers = cluster_settings.servers.clone();
    let cluster = Cluster::connect(servers, endpoints, Patience { limit }, counters.clone()).await;
    let cluster = Arc::new(cluster.map_err(MountError::Cluster)?);
    // Half of it for names and attributes, half for what opens files.
    let half = settings.cache.names.0 / 2;
    let kept = (Names::new(half, names.squash_root), Contents::new(half));
    let (memory, bytes) = (settings.cache.memory.0, runtimes.1.clone());
    let fs = FileSystem::new(Arc::clone(&cluster), counters, memory, kept, &settings.mount, bytes);
    let path = settings.mount.path.clone();
    let root = find_root(&cluster, &path).await;
    let root = root.map_err(|failure| MountError::Root { path: path.clone(), failure })?;
    warn_of_no_target(&cluster).await;
    let shown = shown_path(&path, names.subtree.as_deref());
    let own_name = || format!("{}:{}", names.cluster, shown.display());
    let source = settings.mount.source.clone().unwrap_or_else(own_name);
    let requests = TaskTracker::new();
    let adapter = Adapter::new(Arc::clone(&fs), root, runtimes.clone(), requests.clone());
    let places = adapter.places();
    let mount = mountpoint::mount_options(&settings.mount, &source);
    let options = mountpoint::session_options(&settings.mount);
    // While this waits for the server of what is mounted there, a signal still ends the process.
    let mountpoint = PreparedMountpoint::new(mountpoint)?;
    // From here on what ends this process has to unmount.
    let signals = StopSignals::install()?;
    let session = Session::mount_on(adapter, mountpoint, &mount, &options)?;
    let expires = expires_names(session.terms());
    connect(NamesWay { notifier: session.notifier(), root, expires }, &fs, &places);
    if session.terms().channel() == millrace_fuse_server::Channel::Uring {
        fs.locks.limit_waits(RING_WAITS_MAX);
    }
    let running = session.spawn()?;
    let mountpoint = running.mountpoint().clone();
    let description = MountDescription {
        cluster: names.cluster.to_string(),
        subtree: shown.as_os_str().as_bytes().to_vec(),
        mountpoint: mountpoint.path().as_os_str().as_bytes().to_vec(),
        read_only: settings.mount.read_only,
        process: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    if let Err(error) = metrics::serve(&settings.metrics, Arc::new(registry)).await {
        tracing::warn!(%error, "no metrics");
    }
    let control = Arc::new(Control::new(Arc::clone(&cluster), description, path));
    // Nothing is awaited from here until it is ready: who asks the control socket is answered then.
    if let Err(error) = equip(&mountpoint, control, &shutdown) {
        drop(tokio::task::spawn_blocking(move || mountpoint::unmount(&mountpoint)).await);
        cluster.close_session().await;
        return Err(error);
    }
    let upkeep = begin_upkeep(&fs, &runtimes, settings.mount.access_period);
    systemd::ready(&format!("mounted on {}", mountpoint.path().display()));
    ready();
    tracing::info!(mountpoint = %mountpoint.path().display(), "mounted");
    let kernel = tokio::task::spawn_blocking(move || running.join().map(drop));
    let served = serve_kernel(kernel, &requests, &fs);
    let ended = until_stopped_by(signals, served, || unmount_aside(mountpoint), DRAIN_MAX).await;
    let flushed = close(&fs, &upkeep).await;
    finish(&shutdown, &requests).await;
    let ended = ended?;
    Ok(if flushed { ended } else { Ended::Abandoned })
}

/// Stores what is held, tells what was read, and ends the session; whether everything is stored.
async fn close(fs: &FileSystem, upkeep: &Upkeep) -> bool {
    let flushed = tokio::time::timeout(DRAIN_MAX, fs.flush_all()).await.is_ok();
    // Before the session ends: afterwards they would be of none.
    if tokio::time::timeout(TELL_MAX, fs.tell_closes()).await.is_err() {
        tracing::info!("the metadata server does not answer: it closes files with the session");
    }
    upkeep.abort_all();
    if !matches!(tokio::time::timeout(TELL_MAX, fs.tell_reads()).await, Ok(Ok(()))) {
        tracing::info!("the metadata server does not answer: the last times of access are lost");
    }
    fs.cluster.close_session().await;
    flushed
}

/// Removes the control socket, and gives up what is still under way: whoever waits for it has an
/// answer then. What is told to the kernel may wait for that within it, where nothing ends it, and
/// the process could not end either.
async fn finish(shutdown: &Shutdown, requests: &TaskTracker) {
    drop(shutdown.finish(CLOSE_MAX).await);
    requests.close();
    drop(tokio::time::timeout(CLOSE_MAX, requests.wait()).await);
}

/// Gives those who have something to tell the kernel the way to it.
fn connect(way: NamesWay, fs: &FileSystem, places: &Places) {
    let (notifier, also, root) = (way.notifier.clone(), way.notifier.clone(), way.root);
    fs.kernel.connect(way);
    fs.pages.connect(move |inode| notices::drop_pages(&notifier, inode, root));
    places.connect(move |place| notices::drop_place(&also, place, root));
}

/// Ends when the kernel has let go of the mount and nothing is left to do for it.
///
/// Then nobody waits for an answer any more. Writes are stored, however long their server is away;
/// a read would only go on asking it for the mount's whole patience.
async fn serve_kernel(
    kernel: JoinHandle<io::Result<()>>,
    requests: &TaskTracker,
    fs: &FileSystem,
) -> io::Result<()> {
    kernel.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))?;
    requests.close();
    tokio::select! {
        () = requests.wait() => {}
        () = nothing_to_store(fs) => {}
    }
    Ok(())
}

/// Waits until requests have had time to end and nothing that was written is still unstored.
async fn nothing_to_store(fs: &FileSystem) {
    let mut ticks = tokio::time::interval(ANSWERS_MAX);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if !fs.holds_writes() {
            return;
        }
    }
}

/// What runs beside the requests.
struct Upkeep(Vec<JoinHandle<()>>);

impl Upkeep {
    fn abort_all(&self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

fn begin_upkeep(
    fs: &Arc<FileSystem>,
    (names, bytes): &(Handle, Handle),
    access_period: Duration,
) -> Upkeep {
    let (for_files, for_losses, for_restarts) = (Arc::clone(fs), Arc::clone(fs), Arc::clone(fs));
    let (for_recalls, for_reads, for_pages) = (Arc::clone(fs), Arc::clone(fs), Arc::clone(fs));
    let cluster = Arc::clone(&fs.cluster);
    Upkeep(vec![
        names.spawn(async move { cluster.keep_session().await }),
        names.spawn(async move { for_losses.watch_session().await }),
        names.spawn(async move { for_recalls.listen().await }),
        names.spawn(async move { for_restarts.watch_restarts().await }),
        names.spawn(async move { for_reads.tell_reads_every(access_period).await }),
        names.spawn(async move { for_pages.renew_older().await }),
        bytes.spawn(async move { for_files.upkeep().await }),
    ])
}

/// Tunes the mount, which is not worth failing for, and opens its control socket: a mount that
/// nobody can ask about its state would puzzle people later.
fn equip(
    mountpoint: &Mountpoint,
    control: Arc<Control>,
    shutdown: &Shutdown,
) -> Result<LocalServer, MountError> {
    let device = mountpoint.device();
    mountpoint::raise_read_ahead(mountpoint);
    let user = rustix::process::geteuid().as_raw();
    let mut problems = Vec::new();
    for path in control_socket::places(device, user) {
        let directory = path.parent().expect("a place is a file in a directory");
        let started = control_socket::make_directory(directory, user).and_then(|()| {
            // The kernel gave this number to this mount. Whoever else still listens under it
            // serves one that is gone: a daemon that was detached, or writes its last bytes.
            drop(std::fs::remove_file(&path));
            LocalServer::start(&path, Arc::clone(&control) as _, shutdown)
        });
        match started {
            Ok(server) => {
                tracing::debug!(path = %path.display(), "control socket");
                return Ok(server);
            }
            Err(error) => problems.push(format!("{}: {error}", path.display())),
        }
    }
    Err(MountError::Control(problems.join("; ")))
}

/// Unmounting waits for the kernel, which may wait for requests: never on a runtime's thread.
fn unmount_aside(mountpoint: Mountpoint) {
    std::thread::spawn(move || {
        if let Err(error) = mountpoint::unmount(&mountpoint) {
            tracing::error!(mountpoint = %mountpoint.path().display(), %error, "cannot unmount");
        }
    });
}

/// The directory of the file system that is mounted, for people: a certificate for a subtree begins
/// at that subtree, and knows nothing above it.
fn shown_path(path: &Path, subtree: Option<&[u8]>) -> PathBuf {
    let below = path.components().filter(|part| matches!(part, Component::Normal(_)));
    let top = subtree.unwrap_or(b"/");
    Path::new(std::ffi::OsStr::from_bytes(top)).join(below.collect::<PathBuf>())
}

/// Walks to the directory that is shown, without following symbolic links.
async fn find_root(cluster: &Cluster, path: &Path) -> Result<InodeId, Failure> {
    let mut inode = InodeId::ROOT;
    for component in path.components() {
        let name = match component {
            Component::Normal(name) => FileName::parse(name.as_bytes())?,
            _ => continue,
        };
        let request = Lookup { caller: Caller::ROOT, parent: inode, name };
        inode = cluster.ask(&request).await?.attributes.inode;
    }
    let request = GetInode { caller: Caller::ROOT, session: None, inode };
    let found = cluster.ask(&request).await?;
    if found.attributes.kind == FileKind::Directory {
        Ok(inode)
    } else {
        Err(millrace_types::ErrorKind::NotDirectory.into())
    }
}

/// Says in the log that nothing can be written yet: somebody may have forgotten the targets.
async fn warn_of_no_target(cluster: &Cluster) {
    match cluster.ask_once(&FetchMap { held: MapEpoch(0) }).await {
        Ok(map) if has_no_place(&map) => tracing::warn!(
            "no storage target has registered: files cannot be made (ENOSPC) until one has"
        ),
        Ok(_) => {}
        Err(failure) => tracing::debug!(%failure, "whether there are targets is not known"),
    }
}

/// Whether there is no target, and never was one, that a file could lie on.
fn has_no_place(map: &Map) -> bool {
    map.pools.iter().all(|pool| pool.groups.is_empty())
}

/// Leaves the process group and the terminal of who has started this, and their signals.
///
/// Not before the mount is made, nor while it may have to be taken away again: it may be for an
/// automount, of which the kernel lets that group alone look at the place.
pub fn begin_session() {
    // Who leads a group, as a program that a shell has started, keeps it.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "no session of its own");
    }
}

/// Tells the parent that waits on a descriptor that the mount can be used.
///
/// Opens the descriptor anew, so that nothing has to be believed about who owns it. A parent that
/// is gone is no failure.
pub fn tell_ready(descriptor: u32) {
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{descriptor}"))
        .and_then(|mut pipe| pipe.write_all(b"ready\n"));
    if let Err(error) = opened {
        tracing::debug!(descriptor, %error, "nobody waits for the mount");
    }
}

/// Programs that may wait for a lock where requests come over io_uring: a request that waits keeps
/// one of the entries of its queue, of which there are 8 at least, and the others come through the
/// rest.
const RING_WAITS_MAX: usize = 6;

/// How long requests that store nothing may still run once the kernel has let go of the mount: the
/// last closes are messages of a few milliseconds when their server is there.
const ANSWERS_MAX: Duration = Duration::from_secs(3);

/// How long the end of a mount may take: what is buffered is flushed within seconds unless servers
/// are away, and then the budget of 128 MiB is what can be lost.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// How long the end of a mount waits to tell what was read: a few messages, and little is lost.
const TELL_MAX: Duration = Duration::from_secs(3);

/// The last connections and sockets are closed within this time, and the last answers given.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The mount cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The settings were not checked.
    #[error("the settings name no cluster or no mount point")]
    Incomplete,
    /// The identity bundle cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No connection can be made at all.
    #[error(transparent)]
    Endpoints(#[from] ClientError),
    /// The metadata server does not answer, or refuses.
    #[error("cannot open a session with the metadata server: {0}")]
    Cluster(Failure),
    /// The directory to show is not there.
    #[error("cannot mount {}: {failure}", path.display())]
    Root {
        /// The directory within the file system.
        path: PathBuf,
        /// Why.
        failure: Failure,
    },
    /// The kernel refuses the mount.
    #[error(transparent)]
    Mount(#[from] SessionError),
    /// No place for the control socket.
    #[error("no place for the mount's control socket; make one of these directories writable: {0}")]
    Control(String),
    /// The system gives no thread, runtime or signal handler.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use millrace_protocol::cluster::{Group, Pool};
    use millrace_types::{GroupEpoch, PoolId};

    use super::*;

    #[test]
    fn files_have_no_place_before_the_first_target_and_have_one_while_all_are_away() {
        let map = |groups| Map {
            epoch: MapEpoch(1),
            hosts: Vec::new(),
            targets: Vec::new(),
            pools: vec![Pool { id: PoolId(0), name: "default".to_owned(), groups }],
        };
        assert!(has_no_place(&map(Vec::new())));
        let unserved = Group { epoch: GroupEpoch(2), targets: Vec::new() };
        assert!(!has_no_place(&map(vec![unserved])));
    }

    #[test]
    fn a_mount_with_a_certificate_for_a_subtree_begins_there() {
        let path = |path: &str, subtree: Option<&str>| {
            shown_path(Path::new(path), subtree.map(str::as_bytes))
        };
        assert_eq!(path("/a", None), Path::new("/a"));
        assert_eq!(path("/", None), Path::new("/"));
        assert_eq!(path("/x", Some("/train")), Path::new("/train/x"));
    }
}
