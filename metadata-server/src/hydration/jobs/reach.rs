//! Which directories of its tree an import lists.
//!
//! What is listed of a directory is all of it: lookups and lists rely on that. So patterns choose
//! directories: those of `include` by whether something below could match, those of `exclude` by
//! whether they match themselves. A pattern is a row of parts, one for each name of a path, and of
//! a directory is remembered how far its path has come in each.

use std::{collections::BTreeSet, ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

use globset::GlobMatcher;
use millrace_protocol::selection::Selection;
use millrace_types::{ErrorKind, Failure, FileName};

use super::filter::glob;

/// The patterns of an import, ready to be asked.
#[derive(Debug)]
pub(super) struct Reach {
    include: Vec<Row>,
    exclude: Vec<Row>,
}

type Row = Vec<Part>;

#[derive(Debug)]
enum Part {
    /// Names of any number of directories.
    Any,
    Name(Box<GlobMatcher>),
}

/// How far the path of a directory has come: rows, and the parts that a name below it may match.
#[derive(Debug, Clone)]
pub(super) struct Point {
    include: BTreeSet<(usize, usize)>,
    exclude: BTreeSet<(usize, usize)>,
}

impl Reach {
    /// Reads the patterns.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], which says what is wrong, for patterns that choose no
    /// directories, and for all that a selection says of files.
    pub(super) fn compile(selection: &Selection) -> Result<Self, Failure> {
        selection.check()?;
        let Selection { include, exclude, size_min, size_max, age_min, age_max } = selection;
        if [size_min, size_max, age_min, age_max].into_iter().any(Option::is_some) {
            let words = "an import lists whole directories: sizes and ages of files choose none";
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        if let Some(pattern) = include.iter().find(|pattern| !pattern.contains('/')) {
            let words = format!(
                "an import lists whole directories, and a name like {pattern} could be in any: \
                 write {pattern}/** for what lies below such a directory"
            );
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        let rows = |patterns: &[String]| -> Result<Vec<Row>, Failure> {
            patterns.iter().map(|pattern| row(pattern)).collect()
        };
        Ok(Self { include: rows(include)?, exclude: rows(exclude)? })
    }

    /// The directory of the job, which is always listed.
    pub(super) fn top(&self) -> Point {
        let begin = |rows: &[Row]| {
            let mut points = BTreeSet::new();
            for (nth, row) in rows.iter().enumerate() {
                come_to(row, (nth, 0), &mut points);
            }
            points
        };
        Point { include: begin(&self.include), exclude: begin(&self.exclude) }
    }

    /// The directory `name` in one that is listed; `None` if that one is not.
    pub(super) fn below(&self, above: &Point, name: &FileName) -> Option<Point> {
        let include = step(&self.include, &above.include, name);
        let exclude = step(&self.exclude, &above.exclude, name);
        let may_match = include.iter().any(|(row, part)| *part < self.include[*row].len());
        let is_out = exclude.iter().any(|(row, part)| *part == self.exclude[*row].len());
        let is_listed = (self.include.is_empty() || may_match) && !is_out;
        is_listed.then_some(Point { include, exclude })
    }
}

fn step(
    rows: &[Row],
    above: &BTreeSet<(usize, usize)>,
    name: &FileName,
) -> BTreeSet<(usize, usize)> {
    let mut points = BTreeSet::new();
    for &(nth, at) in above {
        let row = &rows[nth];
        match row.get(at) {
            Some(Part::Any) => come_to(row, (nth, at), &mut points),
            Some(Part::Name(name_of)) if is_match(name_of, name) => {
                come_to(row, (nth, at + 1), &mut points);
            }
            Some(Part::Name(_)) | None => {}
        }
    }
    points
}

/// Adds a part and, as `Any` may be no directory at all, the one behind it.
fn come_to(row: &Row, (nth, at): (usize, usize), points: &mut BTreeSet<(usize, usize)>) {
    points.insert((nth, at));
    if matches!(row.get(at), Some(Part::Any)) {
        come_to(row, (nth, at + 1), points);
    }
}

fn is_match(glob: &GlobMatcher, name: &FileName) -> bool {
    glob.is_match(Path::new(OsStr::from_bytes(name.as_bytes())))
}

/// A pattern without `/` is for a name at any depth.
fn row(pattern: &str) -> Result<Row, Failure> {
    let mut row = Row::new();
    if !pattern.contains('/') {
        row.push(Part::Any);
    }
    for text in pattern.trim_start_matches('/').split('/') {
        if text.is_empty() {
            let words = format!("{pattern}: a part of the path is empty; ** is for all below");
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        if text == "**" {
            // Twice in a row it says the same.
            if !matches!(row.last(), Some(Part::Any)) {
                row.push(Part::Any);
            }
            continue;
        }
        let read = glob(text, true).map_err(|failure| {
            let words = format!("{pattern}, of which each part is read alone: {}", failure.message);
            Failure::new(failure.kind, words)
        })?;
        row.push(Part::Name(Box::new(read.compile_matcher())));
    }
    if matches!(row.last(), Some(Part::Any)) {
        // At the end it stands for one name at least.
        row.push(Part::Name(Box::new(glob("*", true)?.compile_matcher())));
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(include: &[&str], exclude: &[&str]) -> Selection {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        Selection { include: owned(include), exclude: owned(exclude), ..Selection::default() }
    }

    /// Those of the directories that are listed, below the job's own.
    fn listed<'a>(include: &[&str], exclude: &[&str], all: &[&'a str]) -> Vec<&'a str> {
        let reach = Reach::compile(&selection(include, exclude)).unwrap();
        let is_listed = |path: &&&str| {
            let mut names = path.split('/').map(|name| FileName::parse(name.as_bytes()).unwrap());
            names.try_fold(reach.top(), |at, name| reach.below(&at, &name)).is_some()
        };
        all.iter().filter(is_listed).copied().collect()
    }

    const ALL: [&str; 7] =
        ["train", "train/a", "train/a/old", "val", "val/old", "val/old/x", "trainer"];

    #[test]
    fn a_directory_is_listed_if_something_in_or_below_it_could_match() {
        let included = |include: &[&str]| listed(include, &[], &ALL);
        assert_eq!(included(&[]), ALL);
        assert_eq!(included(&["train/**"]), ["train", "train/a", "train/a/old"]);
        assert_eq!(included(&["/train/*"]), ["train"]);
        assert_eq!(included(&["/train"]), [""; 0], "in the job's own directory alone");
        assert_eq!(included(&["train/a/*.jpg", "val/*"]), ["train", "train/a", "val"]);
        assert_eq!(included(&["t*/**"]), ["train", "train/a", "train/a/old", "trainer"]);
        assert_eq!(included(&["{train,val}/*/x"]), ["train", "train/a", "val", "val/old"]);
        assert_eq!(included(&["**/old/x/y"]), ALL, "it may be anywhere");
        assert_eq!(included(&["val/**/**/x"]), ["val", "val/old", "val/old/x"]);
    }

    #[test]
    fn a_directory_that_matches_is_left_out_with_all_below() {
        let left = |exclude: &[&str]| listed(&[], exclude, &ALL);
        assert_eq!(left(&["old"]), ["train", "train/a", "val", "trainer"], "wherever");
        assert_eq!(left(&["/val"]), ["train", "train/a", "train/a/old", "trainer"]);
        assert_eq!(left(&["val/**"]), ["train", "train/a", "train/a/old", "val", "trainer"]);
        assert_eq!(
            left(&["**/a/*"]),
            ["train", "train/a", "val", "val/old", "val/old/x", "trainer"]
        );
        assert_eq!(left(&["**"]), [""; 0]);
        assert_eq!(listed(&["train/**"], &["old"], &ALL), ["train", "train/a"]);
    }

    #[test]
    fn what_chooses_no_directories_is_refused_with_the_reason() {
        let refused = |selection| {
            let failure = Reach::compile(&selection).unwrap_err();
            assert_eq!(failure.kind, ErrorKind::InvalidArgument);
            failure.message
        };
        let older = Selection { age_min: Some(1), ..Selection::default() };
        let small = Selection { size_max: Some(1), ..Selection::default() };
        for files in [older, small] {
            assert!(refused(files).contains("whole directories"));
        }
        let name = refused(selection(&["*.jpg"], &[]));
        assert!(name.contains("*.jpg could be in any"), "{name}");
        assert!(refused(selection(&["train/"], &[])).contains("empty"));
        assert!(refused(selection(&[], &["a//b"])).contains("empty"));
        let split = refused(selection(&["{a/b,c}/d"], &[]));
        assert!(split.contains("{a/b,c}/d") && split.contains("alone"), "{split}");
    }
}
