//! Licences of everything that is linked, against the list in `deny.toml`.

use std::{collections::BTreeSet, process::Command};

use millrace_tests::program::{PATIENCE, finish, repository};
use serde_json::Value;

#[test]
fn every_dependency_has_an_allowed_licence() {
    let allowed = allowed();
    let packages = packages();
    let refused: Vec<_> = packages
        .iter()
        .filter(|(_, licence)| !is_allowed(licence, &allowed))
        .map(|(name, licence)| format!("{name}: {licence}"))
        .collect();
    crate::files::expect_none(&refused);
    assert!(packages.len() > 50, "cargo metadata lists the dependencies");
}

#[test]
fn banned_crates_are_not_in_the_graph() {
    let names: BTreeSet<_> = packages().into_iter().map(|(name, _)| name).collect();
    for banned in ["openssl-sys", "native-tls"] {
        assert!(!names.contains(banned), "{banned}: there is one TLS stack, rustls");
    }
}

fn allowed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("deny.toml")).expect("it is there");
    let table: toml::Table = text.parse().expect("deny.toml is TOML");
    let list = table["licenses"]["allow"].as_array().expect("a list");
    list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// What this platform's programs are made of: a fresh machine has fetched nothing else.
fn packages() -> Vec<(String, String)> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline"]);
    cargo.args(["--filter-platform", "host-tuple"]);
    let text = finish(cargo.current_dir(repository()), PATIENCE).and_then(|said| said.ok());
    let metadata: Value = serde_json::from_str(&text.expect("cargo metadata")).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let field = |package: &Value, name: &str| package[name].as_str().unwrap_or("").to_owned();
    packages.iter().map(|package| (field(package, "name"), field(package, "license"))).collect()
}

/// Whether an SPDX expression can be met with allowed licences alone. `/` is an old OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    any_of(&mut words, allowed)
}

type Words<'text> = std::iter::Peekable<std::str::SplitWhitespace<'text>>;

fn any_of(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any_of(words, allowed);
        return words.next() == Some(")") && met;
    }
    let Some(name) = words.next() else { return false };
    if words.next_if_eq(&"WITH").is_some() {
        // An exception only ever adds permissions.
        words.next();
    }
    allowed.contains(name)
}

#[test]
fn licence_expressions_are_read_as_spdx_says() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0"].map(str::to_owned));
    for met in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/GPL-3.0",
        "ISC AND (MIT OR GPL-3.0)",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_allowed(met, &allowed), "{met}");
    }
    for unmet in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND AGPL-3.0"] {
        assert!(!is_allowed(unmet, &allowed), "{unmet}");
    }
}
