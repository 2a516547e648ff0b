//! Messages to bytes and back.
//!
//! The bytes are rkyv archives. A peer's archive is checked in full before anything is read from it
//! and then copied into owned values, so that no archived type is ever seen outside this file. The
//! check lets no two parts of a message share bytes, hence the owned value is never much larger
//! than the message, whose length is bounded; nesting is bounded too.

use std::num::NonZeroUsize;

use bytes::Bytes;
use millrace_types::{ErrorKind, Failure};
use rkyv::{
    Archive, Deserialize, Serialize,
    api::{
        access_with_context,
        high::{HighDeserializer, HighSerializer, HighValidator, to_bytes_in},
    },
    bytecheck::CheckBytes,
    rancor,
    ser::allocator::ArenaHandle,
    validation::{Validator, archive::ArchiveValidator, shared::SharedValidator},
};

/// The longest encoded message, in bytes. Bulk bytes are not part of it.
pub const MESSAGE_LEN_MAX: usize = 1024 * 1024;

/// The deepest nesting of a message: the deepest today is 6, and each level costs stack.
const DEPTH_MAX: NonZeroUsize = NonZeroUsize::new(32).expect("32 is not zero");

/// Whatever can travel as a message: the types that `messages!` names, and no others, so that each
/// is checked by [`decode`] in the same way.
pub trait Message: Send + Sync + Sized + 'static {
    /// See [`encode`].
    fn to_archive(&self) -> Bytes;

    /// See [`decode`].
    ///
    /// # Errors
    /// [`DecodeError`].
    fn from_archive(bytes: &[u8]) -> Result<Self, DecodeError>;
}

/// Makes messages of types with rkyv's derives. What it takes to write and to check each is a
/// thousand lines for the compiler, which are compiled here and not wherever it is sent or read.
macro_rules! messages {
    ($($message:ty),* $(,)?) => {
        $(impl $crate::codec::Message for $message {
            fn to_archive(&self) -> bytes::Bytes {
                $crate::codec::to_archive(self)
            }

            fn from_archive(bytes: &[u8]) -> Result<Self, $crate::codec::DecodeError> {
                $crate::codec::from_archive(bytes)
            }
        })*
    };
}

pub(crate) use messages;

/// Encodes a message. Whoever sends it checks [`MESSAGE_LEN_MAX`].
///
/// # Panics
/// Never for messages of this crate: writing into memory fails only for a message of more than 2
/// GiB, which the types here cannot hold within their documented bounds.
#[must_use]
pub fn encode<M: Message>(message: &M) -> Bytes {
    message.to_archive()
}

/// Checks and decodes the bytes of a peer. The bytes need no alignment.
///
/// # Errors
/// [`DecodeError`] when the bytes are too long or no archive of an `M`.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    M::from_archive(bytes)
}

pub(crate) fn to_archive<M>(message: &M) -> Bytes
where
    M: for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, rancor::Error>>,
{
    let bytes = to_bytes_in::<Vec<u8>, rancor::Error>(message, Vec::new())
        .expect("a message within its documented bounds has an archive");
    Bytes::from(bytes)
}

pub(crate) fn from_archive<M>(bytes: &[u8]) -> Result<M, DecodeError>
where
    M: Archive<
        Archived: for<'a> CheckBytes<HighValidator<'a, rancor::Error>>
                      + Deserialize<M, HighDeserializer<rancor::Error>>,
    >,
{
    if bytes.len() > MESSAGE_LEN_MAX {
        return Err(DecodeError::TooLong { len: bytes.len() });
    }
    let invalid =
        |error: rancor::Error| DecodeError::Invalid { len: bytes.len(), reason: one_line(&error) };
    let mut validator = Validator::new(
        ArchiveValidator::with_max_depth(bytes, Some(DEPTH_MAX)),
        SharedValidator::new(),
    );
    let archived = access_with_context::<M::Archived, _, rancor::Error>(bytes, &mut validator)
        .map_err(invalid)?;
    rkyv::deserialize::<M, rancor::Error>(archived).map_err(invalid)
}

/// Bytes are no message of the expected type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than any message may be.
    #[error("message of {len} bytes is longer than {MESSAGE_LEN_MAX}")]
    TooLong {
        /// The length that was found.
        len: usize,
    },
    /// The check of the archive failed.
    #[error("message of {len} bytes is malformed: {reason}")]
    Invalid {
        /// The length of the message.
        len: usize,
        /// What the check found, for a person.
        reason: String,
    },
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Self::new(ErrorKind::Protocol, error.to_string())
    }
}

/// rkyv's errors carry a trace of several lines; the first says what is wrong.
fn one_line(error: &rancor::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::{Caller, Hello};

    messages!(Caller);

    #[test]
    fn a_message_reads_back_at_any_alignment() {
        let caller = Caller { uid: 1000, gid: 100, groups: vec![4, 27, 100] };
        let encoded = encode(&caller);
        for shift in 0..8 {
            let mut shifted = vec![0; shift];
            shifted.extend_from_slice(&encoded);
            assert_eq!(decode::<Caller>(&shifted[shift..]), Ok(caller.clone()));
        }
    }

    #[test]
    fn a_message_that_is_too_long_or_too_short_says_so() {
        let long = vec![0; MESSAGE_LEN_MAX + 1];
        assert_eq!(decode::<Hello>(&long), Err(DecodeError::TooLong { len: MESSAGE_LEN_MAX + 1 }));
        let error = decode::<Hello>(&[]).unwrap_err().to_string();
        assert!(error.starts_with("message of 0 bytes"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn a_length_that_points_outside_the_message_is_found() {
        let mut bytes = encode(&Caller { uid: 1, gid: 2, groups: vec![3; 100] }).to_vec();
        let end = bytes.len();
        // The archive ends with the vector's length.
        bytes[end - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(decode::<Caller>(&bytes), Err(DecodeError::Invalid { .. })));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            drop(decode::<Caller>(&bytes));
            drop(decode::<Failure>(&bytes));
            drop(decode::<crate::cluster::Map>(&bytes));
        }

        #[test]
        fn flipped_bits_never_panic(at in 0_usize..64, bit in 0_u8..8) {
            let failure = Failure::new(ErrorKind::Busy, "a message long enough to lie outside");
            let mut bytes = encode(&failure).to_vec();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            drop(decode::<Failure>(&bytes));
        }
    }
}
