//! The bytes for ever, and what hostile ones are answered.

use millrace_runtime::Random;

use super::*;

const CLUSTER: ClusterId = ClusterId([0xc1; 16]);

fn pair(key: &[u8], value: &[u8]) -> Pair {
    (key.to_vec(), value.to_vec())
}

/// Two blocks and three pairs.
fn sample() -> Vec<u8> {
    let (mut encoder, mut bytes) = Encoder::begin(LogIndex(0x0102), CLUSTER);
    bytes.extend(encoder.block(&[pair(b"A", b"applied"), pair(b"B", b"")]).unwrap());
    bytes.extend(encoder.block(&[pair(b"Ix", &[7; 20])]).unwrap());
    bytes.extend(encoder.end());
    bytes
}

fn read(bytes: &[u8]) -> Result<(LogIndex, ClusterId, Vec<Pair>), Flaw> {
    let mut decoder = Decoder::begin(bytes)?;
    let mut pairs = Vec::new();
    while let Some(more) = decoder.next_pairs()? {
        pairs.extend(more);
    }
    Ok((decoder.index(), decoder.cluster(), pairs))
}

#[test]
fn a_snapshot_reads_back_and_has_these_bytes_for_ever() {
    let bytes = sample();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
    let (index, cluster, pairs) = read(&bytes).unwrap();
    assert_eq!((index, cluster), (LogIndex(0x0102), CLUSTER));
    assert_eq!(pairs, [pair(b"A", b"applied"), pair(b"B", b""), pair(b"Ix", &[7; 20])]);
}

#[test]
fn every_flipped_bit_every_cut_and_everything_behind_the_end_is_found() {
    let bytes = sample();
    for at in 0..bytes.len() {
        assert!(read(&bytes[..at]).is_err(), "cut at {at}");
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            assert!(read(&bad).is_err(), "bit {bit} of byte {at}");
        }
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(read(&longer).unwrap_err().to_string().contains("behind the tail"));
}

#[test]
fn a_block_that_is_missing_or_stands_elsewhere_is_found() {
    let (mut encoder, head) = Encoder::begin(LogIndex(1), CLUSTER);
    let blocks = [b"a", b"b", b"c"].map(|key| encoder.block(&[pair(key, b"v")]).unwrap());
    let tail = encoder.end();
    let of = |parts: &[&[u8]]| [&[&head[..]], parts, &[&tail[..]]].concat().concat();
    assert!(read(&of(&[&blocks[0], &blocks[1], &blocks[2]])).is_ok());
    assert!(read(&of(&[&blocks[0], &blocks[1]])).is_err());
    assert!(read(&of(&[&blocks[0], &blocks[2], &blocks[1]])).is_err());
    let (mut encoder, head) = Encoder::begin(LogIndex(1), CLUSTER);
    let twice = [(); 2].map(|()| encoder.block(&[pair(b"b", b"")]).unwrap()).concat();
    let bytes = [head, twice, encoder.end()].concat();
    assert!(read(&bytes).unwrap_err().to_string().contains("out of order"));
}

#[test]
fn what_is_too_long_for_a_snapshot_is_an_error() {
    let (mut encoder, _) = Encoder::begin(LogIndex(1), CLUSTER);
    let longest = usize::from(u16::MAX);
    assert!(encoder.block(&[pair(&vec![b'l'; longest], b"")]).is_ok());
    let key = encoder.block(&[pair(&vec![b'l'; longest + 1], b"")]).unwrap_err();
    assert_eq!(key.to_string(), "a snapshot cannot hold a key, of 65536 bytes");
    let room = BODY_LEN_MAX - PAIR_HEAD_LEN - 1;
    assert!(encoder.block(&[pair(b"J", &vec![0; room])]).is_ok());
    assert!(encoder.block(&[pair(b"J", &vec![0; room + 1])]).is_err());
}

#[test]
fn a_later_version_is_named() {
    let (_, mut head) = Encoder::begin(LogIndex(1), CLUSTER);
    head[32] = 2;
    sign(&mut head);
    assert!(matches!(read(&head), Err(Flaw::Version(2))));
}

/// Checksums are made right after the damage, so that the rules behind them are met too. Nothing
/// panics, and nothing is taken for a snapshot that holds other than what its bytes do.
#[test]
fn any_bytes_are_refused_or_read_as_pairs_in_order() {
    let random = Random::seeded(1);
    let below = |end: usize| usize::try_from(random.within(0..end as u64)).unwrap();
    let good = sample();
    let first = FRAME_LEN;
    let second = first + BLOCK_HEAD_LEN + usize_at(&good, first + 20);
    let third = second + BLOCK_HEAD_LEN + usize_at(&good, second + 20);
    let parts = [0..first, first..second, second..third, third..good.len()];
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            bytes[at] = [0, 1, 0x7f, 0xff, bytes[at] ^ (1 << below(8))][below(5)];
        }
        for part in parts.clone() {
            sign(&mut bytes[part]);
        }
        if let Ok((_, _, pairs)) = read(&bytes) {
            assert!(pairs.is_sorted_by(|a, b| a.0 < b.0));
            let len: usize = pairs.iter().map(pair_len).sum();
            assert!(len < bytes.len(), "never larger than the bytes");
        }
    }
}

const GOLDEN: &str = concat!(
    "4d52534ee9f35db30201000000000000c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c101000000000000004d52",
    "534281fed1a000000000000000000200000015000000010007000000416170706c696564010000000000",
    "424d5253423558d3760100000000000000010000001c0000000200140000004978070707070707070707",
    "07070707070707070707074d525345a879f56d0201000000000000020000000000000003000000000000",
    "0034b442e300000000",
);
