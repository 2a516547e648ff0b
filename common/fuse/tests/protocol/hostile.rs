//! Whatever the bytes are, reading them harms nobody.

use std::os::unix::ffi::OsStrExt as _;

use millrace_fuse_server::protocol::{
    directory::entries,
    extension::Extension,
    operation::{DecodeError, Layout, Operation, Request},
};
use proptest::{collection::vec, prelude::*};

use crate::{numbers, request};

/// Reads bytes as a request, and uses what comes of it.
fn read(bytes: &[u8]) {
    for long_setxattr in [false, true] {
        let Ok(request) = Request::decode(bytes, Layout { long_setxattr }) else { continue };
        assert_eq!(usize::try_from(request.header.len), Ok(bytes.len()));
        request.extensions.for_each(|extension| {
            if let Extension::SecurityContext { name, .. } = extension {
                assert!(!name.as_bytes().contains(&0));
            }
        });
        match request.operation {
            Operation::BatchForget(forgets) => {
                assert!(forgets.iter().count() * 16 <= bytes.len());
            }
            Operation::Lookup { name } => {
                assert!(!name.is_empty() && !name.as_bytes().iter().any(|b| [0, b'/'].contains(b)));
            }
            Operation::Unlink { name } | Operation::MkDir { name, .. } => {
                assert!(name != "." && name != ".." && !name.is_empty());
            }
            Operation::Write { write, data } => {
                assert_eq!(usize::try_from(write.size), Ok(data.len()));
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        read(&bytes);
    }

    #[test]
    fn any_body(
        opcode in prop::sample::select(numbers()),
        units in prop_oneof![Just(0_u16), 0..8_u16, any::<u16>()],
        body in vec(prop_oneof![Just(0_u8), Just(b'a'), any::<u8>()], 0..200),
    ) {
        read(&request(opcode, units, &body));
    }

    #[test]
    fn what_is_cut_off_is_no_request(
        opcode in prop::sample::select(numbers()),
        body in vec(prop_oneof![Just(0_u8), Just(b'a')], 0..100),
        keep in any::<prop::sample::Index>(),
    ) {
        let whole = request(opcode, 0, &body);
        let cut = &whole[..keep.index(whole.len())];
        prop_assert_eq!(Request::decode(cut, Layout::default()), Err(DecodeError::Header));
    }

    #[test]
    fn any_page_of_a_directory(bytes in vec(prop_oneof![Just(0_u8), any::<u8>()], 0..300)) {
        let names: usize = entries(&bytes).map(|(_, name)| name.len()).sum();
        prop_assert!(names <= bytes.len());
    }
}

#[test]
fn unknown_opcodes_are_named() {
    for opcode in [0, 7, 19, 48, 49, 54, 4096, u32::MAX] {
        let bytes = request(opcode, 0, b"");
        let expected = Err(DecodeError::Unknown(opcode));
        assert_eq!(Request::decode(&bytes, Layout::default()), expected);
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let bodies: [&[u8]; 7] = [b"", b"\0", b".\0", b"..\0", b"a/b\0", b"open", b"two\0names\0"];
    for body in bodies {
        let unlink = request(10, 0, body);
        let refused = Request::decode(&unlink, Layout::default());
        assert!(matches!(refused, Err(DecodeError::Body(..))), "{body:?}");
    }
    assert!(Request::decode(&request(1, 0, b"..\0"), Layout::default()).is_ok(), "for NFS");
}
