//! `--files-from FILE|-`: which files of a directory a job works on, read from a file or standard
//! input and sent in pages, however many they are; and which files `resolve` decides.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use millrace_protocol::file_list::{AppendFiles, FILES_PAGE_MAX, FileListId};
use tokio::time::Instant;

use crate::{
    connection::Connection,
    context::{CALLER, at},
};

/// Sends all that `source` names; `tops` are the spellings of the job's directory that may stand in
/// front of a path, the one that counts first where several do.
///
/// # Errors
/// When `source` cannot be read or is no list of files, or the list not be kept.
pub(super) async fn send(
    connection: &Connection,
    source: &Path,
    zero_ended: bool,
    tops: Vec<Vec<u8>>,
) -> anyhow::Result<FileListId> {
    let mut names = Names::open(source, zero_ended, tops)?;
    let mut request = AppendFiles { caller: CALLER, list: None, offset: 0, paths: Vec::new() };
    loop {
        let name = names.next().with_context(|| at(source))?;
        let len = name.as_ref().map_or(0, |name| name.len() + 1);
        let is_full = request.paths.len() + len > FILES_PAGE_MAX;
        if is_full || name.is_none() {
            let list = append(connection, &request).await?;
            if name.is_none() {
                return Ok(list);
            }
            request.list = Some(list);
            request.offset += request.paths.len() as u64;
            request.paths.clear();
        }
        if let Some(name) = name {
            request.paths.extend_from_slice(&name);
            request.paths.push(0);
        }
    }
}

/// All that `source` names, as it is written there.
///
/// # Errors
/// When `source` cannot be read, or is no list of paths.
pub(super) fn paths(source: &Path, zero_ended: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut names = Names::open(source, zero_ended, Vec::new())?;
    let mut paths = Vec::new();
    while let Some(name) = names.next().with_context(|| at(source))? {
        paths.push(OsString::from_vec(name).into());
    }
    Ok(paths)
}

/// Sends a page, again while the server is away.
async fn append(connection: &Connection, request: &AppendFiles) -> anyhow::Result<FileListId> {
    let begun = Instant::now();
    loop {
        match connection.request(request).await {
            Ok(reply) => return Ok(reply.list),
            Err(failure) if failure.kind.is_transient() && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(failure) => bail!("the list of files cannot be kept by the server: {failure}"),
        }
    }
}

/// Paths as they are written, one after the other.
struct Names<R> {
    reader: R,
    /// The byte that ends each.
    end: u8,
    /// How the job's directory may be written in front of a path; none: paths stay as they are.
    tops: Vec<Vec<u8>>,
    number: u64,
}

impl Names<Box<dyn BufRead>> {
    /// Those of a file, or of standard input.
    fn open(source: &Path, zero_ended: bool, tops: Vec<Vec<u8>>) -> anyhow::Result<Self> {
        let reader: Box<dyn BufRead> = match source.as_os_str() == "-" {
            true => Box::new(io::stdin().lock()),
            false => Box::new(BufReader::new(File::open(source).with_context(|| at(source))?)),
        };
        let end = if zero_ended { 0 } else { b'\n' };
        Ok(Self { reader, end, tops, number: 0 })
    }
}

impl<R: BufRead> Names<R> {
    /// The next path, from the job's directory on where it lies below that.
    fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            let mut name = Vec::new();
            let read = (&mut self.reader).take(NAME_MAX as u64).read_until(self.end, &mut name)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if name.pop_if(|last| *last == self.end).is_none() && read == NAME_MAX {
                bail!("entry {} is longer than any path: is this a list of files?", self.number);
            }
            if name.contains(&0) {
                bail!("entry {} has a zero byte: --null is for lists that are so", self.number);
            }
            let is_of_job = !self.tops.is_empty();
            if is_of_job && name.split(|&byte| byte == b'/').any(|part| part == b"..") {
                let name = String::from_utf8_lossy(&name);
                bail!("entry {} is {name:?}: `..` has no meaning in a list of files", self.number);
            }
            if !name.is_empty() {
                return Ok(Some(self.below(name)));
            }
        }
    }

    fn below(&self, name: Vec<u8>) -> Vec<u8> {
        let rest = |top: &Vec<u8>| {
            let rest = name.strip_prefix(top.as_slice())?;
            match rest.first() {
                None => Some(b".".to_vec()),
                Some(b'/') => {
                    let start = rest.iter().position(|&byte| byte != b'/');
                    Some(start.map_or_else(|| b".".to_vec(), |at| rest[at..].to_vec()))
                }
                Some(_) if top.ends_with(b"/") => Some(rest.to_vec()),
                Some(_) => None,
            }
        };
        self.tops.iter().find_map(rest).unwrap_or(name)
    }
}

/// Longer than any path, in bytes.
const NAME_MAX: usize = 16 * 1024;
/// How long a server that is away is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &[u8], end: u8) -> anyhow::Result<Vec<String>> {
        names_below(&["/mnt/set", "mr:/"], text, end)
    }

    fn names_below(tops: &[&str], text: &[u8], end: u8) -> anyhow::Result<Vec<String>> {
        let tops = tops.iter().map(|top| top.as_bytes().to_vec()).collect();
        let mut names = Names { reader: text, end, tops, number: 0 };
        let mut all = Vec::new();
        while let Some(name) = names.next()? {
            all.push(String::from_utf8(name).unwrap());
        }
        Ok(all)
    }

    #[test]
    fn paths_are_taken_from_the_jobs_directory_on() {
        let text =
            b"a\n\n./b/c \n/mnt/set/d//e\n/mnt/set\n/mnt/set/\n/mnt/settle/f\nmr:/g\n..h\nlast";
        let expected = ["a", "./b/c ", "d//e", ".", ".", "/mnt/settle/f", "g", "..h", "last"];
        assert_eq!(names(text, b'\n').unwrap(), expected);
    }

    #[test]
    fn paths_of_a_report_are_those_from_the_file_systems_root() {
        let text = b"/set/d/f\n/set\n/other\nmr:/set/g";
        let expected = ["d/f", ".", "/other", "g"];
        assert_eq!(names_below(&["mr:/set", "/set"], text, b'\n').unwrap(), expected);
        // The root of the file system is mounted there.
        let text = b"/mnt/a/b\n/a/b\n/";
        assert_eq!(names_below(&["/mnt", "/"], text, b'\n').unwrap(), ["a/b", "a/b", "."]);
    }

    #[test]
    fn a_way_up_is_refused_with_its_place() {
        for text in [&b"a\n\n../b"[..], b"a\n\n/mnt/set/..", b"a\n\n/mnt/set/c/../d"] {
            let refused = names(text, b'\n').unwrap_err().to_string();
            assert!(refused.contains("entry 3") && refused.contains("`..`"), "{refused}");
        }
    }

    #[test]
    fn paths_that_end_in_zero_may_have_any_other_byte() {
        assert_eq!(names(b"a\nb\0c\0", 0).unwrap(), ["a\nb", "c"]);
        let wrong = names(b"a\0b\n", b'\n').unwrap_err().to_string();
        assert!(wrong.contains("entry 1") && wrong.contains("--null"), "{wrong}");
    }

    #[test]
    fn without_a_directory_paths_stay_as_they_are() {
        let mut list = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut list, b"a\n\n/mnt/set/d//e\nmr:/g\n\xff").unwrap();
        let read = paths(list.path(), false).unwrap();
        let bytes: Vec<_> = read.into_iter().map(|path| path.into_os_string().into_vec()).collect();
        assert_eq!(bytes, [&b"a"[..], b"/mnt/set/d//e", b"mr:/g", b"\xff"]);
        assert!(paths(Path::new("/no/such/list"), true).unwrap_err().to_string().contains("list"));
    }

    #[test]
    fn what_is_no_list_is_noticed_before_it_fills_memory() {
        let longest = vec![b'x'; NAME_MAX - 1];
        assert_eq!(names(&longest, b'\n').unwrap()[0].len(), NAME_MAX - 1);
        let wrong = names(&[b'x'; 2 * NAME_MAX], b'\n').unwrap_err().to_string();
        assert!(wrong.contains("longer than any path"), "{wrong}");
    }
}
