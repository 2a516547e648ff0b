//! Golden bytes of the header, and what damage is answered with.

use proptest::prelude::*;

use super::*;

fn request() -> Header {
    Header::new(
        ProtocolVersion::V1,
        Shape::Request { kind: RequestKind::Read, deadline_ms: 30_000 },
        0x0102_0304_0506_0708,
        b"a message",
        4096,
    )
    .unwrap()
}

/// Writes a value and a new header checksum, so that only the value is wrong.
fn with(at: usize, value: &[u8]) -> Result<Header, FrameError> {
    let mut bytes = request().encode();
    bytes[at..at + value.len()].copy_from_slice(value);
    let checksum = Crc32c::of(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    Header::decode(&bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_of_version_1_are_frozen() {
    assert_eq!(hex(&request().encode()), GOLDEN_REQUEST);
    let failure =
        Header::new(ProtocolVersion::V1, Shape::Failure { kind: ErrorKind::Busy }, 7, b"busy", 0);
    assert_eq!(hex(&failure.unwrap().encode()), GOLDEN_FAILURE);
    let reply = Header::new(ProtocolVersion::V1, Shape::Reply, 7, b"", 1024 * 1024);
    assert_eq!(hex(&reply.unwrap().encode()), GOLDEN_REPLY);
}

#[test]
fn every_shape_reads_back() {
    let shapes = [
        Shape::Request { kind: RequestKind::Hello, deadline_ms: 0 },
        Shape::Reply,
        Shape::Failure { kind: ErrorKind::Internal },
    ];
    for shape in shapes {
        let header = Header::new(ProtocolVersion::V1, shape, u64::MAX, b"m", 1).unwrap();
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}

#[test]
fn an_error_names_the_field() {
    let mut stray = request().encode();
    stray[0] = b'G';
    assert!(matches!(Header::decode(&stray), Err(FrameError::Magic { .. })));
    let mut damaged = request().encode();
    damaged[20] ^= 1;
    assert!(matches!(Header::decode(&damaged), Err(FrameError::HeaderChecksum { .. })));
    assert_eq!(with(8, &[2, 0]), Err(FrameError::Version { found: 2 }));
    assert_eq!(with(10, &[9]), Err(FrameError::Shape { found: 9 }));
    let code = FrameError::Code { found: 0xffff, shape: 1 };
    assert_eq!(with(12, &[0xff, 0xff]), Err(code));
    // What a newer peer asks is no broken frame: it is told that nobody knows it here.
    assert_eq!(Failure::from(code).kind, ErrorKind::NotSupported);
    let unknown = FrameError::Code { found: 0xffff, shape: 2 };
    assert_eq!(Failure::from(unknown).kind, ErrorKind::Protocol);
    assert_eq!(with(11, &[1]), Err(FrameError::Reserved { offset: 11 }));
    assert_eq!(with(15, &[1]), Err(FrameError::Reserved { offset: 15 }));
    assert_eq!(with(63, &[1]), Err(FrameError::Reserved { offset: 63 }));
    let len = 1024 * 1024 + 1;
    let too_long = u32::to_le_bytes(len);
    assert_eq!(with(16, &too_long), Err(FrameError::MessageTooLong { len }));
    assert_eq!(with(20, &too_long), Err(FrameError::BodyTooLong { len }));
    // A reply that carries a deadline.
    assert_eq!(with(10, &[2, 0, 0, 0]), Err(FrameError::Reserved { offset: 28 }));
}

#[test]
fn a_damaged_message_is_found() {
    assert_eq!(request().check_message(b"a message"), Ok(()));
    assert!(matches!(
        request().check_message(b"b message"),
        Err(FrameError::MessageChecksum { .. })
    ));
}

#[test]
fn a_message_longer_than_a_frame_is_refused_before_it_is_sent() {
    let long = vec![0; MESSAGE_LEN_MAX + 1];
    assert!(Header::new(ProtocolVersion::V1, Shape::Reply, 0, &long, 0).is_err());
    assert!(Header::new(ProtocolVersion::V1, Shape::Reply, 0, b"", BODY_LEN_MAX + 1).is_err());
    assert!(Header::new(ProtocolVersion::V1, Shape::Reply, 0, &long[1..], BODY_LEN_MAX).is_ok());
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::array::uniform32(any::<u8>()), magic: bool) {
        let mut header = [0; HEADER_LEN];
        header[..32].copy_from_slice(&bytes);
        if magic {
            header[..4].copy_from_slice(&MAGIC);
            let checksum = Crc32c::of(&header[8..]);
            header[4..8].copy_from_slice(&checksum.0.to_le_bytes());
        }
        if let Ok(read) = Header::decode(&header) {
            prop_assert_eq!(read.encode(), header);
        }
    }
}

// Computed from the byte table by a program of its own.
const GOLDEN_REQUEST: &str = "4d52463178ece3ff01000100020400000900000000100000fcbb925a30750000\
    0807060504030201000000000000000000000000000000000000000000000000";
const GOLDEN_FAILURE: &str = "4d524631518e88f201000300130000000400000000000000d6e00b6400000000\
    0700000000000000000000000000000000000000000000000000000000000000";
const GOLDEN_REPLY: &str = "4d5246311ad63825010002000000000000000000000010000000000000000000\
    0700000000000000000000000000000000000000000000000000000000000000";
