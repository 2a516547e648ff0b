//! What every command gets: the global options, the output, and ways to connect.

use std::{
    cell::RefCell,
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use futures::future::join_all;
use millrace_protocol::session::Caller;
use millrace_service::{cluster::ClusterSettings, telemetry::in_words};
use millrace_transport::ClientEndpoints;

use crate::{
    arguments::Globals,
    connection::Connection,
    output::{Output, shown},
    place::Place,
    settings::AdminSettings,
};

/// What every command gets.
#[derive(Debug)]
pub(crate) struct Context {
    /// The global options.
    pub(crate) globals: Globals,
    /// Standard output.
    pub(crate) output: Output,
    /// What has to be closed at the end.
    opened: RefCell<Vec<ClientEndpoints>>,
}

impl Context {
    /// The context of one invocation.
    pub(crate) fn new(globals: Globals) -> Self {
        Self { output: Output::new(globals.json), globals, opened: RefCell::default() }
    }

    /// Connects to the first metadata server of `settings` that answers.
    ///
    /// # Errors
    /// As [`Connection::to_cluster`].
    pub(crate) async fn connect(&self, settings: &ClusterSettings) -> anyhow::Result<Connection> {
        let (connection, endpoints) = Connection::to_cluster(settings).await?;
        self.opened.borrow_mut().push(endpoints);
        Ok(connection)
    }

    /// Tells the servers that this command has ended; otherwise they would hold its connections
    /// until their idle timeout, and log them as lost.
    pub(crate) async fn close(&self) {
        let opened = self.opened.take();
        join_all(opened.iter().map(ClientEndpoints::close)).await;
    }

    /// The directory of `--dir`, which the commands `cluster` and `dev` cannot do without.
    ///
    /// # Errors
    /// A [`Misuse`](crate::exit::Misuse) when it was not given.
    pub(crate) fn dir(&self) -> anyhow::Result<PathBuf> {
        let missing = || crate::exit::Misuse("--dir D is needed: the cluster's directory".into());
        let dir = self.globals.dir.as_ref().ok_or_else(missing)?;
        std::path::absolute(dir).with_context(|| format!("cannot use {}", dir.display()))
    }

    /// A connection to the configured cluster.
    ///
    /// # Errors
    /// When no cluster is configured, or it cannot be reached.
    pub(crate) async fn cluster(&self) -> anyhow::Result<Connection> {
        self.connect(&AdminSettings::load(&self.globals)?.cluster).await
    }

    /// A connection that serves requests about `path`, and the path for those requests: the mount
    /// that `path` lies in, or the configured cluster for `mr:/...`.
    ///
    /// # Errors
    /// When the path lies in no mount, or its daemon or the cluster cannot be reached.
    pub(crate) async fn at(&self, path: &Path) -> anyhow::Result<(Connection, Vec<u8>)> {
        match Place::resolve(path)? {
            Place::Cluster(path) => Ok((self.cluster().await?, path)),
            Place::Mount(mount, path) => Ok((Connection::to_mount(&mount), path)),
        }
    }

    /// For operators: a connection to the cluster with their identity, and the path from the root
    /// of its file system, also for a path inside a mount.
    ///
    /// # Errors
    /// As [`Self::at`] and [`Self::cluster`]; and when the mount is one of another cluster.
    pub(crate) async fn operate_at(&self, path: &Path) -> anyhow::Result<(Connection, Vec<u8>)> {
        let place = Place::resolve(path)?;
        let cluster = self.cluster().await?;
        let path = from_root(&cluster, place).await?;
        Ok((cluster, path))
    }

    /// A connection for commands without a path: the configured cluster, or else the mount that the
    /// present directory lies in. Settings that no option named count for nothing to a user who
    /// may not read their identity: they are an operator's, and the mount is for everybody. Those
    /// that one did name are meant: a mount may be of another cluster, with other jobs.
    ///
    /// # Errors
    /// When there is neither, or what was named cannot be used.
    pub(crate) async fn anywhere(&self) -> anyhow::Result<Connection> {
        let loaded = AdminSettings::load(&self.globals);
        let is_named = self.globals.config.is_some() || self.globals.dir.is_some();
        let is_usable = match &loaded {
            Ok(settings) => !is_kept_secret(&settings.cluster.identity),
            Err(_) => false,
        };
        if !is_named
            && !is_usable
            && let Ok(Place::Mount(mount, _)) = Place::resolve(Path::new("."))
        {
            return Ok(Connection::to_mount(&mount));
        }
        match loaded {
            Ok(settings) => self.connect(&settings.cluster).await,
            Err(missing) if is_named => Err(missing),
            Err(missing) => anyhow::bail!(
                "{}, or run this in a directory of a mount, which then is asked",
                in_words(&missing)
            ),
        }
    }
}

/// The path from the root of `cluster`'s file system to a place, which may be inside a mount.
///
/// # Errors
/// When the mount is one of another cluster, or its daemon does not answer.
pub(crate) async fn from_root(cluster: &Connection, place: Place) -> anyhow::Result<Vec<u8>> {
    let (mount, below) = match place {
        Place::Cluster(path) => return Ok(path),
        Place::Mount(mount, below) => (mount, below),
    };
    let described = Connection::to_mount(&mount).describe().await?;
    anyhow::ensure!(
        cluster.cluster_id() == Some(described.cluster.as_str()),
        "{} is a mount of cluster {}, and the settings name another one; use --config or --dir of \
         that cluster",
        mount.mountpoint.display(),
        described.cluster
    );
    Ok(join(&described.subtree, &below))
}

/// Whether the file of an identity is there and not for this user.
fn is_kept_secret(identity: &Path) -> bool {
    File::open(identity).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// For whom an operator asks: the metadata server takes this from an admin certificate alone, and a
/// mount's daemon puts the socket's user in its place.
pub(crate) const CALLER: Caller = Caller::ROOT;

/// What a failure was about, in front of its message.
pub(crate) fn at(path: &Path) -> String {
    shown(&path.display().to_string())
}

/// A path that [`Context::at`] gave with this connection, from the root of the cluster's file
/// system: as the server tells it, whatever part of that is mounted.
///
/// # Errors
/// When the daemon of the mount does not answer.
pub(crate) async fn path_from_root(
    connection: &Connection,
    path: &[u8],
) -> anyhow::Result<Vec<u8>> {
    match connection.mountpoint() {
        Some(_) => Ok(join(&connection.describe().await?.subtree, path)),
        None => Ok(path.to_vec()),
    }
}

/// `below` in the directory `subtree`, both from a root.
fn join(subtree: &[u8], below: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(subtree.len() + below.len() + 1);
    for part in [subtree, below] {
        for name in part.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_mount_of_a_subtree_is_one_of_the_file_system() {
        assert_eq!(join(b"/", b"/"), b"/");
        assert_eq!(join(b"/train", b"/"), b"/train");
        assert_eq!(join(b"", b"/a/b"), b"/a/b");
        assert_eq!(join(b"/train/", b"/a"), b"/train/a");
    }

    #[test]
    fn without_a_directory_the_message_names_the_option() {
        let error = Context::new(Globals::default()).dir().unwrap_err();
        assert!(error.is::<crate::exit::Misuse>());
        assert!(error.to_string().contains("--dir D"));
    }
}
