//! Segments as a disk may show them after a loss of power, with records that a user has forged.

use std::{fs, ops::Range, sync::Arc, time::Duration};

use millrace_runtime::Random;
use tempfile::TempDir;

use super::{
    super::{LogSettings, Writer, secret::Secret},
    *,
};
use crate::files::MachineFiles;

const CLUSTER: ClusterId = ClusterId([3; 16]);

/// A log of one segment, byte by byte.
struct Log {
    dir: TempDir,
    secret: Secret,
    bytes: Vec<u8>,
    last: LogIndex,
}

impl Log {
    fn of_version(version: u16) -> Self {
        let first = LogIndex(1);
        let (secret, bytes) = if version == 1 {
            (Secret::NONE, segment::common(first, CLUSTER, 1).to_vec())
        } else {
            let secret = Secret::draw(&Random::seeded(1));
            (secret, segment::head(first, CLUSTER, secret).to_vec())
        };
        Self { dir: TempDir::new().unwrap(), secret, bytes, last: LogIndex(0) }
    }

    /// Appends a record and tells where it lies.
    fn append(&mut self, synced: u64, body: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.last = self.last.next();
        self.bytes.extend(record::encode(self.last, LogIndex(synced), body, self.secret));
        start..self.bytes.len()
    }

    /// Starts on it, `bytes` being what the disk has kept.
    fn start(&self, bytes: &[u8]) -> Result<(Writer, Recovered), LogError> {
        for (_, path) in segment::list(&MachineFiles, self.dir.path()).unwrap() {
            fs::remove_file(path).unwrap();
        }
        fs::write(segment::path(self.dir.path(), LogIndex(1)), bytes).unwrap();
        let settings = LogSettings {
            files: Arc::new(MachineFiles),
            dir: self.dir.path().to_owned(),
            cluster: CLUSTER,
            segment_bytes: 1 << 20,
            sync_interval: Duration::from_secs(3600),
            random: Random::seeded(2),
        };
        Writer::open(settings, LogIndex(0))
    }

    /// Starts, and expects that all behind the first record is cut off as a torn tail.
    fn expect_torn_behind_the_first(&self, bytes: &[u8], what: &str) {
        let started = self.start(bytes);
        let (mut writer, found) = started.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(found.last, LogIndex(1), "{what}");
        assert!(found.torn_bytes > 0, "{what}");
        assert_eq!(writer.append(b"next").unwrap(), LogIndex(2), "{what}");
    }

    /// The bodies of its records.
    fn bodies(&self) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        replay(&MachineFiles, self.dir.path(), CLUSTER, LogIndex(1), |_, body: &[u8]| {
            bodies.push(body.to_vec());
            Ok::<(), LogError>(())
        })
        .unwrap();
        bodies
    }

    /// Bytes of its segments, and how many they are.
    fn size(&self) -> (u64, usize) {
        let segments = segment::list(&MachineFiles, self.dir.path()).unwrap();
        let bytes = segments.iter().map(|(_, path)| fs::metadata(path).unwrap().len()).sum();
        (bytes, segments.len())
    }
}

/// Records without the secret: what a user can make.
fn forged(records: impl IntoIterator<Item = (u64, u64)>) -> Vec<u8> {
    let bytes = records.into_iter().map(|(index, synced)| {
        record::encode(LogIndex(index), LogIndex(synced), b"", Secret::NONE)
    });
    bytes.collect::<Vec<_>>().concat()
}

/// Some that no writer writes, and some that it does if the place is guessed well.
fn forged_of_both_kinds() -> Vec<u8> {
    forged([(3, u64::MAX), (u64::MAX, 5), (7, 7)].into_iter().chain((3..40).map(|at| (at, at - 1))))
}

/// What a loss of power may leave of `record`, the last one.
fn torn(bytes: &[u8], record: &Range<usize>) -> Vec<(&'static str, Vec<u8>)> {
    let (mut without_header, mut with_flaw) = (bytes.to_vec(), bytes.to_vec());
    without_header[record.start..record.start + record::HEADER_LEN].fill(0);
    with_flaw[record.end - 1] ^= 1;
    let short = bytes[..record.end - 1].to_vec();
    vec![("no header", without_header), ("a flaw in the body", with_flaw), ("cut short", short)]
}

#[test]
fn forged_records_in_the_body_of_a_torn_one_do_not_keep_a_server_from_starting() {
    let mut log = Log::of_version(2);
    log.append(0, b"good");
    let last = log.append(0, &forged_of_both_kinds());
    for (what, bytes) in torn(&log.bytes, &last) {
        log.expect_torn_behind_the_first(&bytes, what);
        assert_eq!(log.bodies(), [b"good", b"next"], "{what}");
    }
}

#[test]
fn without_a_secret_a_forged_record_still_has_to_be_one_that_can_be_there() {
    let mut log = Log::of_version(1);
    log.append(0, b"good");
    let impossible = [(3, u64::MAX), (u64::MAX, 5), (7, 7), (50, 49), (1, 0)];
    let last = log.append(0, &forged(impossible));
    for (what, bytes) in torn(&log.bytes, &last) {
        log.expect_torn_behind_the_first(&bytes, what);
    }
}

#[test]
fn what_lies_in_a_torn_record_with_a_whole_header_is_no_record_in_version_1_either() {
    let mut log = Log::of_version(1);
    log.append(0, b"good");
    let last = log.append(0, &forged_of_both_kinds());
    for (what, bytes) in torn(&log.bytes, &last).into_iter().skip(1) {
        log.expect_torn_behind_the_first(&bytes, what);
    }
}

#[test]
fn damage_to_a_record_that_a_later_one_says_was_synced_is_refused() {
    for version in [1, 2] {
        for body in [&b""[..], b"two", &forged_of_both_kinds()] {
            let mut log = Log::of_version(version);
            log.append(0, b"one");
            let damaged = log.append(0, body);
            log.append(2, b"three");
            for at in damaged {
                let mut bytes = log.bytes.clone();
                bytes[at] ^= 0x40;
                let error = log.start(&bytes).unwrap_err();
                let LogError::Damaged { last_good, .. } = error else { panic!("{error}") };
                assert_eq!(last_good, LogIndex(1), "version {version}, byte {at}");
                let path = segment::path(log.dir.path(), LogIndex(1));
                assert_eq!(fs::read(path).unwrap(), bytes, "nothing is changed");
            }
        }
    }
}

#[test]
fn damage_is_no_torn_tail_either_where_records_behind_it_are_torn_too() {
    let mut log = Log::of_version(2);
    log.append(0, b"one");
    let damaged = log.append(1, &forged_of_both_kinds());
    log.append(1, b"three");
    let torn = log.append(1, b"four");
    log.append(2, b"five");
    for range in [damaged, torn] {
        log.bytes[range].fill(0);
    }
    assert!(matches!(log.start(&log.bytes), Err(LogError::Damaged { .. })));
}

#[test]
fn records_that_were_not_synced_are_a_torn_tail_also_with_whole_ones_behind() {
    let mut log = Log::of_version(2);
    log.append(0, b"one");
    let lost = log.append(1, b"two");
    log.append(1, b"three");
    log.bytes[lost].fill(0);
    log.expect_torn_behind_the_first(&log.bytes, "the second is lost");
}

#[test]
fn a_log_of_version_1_goes_on_in_a_segment_of_version_2() {
    let mut log = Log::of_version(1);
    log.append(0, b"one");
    log.append(1, b"two");
    let (mut writer, found) = log.start(&log.bytes).unwrap();
    assert_eq!((found.last, found.torn_bytes), (LogIndex(2), 0));
    writer.append(b"three").unwrap();
    writer.append(b"four").unwrap();
    assert_eq!((writer.bytes(), 2), log.size());
    drop(writer);
    assert_eq!(log.bodies(), [&b"one"[..], b"two", b"three", b"four"]);
    let newest = fs::read(segment::path(log.dir.path(), LogIndex(3))).unwrap();
    assert!(segment::Head::read(&newest, LogIndex(3), CLUSTER).unwrap().is_newest());
}

#[test]
fn a_segment_of_version_1_without_records_is_made_anew() {
    let log = Log::of_version(1);
    let (mut writer, found) = log.start(&log.bytes).unwrap();
    assert_eq!((found.last, found.torn_bytes), (LogIndex(0), 0));
    writer.append(b"one").unwrap();
    assert_eq!((writer.bytes(), 1), log.size());
    drop(writer);
    assert_eq!(log.bodies(), [b"one"]);
}

#[test]
fn a_segment_without_a_whole_head_is_dropped_and_one_of_a_later_version_is_not() {
    let log = Log::of_version(2);
    for cut in 0..log.bytes.len() {
        let (mut writer, found) = log.start(&log.bytes[..cut]).unwrap();
        assert_eq!((found.last, writer.append(b"one").unwrap()), (LogIndex(0), LogIndex(1)));
    }
    let later = segment::common(LogIndex(1), CLUSTER, 3);
    let error = log.start(&later).unwrap_err();
    assert!(error.to_string().contains("format version 3"), "{error}");
    assert_eq!(log.size(), (later.len() as u64, 1), "it is still there");
}
