//! What hydration needs of the server around it, and nothing more.
//!
//! The server implements this over its metadata loop and its connections to target daemons; tests
//! over an in-memory store with the same apply. Hydration owns no state besides: what must last is
//! a command.

use std::{collections::BTreeMap, future::Future, path::Path, time::Duration};

use millrace_protocol::{
    admin::TargetState,
    capability::{Content, Signed},
    cluster::Map,
    kind::Request,
};
use millrace_types::{ClusterId, Failure, HostId, InodeId, TargetId, Timestamp};

use crate::{
    command::{Command, Outcome},
    store::View,
    written::Written,
};

/// Commands, queries, ids, signatures and requests to target daemons.
///
/// # Cancellation
/// Every future may be dropped. A dropped command may still be executed.
pub trait Environment: Send + Sync + 'static {
    /// Executes a command. Returns once its record is in the kernel, or with `synced` on the disk.
    ///
    /// # Errors
    /// Why apply refused it, or that the server is busy or shutting down.
    fn execute(
        &self,
        command: Command,
        synced: bool,
    ) -> impl Future<Output = Result<Outcome, Failure>> + Send;

    /// Runs a query on the store, on the thread that owns it: it must be short (a page of a
    /// directory, a path).
    ///
    /// # Errors
    /// The query's own, or that the server is busy or shutting down.
    fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn View) -> Result<T, Failure> + Send + 'static,
    ) -> impl Future<Output = Result<T, Failure>> + Send;

    /// Waits until everything that a query can see now is on stable storage: for what cannot be
    /// taken back.
    ///
    /// # Errors
    /// That the log cannot be synced, or that the server is busy or shutting down.
    fn settled(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Inode ids that nobody else gets; those that are not used are lost, which is fine.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    fn reserve_inodes(
        &self,
        count: usize,
    ) -> impl Future<Output = Result<Vec<InodeId>, Failure>> + Send;

    /// Waits until the names of the present contents of `inodes` (generation and write epoch) are
    /// on stable storage. Before that no target may hear of them: after a loss of power the same
    /// name would be given to other bytes.
    ///
    /// # Errors
    /// That the log cannot be synced, or that the server is busy or shutting down.
    fn named(&self, inodes: Vec<InodeId>) -> impl Future<Output = Result<(), Failure>> + Send;

    /// A capability to read `content`, for target daemons among themselves (the system session).
    /// Its name is on stable storage then, as with [`Self::named`].
    ///
    /// # Errors
    /// That there is no key yet; as [`Self::named`].
    fn sign_read(&self, content: Content) -> impl Future<Output = Result<Signed, Failure>> + Send;

    /// The cluster map as it is now.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    fn map(&self) -> impl Future<Output = Result<Map, Failure>> + Send;

    /// How the targets of the map stand, by their heartbeats.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    fn standing(
        &self,
    ) -> impl Future<Output = Result<BTreeMap<TargetId, TargetState>, Failure>> + Send;

    /// Sends a request to a target daemon and waits for the answer, reconnecting as needed.
    ///
    /// # Errors
    /// The daemon's own, [`Unavailable`](millrace_types::ErrorKind::Unavailable) or
    /// [`DeadlineExceeded`](millrace_types::ErrorKind::DeadlineExceeded).
    fn ask<R: Request + Send + Sync + 'static>(
        &self,
        host: HostId,
        request: R,
        timeout: Duration,
    ) -> impl Future<Output = Result<R::Reply, Failure>> + Send;

    /// Whether a snapshot of the metadata runs short of memory: what changes much, and has time,
    /// had better wait then.
    fn is_pressed(&self) -> bool;

    /// Waits while that is so, but not for ever: before each command of those that are many.
    fn give_way(&self) -> impl Future<Output = ()> + Send;

    /// What is written, made and renamed by clients.
    fn written(&self) -> &Written;

    /// The cluster.
    fn cluster(&self) -> ClusterId;

    /// The server's clock.
    fn now(&self) -> Timestamp;

    /// Where what became of the files of jobs is written down: a directory of this server's own,
    /// which may be missing.
    fn reports(&self) -> &Path;

    /// Bytes of the disk of that directory that stay free, whatever is put there: the store is on
    /// it, too.
    fn reports_keep_free(&self) -> u64;

    /// A random number, for ids of exports and beginnings of layouts.
    fn random(&self) -> u64;
}
