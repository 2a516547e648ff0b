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

    /// Prints a line of a result that comes in parts, for people; JSON comes as a whole.
    ///
    /// # Errors
    /// As [`Self::result`].
    pub(crate) fn line(self, line: &str) -> anyhow::Result<()> {
        match self.json {
            true => Ok(()),
            false => print(&harmless(line)),
        }
    }

    /// Prints a result: `value` as JSON, or the text that `human` makes. Nothing of a text acts on
    /// the terminal.
    ///
    /// # Errors
    /// Those of writing; a reader that has gone away is no error.
    pub(crate) fn result<T: Serialize>(
        self,
        value: &T,
        human: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        let text = match self.json {
            true => serde_json::to_string_pretty(value)?,
            false => harmless(&human()),
        };
        print(&text)
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Rows below a header, without lines between them.
#[derive(Debug)]
pub(crate) struct Rows(Table);

impl Rows {
    /// Adds a row. What a terminal would act on in a cell is escaped, also a line's end: a name may
    /// hold anything.
    pub(crate) fn add_row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<_> = cells.into_iter().map(|cell| shown(cell.as_ref())).collect();
        self.0.add_row(cells);
    }
}

/// A table without lines, as wide as the terminal.
pub(crate) fn table(header: &[&str]) -> Rows {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().copied());
    Rows(table)
}

/// The table as text without spaces at the ends of lines.
pub(crate) fn render(table: &Rows) -> String {
    let lines: Vec<_> = table.0.lines().map(|line| line.trim_end().to_owned()).collect();
    // The preset puts one space in front of every line.
    let lines: Vec<_> = lines.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n")
}

/// A name, or a sentence that may hold one, in a line: what a terminal would act on, a line's end
/// too, is escaped as Rust writes it in a text. Everything else stays as it is, to be copied.
///
/// Whoever may make a file chooses its name, and root reads the lists.
pub(crate) fn shown(name: &str) -> String {
    escaped(name, is_acted_on)
}

/// A text of lines in which nothing else is left that a terminal would act on.
pub(crate) fn harmless(text: &str) -> String {
    escaped(text, |character| !matches!(character, '\n' | '\t') && is_acted_on(character))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match is_escaped(character) {
            true => safe.extend(character.escape_debug()),
            false => safe.push(character),
        }
    }
    safe
}

/// Control characters, and those that take no room and turn the direction of what follows.
fn is_acted_on(character: char) -> bool {
    let is_format = matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    character.is_control() || is_format
}

/// A path of the file system for people and JSON; bytes that are no UTF-8 become U+FFFD.
pub(crate) fn path_text(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    if text.starts_with('/') { text.into_owned() } else { format!("/{text}") }
}

/// What a failure is about: a path of the file system, or as it is the key of an object that no
/// path leads to any more.
pub(crate) fn subject_text(subject: &[u8]) -> String {
    match subject.first() {
        None | Some(b'/') => path_text(subject),
        Some(_) => String::from_utf8_lossy(subject).into_owned(),
    }
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
    fn a_name_cannot_act_on_a_terminal_and_stays_one_line() {
        let name = "it's \u{1b}[31m\r\n\t\\\u{9b}\u{202e}\u{7f}é";
        let expected = "it's \\u{1b}[31m\\r\\n\\t\\\\u{9b}\\u{202e}\\u{7f}é";
        assert_eq!(shown(name), expected);
        let mut table = table(&["ID"]);
        table.add_row([name]);
        assert_eq!(render(&table), format!("ID\n{expected}"));
        assert_eq!(harmless("a\n\tb\\\u{1b}"), "a\n\tb\\\\u{1b}");
    }

    #[test]
    fn paths_start_at_the_root_and_times_are_utc() {
        assert_eq!(path_text(b"train"), "/train");
        assert_eq!(path_text(b""), "/");
        assert_eq!(subject_text(b"/a/b"), "/a/b");
        assert_eq!(subject_text(b""), "/");
        assert_eq!(subject_text(b"pre/d/x"), "pre/d/x", "a key");
        assert_eq!(path_text(b"/a\xff"), "/a\u{fffd}");
        assert_eq!(time_text(Timestamp(1_000_000_000)), "1970-01-01T00:00:01Z");
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(counted(0, "file"), "0 files");
    }
}
