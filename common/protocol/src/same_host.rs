//! Between two daemons of one host: how requests of a connection get past the network.
//!
//! What two processes of one host say to each other needs no datagrams, no confirmations and no
//! encryption. A server that has such a way listens on a socket of the kernel besides; who has a
//! connection to it asks over that connection where, and may then send requests there as well.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// Asks the server of a connection for a socket on its own host. Answered by the transport, for
/// every role. [`NotSupported`](millrace_types::ErrorKind::NotSupported) where there is none.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FindSocket {}

/// Where requests of this connection are taken besides.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct FoundSocket {
    /// Name of a stream socket in the abstract namespace of Unix sockets, without its leading zero
    /// byte; at most [`NAME_LEN_MAX`] bytes.
    pub name: Vec<u8>,
    /// The effective user of the server: whoever else listens there is another one.
    pub owner: u32,
    /// What a stream begins with. Whoever knows it speaks for this connection: it is never shown.
    pub ticket: [u8; TICKET_LEN],
    /// How many streams this connection may have open at a time.
    pub streams_max: u32,
}

impl fmt::Debug for FoundSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_ascii().to_string();
        f.debug_struct("FoundSocket")
            .field("name", &name)
            .field("owner", &self.owner)
            .field("streams_max", &self.streams_max)
            .finish_non_exhaustive()
    }
}

/// What fits into an address of a Unix socket besides the leading zero byte.
pub const NAME_LEN_MAX: usize = 107;

/// Bytes of a ticket.
pub const TICKET_LEN: usize = 32;
