//! The properties of `fuzz`, which libFuzzer looks for counterexamples of, with samples of every
//! format and the bytes mutated at random: bounded, seeded, in every run of the tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

#[expect(unreachable_pub, reason = "a module of the fuzz targets' library")]
#[path = "../../fuzz/src/disk.rs"]
mod disk;
#[path = "formats/samples.rs"]
mod samples;
#[expect(unreachable_pub, reason = "a module of the fuzz targets' library")]
#[path = "../../fuzz/src/wire.rs"]
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_runtime::Random;

/// Mutations of each sample; `MILLRACE_TEST_LENGTH` multiplies them.
const MUTATIONS: u64 = 2_000;

/// A number that the environment may set.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Holds a property against each sample and its mutations. A failure prints the bytes, which are
/// then a regression test.
fn hold(property: fn(&[u8]), samples: &[Vec<u8>]) {
    let seed = number("MILLRACE_TEST_SEED", 1);
    let random = Random::seeded(seed);
    let mutations = MUTATIONS * number("MILLRACE_TEST_LENGTH", 1);
    for (nth, sample) in samples.iter().enumerate() {
        property(sample);
        for mutation in 0..mutations {
            let other = &samples[below(&random, samples.len())];
            let bytes = mutated(&random, sample, other);
            if catch_unwind(AssertUnwindSafe(|| property(&bytes))).is_err() {
                panic!("seed {seed}, sample {nth}, mutation {mutation}: {bytes:?}");
            }
        }
    }
}

fn below(random: &Random, end: usize) -> usize {
    usize::try_from(random.within(0..end.max(1) as u64)).unwrap()
}

/// Flips, overwrites, cuts, lengthens, repeats, and takes parts of another sample.
fn mutated(random: &Random, sample: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for _ in 0..=below(random, 4) {
        let at = below(random, bytes.len());
        match below(random, 8) {
            _ if bytes.is_empty() => bytes.push(0),
            0 | 1 => bytes[at] ^= 1 << below(random, 8),
            2 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][below(random, 5)],
            3 => bytes[at] = bytes[at].wrapping_add([1, 0xFF][below(random, 2)]),
            4 => bytes.truncate(at),
            5 => bytes.insert(at, u8::try_from(below(random, 256)).unwrap()),
            6 => {
                let end = bytes.len().min(at + 8);
                bytes[at..end].fill([0, 0xFF][below(random, 2)]);
            }
            _ => {
                let from = below(random, other.len());
                let part = &other[from..other.len().min(from + 1 + below(random, 32))];
                let end = bytes.len().min(at + part.len());
                bytes.splice(at..end, part.iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn any_superblock() {
    hold(disk::superblock, &samples::superblocks());
}

#[test]
fn any_root() {
    hold(disk::root, &samples::roots());
}

#[test]
fn any_node() {
    hold(disk::node, &samples::nodes());
}

#[test]
fn any_section() {
    hold(disk::section, &samples::sections());
}

#[test]
fn any_entry() {
    hold(disk::entry, &samples::entries());
}

#[test]
fn any_change() {
    hold(disk::change, &samples::changes());
}

#[test]
fn any_batch() {
    hold(disk::batch, &samples::batches());
}

#[test]
fn any_frame() {
    hold(wire::frame, &samples::frames());
}

#[test]
fn any_message() {
    hold(wire::message, &samples::messages());
}

/// The test of the test: a property that does not hold is found to.
#[test]
#[should_panic(expected = "mutation")]
fn what_does_not_hold_is_found() {
    fn never_two(bytes: &[u8]) {
        assert!(!bytes.starts_with(&[0, 2]));
    }
    hold(never_two, &[vec![0, 3, 0]]);
}

/// Writes the samples where libFuzzer begins: `fuzz/corpus`.
#[test]
#[ignore = "called by scripts/fuzz.sh, which makes the corpus anew"]
fn write_corpus() {
    let root = std::env::var("MILLRACE_FUZZ_CORPUS").expect("the folder of the corpus");
    for (name, samples) in samples::all() {
        let folder = std::path::Path::new(&root).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (nth, sample) in samples.iter().enumerate() {
            std::fs::write(folder.join(format!("sample-{nth}")), sample).unwrap();
        }
    }
}
