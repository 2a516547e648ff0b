//! FUSE over io_uring: what is around a request there (7.42, Linux 6.14).
//!
//! Each entry of a queue has two places in the server's memory, which it names when it registers:
//! a head of [`HEAD_LEN`] bytes, and a payload that is as long as the longest request may be.
//!
//! | offset in the head | bytes | of a request | of an answer |
//! |-------------------:|------:|--------------|--------------|
//! | 0 | 128 | [`RequestHeader`] | [`ReplyHeader`](super::header::ReplyHeader) |
//! | 128 | 128 | the structure at the front of its body | not looked at |
//! | 256 | 32 | [`RingEntry`] | [`RingEntry`] |
//!
//! The payload has the rest of a request (names, data, extensions), and the whole body of an
//! answer. A LOOKUP has no structure at its front, nor have the others whose body begins with a
//! name.

use super::header::RequestHeader;
use crate::wire::{Wire as _, wire_struct};

wire_struct! {
    /// Says what is in an entry (`fuse_uring_ent_in_out`).
    RingEntry[32] {
        /// None is defined.
        0 => flags: u64,
        /// Names the request when it is answered; it is the request's unique.
        8 => commit_id: u64,
        /// Bytes of the payload.
        16 => payload_len: u32,
    }
}

wire_struct! {
    /// In the submission of a command to the ring (`fuse_uring_cmd_req`).
    RingCommand[24] {
        /// None is defined.
        0 => flags: u64,
        /// With [`COMMIT_AND_FETCH`], which request is answered.
        8 => commit_id: u64,
        /// The queue that it is about.
        16 => queue: u16,
    }
}

/// The command that gives the kernel an entry.
pub const REGISTER: u32 = 1;
/// The command that answers a request and gives its entry to the next one.
pub const COMMIT_AND_FETCH: u32 = 2;

/// Bytes of the head of an entry (`fuse_uring_req_header`).
pub const HEAD_LEN: usize = ENTRY_OFFSET + RingEntry::LEN;
/// Where the structure at the front of a request's body is in the head.
pub const FRONT_OFFSET: usize = 128;
/// The longest such structure.
pub const FRONT_LEN_MAX: usize = 128;
/// Where the [`RingEntry`] is in the head.
pub const ENTRY_OFFSET: usize = FRONT_OFFSET + FRONT_LEN_MAX;
/// The shortest payload that the kernel takes, whatever was agreed on.
pub const PAYLOAD_LEN_MIN: usize = 8192;

/// What a head says of the request in its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRequest {
    /// Names it when it is answered.
    pub commit_id: u64,
    /// Its number; see [`Opcode`](super::header::Opcode).
    pub opcode: u32,
    /// Bytes of the structure at the front of its body.
    pub front_len: usize,
    /// Bytes of the payload.
    pub payload_len: usize,
}

impl RingRequest {
    /// Reads a head; `None` when its lengths contradict each other.
    #[must_use]
    pub fn of(head: &[u8; HEAD_LEN]) -> Option<Self> {
        let entry = RingEntry::get(&head[ENTRY_OFFSET..])?;
        let header = RequestHeader::get(head)?;
        let payload_len = usize::try_from(entry.payload_len).ok()?;
        let len = usize::try_from(header.len).ok()?;
        let in_head = len.checked_sub(payload_len)?;
        let front_len = in_head.checked_sub(RequestHeader::LEN)?;
        let found =
            Self { commit_id: entry.commit_id, opcode: header.opcode, front_len, payload_len };
        (front_len <= FRONT_LEN_MAX).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(len: u32, payload_len: u32) -> [u8; HEAD_LEN] {
        let mut head = [0xFF; HEAD_LEN];
        RequestHeader { len, opcode: 16, unique: 8, ..Default::default() }.put(&mut head);
        let entry = RingEntry { commit_id: 8, payload_len, flags: 0 };
        entry.put(&mut head[ENTRY_OFFSET..]);
        head
    }

    #[test]
    fn lengths_that_contradict_each_other_are_no_request() {
        let found = RingRequest::of(&head(40 + 40 + 1000, 1000)).unwrap();
        assert_eq!((found.commit_id, found.opcode), (8, 16));
        assert_eq!((found.front_len, found.payload_len), (40, 1000));
        assert_eq!(RingRequest::of(&head(40 + 5, 5)).unwrap().front_len, 0);
        assert_eq!(RingRequest::of(&head(40 + 128, 0)).unwrap().front_len, 128);
        for (len, payload_len) in [(39, 0), (44, 5), (40 + 129, 0), (0, u32::MAX), (u32::MAX, 0)] {
            assert_eq!(RingRequest::of(&head(len, payload_len)), None, "{len} {payload_len}");
        }
    }

    #[test]
    fn the_head_is_as_the_kernel_has_it() {
        assert_eq!((FRONT_OFFSET, ENTRY_OFFSET, HEAD_LEN), (128, 256, 288));
    }
}
