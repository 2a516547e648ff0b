//! Documents: every relative link leads somewhere, and every document is linked.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use millrace_tests::program::repository;

use crate::files::{expect_none, texts};

#[test]
fn every_link_leads_to_a_file() {
    let mut complaints = Vec::new();
    for (path, text) in texts(&["md"]) {
        for target in links(&path, &text) {
            if !repository().join(&target).exists() {
                complaints.push(format!("{}: no {}", path.display(), target.display()));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn every_document_is_linked_from_another() {
    let documents = texts(&["md"]);
    let linked: BTreeSet<PathBuf> =
        documents.iter().flat_map(|(path, text)| links(path, text)).collect();
    let folders: Vec<_> =
        linked.iter().filter(|target| repository().join(target).is_dir()).collect();
    let dead = documents.iter().filter(|(path, _)| {
        let of_decisions = path.starts_with("docs/decisions");
        path.as_path() != Path::new("README.md")
            && !linked.contains(path)
            && !(of_decisions && folders.iter().any(|folder| path.starts_with(folder)))
    });
    expect_none(&dead.map(|(path, _)| format!("{}: no link", path.display())).collect::<Vec<_>>());
}

/// The relative targets of a document's links, as paths in the repository.
fn links(document: &Path, text: &str) -> Vec<PathBuf> {
    let folder = document.parent().unwrap_or_else(|| Path::new(""));
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .map(|target| normalised(&folder.join(target)))
        .collect()
}

fn normalised(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                whole.pop();
            }
            Component::CurDir => {}
            other => whole.push(other),
        }
    }
    whole
}
