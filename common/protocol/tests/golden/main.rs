//! The bytes of every message, compared with those that are checked in.
//!
//! A difference means that a peer of the same protocol version can no longer read us: give the
//! change a new version. For a message that is new, `MILLRACE_BLESS=1` writes its line.

mod samples;

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::PathBuf};

use millrace_protocol::RequestKind;
use samples::Sample;

#[test]
fn every_message_has_the_bytes_that_were_frozen() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/v1.txt");
    let made = samples::all();
    if env::var_os("MILLRACE_BLESS").is_some() {
        let text = made.iter().fold(String::new(), |mut text, sample| {
            writeln!(text, "{} {}", sample.name, sample.hex()).unwrap();
            text
        });
        fs::write(&path, text).unwrap();
    }
    let frozen = fs::read_to_string(&path).unwrap();
    let frozen: BTreeMap<_, _> = frozen.lines().filter_map(|line| line.split_once(' ')).collect();
    for sample in &made {
        assert_eq!(
            frozen.get(sample.name.as_str()).copied(),
            Some(sample.hex().as_str()),
            "the bytes of {} changed: a peer of this version cannot read them",
            sample.name
        );
    }
    assert_eq!(frozen.len(), made.len(), "a frozen message has no sample any more");
}

#[test]
fn every_request_and_reply_has_a_sample() {
    let made = samples::all();
    let has = |name: String| made.iter().any(|sample| sample.name == name);
    for kind in RequestKind::ALL {
        assert!(has(format!("{}.request", kind.name())), "no sample of {} request", kind.name());
        assert!(has(format!("{}.reply", kind.name())), "no sample of {} reply", kind.name());
    }
}

#[test]
fn every_message_reads_back_and_no_damage_of_it_panics() {
    for sample in samples::all() {
        assert!((sample.reads_back)(&sample.bytes), "{}", sample.name);
        for cut in 0..sample.bytes.len() {
            (sample.survives)(&sample.bytes[..cut]);
        }
        for at in 0..sample.bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = sample.bytes.clone();
                damaged[at] ^= flip;
                (sample.survives)(&damaged);
            }
        }
    }
}

impl Sample {
    fn hex(&self) -> String {
        self.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
