//! Standard output: JSON for programs, tables and sentences for people.

use std::io::{self, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// How results are printed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// JSON, or for people.
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether programs read the output.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints a result: `value` as JSON, or the text that `human` makes.
    ///
    /// # Errors
    /// Those of writing; a reader that has gone away is no error.
    pub(crate) fn result<T: Serialize>(
        self,
        value: &T,
        human: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        let text = if self.json { serde_json::to_string_pretty(value)? } else { human() };
        self.line(&text)
    }

    /// Prints one text and ends the line.
    ///
    /// # Errors
    /// Those of writing; a reader that has gone away is no error.
    pub(crate) fn line(self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }
}

/// A table without lines, as wide as the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().copied());
    table
}

/// The table as text without spaces at the ends of lines.
pub(crate) fn render(table: &Table) -> String {
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    // The preset puts one space in front of every line.
    let lines: Vec<_> = lines.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n")
}

/// A path of the file system for people and JSON; bytes that are no UTF-8 become U+FFFD.
pub(crate) fn path_text(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    if text.starts_with('/') { text.into_owned() } else { format!("/{text}") }
}

/// A moment as RFC 3339 in UTC, to the second.
pub(crate) fn time_text(time: millrace_types::Timestamp) -> String {
    jiff::Timestamp::from_second(time.seconds())
        .map_or_else(|_| format!("{} s", time.seconds()), |moment| moment.to_string())
}

/// `count` of `thing`, with the plural where it is due.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

#[cfg(test)]
mod tests {
    use millrace_types::Timestamp;

    use super::*;

    #[test]
    fn a_table_has_no_frame_and_no_trailing_spaces() {
        let mut table = table(&["ID", "STATE"]);
        table.add_row(["a", "online"]);
        table.add_row(["long-name", "x"]);
        assert_eq!(render(&table), "ID         STATE\na          online\nlong-name  x");
    }

    #[test]
    fn paths_start_at_the_root_and_times_are_utc() {
        assert_eq!(path_text(b"train"), "/train");
        assert_eq!(path_text(b""), "/");
        assert_eq!(path_text(b"/a\xff"), "/a\u{fffd}");
        assert_eq!(time_text(Timestamp(1_000_000_000)), "1970-01-01T00:00:01Z");
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(counted(0, "file"), "0 files");
    }
}
