//! Where the files that are made lie, by their numbers.

use std::ops::Range;

use millrace_types::FileName;

/// So many files in directories of one size, some of which are filled at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Files in all.
    pub(super) files: u64,
    /// Files in each directory; the last one may have fewer.
    pub(super) a_directory: u64,
}

impl Layout {
    pub(super) fn directories(self) -> u64 {
        self.files.div_ceil(self.a_directory)
    }

    /// Groups of directories that are filled at once, a file in each by turns.
    pub(super) fn groups(self) -> impl Iterator<Item = Range<u64>> {
        let directories = self.directories();
        (0..directories)
            .step_by(CLIENTS)
            .map(move |first| first..(first + CLIENTS as u64).min(directories))
    }

    /// How many files such a group has.
    pub(super) fn files_in(self, group: &Range<u64>) -> u64 {
        let first = group.start * self.a_directory;
        (self.files - first).min((group.end - group.start) * self.a_directory)
    }

    /// The directory and the name of a file, as the groups are filled.
    pub(super) fn place(self, number: u64) -> (FileName, FileName) {
        let together = CLIENTS as u64 * self.a_directory;
        let first = number / together * CLIENTS as u64;
        let width = (self.directories() - first).min(CLIENTS as u64);
        let nth = number % together;
        (directory_name(first + nth % width), file_name(nth / width))
    }
}

pub(super) fn directory_name(number: u64) -> FileName {
    FileName::parse(format!("directory-{number:06}").as_bytes()).expect("a short plain name")
}

pub(super) fn file_name(number: u64) -> FileName {
    FileName::parse(format!("sample-{number:08}.jpg").as_bytes()).expect("a short plain name")
}

/// Directories that are filled at once.
const CLIENTS: usize = 64;
