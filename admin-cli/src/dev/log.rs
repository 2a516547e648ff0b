//! The end of a daemon's log, shown when the daemon fails.

use std::{
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

/// A log, from the moment of one start on.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    path: PathBuf,
    start: u64,
}

impl Log {
    /// Notes where the log ends now: what an earlier start has written is not shown.
    pub(crate) fn at_end(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            start: std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
        }
    }

    /// The last lines, with where to find the rest.
    pub(crate) fn last_words(&self) -> String {
        let path = self.path.display();
        match self.tail() {
            Ok(lines) if lines.is_empty() => format!("its log {path} is empty"),
            Ok(lines) => format!("the end of its log {path}:\n{}", lines.join("\n")),
            Err(error) => format!("its log {path} cannot be read: {error}"),
        }
    }

    fn tail(&self) -> std::io::Result<Vec<String>> {
        let mut file = std::fs::File::open(&self.path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(self.start.max(len.saturating_sub(TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().map(|line| format!("  {line}")).collect();
        Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].to_vec())
    }
}

/// Enough for a panic with its backtrace.
const TAIL_LINES: usize = 20;
const TAIL_BYTES: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_log_is_cut_to_a_screen_and_earlier_starts_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let text: String = (0..5000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(&path, &text).unwrap();
        let lines = Log { path: path.clone(), start: 0 }.tail().unwrap();
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines.last().unwrap(), "  line 4999");
        let log = Log::at_end(&path);
        assert!(log.last_words().ends_with("is empty"));
        std::fs::write(&path, text + "new\n").unwrap();
        assert!(log.last_words().ends_with(":\n  new"), "{}", log.last_words());
    }
}
