//! What the kernel sends over FUSE. Nobody but root can send anything else; but a reader that
//! trusts its lengths is one bug of a kernel away from reading beyond them.

use std::os::unix::ffi::OsStrExt as _;

use millrace_fuse_server::{
    Wire as _,
    protocol::{
        directory::entries,
        extension::Extension,
        header::{Opcode, RequestHeader},
        operation::{DecodeError, Layout, Operation, Request},
    },
};

/// Reads bytes as a request: as they are, and with the length in the header made right, which is
/// what a fuzzer seldom does.
pub fn request(bytes: &[u8]) {
    read(bytes);
    let Some(header) = RequestHeader::get(bytes) else { return };
    let Ok(len) = u32::try_from(bytes.len()) else { return };
    let mut right = bytes.to_vec();
    RequestHeader { len, ..header }.put(&mut right);
    read(&right);
    let names: usize = entries(bytes).map(|(_, name)| name.len()).sum();
    assert!(names <= bytes.len());
}

fn read(bytes: &[u8]) {
    for long_setxattr in [false, true] {
        match Request::decode(bytes, Layout { long_setxattr }) {
            Ok(request) => use_it(&request, bytes.len()),
            // Each is answered in its own way, or not at all: so each says what is true.
            Err(DecodeError::Header) => {
                let len = RequestHeader::get(bytes).map(|header| header.len);
                assert!(len.is_none_or(|len| usize::try_from(len) != Ok(bytes.len())));
            }
            Err(DecodeError::Unknown(opcode)) => assert_eq!(Opcode::from_number(opcode), None),
            Err(DecodeError::Body(opcode, len)) => {
                assert!(Opcode::ALL.contains(&opcode));
                assert_eq!(len + RequestHeader::LEN, bytes.len());
            }
        }
    }
}

fn use_it(request: &Request<'_>, len: usize) {
    assert_eq!(usize::try_from(request.header.len), Ok(len));
    request.extensions.for_each(|extension| {
        if let Extension::SecurityContext { name, .. } = extension {
            assert!(!name.as_bytes().contains(&0));
        }
    });
    match request.operation {
        Operation::BatchForget(forgets) => assert!(forgets.iter().count() * 16 <= len),
        Operation::Lookup { name } => {
            assert!(!name.is_empty() && !name.as_bytes().iter().any(|b| [0, b'/'].contains(b)));
        }
        Operation::Unlink { name }
        | Operation::RmDir { name }
        | Operation::MkDir { name, .. }
        | Operation::MkNod { name, .. }
        | Operation::Create { name, .. }
        | Operation::Link { name, .. } => entry_name(name.as_bytes()),
        Operation::SymLink { name, target } => {
            entry_name(name.as_bytes());
            assert!(!target.as_bytes().contains(&0));
        }
        Operation::Rename { name, new_name, .. } => {
            entry_name(name.as_bytes());
            entry_name(new_name.as_bytes());
        }
        Operation::Write { write, data } => {
            assert_eq!(usize::try_from(write.size), Ok(data.len()));
        }
        Operation::IoCtl { ioctl, data } => {
            assert_eq!(usize::try_from(ioctl.in_size), Ok(data.len()));
        }
        Operation::SetXAttr { set, value, .. } => {
            assert_eq!(usize::try_from(set.size), Ok(value.len()));
        }
        Operation::NotifyReply { retrieved, data } => {
            assert_eq!(usize::try_from(retrieved.size), Ok(data.len()));
        }
        _ => {}
    }
}

/// What can be made, removed or moved stays in its directory.
fn entry_name(name: &[u8]) {
    assert!(!name.is_empty() && name != b"." && name != b"..");
    assert!(!name.iter().any(|byte| [0, b'/'].contains(byte)));
}
