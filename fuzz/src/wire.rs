//! What peers send.

use millrace_protocol::{
    Message, admin, cluster,
    codec::{decode, encode},
    frame::{HEADER_LEN, Header},
    metadata, session, storage, target,
};
use millrace_types::Crc32c;

/// Reads bytes as the header of a frame.
pub fn frame(bytes: &[u8]) {
    let mut header = [0; HEADER_LEN];
    let len = bytes.len().min(HEADER_LEN);
    header[..len].copy_from_slice(&bytes[..len]);
    let checksum = Crc32c::of(&header[8..]);
    header[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    let Ok(decoded) = Header::decode(&header) else { return };
    let again = Header::decode(&decoded.encode());
    assert_eq!(again.as_ref(), Ok(&decoded));
}

/// The messages that [`message`] reads, by the first byte: the largest and the most nested of each
/// service, as the golden bytes call them.
pub const MESSAGES: [&str; 15] = [
    "Hello.request",
    "OpenSession.reply",
    "Create.request",
    "Lookup.reply",
    "ReadDirectory.reply",
    "SetAttributes.request",
    "RegisterHost.request",
    "FetchMap.reply",
    "FetchLinks.reply",
    "FetchReclaim.reply",
    "Attach.request",
    "Read.request",
    "Write.request",
    "UploadPart.request",
    "ClusterStatus.reply",
];

/// Reads bytes as one of [`MESSAGES`], by the first byte.
pub fn message(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    match usize::from(which) % MESSAGES.len() {
        0 => any::<session::Hello>(bytes),
        1 => any::<session::SessionReply>(bytes),
        2 => any::<metadata::Create>(bytes),
        3 => any::<metadata::InodeReply>(bytes),
        4 => any::<metadata::DirectoryPage>(bytes),
        5 => any::<metadata::SetAttributes>(bytes),
        6 => any::<cluster::RegisterHost>(bytes),
        7 => any::<cluster::Map>(bytes),
        8 => any::<cluster::Links>(bytes),
        9 => any::<cluster::ReclaimBatch>(bytes),
        10 => any::<storage::Attach>(bytes),
        11 => any::<storage::Read>(bytes),
        12 => any::<storage::Write>(bytes),
        13 => any::<target::UploadPart>(bytes),
        _ => any::<admin::ClusterStatusReply>(bytes),
    }
}

/// What was decoded can be sent again, and is then the same.
fn any<M: Message>(bytes: &[u8]) {
    let Ok(message) = decode::<M>(bytes) else { return };
    let first = encode(&message);
    let again = decode::<M>(&first).unwrap_or_else(|error| panic!("just encoded: {error}"));
    assert_eq!(encode(&again), first);
}
