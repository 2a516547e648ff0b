//! Signed statements of the metadata server that targets trust: capabilities and tickets.
//!
//! The statement is encoded once, by the signer, and travels as the bytes that were signed, so that
//! no two encodings can disagree. HMAC-SHA-256 over `purpose byte, key id (4 bytes, little-endian),
//! body`; see [`Signed::signed_bytes`].

use millrace_types::{
    ContentGeneration, ErrorKind, InodeId, KeyId, Layout, LinkId, SessionId, Timestamp, WriteEpoch,
};
use rkyv::{Archive, Deserialize, Serialize};

/// The longest body of a signed statement, in bytes: an object key has at most 1,024.
pub const BODY_LEN_MAX: usize = 4096;

/// What a statement is for; part of what is signed, so that one kind never passes for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// The body is a [`Capability`].
    Capability = 1,
    /// The body is a [`Ticket`](crate::session::Ticket).
    Ticket = 2,
}

/// A statement and its signature.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Signed {
    /// Which key signed it.
    pub key: KeyId,
    /// The encoded statement; at most [`BODY_LEN_MAX`] bytes.
    pub body: Vec<u8>,
    /// HMAC-SHA-256.
    pub mac: [u8; 32],
}

impl Signed {
    /// The bytes that the signature covers.
    #[must_use]
    pub fn signed_bytes(purpose: Purpose, key: KeyId, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(5 + body.len());
        bytes.push(purpose as u8);
        bytes.extend_from_slice(&key.0.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    }
}

/// What its holder may do with one content of one file. Does not expire by itself: the session's
/// ticket does.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Capability {
    /// Reading or writing.
    pub rights: Rights,
    /// The session that it was given to; [`SYSTEM_SESSION`] for targets that work for a job.
    pub session: SessionId,
    /// The content.
    pub content: Content,
}

/// The session named in capabilities for targets themselves; never given to a client.
pub const SYSTEM_SESSION: SessionId = SessionId(0);

/// What may be done.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Rights {
    /// Read.
    Read = 1,
    /// Read, write, zero.
    ReadWrite = 2,
}

/// One content of one file, as far as a target must know it to serve its chunks.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// The file.
    pub inode: InodeId,
    /// Which of its contents; part of every chunk's key.
    pub generation: ContentGeneration,
    /// Raised by each shrink and each export; older writes are refused, and older reads where
    /// something is absent.
    pub write_epoch: WriteEpoch,
    /// Where its chunks are.
    pub layout: Layout,
    /// The object that backs it, if it was imported.
    pub origin: Option<Origin>,
    /// How many bytes from the start the object backs. A shrink lowers it, nothing raises it.
    pub origin_length: u64,
    /// Whether absent bytes may be a hole. If not, absent and not backed means lost: EIO.
    pub sparse: bool,
}

impl Content {
    /// Checks what no decoder can: the layout's arithmetic and the origin's length.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] when the server cannot have made it.
    pub fn checked(self) -> Result<Self, ErrorKind> {
        let layout_sound = self.layout.checked().is_ok();
        let origin_sound = match &self.origin {
            None => self.origin_length == 0,
            Some(origin) => self.origin_length <= origin.size,
        };
        if layout_sound && origin_sound { Ok(self) } else { Err(ErrorKind::Protocol) }
    }
}

/// The version of an object that a file was imported from.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The link, which names bucket and credentials.
    pub link: LinkId,
    /// The whole key within the bucket, 1 to 1,024 bytes.
    pub key: String,
    /// Bytes of the object.
    pub size: u64,
    /// S3's entity tag (with its quotes as the server sent them) or GCS's generation.
    pub tag: String,
    /// When the object was last modified.
    pub modified: Timestamp,
}
