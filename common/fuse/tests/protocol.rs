//! The protocol against any bytes, against itself, and against what a kernel has sent.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

#[cfg(target_endian = "little")]
#[path = "protocol/golden.rs"]
mod golden;
#[path = "protocol/hostile.rs"]
mod hostile;
#[expect(unreachable_pub, reason = "a module of the fuzz targets' library")]
#[path = "../../../fuzz/src/kernel.rs"]
mod kernel;
#[cfg(target_endian = "little")]
#[path = "protocol/ring.rs"]
mod ring;
#[path = "protocol/round_trips.rs"]
mod round_trips;

use std::fs;

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

/// Every request that a kernel was recorded with.
fn samples() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    let files = fs::read_dir(folder).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let samples: Vec<_> = texts.flat_map(|text| lines(&text)).map(|(_, bytes)| bytes).collect();
    assert!(samples.len() >= 35);
    samples
}

/// The lines of a recording: an opcode's name, and its bytes.
fn lines(text: &str) -> Vec<(String, Vec<u8>)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(' ').unwrap());
    pairs.map(|(name, hex)| (name.to_owned(), unhex(hex))).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty());
    let digits = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.iter().map(|pair| digits(&pair[..])).collect()
}

/// Writes the samples where libFuzzer begins: `fuzz/corpus`.
#[test]
#[ignore = "called by scripts/fuzz.sh, which makes the corpus anew"]
fn write_corpus() {
    let root = std::env::var("MILLRACE_FUZZ_CORPUS").expect("the folder of the corpus");
    let folder = std::path::Path::new(&root).join("request");
    fs::create_dir_all(&folder).unwrap();
    for (nth, sample) in samples().iter().enumerate() {
        fs::write(folder.join(format!("sample-{nth}")), sample).unwrap();
    }
}
