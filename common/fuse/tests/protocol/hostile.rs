//! Whatever the bytes are, reading them harms nobody.

use millrace_fuse_server::protocol::{
    directory::entries,
    operation::{DecodeError, Layout, Request},
};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::{kernel, numbers, request, samples};

/// What is done to a sample.
#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Cut(Index),
    Grow(Index, u8),
    Overwrite(Index, [u8; 4]),
}

impl Edit {
    fn any() -> impl Strategy<Value = Self> {
        let extreme = prop::sample::select(vec![0, 1, 0x7F, 0x80, 0xFF]);
        prop_oneof![
            (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Self::Flip(at, bit)),
            any::<Index>().prop_map(Self::Cut),
            (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Self::Grow(at, byte)),
            (any::<Index>(), extreme).prop_map(|(at, byte)| Self::Overwrite(at, [byte; 4])),
        ]
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        let end = bytes.len();
        match self {
            _ if end == 0 => bytes.push(0),
            Self::Flip(at, bit) => bytes[at.index(end)] ^= 1 << bit,
            Self::Cut(at) => bytes.truncate(at.index(end)),
            Self::Grow(at, byte) => bytes.insert(at.index(end), *byte),
            Self::Overwrite(at, with) => {
                let at = at.index(end);
                let len = with.len().min(end - at);
                bytes[at..at + len].copy_from_slice(&with[..len]);
            }
        }
    }
}

/// `MILLRACE_TEST_LENGTH` multiplies what is tried.
fn cases() -> u32 {
    let length = std::env::var("MILLRACE_TEST_LENGTH").ok().and_then(|text| text.parse().ok());
    length.unwrap_or(1_u32).saturating_mul(4096)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        kernel::request(&bytes);
    }

    #[test]
    fn a_kernels_requests_damaged(
        sample in prop::sample::select(samples()),
        edits in vec(Edit::any(), 1..6),
    ) {
        let mut bytes = sample;
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        kernel::request(&bytes);
    }

    #[test]
    fn any_body(
        opcode in prop::sample::select(numbers()),
        units in prop_oneof![Just(0_u16), 0..8_u16, any::<u16>()],
        body in vec(prop_oneof![Just(0_u8), Just(b'a'), any::<u8>()], 0..200),
    ) {
        kernel::request(&request(opcode, units, &body));
    }

    #[test]
    fn what_is_cut_off_is_no_request(
        opcode in prop::sample::select(numbers()),
        body in vec(prop_oneof![Just(0_u8), Just(b'a')], 0..100),
        keep in any::<Index>(),
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
