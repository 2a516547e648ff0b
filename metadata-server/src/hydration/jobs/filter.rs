//! Which files of its tree a job works on.
//!
//! Patterns are read by `globset` (MIT or Unlicense; ripgrep's): what shells know, in sets that are
//! matched at once, without backtracking, since whoever starts a job writes them.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use millrace_protocol::{admin::FileState, selection::Selection, unused::ACCESS_STEP_SECONDS};
use millrace_types::{ErrorKind, Failure, FileName, Timestamp};

use crate::namespace::Inode;

/// A selection, ready to be asked.
#[derive(Debug)]
pub(super) struct Filter {
    selection: Selection,
    include: Patterns,
    exclude: Patterns,
    /// When the job began: ages count from there, also after a restart.
    started: Timestamp,
    /// The least seconds from the last use to that.
    unused_min: Option<u64>,
    /// One of which a file must be in; empty: any.
    states: Vec<FileState>,
}

#[derive(Debug)]
struct Patterns {
    names: GlobSet,
    paths: GlobSet,
}

impl Filter {
    /// Reads the patterns.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], which names the pattern.
    pub(super) fn compile(selection: &Selection, started: Timestamp) -> Result<Self, Failure> {
        selection.check()?;
        Ok(Self {
            selection: selection.clone(),
            include: Patterns::compile(&selection.include)?,
            exclude: Patterns::compile(&selection.exclude)?,
            started,
            unused_min: None,
            states: Vec::new(),
        })
    }

    /// Leaves out what somebody has used, or may have used, in the last so many seconds.
    pub(super) fn with_unused(self, seconds: Option<u64>) -> Self {
        Self { unused_min: seconds, ..self }
    }

    /// Leaves out what is in none of these states, unless there are none.
    pub(super) fn with_states(self, states: Vec<FileState>) -> Self {
        Self { states, ..self }
    }

    /// The states that files must be in, if that is looked at: `judge` does.
    pub(super) fn states(&self) -> Option<&[FileState]> {
        (!self.states.is_empty()).then_some(&self.states)
    }

    /// Which files, as it was asked for.
    pub(super) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Whether nothing is left out.
    pub(super) fn is_everything(&self) -> bool {
        self.selection.is_everything() && self.unused_min.is_none() && self.states.is_empty()
    }

    /// Whether the path of a file must be known.
    pub(super) fn needs_path(&self) -> bool {
        !self.include.paths.is_empty() || !self.exclude.paths.is_empty()
    }

    /// Whether the job works on a file, whatever its state, of which `path` is that below the job's
    /// own.
    pub(super) fn admits(&self, inode: &Inode, path: &[u8]) -> bool {
        let none = FileName::parse(b"?").expect("a name");
        let name = inode.parent.as_ref().map_or(&none, |parent| &parent.name);
        let selection = &self.selection;
        let included = selection.include.is_empty() || self.include.match_(name, path);
        let age = age(inode.modified, self.started);
        included
            && !self.exclude.match_(name, path)
            && selection.size_min.is_none_or(|least| inode.size >= least)
            && selection.size_max.is_none_or(|most| inode.size <= most)
            && selection.age_min.is_none_or(|least| age >= least)
            && selection.age_max.is_none_or(|most| age <= most)
            && self.unused_min.is_none_or(|least| self.unused(inode) >= least)
    }

    /// The seconds for which nobody has used a file, as its times tell: it may have been read after
    /// its time of access, which moves by steps.
    fn unused(&self, inode: &Inode) -> u64 {
        let read = age(inode.accessed, self.started).saturating_sub(ACCESS_STEP_SECONDS);
        read.min(age(inode.modified, self.started))
    }
}

impl Patterns {
    fn compile(patterns: &[String]) -> Result<Self, Failure> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            match pattern.contains('/') {
                true => paths.add(glob(pattern.trim_start_matches('/'), true)?),
                false => names.add(glob(pattern, false)?),
            };
        }
        let build = |set: GlobSetBuilder| set.build().map_err(|error| wrong(&error.to_string()));
        Ok(Self { names: build(names)?, paths: build(paths)? })
    }

    fn match_(&self, name: &FileName, path: &[u8]) -> bool {
        let is_match = |set: &GlobSet, text: &[u8]| {
            !set.is_empty() && set.is_match(Path::new(OsStr::from_bytes(text)))
        };
        is_match(&self.names, name.as_bytes()) || is_match(&self.paths, path)
    }
}

/// `*` does not pass a `/`; `**` does.
pub(super) fn glob(pattern: &str, is_path: bool) -> Result<Glob, Failure> {
    let mut builder = GlobBuilder::new(pattern);
    builder.literal_separator(is_path).backslash_escape(true);
    builder.build().map_err(|error| wrong(&error.to_string()))
}

fn wrong(words: &str) -> Failure {
    Failure::new(ErrorKind::InvalidArgument, words)
}

/// Whole seconds; 0 for what is later.
fn age(modified: Timestamp, now: Timestamp) -> u64 {
    let nanos = u64::try_from(now.0.saturating_sub(modified.0)).unwrap_or(0);
    Duration::from_nanos(nanos).as_secs()
}

#[cfg(test)]
mod tests {
    use millrace_protocol::metadata::FileKind;
    use millrace_types::{ChangeCount, InodeId};

    use super::*;
    use crate::namespace::{Body, ParentLink};

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    fn file(name: &str, size: u64, age_seconds: i64) -> Inode {
        let directory = InodeId(1);
        let modified = Timestamp(NOW.0 - age_seconds * 1_000_000_000);
        Inode {
            id: InodeId(9),
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            device: 0,
            size,
            accessed: NOW,
            modified,
            changed: NOW,
            born: NOW,
            change_count: ChangeCount(1),
            accounting: 0,
            parent: Some(ParentLink { directory, name: FileName::parse(name.as_bytes()).unwrap() }),
            xattr_bytes: 0,
            body: Body::Special,
        }
    }

    fn patterns(include: &[&str], exclude: &[&str]) -> Selection {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        Selection { include: owned(include), exclude: owned(exclude), ..Selection::default() }
    }

    #[test]
    fn patterns_are_for_names_or_for_paths() {
        let admits = |include: &[&str], exclude: &[&str], path: &str| {
            let filter = Filter::compile(&patterns(include, exclude), NOW).unwrap();
            let name = path.rsplit('/').next().unwrap();
            filter.admits(&file(name, 1, 0), path.as_bytes())
        };
        assert!(admits(&[], &[], "a/b.jpg"));
        assert!(admits(&["*.jpg"], &[], "a/b.jpg") && !admits(&["*.jpg"], &[], "a/b.png"));
        assert!(admits(&["*.{jpg,png}"], &[], "b.png") && admits(&["[ab]*"], &[], "x/b.png"));
        assert!(admits(&["a/*"], &[], "a/b") && !admits(&["a/*"], &[], "a/b/c"));
        assert!(admits(&["/a/**"], &[], "a/b/c") && !admits(&["a/**"], &[], "x/a/b"));
        assert!(admits(&["**/val/*.bin"], &[], "x/val/1.bin"));
        assert!(!admits(&[], &["*.tmp"], "a/x.tmp") && admits(&[], &["*.tmp"], "a/x"));
        assert!(!admits(&["*.jpg"], &["old/**"], "old/x.jpg"), "excluded is excluded");
        assert!(admits(&["a", "b"], &[], "b"), "any of them");
        let error = Filter::compile(&patterns(&["a[b"], &[]), NOW).unwrap_err();
        assert!(error.to_string().contains("a[b"), "{error}");
    }

    #[test]
    fn sizes_and_ages_have_bounds_that_count() {
        let admits = |selection: Selection, size, age| {
            Filter::compile(&selection, NOW).unwrap().admits(&file("f", size, age), b"f")
        };
        let sizes = Selection { size_min: Some(10), size_max: Some(20), ..Selection::default() };
        let seen = [9, 10, 20, 21].map(|size| admits(sizes.clone(), size, 0));
        assert_eq!(seen, [false, true, true, false]);
        let ages = Selection { age_min: Some(10), age_max: Some(20), ..Selection::default() };
        let seen = [-5, 9, 10, 20, 21].map(|age| admits(ages.clone(), 0, age));
        assert_eq!(seen, [false, false, true, true, false]);
        let young = Selection { age_max: Some(20), ..Selection::default() };
        assert!(admits(young, 0, -5), "changed since the job began");
    }

    #[test]
    fn what_somebody_may_have_used_is_left_out() {
        let least = 7 * ACCESS_STEP_SECONDS;
        let step = i64::try_from(ACCESS_STEP_SECONDS).unwrap();
        let admits = |read_days: i64, changed_days: i64| {
            let mut file = file("f", 1, changed_days * step);
            file.accessed = Timestamp(NOW.0 - read_days * step * 1_000_000_000);
            let filter = Filter::compile(&Selection::default(), NOW).unwrap();
            let filter = filter.with_unused(Some(least));
            assert!(!filter.is_everything(), "it leaves something out");
            filter.admits(&file, b"f")
        };
        assert!(admits(8, 30));
        assert!(!admits(7, 30), "read a day later, its time of access would be the same");
        assert!(!admits(30, 6), "it was changed since");
        assert!(admits(30, 7) && !admits(-1, 30));
    }
}
