//! Lists of files that jobs work on: a file for each, beside the reports.
//!
//! ```text
//! list-0123456789abcdef-1000.paths      id in hexadecimal, user
//! ```
//!
//! It holds paths, each ended by a zero byte. The tool sends it in pages; it is on stable storage
//! before a job that names it is recorded, and stays for as long as such a job is remembered, since
//! the job may go on after a restart or be started once more. One that no job names is removed an
//! hour after its last page.

use std::{
    collections::{HashSet, VecDeque},
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use millrace_protocol::file_list::{AppendFiles, FILES_BYTES_MAX, FILES_PAGE_MAX, FileListId};
use millrace_types::{ErrorKind, Failure};

use super::report_room::check_disk;

/// How long a list waits for its next page, or its job.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(3600);

/// Lists that are there at the same time.
const LISTS_MAX: usize = 512;

/// Bytes of all lists.
const BYTES_MAX: u64 = 4 * FILES_BYTES_MAX;

/// Paths that a job reads at a time.
const READ_MAX: usize = 1024;

/// Adds a page to the list `id`, which is made if it is missing and this is its first. The disk
/// keeps `keep_free` bytes: one without room takes no changes, whatever they are about. Blocks.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a page that is none; [`ErrorKind::NotFound`] for a list that
/// is not there, or is somebody else's; [`ErrorKind::NoSpace`] when there is no room for it, here
/// or within what lists may take.
pub(super) fn append(
    directory: &Path,
    keep_free: u64,
    id: FileListId,
    request: &AppendFiles,
) -> Result<(), Failure> {
    let AppendFiles { caller, list, offset, paths } = request;
    let wrong = |words: &str| Err(Failure::new(ErrorKind::InvalidArgument, words));
    if paths.len() > FILES_PAGE_MAX || paths.last().is_some_and(|&last| last != 0) {
        return wrong("a page of a list has whole paths, and 256 KiB at most");
    }
    let end = offset.saturating_add(paths.len() as u64);
    if end > FILES_BYTES_MAX {
        return wrong("a list of files has 1 GiB at most");
    }
    let file = match list {
        Some(_) => {
            check_room(directory, paths.len())?;
            open(directory, id, caller.uid, OpenOptions::new().write(true))?
        }
        None if *offset > 0 => return wrong("the first page of a list is at its beginning"),
        None => begin(directory, &path_of(directory, id, caller.uid))?,
    };
    let path = path_of(directory, id, caller.uid);
    let written = (|| {
        let len = file.metadata()?.len();
        if len < *offset {
            return Ok(false);
        }
        // What was sent before takes no more.
        if end > len {
            check_disk(directory, end - len, keep_free)?;
        }
        file.write_all_at(paths, *offset)?;
        file.set_len(end)?;
        Ok(true)
    })();
    match written {
        Ok(true) => Ok(()),
        Ok(false) => wrong("pages of this list before this one are missing"),
        Err(error) => {
            let failure = unwritten(&path, &error);
            if failure.kind == ErrorKind::NoSpace {
                // Whoever sends it gives up: the room is better used.
                drop(fs::remove_file(&path));
            }
            Err(failure)
        }
    }
}

fn begin(directory: &Path, path: &Path) -> Result<File, Failure> {
    if lists(directory).len() >= LISTS_MAX {
        return Err(too_many());
    }
    check_room(directory, 0)?;
    let made = fs::create_dir_all(directory).and_then(|()| File::create(path));
    made.map_err(|error| unwritten(path, &error))
}

/// Checks that all lists together may take so many bytes more. Those who add at the same moment may
/// go beyond by their pages.
fn check_room(directory: &Path, more: usize) -> Result<(), Failure> {
    let bytes: u64 = lists(directory).iter().map(|list| list.bytes).sum();
    match bytes.saturating_add(more as u64) < BYTES_MAX {
        true => Ok(()),
        false => Err(too_many()),
    }
}

fn too_many() -> Failure {
    let words = "the server keeps too many lists of files: those of jobs go with them";
    Failure::new(ErrorKind::NoSpace, words)
}

/// Makes a list durable that a job is about to name. Blocks.
///
/// # Errors
/// [`ErrorKind::NotFound`] when it is not there, or is somebody else's; that it cannot be kept.
pub(super) fn keep(directory: &Path, id: FileListId, uid: u32) -> Result<(), Failure> {
    let file = open(directory, id, uid, OpenOptions::new().write(true))?;
    // Nobody takes it for an old one before the job is recorded.
    let touched = file.set_modified(SystemTime::now());
    let kept =
        touched.and_then(|()| file.sync_all()).and_then(|()| File::open(directory)?.sync_all());
    kept.map_err(|error| unwritten(&path_of(directory, id, uid), &error))
}

/// Removes the lists that no job names, once they have waited for long enough. Blocks.
pub(super) fn prune(directory: &Path, named: &HashSet<FileListId>, now: SystemTime) {
    for List { path, id, changed, .. } in lists(directory) {
        let waited = now.duration_since(changed).unwrap_or_default();
        if !named.contains(&id)
            && waited >= UNUSED_MAX
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "an old list of files stays");
        }
    }
}

/// A list as a job reads it.
#[derive(Debug)]
pub(super) struct FileList {
    path: PathBuf,
    reader: BufReader<File>,
}

impl FileList {
    /// Opens a job's list. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it is not there, or is somebody else's.
    pub(super) fn open(directory: &Path, id: FileListId, uid: u32) -> Result<Self, Failure> {
        let file = open(directory, id, uid, OpenOptions::new().read(true))?;
        Ok(Self { path: path_of(directory, id, uid), reader: BufReader::new(file) })
    }

    /// The next paths; none at the end. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when it cannot be read.
    pub(super) fn next(&mut self) -> Result<VecDeque<Vec<u8>>, Failure> {
        let mut paths = VecDeque::new();
        while paths.len() < READ_MAX {
            let Some(path) = self.path_at().map_err(|error| {
                let words = format!("cannot read {}: {error}", self.path.display());
                Failure::new(ErrorKind::Internal, words)
            })?
            else {
                break;
            };
            paths.push_back(path);
        }
        Ok(paths)
    }
}

impl FileList {
    /// The next path, or the beginning of one that is longer than any can be: it leads nowhere.
    fn path_at(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut path = Vec::new();
        let read = (&mut self.reader).take(PATH_LEN_MAX + 1).read_until(0, &mut path)?;
        if read == 0 {
            return Ok(None);
        }
        if path.pop_if(|last| *last == 0).is_none() && path.len() as u64 > PATH_LEN_MAX {
            self.reader.skip_until(0)?;
        }
        Ok(Some(path))
    }
}

/// Bytes of a path that is looked for: as many as a system call takes.
const PATH_LEN_MAX: u64 = 4096;

struct List {
    path: PathBuf,
    id: FileListId,
    bytes: u64,
    changed: SystemTime,
}

fn lists(directory: &Path) -> Vec<List> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let list = |entry: fs::DirEntry| {
        let id = id_of(entry.file_name().to_str()?)?;
        let metadata = entry.metadata().ok()?;
        let changed = metadata.modified().ok()?;
        Some(List { path: entry.path(), id, bytes: metadata.len(), changed })
    };
    entries.flatten().filter_map(list).collect()
}

fn open(
    directory: &Path,
    id: FileListId,
    uid: u32,
    options: &OpenOptions,
) -> Result<File, Failure> {
    let path = path_of(directory, id, uid);
    options.open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let words = "the server has no such list of files any more: send it again";
            Failure::new(ErrorKind::NotFound, words)
        }
        _ => Failure::new(ErrorKind::Internal, format!("cannot open {}: {error}", path.display())),
    })
}

fn path_of(directory: &Path, id: FileListId, uid: u32) -> PathBuf {
    directory.join(format!("list-{:016x}-{uid}.paths", id.0))
}

fn id_of(name: &str) -> Option<FileListId> {
    let (id, uid) = name.strip_prefix("list-")?.strip_suffix(".paths")?.split_once('-')?;
    uid.parse::<u32>().ok()?;
    u64::from_str_radix(id, 16).ok().filter(|_| id.len() == 16).map(FileListId)
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Internal,
    };
    let words = format!("the list of files cannot be written to {}: {error}", path.display());
    Failure::new(kind, words)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::session::Caller;

    use super::*;

    const LIST: FileListId = FileListId(0xfedc_ba98_0000_0001);
    const USER: Caller = Caller { uid: 1000, gid: 1000, groups: Vec::new() };

    fn page(list: Option<FileListId>, offset: u64, paths: &[u8]) -> AppendFiles {
        AppendFiles { caller: USER, list, offset, paths: paths.to_vec() }
    }

    fn add(directory: &Path, page: &AppendFiles) -> Result<(), Failure> {
        append(directory, 0, LIST, page)
    }

    fn read(directory: &Path) -> Vec<Vec<u8>> {
        let mut list = FileList::open(directory, LIST, USER.uid).unwrap();
        let mut all = Vec::new();
        loop {
            let page = list.next().unwrap();
            assert!(page.len() <= READ_MAX);
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    #[test]
    fn pages_join_to_a_list_whatever_is_sent_twice() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("reports");
        add(&directory, &page(None, 0, b"a\0b/c\0")).unwrap();
        add(&directory, &page(Some(LIST), 6, b"d\ne\0")).unwrap();
        add(&directory, &page(Some(LIST), 6, b"d\ne\0")).unwrap();
        keep(&directory, LIST, USER.uid).unwrap();
        assert_eq!(read(&directory), [&b"a"[..], b"b/c", b"d\ne"]);
        // What comes in pieces is bounded whatever its length.
        let many = b"name\0".repeat(5000);
        add(&directory, &page(Some(LIST), 10, &many)).unwrap();
        assert_eq!(read(&directory).len(), 5003);
    }

    #[test]
    fn what_is_no_page_is_refused_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        add(directory, &page(None, 0, b"a\0")).unwrap();
        let refused = |page: &AppendFiles| add(directory, page).unwrap_err().kind;
        for wrong in [
            page(Some(LIST), 2, b"b"),
            page(Some(LIST), 3, b"b\0"),
            page(None, 2, b"b\0"),
            page(Some(LIST), FILES_BYTES_MAX, b"b\0"),
            page(Some(LIST), 2, &vec![0; FILES_PAGE_MAX + 1]),
        ] {
            assert_eq!(refused(&wrong), ErrorKind::InvalidArgument, "{}", wrong.offset);
        }
        let stranger = AppendFiles { caller: Caller::ROOT, ..page(Some(LIST), 2, b"b\0") };
        assert_eq!(refused(&stranger), ErrorKind::NotFound);
        assert_eq!(keep(directory, LIST, 0).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(read(directory), [b"a"]);
    }

    #[test]
    fn a_list_that_no_job_names_goes_after_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        add(directory, &page(None, 0, b"a\0")).unwrap();
        fs::write(directory.join("list-1-x.paths"), b"").unwrap();
        fs::write(directory.join("job-1.jsonl"), b"").unwrap();
        let later = SystemTime::now() + UNUSED_MAX;
        prune(directory, &HashSet::new(), SystemTime::now());
        prune(directory, &HashSet::from([LIST]), later);
        assert_eq!(read(directory).len(), 1);
        prune(directory, &HashSet::new(), later + Duration::from_secs(1));
        assert_eq!(keep(directory, LIST, USER.uid).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 2);
    }

    #[test]
    fn a_full_disk_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_of(directory.path(), LIST, USER.uid);
        std::os::unix::fs::symlink("/dev/full", path).unwrap();
        let failure = add(directory.path(), &page(Some(LIST), 0, b"a\0")).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::NoSpace);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing stays behind");
    }

    #[test]
    fn a_list_that_its_disk_has_no_room_for_is_refused_before_it_takes_any_and_nothing_stays() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let short = |page: &AppendFiles| append(directory, u64::MAX, LIST, page);
        let failure = short(&page(None, 0, b"a\0")).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::NoSpace);
        assert!(failure.message.contains("too little room"), "{failure}");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
        add(directory, &page(None, 0, b"a\0")).unwrap();
        short(&page(Some(LIST), 0, b"a\0")).unwrap();
        assert_eq!(read(directory), [b"a"], "sent again it takes no more");
        let failure = short(&page(Some(LIST), 2, b"b\0")).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::NoSpace);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "not half of it");
    }
}
