//! The bytes of every command, store record and key, compared with those that are checked in, so
//! that an old log and an old store stay readable.
//!
//! A difference means that a program of this version cannot read what an older one wrote: give the
//! changed record a new version that still reads the old one. For what is new, `MILLRACE_BLESS=1`
//! writes its line.

mod commands;
mod keys;
mod records;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use millrace_metadata_server::store::records::Record;

use crate::variants::{COMMANDS, OUTCOMES, command_name, outcome_name};

/// Something with its bytes, and whether those read back as the same.
pub(crate) struct Sample {
    name: String,
    bytes: Vec<u8>,
    reads_back: Option<bool>,
}

#[test]
fn every_command_has_the_bytes_that_were_frozen() {
    compare("commands.txt", &commands::samples());
}

#[test]
fn every_record_has_the_bytes_that_were_frozen() {
    compare("records.txt", &records::samples());
}

#[test]
fn every_key_has_the_bytes_that_were_frozen() {
    compare("keys.txt", &keys::samples());
}

#[test]
fn every_command_and_outcome_has_a_sample() {
    let made: BTreeSet<_> =
        commands::all().iter().map(|envelope| command_name(&envelope.command)).collect();
    let missing: Vec<_> = COMMANDS.iter().filter(|name| !made.contains(**name)).collect();
    assert!(missing.is_empty(), "no sample of {missing:?}");
    let made: BTreeSet<_> = records::outcomes().iter().map(outcome_name).collect();
    let missing: Vec<_> = OUTCOMES.iter().filter(|name| !made.contains(**name)).collect();
    assert!(missing.is_empty(), "no sample of {missing:?}");
}

/// The types of records are read from the source: whatever has `record!` needs golden bytes.
#[test]
fn every_record_type_has_a_sample() {
    let mut types = BTreeSet::new();
    for text in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let declared = text.lines().filter_map(|line| line.strip_prefix("record!("));
        types.extend(declared.filter_map(|rest| rest.split(',').next()).map(str::to_owned));
    }
    assert!(types.len() > 15, "the records are declared one a line: {types:?}");
    let made: BTreeSet<_> = records::samples()
        .iter()
        .filter_map(|sample| sample.name.split('.').next().map(str::to_owned))
        .collect();
    let missing: Vec<_> = types.difference(&made).filter(|name| *name != "Envelope").collect();
    assert!(missing.is_empty(), "no sample of {missing:?}");
}

/// The tables are read from the list at the head of `store/keys.rs`.
#[test]
fn every_table_has_a_sample_of_its_key() {
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
    let head = fs::read_to_string(store.join("keys.rs")).unwrap();
    let text = sources(&store.join("keys")).into_iter().fold(head.clone(), |all, one| all + &one);
    let tables: BTreeSet<u8> = head
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"))
        .filter_map(|rest| rest.bytes().next())
        .collect();
    let uses = ["key!(b'", "of_job(b'"].into_iter().flat_map(|call| text.split(call).skip(1));
    let used: BTreeSet<u8> = uses.filter_map(|rest| rest.bytes().next()).collect();
    assert_eq!(tables, used, "the tables of the list are those that the functions use");
    let made: BTreeSet<u8> = keys::samples().iter().map(|sample| sample.bytes[0]).collect();
    assert_eq!(tables, made, "every table has a sample");
}

fn compare(file: &str, made: &[Sample]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    if env::var_os("MILLRACE_BLESS").is_some() {
        let text = made.iter().fold(String::new(), |mut text, sample| {
            writeln!(text, "{} {}", sample.name, hex(&sample.bytes)).unwrap();
            text
        });
        fs::write(&path, text).unwrap();
    }
    let frozen = fs::read_to_string(&path).unwrap();
    let frozen: BTreeMap<_, _> = frozen.lines().filter_map(|line| line.split_once(' ')).collect();
    for sample in made {
        assert_eq!(
            frozen.get(sample.name.as_str()).copied(),
            Some(hex(&sample.bytes).as_str()),
            "the bytes of {} changed: what an older program wrote cannot be read",
            sample.name
        );
        assert!(sample.reads_back != Some(false), "{} does not read back", sample.name);
    }
    assert_eq!(
        frozen.len(),
        made.len(),
        "something frozen has no sample any more, or two one name"
    );
}

impl Sample {
    fn of<R: Record + PartialEq>(name: impl Into<String>, record: &R) -> Self {
        let bytes = record.encode();
        let reads_back = Some(R::decode(&bytes).as_ref() == Some(record));
        Self { name: name.into(), bytes, reads_back }
    }

    fn key(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes, reads_back: None }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text of every source file below `dir`.
fn sources(dir: &Path) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts.extend(sources(&path));
        } else {
            texts.push(fs::read_to_string(path).unwrap());
        }
    }
    texts
}
