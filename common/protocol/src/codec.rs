//! Messages to bytes and back.
//!
//! rkyv's format with its little-endian, unaligned and 32-bit-pointer features, which are part of
//! the protocol. Bytes from a peer are checked before anything in them is used.

use bytes::Bytes;
use rkyv::{
    Archive, Deserialize, Serialize,
    api::high::{HighDeserializer, HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor::Error,
    ser::allocator::ArenaHandle,
    util::AlignedVec,
};

/// The longest message, in bytes, without the bulk bytes that may follow it.
pub const MESSAGE_LEN_MAX: usize = 1024 * 1024;

/// Anything that travels: every rkyv type that can be checked and owned is one.
pub trait Message:
    Archive<
        Archived: for<'a> CheckBytes<HighValidator<'a, Error>>
                      + Deserialize<Self, HighDeserializer<Error>>,
    > + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>
    + Send
    + Sized
    + 'static
{
}

impl<T> Message for T where
    T: Archive<
            Archived: for<'a> CheckBytes<HighValidator<'a, Error>>
                          + Deserialize<T, HighDeserializer<Error>>,
        > + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>
        + Send
        + Sized
        + 'static
{
}

/// The bytes of a message.
///
/// # Panics
/// Never for the messages of this crate: their parts cannot fail to serialise.
#[must_use]
pub fn encode<M: Message>(message: &M) -> Bytes {
    let bytes = rkyv::to_bytes::<Error>(message).expect("plain records always serialise");
    Bytes::from_owner(bytes)
}

/// Reads a message from a peer's bytes.
///
/// # Errors
/// [`DecodeError`] when the bytes are too many or are no such message.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    if bytes.len() > MESSAGE_LEN_MAX {
        return Err(DecodeError::TooLong { len: bytes.len() });
    }
    rkyv::from_bytes::<M, Error>(bytes)
        .map_err(|error| DecodeError::Malformed { reason: error.to_string() })
}

/// Bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Longer than [`MESSAGE_LEN_MAX`].
    #[error("a message of {len} bytes is over the limit of {MESSAGE_LEN_MAX}")]
    TooLong {
        /// Bytes of the message.
        len: usize,
    },
    /// Not a message of the expected type.
    #[error("malformed message: {reason}")]
    Malformed {
        /// What the check found.
        reason: String,
    },
}
