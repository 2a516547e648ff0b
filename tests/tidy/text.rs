//! Length of files, width of lines, leftovers.

use crate::files::{expect_none, texts};

#[test]
fn source_files_have_at_most_600_lines() {
    let long = texts(&["rs", "py", "sh"]).into_iter().filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{}: {lines} lines", path.display()))
    });
    expect_none(&long.collect::<Vec<_>>());
}

#[test]
fn lines_have_at_most_100_columns() {
    let mut complaints = Vec::new();
    for (path, text) in texts(&["rs", "py", "sh", "toml", "md", "service"]) {
        let document = path.extension().is_some_and(|extension| extension == "md");
        for (number, line) in (1..).zip(text.lines()) {
            // Tables and addresses in prose, and inline tables in TOML, cannot be broken.
            let unbreakable = document && (line.starts_with('|') || line.contains("http"))
                || line.contains(" = { ") && path.extension().is_some_and(|kind| kind == "toml");
            let most = if document { PROSE_COLUMNS_MAX } else { COLUMNS_MAX };
            if line.chars().count() > most && !unbreakable {
                complaints.push(format!("{}:{number}: too wide", path.display()));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn nothing_is_left_over() {
    // Put together here so that this file does not complain about itself.
    let markers = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["XX", "X:"].concat(),
        ["todo", "!("].concat(),
        ["unimplemented", "!("].concat(),
        ["dbg", "!("].concat(),
        ["<<<<", "<<<"].concat(),
    ];
    let mut complaints = Vec::new();
    for (path, text) in texts(&["rs", "py", "sh", "toml", "md", "service"]) {
        for (number, line) in (1..).zip(text.lines()) {
            if line != line.trim_end() {
                complaints.push(format!("{}:{number}: space at the end", path.display()));
            }
            if let Some(marker) = markers.iter().find(|marker| line.contains(marker.as_str())) {
                complaints.push(format!("{}:{number}: leftover {marker}", path.display()));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            complaints.push(format!("{}: no line end at the end", path.display()));
        }
    }
    expect_none(&complaints);
}

const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;
/// Links make lines of prose longer than what a reader sees of them.
const PROSE_COLUMNS_MAX: usize = 112;
