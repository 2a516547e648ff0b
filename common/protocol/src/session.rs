//! Sessions: how a client host is known, and what expires when it falls silent.
//!
//! A session is opened once, logged by the metadata server, and survives reconnects and restarts of
//! either side. It is alive as long as its *ticket* is: one lease long, renewed by one message. A
//! client that was cut off cannot write any more, because every target checks the ticket.

use millrace_types::{HostId, LogIndex, MapEpoch, SessionId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{capability::Signed, cluster::LogPoint, lock::Lock};

/// What a certificate allows its holder to be.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// The metadata server.
    Metadata = 1,
    /// A storage target daemon.
    Target = 2,
    /// A client host with mounts.
    Client = 3,
    /// An operator.
    Admin = 4,
}

impl Role {
    /// The word in certificates, arguments and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Target => "target",
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }

    /// Reads the word that [`Self::name`] gives.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Metadata, Self::Target, Self::Client, Self::Admin]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

/// The answer of a request that has nothing to say but that it succeeded.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// The command log's index at which the effect stands; 0 where no command was logged.
    pub index: LogIndex,
}

/// Asks who the server is, on a new connection.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The newest log index that the caller has seen in any reply; 0 at its first contact.
    pub seen_index: LogIndex,
}

/// Who the server is. A caller that has seen a later index drops every cache; one that meets
/// another life of the server finds that out with [`CheckLog`].
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct HelloReply {
    /// Drawn at each start of the server; another value means that it was restarted.
    pub incarnation: u64,
    /// The last index that the server has applied.
    pub last_index: LogIndex,
    /// The server's clock.
    pub server_time: Timestamp,
    /// The present cluster map.
    pub map_epoch: MapEpoch,
}

/// Begins a session for one mount. Answered [`ErrorKind::Busy`](millrace_types::ErrorKind::Busy)
/// while the host has [`SESSIONS_PER_HOST_MAX`] sessions, or the cluster [`SESSIONS_MAX`].
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct OpenSession {
    /// A random number drawn by the caller: the same request again gives the same session.
    pub nonce: u64,
    /// The host's name, for people; at most 255 bytes.
    pub host_name: String,
}

/// Sessions of one host: as many as the connections that a server holds for it by default, of which
/// each mount needs one. A node of Kubernetes runs 110 pods by default, so that a mount for each of
/// them, and another for each that was just killed and whose lease has not run out, fit.
pub const SESSIONS_PER_HOST_MAX: usize = 256;

/// Sessions in all: 16 mounts on each of 1,000 hosts.
pub const SESSIONS_MAX: usize = 16_384;

/// Renews the ticket; answered [`ErrorKind::SessionGone`](millrace_types::ErrorKind::SessionGone)
/// when the session has ended.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RenewTicket {
    /// The session.
    pub session: SessionId,
}

/// Ends a session in order.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CloseSession {
    /// The session.
    pub session: SessionId,
}

/// Tells a server that was restarted what the session holds and the log does not know. Sent once
/// for each life of the server, also by those who hold nothing; until every session that is known
/// from before has declared or ended, nothing is granted that one of them may hold.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Declare {
    /// The session.
    pub session: SessionId,
    /// At most [`DECLARED_MAX`]; more follow in further requests.
    pub held: Vec<Held>,
    /// Whether this is the last part.
    pub last: bool,
}

/// Something that a session holds.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// A lock on a file; its kind is never `None`.
    Lock(Lock),
}

/// What cannot be kept of what was declared, because somebody else has it by now: it is lost.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DeclareReply {
    /// Places in [`Declare::held`].
    pub lost: Vec<u32>,
}

/// Entries of one [`Declare`]: 200 KB.
pub const DECLARED_MAX: usize = 4096;

/// Tells a server that was restarted that this life of it knows of whatever the session has from
/// before, and is sent once that was answered: opens for reading, which are declared by opening
/// again, those of which the server was never told included; locks ([`Declare`]); and delegations.
/// A server that waits for nobody else any more keeps no removed file for an open that nobody has
/// told of. Without this it does so for some leases.
///
/// Answered [`ErrorKind::Stale`](millrace_types::ErrorKind::Stale) in another life of the server.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AllTold {
    /// The session.
    pub session: SessionId,
    /// The life of the server to which all was told, from [`HelloReply`].
    pub incarnation: u64,
}

/// Asks a server that was restarted how far its log is the one that the caller has seen. Comparing
/// with [`HelloReply::last_index`] is not enough: others may have changed something since.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CheckLog {
    /// The newest change that the caller has seen in any reply, and the life of the server that
    /// showed it.
    pub seen: LogPoint,
}

/// How far it is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CheckLogReply {
    /// Up to here; 0 where the server knows nothing of that life. Below what the caller has seen, a
    /// loss of power has taken changes behind this that were acknowledged.
    pub kept: LogIndex,
}

/// A session and its present ticket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SessionReply {
    /// The session.
    pub session: SessionId,
    /// A signed [`Ticket`], to be shown to each target.
    pub ticket: Signed,
    /// Length of the lease in milliseconds, counted from `server_time`.
    pub lease_ms: u32,
    /// The server's clock.
    pub server_time: Timestamp,
    /// The present cluster map.
    pub map_epoch: MapEpoch,
}

/// What a session ticket says; travels as the body of a [`Signed`].
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The session.
    pub session: SessionId,
    /// The node that the session was opened from.
    pub host: HostId,
    /// SHA-256 of that node's certificate; the connection must show the same one.
    pub fingerprint: [u8; 32],
    /// The ticket counts until this moment of the metadata server's clock.
    pub expires: Timestamp,
}

/// For whom a client asks. Users are checked by the server for names, by the client host for data.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups; at most [`Self::GROUPS_MAX`].
    pub groups: Vec<u32>,
}

impl Caller {
    /// Linux's own limit (`NGROUPS_MAX`) is 65,536; 1,024 covers every site seen and bounds the
    /// message.
    pub const GROUPS_MAX: usize = 1024;

    /// The superuser.
    pub const ROOT: Self = Self { uid: 0, gid: 0, groups: Vec::new() };
}

/// Names one mutation of a session, so that it is executed exactly once however often it is sent.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The session.
    pub session: SessionId,
    /// Numbers the mutations of the session from 1.
    pub sequence: u64,
    /// The lowest sequence whose answer the client still waits for; older outcomes are forgotten.
    pub lowest_pending: u64,
}

impl Operation {
    /// A sequence number lies by less than this above the lowest that is pending; a request beyond
    /// is answered [`ErrorKind::Busy`](millrace_types::ErrorKind::Busy) and not executed. So the
    /// server keeps this many outcomes of a session at most, of about 80 bytes each.
    ///
    /// A connection carries at most 1,024 requests at once, so that only an operation that is
    /// overtaken for long comes near it. It holds what a mount finishes (up to 5,000 operations a
    /// second) during the 10 s after which the server answers `Busy` to an operation that waits for
    /// a bucket; a client gives such a one, which was not executed, a new number.
    pub const SPAN_MAX: u64 = 65_536;

    /// Whether the sequence number is as near to the lowest pending one as it has to be.
    #[must_use]
    pub fn is_within_span(&self) -> bool {
        self.sequence.saturating_sub(self.lowest_pending) < Self::SPAN_MAX
    }
}
