//! The log cut at every byte, damaged below what was synced, and on a disk that fails.

use std::{
    fs::{self, File},
    io,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use tempfile::TempDir;

use super::*;
use crate::files::{MachineFiles, OpenFile};

fn settings(dir: &TempDir) -> LogSettings {
    LogSettings {
        files: Arc::new(MachineFiles),
        dir: dir.path().to_owned(),
        cluster: ClusterId([3; 16]),
        segment_bytes: 1 << 20,
        sync_interval: Duration::from_secs(3600),
        random: Random::seeded(1),
    }
}

/// Writes records of different lengths; gives the only segment and where each record ends.
fn write(dir: &TempDir) -> (PathBuf, Vec<u64>) {
    let (mut writer, _) = Writer::open(settings(dir), LogIndex(0)).unwrap();
    let ends = (1..=4_u8).map(|number| {
        let index = writer.append(&vec![number; usize::from(number) * 11]).unwrap();
        assert_eq!(index, LogIndex(u64::from(number)));
        writer.tail.len
    });
    let ends = ends.collect();
    (writer.tail.path.clone(), ends)
}

fn bodies(dir: &TempDir) -> Result<Vec<Vec<u8>>, LogError> {
    let mut bodies = Vec::new();
    crate::log::replay(
        &MachineFiles,
        dir.path(),
        ClusterId([3; 16]),
        LogIndex(1),
        |_, body: &[u8]| {
            bodies.push(body.to_vec());
            Ok::<(), LogError>(())
        },
    )?;
    Ok(bodies)
}

#[test]
fn a_log_that_was_cut_anywhere_keeps_its_whole_records_and_goes_on() {
    let source = TempDir::new().unwrap();
    let (path, ends) = write(&source);
    let bytes = fs::read(&path).unwrap();
    for cut in segment::HEAD_LEN..=bytes.len() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join(path.file_name().unwrap()), &bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|&&end| end <= cut as u64).count();
        let (mut writer, found) = Writer::open(settings(&dir), LogIndex(0)).unwrap();
        assert_eq!(found.last, LogIndex(whole as u64), "cut at {cut}");
        assert_eq!(writer.append(b"next").unwrap(), LogIndex(whole as u64 + 1));
        drop(writer);
        let bodies = bodies(&dir).unwrap();
        assert_eq!(bodies.len(), whole + 1, "cut at {cut}");
        assert_eq!(bodies.last().map(Vec::as_slice), Some(&b"next"[..]));
    }
}

#[test]
fn damage_to_what_was_synced_is_refused_and_nothing_is_changed() {
    let dir = TempDir::new().unwrap();
    let (path, ends) = write(&dir);
    let mut bytes = fs::read(&path).unwrap();
    let at = usize::try_from(ends[1]).unwrap() - 1;
    bytes[at] ^= 0x40;
    fs::write(&path, &bytes).unwrap();
    let error = Writer::open(settings(&dir), LogIndex(4)).unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_log_of_another_cluster_is_refused() {
    let dir = TempDir::new().unwrap();
    write(&dir);
    let other = LogSettings { cluster: ClusterId([4; 16]), ..settings(&dir) };
    assert!(Writer::open(other, LogIndex(0)).is_err());
}

/// The writer over a file that takes only its first `len` bytes: the write that crosses them is
/// short, and the next one fails with `EPERM`.
fn on_short_file(dir: &TempDir, len: u64) -> (Writer, Arc<File>) {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let (mut writer, _) = Writer::open(settings(dir), LogIndex(0)).unwrap();
    let file = File::from(memfd_create("short", MemfdFlags::ALLOW_SEALING).unwrap());
    let head = fs::read(&writer.tail.path).unwrap();
    file.write_all_at(&head, 0).unwrap();
    file.set_len(len).unwrap();
    fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let file = Arc::new(file);
    writer.tail.file = Arc::<File>::clone(&file);
    (writer, file)
}

#[test]
fn a_record_of_which_the_disk_takes_a_part_is_cut_off_and_the_log_stops() {
    let dir = TempDir::new().unwrap();
    let (mut writer, file) = on_short_file(&dir, 64 * 1024);
    let mut good = 0;
    let error = loop {
        match writer.append(&vec![7; 10_000]) {
            Ok(index) => good = index.0,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::Disk { .. }), "{error}");
    assert_eq!((good, writer.last()), (6, LogIndex(6)));
    assert_eq!(file.metadata().unwrap().len(), writer.tail.len, "nothing of the seventh is left");
    let mut bytes = vec![0; usize::try_from(writer.tail.len).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    let head = writer.tail.head;
    let mut at = head.len;
    while at < bytes.len() {
        at += record::HEADER_LEN + record::decode(&bytes[at..], head.secret).unwrap().1.len();
    }
    // What failed once for another reason than room is not trusted again before a restart.
    assert!(matches!(writer.append(b"next"), Err(LogError::Stopped)));
}

#[test]
fn a_log_whose_half_written_record_cannot_be_cut_off_stops_and_recovers_without_it() {
    use rustix::fs::{SealFlags, fcntl_add_seals};

    let dir = TempDir::new().unwrap();
    let (mut writer, file) = on_short_file(&dir, 64 * 1024);
    let path = writer.tail.path.clone();
    fcntl_add_seals(&*file, SealFlags::SHRINK).unwrap();
    while writer.append(&vec![7; 10_000]).is_ok() {}
    assert!(matches!(writer.append(b"next"), Err(LogError::Stopped)));
    let mut bytes = vec![0; 64 * 1024];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    drop(writer);
    fs::write(path, bytes).unwrap();
    let (mut writer, found) = Writer::open(settings(&dir), LogIndex(0)).unwrap();
    assert_eq!(found.last, LogIndex(6));
    assert!(found.torn_bytes > 0);
    assert_eq!(writer.append(b"next").unwrap(), LogIndex(7));
    assert_eq!(bodies(&dir).unwrap().len(), 7);
}

/// A file whose first sync waits until it is let go on, and then fails. As on Linux, the failure is
/// told once, to that sync.
#[derive(Debug)]
struct FailingOnce {
    file: Arc<dyn OpenFile>,
    syncs: AtomicUsize,
    gate: Mutex<mpsc::Receiver<()>>,
    fails: bool,
}

impl OpenFile for FailingOnce {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.syncs.fetch_add(1, Ordering::SeqCst) > 0 {
            return self.file.sync_data();
        }
        self.gate.lock().unwrap().recv().unwrap();
        if self.fails { Err(io::Error::from_raw_os_error(5)) } else { self.file.sync_data() }
    }
}

/// Two records in a segment, of which the first is being synced when a third ends the segment.
/// Gives what the third got, and whether who waits for the first was told that it is durable.
fn end_while_syncing(dir: &TempDir, fails: bool) -> (Result<LogIndex, LogError>, bool) {
    let settings = LogSettings { segment_bytes: 250, ..settings(dir) };
    let (mut writer, _) = Writer::open(settings, LogIndex(0)).unwrap();
    let (go_on, gate) = mpsc::channel();
    let (file, gate) = (Arc::clone(&writer.tail.file), Mutex::new(gate));
    let file = Arc::new(FailingOnce { file, syncs: AtomicUsize::new(0), gate, fails });
    writer.tail.file = Arc::<FailingOnce>::clone(&file);
    let shared = Arc::<FailingOnce>::clone(&file);
    let syncer = Syncer::start(shared, LogIndex(0), Duration::from_secs(3600)).unwrap();
    let syncer = Arc::new(syncer);
    writer.syncer = Arc::clone(&syncer);
    writer.append(&[1; 100]).unwrap();
    let (sender, told) = mpsc::channel();
    syncer.when_synced(LogIndex(1), move |result| sender.send(result.is_ok()).unwrap());
    while file.syncs.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    assert_eq!(writer.append(&[2; 100]).unwrap(), LogIndex(2), "it waits for no sync");
    let third = thread::scope(|scope| {
        let third = scope.spawn(|| writer.append(b"third"));
        while syncer.waiting() < 2 && !third.is_finished() {
            thread::yield_now();
        }
        assert_eq!(file.syncs.load(Ordering::SeqCst), 1, "one at a time");
        go_on.send(()).unwrap();
        third.join().unwrap()
    });
    (third, told.recv().unwrap())
}

#[test]
fn a_sync_that_fails_at_the_end_of_a_segment_is_told_as_durable_to_nobody() {
    let dir = TempDir::new().unwrap();
    let (third, told) = end_while_syncing(&dir, true);
    assert!(matches!(third, Err(LogError::Stopped)), "{third:?}");
    assert!(!told);
    assert_eq!(segment::list(&MachineFiles, dir.path()).unwrap().len(), 1, "no other is begun");
}

#[test]
fn a_segment_that_ends_while_it_is_synced_is_synced_as_a_whole() {
    let dir = TempDir::new().unwrap();
    let (third, told) = end_while_syncing(&dir, false);
    assert_eq!((third.unwrap(), told), (LogIndex(3), true));
    assert_eq!(segment::list(&MachineFiles, dir.path()).unwrap().len(), 2);
    assert_eq!(bodies(&dir).unwrap().len(), 3);
}
