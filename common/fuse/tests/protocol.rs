//! The protocol against any bytes, against itself, and against what a kernel has sent.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

#[cfg(target_endian = "little")]
#[path = "protocol/golden.rs"]
mod golden;
#[path = "protocol/hostile.rs"]
mod hostile;
#[path = "protocol/round_trips.rs"]
mod round_trips;

use millrace_fuse_server::protocol::header::{Opcode, RequestHeader};

/// A request with a header that fits.
fn request(opcode: u32, extension_units: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(RequestHeader::LEN + body.len()).expect("short");
    let header =
        RequestHeader { len, opcode, unique: 8, node: 1, extension_units, ..Default::default() };
    [&header.encode()[..], body].concat()
}

fn numbers() -> Vec<u32> {
    Opcode::ALL.iter().map(|opcode| opcode.number()).collect()
}
