//! The repository's own files, without what builds leave there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use millrace_tests::program::repository;

/// Every file with one of these extensions, as (path in the repository, text).
pub(crate) fn texts(extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let root = repository();
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    let chosen = paths.into_iter().filter(|path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    });
    chosen
        .map(|path| {
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path.strip_prefix(&root).expect("walked from there").to_owned(), text)
        })
        .collect()
}

/// Fails with one line for each complaint.
pub(crate) fn expect_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the repository is readable") {
        let entry = entry.expect("the repository is readable");
        let name = entry.file_name();
        let kind = entry.file_type().expect("the repository is readable");
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            walk(&entry.path(), paths);
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
}

const SKIPPED: [&str; 4] = ["target", ".git", "__pycache__", "node_modules"];
