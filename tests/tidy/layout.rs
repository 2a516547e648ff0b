//! Where modules lie, and which crate may use which.

use std::{collections::BTreeMap, path::Path};

use crate::files::{expect_none, texts};

#[test]
fn a_module_folder_has_a_file_of_its_name_beside_it() {
    let complaints = texts(&["rs"]).into_iter().filter_map(|(path, _)| {
        let name = path.file_stem()?.to_str()?;
        (name == "mod").then(|| format!("{}: name it after its folder", path.display()))
    });
    expect_none(&complaints.collect::<Vec<_>>());
}

#[test]
fn no_file_is_named_after_nothing() {
    let complaints = texts(&["rs"]).into_iter().filter_map(|(path, _)| {
        let name = path.file_stem()?.to_str()?;
        MEANINGLESS.contains(&name).then(|| format!("{}: name what it holds", path.display()))
    });
    expect_none(&complaints.collect::<Vec<_>>());
}

#[test]
fn every_module_says_what_it_is_for() {
    let complaints = texts(&["rs"]).into_iter().filter_map(|(path, text)| {
        let is_test = path.ends_with("tests.rs") || path.components().any(is_tests_folder);
        let documented = text.starts_with("//!") || text.starts_with("#!") || is_test;
        (!documented).then(|| format!("{}: no module documentation", path.display()))
    });
    expect_none(&complaints.collect::<Vec<_>>());
}

fn is_tests_folder(component: std::path::Component<'_>) -> bool {
    component.as_os_str() == "tests"
}

#[test]
fn crates_use_only_those_below_them() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from(ALLOWED);
    let mut complaints = Vec::new();
    for (path, text) in texts(&["toml"]) {
        let (Some(folder), true) = (path.parent(), path.ends_with("Cargo.toml")) else { continue };
        let manifest: toml::Table = text.parse().expect("cargo reads it too");
        if !manifest.contains_key("package") || is_top(folder) {
            continue;
        }
        let folder = folder.to_str().expect("our folders have ASCII names");
        let below = allowed.get(folder).unwrap_or_else(|| panic!("add {folder} to this test"));
        let used = manifest["dependencies"].as_table().expect("a table");
        for name in used.keys().filter_map(|name| name.strip_prefix("millrace-")) {
            if !below.contains(&name) {
                complaints.push(format!("{folder} may not use {name}"));
            }
        }
    }
    expect_none(&complaints);
}

/// These may use everything, and nothing uses them.
fn is_top(folder: &Path) -> bool {
    ["tests", "benches", "fuzz"].iter().any(|top| folder == Path::new(top))
}

const MEANINGLESS: [&str; 6] = ["utils", "util", "common", "helpers", "helper", "misc"];

/// The arrows of ARCHITECTURE.md: a crate's folder and what it may use.
const ALLOWED: [(&str, &[&str]); 11] = [
    ("common/types", &[]),
    ("common/protocol", &["types"]),
    ("common/runtime", &["types"]),
    ("common/service", &["types", "runtime"]),
    ("common/transport", &["types", "protocol", "runtime"]),
    ("common/object-source", &["types", "runtime"]),
    ("common/fuse", &[]),
    ("metadata-server", &SERVER),
    ("storage-target", &SERVER),
    ("client-fuse", &["types", "protocol", "runtime", "transport", "service", "fuse-server"]),
    ("admin-cli", &["types", "protocol", "runtime", "transport", "service"]),
];
const SERVER: [&str; 6] = ["types", "protocol", "runtime", "transport", "service", "object-source"];
