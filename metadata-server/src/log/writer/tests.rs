//! The log cut at every byte, and damaged below what was synced.

use std::fs::{self, File};

use tempfile::TempDir;

use super::*;
use crate::files::MachineFiles;

fn settings(dir: &TempDir) -> LogSettings {
    LogSettings {
        files: Arc::new(MachineFiles),
        dir: dir.path().to_owned(),
        cluster: ClusterId([3; 16]),
        segment_bytes: 1 << 20,
        sync_interval: Duration::from_secs(3600),
    }
}

/// Writes records of different lengths; gives the only segment and where each record ends.
fn write(dir: &TempDir) -> (PathBuf, Vec<u64>) {
    let (mut writer, _) = Writer::open(settings(dir), LogIndex(0)).unwrap();
    let ends = (1..=4_u8).map(|number| {
        let index = writer.append(&vec![number; usize::from(number) * 11]).unwrap();
        assert_eq!(index, LogIndex(u64::from(number)));
        writer.len
    });
    let ends = ends.collect();
    (writer.path.clone(), ends)
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
    let head = fs::read(&writer.path).unwrap();
    file.write_all_at(&head, 0).unwrap();
    file.set_len(len).unwrap();
    fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let file = Arc::new(file);
    writer.file = Arc::<File>::clone(&file);
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
    assert_eq!(file.metadata().unwrap().len(), writer.len, "nothing of the seventh is left");
    let mut bytes = vec![0; usize::try_from(writer.len).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    let mut at = segment::HEAD_LEN;
    while at < bytes.len() {
        at += record::HEADER_LEN + record::decode(&bytes[at..]).unwrap().1.len();
    }
    // What failed once for another reason than room is not trusted again before a restart.
    assert!(matches!(writer.append(b"next"), Err(LogError::Stopped)));
}

#[test]
fn a_log_whose_half_written_record_cannot_be_cut_off_stops_and_recovers_without_it() {
    use rustix::fs::{SealFlags, fcntl_add_seals};

    let dir = TempDir::new().unwrap();
    let (mut writer, file) = on_short_file(&dir, 64 * 1024);
    let path = writer.path.clone();
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
