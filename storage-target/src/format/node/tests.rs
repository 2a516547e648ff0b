//! Golden bytes, and what damaged bytes do.

use proptest::prelude::*;

use super::*;

const TARGET: TargetId = TargetId([7; 8]);

fn header(level: u8) -> NodeHeader {
    NodeHeader { target: TARGET, page: 5, generation: 9, level }
}

fn encode(level: u8, entries: &[(&[u8], &[u8])]) -> (Bytes, Reference) {
    let mut page = vec![0xEE; NODE_LEN];
    let checksum = encode_node(header(level), entries.iter().copied(), &mut page);
    (Bytes::from(page), Reference { page: 5, checksum })
}

/// Makes the checksum right again, so that what lies behind it is tested.
fn resign(bytes: &[u8]) -> (Bytes, Reference) {
    let mut page = bytes.to_vec();
    let checksum = Crc32c::of(&page[8..]);
    page[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    (Bytes::from(page), Reference { page: 5, checksum })
}

#[test]
fn the_bytes_of_a_leaf_never_change() {
    let (bytes, reference) = encode(0, &[(b"ab", b"xyz"), (b"b", b"")]);
    let expected: &[u8] = &[
        b'M', b'R', b'N', b'D', 0x1d, 0xe8, 0xf5, 0x3a, // magic, checksum
        7, 7, 7, 7, 7, 7, 7, 7, 5, 0, 0, 0, 0, 0, 0, 0, // target, page
        9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, // generation, level, count
        44, 0, 52, 0, // offsets
        2, 3, 0, b'a', b'b', b'x', b'y', b'z', 1, 0, 0, b'b', 0, 0,
    ];
    assert_eq!(bytes[..expected.len()], *expected, "{:x?}", &bytes[..8]);
    assert!(bytes[expected.len()..].iter().all(|&byte| byte == 0));
    let node = Node::decode(bytes, TARGET, reference, 0).unwrap();
    assert_eq!((node.count(), node.level(), node.generation()), (2, 0, 9));
    assert_eq!((node.key(0), &node.value(0)[..]), (&b"ab"[..], &b"xyz"[..]));
    assert_eq!((node.key(1), &node.value(1)[..]), (&b"b"[..], &b""[..]));
}

#[test]
fn the_bytes_of_an_inner_node_never_change() {
    let child = Reference { page: 0x0102, checksum: Crc32c(0xA1B2_C3D4) };
    assert_eq!(child.encode(), [2, 1, 0, 0, 0, 0, 0, 0, 0xD4, 0xC3, 0xB2, 0xA1]);
    let (bytes, reference) = encode(1, &[(b"m", &child.encode()), (b"t", &child.encode())]);
    assert_eq!(reference.checksum, Crc32c(0xb2aa_492a));
    let node = Node::decode(bytes, TARGET, reference, 1).unwrap();
    assert_eq!(node.child(1), child);
    let routes: Vec<_> = [b"a", b"m", b"n", b"t", b"z"].map(|key| node.route(key)).into();
    assert_eq!(routes, [0, 0, 0, 1, 1], "the first child also has what is below its key");
}

#[test]
fn a_node_that_is_another_than_the_one_asked_for_is_refused() {
    let (bytes, reference) = encode(0, &[(b"key", b"value")]);
    let decode = |target, reference, level| Node::decode(bytes.clone(), target, reference, level);
    assert!(decode(TARGET, reference, 0).is_ok());
    let of_another = decode(TargetId([8; 8]), reference, 0).unwrap_err();
    assert!(of_another.to_string().contains("target"), "{of_another}");
    let misplaced = decode(TARGET, Reference { page: 6, ..reference }, 0).unwrap_err();
    assert!(misplaced.to_string().contains("belongs elsewhere"), "{misplaced}");
    let stale = Reference { checksum: Crc32c(1), ..reference };
    let stale = decode(TARGET, stale, 0).unwrap_err();
    assert!(stale.to_string().contains("its parent names"), "{stale}");
    assert!(decode(TARGET, reference, 1).is_err());
    for at in 0..NODE_LEN {
        let mut bad = bytes.to_vec();
        bad[at] ^= 0x20;
        assert!(Node::decode(Bytes::from(bad), TARGET, reference, 0).is_err(), "byte {at}");
    }
}

#[test]
fn the_greatest_entries_fit_twice() {
    let value = [1; VALUE_LEN_MAX];
    let (low, high) = ([1; KEY_LEN_MAX], [2; KEY_LEN_MAX]);
    let (bytes, reference) = encode(0, &[(&low, &value), (&high, &value)]);
    assert_eq!(Node::decode(bytes, TARGET, reference, 0).unwrap().count(), 2);
}

proptest! {
    #[test]
    fn entries_read_back_and_are_found(
        entries in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 1..=KEY_LEN_MAX),
            prop::collection::vec(any::<u8>(), 0..60),
            1..40,
        ),
        probe in prop::collection::vec(any::<u8>(), 1..=KEY_LEN_MAX),
    ) {
        let list: Vec<_> = entries.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        let (bytes, reference) = encode(0, &list);
        let node = Node::decode(bytes, TARGET, reference, 0).unwrap();
        prop_assert_eq!(node.count(), entries.len());
        for (at, (key, value)) in entries.iter().enumerate() {
            prop_assert_eq!(node.key(at), &key[..]);
            prop_assert_eq!(&node.value(at)[..], &value[..]);
            prop_assert_eq!(node.find(key), Ok(at));
        }
        let place = entries.range(..probe.clone()).count();
        prop_assert_eq!(node.find(&probe).unwrap_or_else(|at| at), place);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        noise in prop::collection::vec((32_usize..300, any::<u8>()), 0..20),
        level in 0_u8..2,
    ) {
        let child = Reference { page: 1, checksum: Crc32c(2) }.encode();
        let (bytes, _) = encode(level, &[(b"a", &child), (b"bb", &child), (b"ccc", &child)]);
        let mut bytes = bytes.to_vec();
        for (at, byte) in noise {
            bytes[at] = byte;
        }
        let (bytes, reference) = resign(&bytes);
        if let Ok(node) = Node::decode(bytes, TARGET, reference, level) {
            for at in 0..node.count() {
                prop_assert_eq!(node.find(node.key(at)), Ok(at));
                drop(node.value(at));
            }
        }
    }
}
