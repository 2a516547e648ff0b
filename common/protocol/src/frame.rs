//! The 64 bytes in front of every message.
//!
//! A stream carries one frame each way: header, message, body. All numbers are little-endian.
//!
//! | offset | bytes | field            | meaning                                                  |
//! |-------:|------:|------------------|----------------------------------------------------------|
//! |      0 |     4 | magic            | `MRF1`: tells a frame from stray bytes                   |
//! |      4 |     4 | header_checksum  | crc32c of bytes 8..64: trust the header first            |
//! |      8 |     2 | version          | [`ProtocolVersion`]                                      |
//! |     10 |     1 | shape            | 1 request, 2 reply, 3 failure                            |
//! |     11 |     1 | flags            | 0; none is defined yet                                   |
//! |     12 |     2 | code             | [`RequestKind`]; in a failure [`ErrorKind`], reply 0     |
//! |     14 |     2 | reserved         | 0                                                        |
//! |     16 |     4 | message_len      | bytes of the message, at most [`MESSAGE_LEN_MAX`]        |
//! |     20 |     4 | body_len         | bytes of the body, at most [`BODY_LEN_MAX`]              |
//! |     24 |     4 | message_checksum | crc32c of the message                                    |
//! |     28 |     4 | deadline_ms      | request: how long the caller waits; otherwise 0          |
//! |     32 |     8 | request_id       | for logs only: the same in request and answer            |
//! |     40 |    24 | reserved         | 0; room for a trace context                              |
//!
//! The message's checksum is here because the message must be right before it is decoded. The
//! body's checksum is inside the message, where the part that owns the bytes puts it: a target
//! passes on a checksum that was verified when the bytes were read from disk. A failure's message
//! is an archived [`Failure`], whatever the request was; it has no body.
//!
//! Reserved bytes are checked to be zero, so that a later version can give them a meaning.

use millrace_types::{Crc32c, ErrorKind, Failure};

use crate::{RequestKind, codec::MESSAGE_LEN_MAX, version::ProtocolVersion};

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 64;

/// The longest body, in bytes: what one read or write moves.
pub const BODY_LEN_MAX: usize = 1024 * 1024;

/// A header that has been checked, or that is about to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version that both peers negotiated.
    pub version: ProtocolVersion,
    /// What follows.
    pub shape: Shape,
    /// Bytes of the message; at most [`MESSAGE_LEN_MAX`].
    pub message_len: u32,
    /// Bytes of the body; at most [`BODY_LEN_MAX`].
    pub body_len: u32,
    /// Of the message.
    pub message_checksum: Crc32c,
    /// For logs: the same in a request and its answer.
    pub request_id: u64,
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A request.
    Request {
        /// Which one.
        kind: RequestKind,
        /// How long the caller waits, in milliseconds; 0 means that it does not say.
        deadline_ms: u32,
    },
    /// The answer that was asked for.
    Reply,
    /// The answer is a failure.
    Failure {
        /// The same kind as in the message.
        kind: ErrorKind,
    },
}

impl Header {
    /// The header of a message.
    ///
    /// # Errors
    /// [`FrameError`] when message or body is longer than a frame may carry.
    pub fn new(
        version: ProtocolVersion,
        shape: Shape,
        request_id: u64,
        message: &[u8],
        body_len: usize,
    ) -> Result<Self, FrameError> {
        let message_len = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let body_len = u32::try_from(body_len).unwrap_or(u32::MAX);
        check_lengths(message_len, body_len)?;
        Ok(Self {
            version,
            shape,
            message_len,
            body_len,
            message_checksum: Crc32c::of(message),
            request_id,
        })
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let (shape, code, deadline_ms) = match self.shape {
            Shape::Request { kind, deadline_ms } => (SHAPE_REQUEST, kind.code(), deadline_ms),
            Shape::Reply => (SHAPE_REPLY, 0, 0),
            Shape::Failure { kind } => (SHAPE_FAILURE, kind.code(), 0),
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.code().to_le_bytes());
        bytes[10] = shape;
        bytes[12..14].copy_from_slice(&code.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.message_len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.message_checksum.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&deadline_ms.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.request_id.to_le_bytes());
        let checksum = Crc32c::of(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.0.to_le_bytes());
        bytes
    }

    /// Checks and reads the bytes of a peer.
    ///
    /// # Errors
    /// [`FrameError`] that names the field which is wrong.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let magic = u32_at(bytes, 0);
        if magic != u32::from_le_bytes(MAGIC) {
            return Err(FrameError::Magic { found: magic });
        }
        let (claimed, computed) = (u32_at(bytes, 4), Crc32c::of(&bytes[8..]).0);
        if claimed != computed {
            return Err(FrameError::HeaderChecksum { claimed, computed });
        }
        let version = u16_at(bytes, 8);
        let version =
            ProtocolVersion::from_code(version).ok_or(FrameError::Version { found: version })?;
        let zero = |from: usize, to: usize| {
            let found = bytes[from..to].iter().position(|&byte| byte != 0);
            found.map_or(Ok(()), |at| Err(FrameError::Reserved { offset: from + at }))
        };
        zero(11, 12)?;
        zero(14, 16)?;
        zero(40, HEADER_LEN)?;
        let header = Self {
            version,
            shape: shape_of(bytes)?,
            message_len: u32_at(bytes, 16),
            body_len: u32_at(bytes, 20),
            message_checksum: Crc32c(u32_at(bytes, 24)),
            request_id: u64::from(u32_at(bytes, 32)) | u64::from(u32_at(bytes, 36)) << 32,
        };
        check_lengths(header.message_len, header.body_len)?;
        Ok(header)
    }

    /// Checks that the peer uses the version that was negotiated.
    ///
    /// # Errors
    /// [`FrameError::Version`].
    pub fn check_version(&self, negotiated: ProtocolVersion) -> Result<(), FrameError> {
        if self.version == negotiated {
            Ok(())
        } else {
            Err(FrameError::Version { found: self.version.code() })
        }
    }

    /// Checks the message against its checksum in this header.
    ///
    /// # Errors
    /// [`FrameError::MessageChecksum`].
    pub fn check_message(&self, message: &[u8]) -> Result<(), FrameError> {
        let (claimed, computed) = (self.message_checksum.0, Crc32c::of(message).0);
        if claimed == computed {
            Ok(())
        } else {
            Err(FrameError::MessageChecksum { claimed, computed })
        }
    }
}

/// Bytes are no frame of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The first four bytes.
    #[error("frame begins with {found:#010x}, which is not the magic number")]
    Magic {
        /// What was found.
        found: u32,
    },
    /// The header was damaged.
    #[error("header checksum at offset 4 is {claimed:#010x}, computed {computed:#010x}")]
    HeaderChecksum {
        /// What the header says.
        claimed: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// A version that this program does not speak, or not the one that was negotiated.
    #[error("version {found} at offset 8 is not the one in use")]
    Version {
        /// What was found.
        found: u16,
    },
    /// Neither request, reply nor failure.
    #[error("shape {found} at offset 10 is unknown")]
    Shape {
        /// What was found.
        found: u8,
    },
    /// No such request or error.
    #[error("code {found:#06x} at offset 12 is unknown for shape {shape}")]
    Code {
        /// What was found.
        found: u16,
        /// The shape that it came with.
        shape: u8,
    },
    /// A byte that must be zero is not, or a field has no meaning for this shape.
    #[error("byte at offset {offset} is not zero")]
    Reserved {
        /// Where.
        offset: usize,
    },
    /// The message is too long.
    #[error("message of {len} bytes at offset 16 is longer than {MESSAGE_LEN_MAX}")]
    MessageTooLong {
        /// What was found.
        len: u32,
    },
    /// The body is too long.
    #[error("body of {len} bytes at offset 20 is longer than {BODY_LEN_MAX}")]
    BodyTooLong {
        /// What was found.
        len: u32,
    },
    /// The message was damaged.
    #[error("message checksum at offset 24 is {claimed:#010x}, computed {computed:#010x}")]
    MessageChecksum {
        /// What the header says.
        claimed: u32,
        /// What the message gives.
        computed: u32,
    },
}

impl From<FrameError> for Failure {
    fn from(error: FrameError) -> Self {
        let kind = match error {
            // A newer peer asks for what is not known here yet.
            FrameError::Code { shape: SHAPE_REQUEST, .. } => ErrorKind::NotSupported,
            _ => ErrorKind::Protocol,
        };
        Self::new(kind, error.to_string())
    }
}

fn shape_of(bytes: &[u8; HEADER_LEN]) -> Result<Shape, FrameError> {
    let (shape, code, deadline_ms) = (bytes[10], u16_at(bytes, 12), u32_at(bytes, 28));
    let unknown = FrameError::Code { found: code, shape };
    let no_deadline = match deadline_ms {
        0 => Ok(()),
        _ => Err(FrameError::Reserved { offset: 28 }),
    };
    match shape {
        SHAPE_REQUEST => {
            let kind = RequestKind::from_code(code).ok_or(unknown)?;
            Ok(Shape::Request { kind, deadline_ms })
        }
        SHAPE_REPLY if code == 0 => no_deadline.map(|()| Shape::Reply),
        SHAPE_REPLY => Err(unknown),
        SHAPE_FAILURE => {
            let kind = ErrorKind::from_code(code).ok_or(unknown)?;
            no_deadline.map(|()| Shape::Failure { kind })
        }
        found => Err(FrameError::Shape { found }),
    }
}

fn check_lengths(message_len: u32, body_len: u32) -> Result<(), FrameError> {
    if message_len as usize > MESSAGE_LEN_MAX {
        return Err(FrameError::MessageTooLong { len: message_len });
    }
    if body_len as usize > BODY_LEN_MAX {
        return Err(FrameError::BodyTooLong { len: body_len });
    }
    Ok(())
}

fn u16_at(bytes: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

const MAGIC: [u8; 4] = *b"MRF1";
const SHAPE_REQUEST: u8 = 1;
const SHAPE_REPLY: u8 = 2;
const SHAPE_FAILURE: u8 = 3;

#[cfg(test)]
mod tests;
