//! Jobs over a part of a tree: which files, whether only to count them, and starting one again.

use millrace_types::{ErrorKind, Failure, JobId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{admin::StartJob, session::Caller};

/// Which files of a tree a job works on: those to which all of it applies.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Patterns of which one must match; empty: any file. A pattern without `/` is for the file's
    /// name, one with `/` for its path below the job's.
    pub include: Vec<String>,
    /// Patterns of which none may match.
    pub exclude: Vec<String>,
    /// The least bytes.
    pub size_min: Option<u64>,
    /// The most bytes.
    pub size_max: Option<u64>,
    /// The least seconds from the last change of the content to the job's start.
    pub age_min: Option<u64>,
    /// The most seconds.
    pub age_max: Option<u64>,
}

/// The most patterns of one selection, and bytes of one pattern.
pub const PATTERNS_MAX: usize = 64;
/// See [`PATTERNS_MAX`].
pub const PATTERN_LEN_MAX: usize = 1024;

/// Starts a job over a part of a tree.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StartSelected {
    /// The job. Of an import the patterns choose the directories that are listed, each as a whole:
    /// those in or below which a path could match one of `include`, which have a `/` then, and none
    /// that match one of `exclude`. Nothing else can be said of it.
    pub start: StartJob,
    /// Which files.
    pub selection: Selection,
    /// Nothing is done: what would be is counted as found, and nothing as done.
    pub dry_run: bool,
}

/// Starts a job once more that has ended: over the same files, of which those that are done are
/// passed over; of an import that succeeded none.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RetryJob {
    /// For whom: who started it, or root.
    pub caller: Caller,
    /// The job.
    pub id: JobId,
}

/// Asks what a job works on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowSelection {
    /// The job.
    pub id: JobId,
}

/// What a job works on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SelectionReply {
    /// Which files.
    pub selection: Selection,
    /// Whether it only counts.
    pub dry_run: bool,
}

impl Selection {
    /// Whether it leaves nothing out.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Checks its bounds; what the patterns say is the server's to read.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], which says what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |words: String| Err(Failure::new(ErrorKind::InvalidArgument, words));
        if self.include.len() + self.exclude.len() > PATTERNS_MAX {
            return wrong(format!("a job takes {PATTERNS_MAX} patterns at most"));
        }
        let mut patterns = self.include.iter().chain(&self.exclude);
        if patterns.any(|pattern| pattern.is_empty() || pattern.len() > PATTERN_LEN_MAX) {
            return wrong(format!("a pattern has 1 to {PATTERN_LEN_MAX} bytes"));
        }
        let crossed = |least: Option<u64>, most: Option<u64>| {
            least.zip(most).is_some_and(|(least, most)| least > most)
        };
        if crossed(self.size_min, self.size_max) || crossed(self.age_min, self.age_max) {
            return wrong("the least is more than the most: no file can be that".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_no_file_can_meet_are_refused() {
        assert!(Selection::default().check().is_ok() && Selection::default().is_everything());
        let sizes = |least, most| {
            let (size_min, size_max) = (Some(least), Some(most));
            Selection { size_min, size_max, ..Selection::default() }
        };
        assert!(sizes(1, 1).check().is_ok() && !sizes(1, 1).is_everything());
        assert!(sizes(2, 1).check().is_err());
        let ages = Selection { age_min: Some(2), age_max: Some(1), ..Selection::default() };
        assert!(ages.check().is_err());
        let patterns = |pattern: &str, count| {
            Selection { include: vec![pattern.to_owned(); count], ..Selection::default() }.check()
        };
        assert!(patterns("*.jpg", PATTERNS_MAX).is_ok());
        assert!(patterns("*.jpg", PATTERNS_MAX + 1).is_err());
        assert!(patterns("", 1).is_err() && patterns(&"a".repeat(1025), 1).is_err());
    }
}
