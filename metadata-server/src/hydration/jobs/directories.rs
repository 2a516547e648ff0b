//! How far a job is in each directory right below its own.
//!
//! The first of them have a row of their own, what is in others is summed in one. Of a file the row
//! is remembered from when the job takes it to when that ends. Bytes count as they come, as with
//! the whole job, so that who looks twice sees how fast it is in each.

use std::collections::HashMap;

use millrace_protocol::job_detail::{DIRECTORIES_MAX, DirectoryProgress};
use millrace_types::{FileName, InodeId};

/// Rows, and the files under way.
#[derive(Debug, Default)]
pub(super) struct Directories {
    rows: Vec<DirectoryProgress>,
    others: DirectoryProgress,
    by_name: HashMap<Vec<u8>, usize>,
    under_way: HashMap<InodeId, UnderWay>,
}

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    /// The row; `None` for the sum of all that have none.
    row: Option<usize>,
    bytes: u64,
    /// Of these, those that the row has as done.
    moved: u64,
    is_found: bool,
}

impl Directories {
    /// A file or directory below `branch` comes; `None` is the job's directory itself.
    pub(super) fn enter(&mut self, inode: InodeId, branch: Option<&FileName>) {
        let row = self.row(branch);
        self.under_way.insert(inode, UnderWay { row, bytes: 0, moved: 0, is_found: false });
    }

    /// Nothing is done with it.
    pub(super) fn leave(&mut self, inode: InodeId) {
        self.end(inode);
    }

    /// It is to be done. With how many bytes that was known before, if it was.
    pub(super) fn found(&mut self, inode: InodeId, bytes: u64) -> Option<u64> {
        let file = self.under_way.get_mut(&inode)?;
        if file.is_found {
            let before = file.bytes;
            self.resized(inode, bytes);
            return Some(before);
        }
        file.bytes = bytes;
        file.is_found = true;
        let row = file.row;
        let row = self.at(row);
        row.files_total += 1;
        row.bytes_total = row.bytes_total.saturating_add(bytes);
        None
    }

    /// Whether it came, is to be done, and is not yet.
    pub(super) fn is_found(&self, inode: InodeId) -> bool {
        self.under_way.get(&inode).is_some_and(|file| file.is_found)
    }

    /// So many of its bytes are done.
    pub(super) fn moved(&mut self, inode: InodeId, bytes: u64) {
        let Some(file) = self.under_way.get_mut(&inode) else { return };
        file.moved = file.moved.saturating_add(bytes);
        let row = file.row;
        let row = self.at(row);
        row.bytes_done = row.bytes_done.saturating_add(bytes);
    }

    /// So many that were done are to be done again.
    pub(super) fn unmoved(&mut self, inode: InodeId, bytes: u64) {
        let Some(file) = self.under_way.get_mut(&inode) else { return };
        let bytes = bytes.min(file.moved);
        file.moved -= bytes;
        let row = file.row;
        let row = self.at(row);
        row.bytes_done = row.bytes_done.saturating_sub(bytes);
    }

    /// So many of its bytes stay as they are after all.
    pub(super) fn kept(&mut self, inode: InodeId, bytes: u64) {
        let Some(file) = self.under_way.get_mut(&inode) else { return };
        file.bytes = file.bytes.saturating_sub(bytes);
        let row = file.row;
        let row = self.at(row);
        row.bytes_total = row.bytes_total.saturating_sub(bytes);
    }

    /// It has so many bytes by now.
    pub(super) fn resized(&mut self, inode: InodeId, bytes: u64) {
        let Some(file) = self.under_way.get_mut(&inode) else { return };
        let before = std::mem::replace(&mut file.bytes, bytes);
        let row = file.row;
        let row = self.at(row);
        row.bytes_total = row.bytes_total.saturating_sub(before).saturating_add(bytes);
    }

    /// It is done.
    pub(super) fn done(&mut self, inode: InodeId) {
        let Some(UnderWay { row, bytes, .. }) = self.end(inode) else { return };
        let row = self.at(row);
        row.files_done += 1;
        row.bytes_done = row.bytes_done.saturating_add(bytes);
    }

    /// It could not be done.
    pub(super) fn failed(&mut self, inode: InodeId) {
        let Some(UnderWay { row, .. }) = self.end(inode) else { return };
        self.at(row).errors += 1;
    }

    /// So many names below `branch` came and are done.
    pub(super) fn listed(&mut self, branch: Option<&FileName>, names: u64, bytes: u64) {
        let row = self.row(branch);
        let row = self.at(row);
        row.files_total += names;
        row.files_done += names;
        row.bytes_total = row.bytes_total.saturating_add(bytes);
        row.bytes_done = row.bytes_done.saturating_add(bytes);
    }

    /// Something below `branch` could not be found.
    pub(super) fn missed(&mut self, branch: Option<&FileName>) {
        let row = self.row(branch);
        let row = self.at(row);
        row.files_total += 1;
        row.errors += 1;
    }

    /// One name that was listed below `branch` counts elsewhere.
    pub(super) fn unlisted(&mut self, branch: Option<&FileName>) {
        let row = self.row(branch);
        let row = self.at(row);
        row.files_total = row.files_total.saturating_sub(1);
        row.files_done = row.files_done.saturating_sub(1);
    }

    /// The rows, and what is in none.
    pub(super) fn told(&self) -> (Vec<DirectoryProgress>, DirectoryProgress) {
        (self.rows.clone(), self.others.clone())
    }

    /// It is not under way any more, and none of its bytes counts as done.
    fn end(&mut self, inode: InodeId) -> Option<UnderWay> {
        let file = self.under_way.remove(&inode)?;
        let row = self.at(file.row);
        row.bytes_done = row.bytes_done.saturating_sub(file.moved);
        Some(file)
    }

    fn row(&mut self, branch: Option<&FileName>) -> Option<usize> {
        let name = branch.map_or(&b""[..], FileName::as_bytes);
        if let Some(row) = self.by_name.get(name) {
            return Some(*row);
        }
        if self.rows.len() >= DIRECTORIES_MAX {
            return None;
        }
        let row = self.rows.len();
        self.rows.push(DirectoryProgress { name: name.to_vec(), ..DirectoryProgress::default() });
        self.by_name.insert(name.to_vec(), row);
        Some(row)
    }

    fn at(&mut self, row: Option<usize>) -> &mut DirectoryProgress {
        row.and_then(|row| self.rows.get_mut(row)).unwrap_or(&mut self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> FileName {
        FileName::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn files_are_counted_where_they_lie_and_each_once() {
        let mut directories = Directories::default();
        for (id, branch) in [(1, None), (2, Some(name("a"))), (3, Some(name("a")))] {
            directories.enter(InodeId(id), branch.as_ref());
            directories.found(InodeId(id), 10);
        }
        directories.enter(InodeId(4), Some(&name("b")));
        directories.leave(InodeId(4));
        directories.kept(InodeId(2), 4);
        directories.kept(InodeId(99), 1);
        directories.resized(InodeId(1), 15);
        directories.resized(InodeId(99), 15);
        for id in [1, 2, 2, 4, 99] {
            directories.done(InodeId(id));
        }
        directories.failed(InodeId(3));
        directories.missed(Some(&name("b")));
        let (rows, others) = directories.told();
        let told: Vec<_> = rows
            .iter()
            .map(|row| {
                let name = String::from_utf8(row.name.clone()).unwrap();
                (name, row.files_done, row.files_total, row.bytes_done, row.bytes_total, row.errors)
            })
            .collect();
        let expected = [("", 1, 1, 15, 15, 0), ("a", 1, 2, 6, 16, 1), ("b", 0, 1, 0, 0, 1)];
        let expected = expected.map(|(name, a, b, c, d, e)| (name.to_owned(), a, b, c, d, e));
        assert_eq!(told, expected);
        assert_eq!(others, DirectoryProgress::default());
        assert!(directories.under_way.is_empty(), "nothing is remembered of what has ended");
    }

    #[test]
    fn bytes_count_as_they_come_and_in_the_end_those_of_files_that_are_done() {
        let mut directories = Directories::default();
        let done = |directories: &Directories| directories.told().0[0].bytes_done;
        for id in 1..=4 {
            directories.enter(InodeId(id), None);
            directories.found(InodeId(id), 10);
            directories.moved(InodeId(id), 4);
        }
        directories.moved(InodeId(99), 4);
        assert_eq!(done(&directories), 16);
        directories.unmoved(InodeId(1), 3);
        directories.unmoved(InodeId(99), 3);
        assert_eq!(done(&directories), 13);
        // Also where fewer, or more, were counted of it than it has.
        directories.done(InodeId(1));
        directories.resized(InodeId(2), 3);
        directories.done(InodeId(2));
        assert_eq!(done(&directories), 10 + 3 + 4 + 4);
        directories.failed(InodeId(3));
        directories.leave(InodeId(4));
        assert_eq!(done(&directories), 10 + 3);
    }

    #[test]
    fn many_directories_are_summed_behind_the_first() {
        let mut directories = Directories::default();
        for id in 0..1000 {
            directories.enter(InodeId(id), Some(&name(&format!("{id:04}"))));
            directories.found(InodeId(id), 1);
            directories.done(InodeId(id));
        }
        let (rows, others) = directories.told();
        assert_eq!(rows.len(), DIRECTORIES_MAX);
        let rest = 1000 - DIRECTORIES_MAX as u64;
        assert_eq!((others.files_done, others.bytes_total), (rest, rest));
        assert_eq!(directories.by_name.len(), DIRECTORIES_MAX, "what is not told is not kept");
    }
}
