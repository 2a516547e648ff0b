//! Every file in `config/` can be read by what reads it.

use std::collections::BTreeMap;

use crate::files::texts;

#[test]
fn every_settings_file_is_toml_and_says_what_its_settings_mean() {
    for (path, text) in texts(&["toml"]).iter().filter(|(path, _)| path.starts_with("config")) {
        let parsed: Result<toml::Table, _> = text.parse();
        assert!(parsed.is_ok(), "{}: {}", path.display(), parsed.unwrap_err());
        assert!(text.lines().any(|line| line.starts_with('#')), "{}", path.display());
    }
}

#[test]
fn every_unit_waits_for_readiness_and_restarts() {
    for (path, text) in texts(&["service"]).iter().filter(|(path, _)| path.starts_with("config")) {
        let unit = parse_unit(text).unwrap_or_else(|line| panic!("{}: {line}", path.display()));
        let service = unit.get("Service").expect("a service has that section");
        assert_eq!(service.get("Type").map(String::as_str), Some("notify"), "{}", path.display());
        assert!(service.contains_key("Restart"), "{}", path.display());
        assert!(service["ExecStart"].starts_with('/'), "{}", path.display());
        assert!(unit.contains_key("Unit") && unit.contains_key("Install"), "{}", path.display());
    }
}

/// Sections of a unit file, or the first line that belongs to none.
fn parse_unit(text: &str) -> Result<BTreeMap<String, BTreeMap<String, String>>, String> {
    let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut current = None;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            current = Some(name.to_owned());
            sections.entry(name.to_owned()).or_default();
            continue;
        }
        let (section, (key, value)) =
            current.as_ref().zip(line.split_once('=')).ok_or_else(|| line.to_owned())?;
        let entry = sections.entry(section.clone()).or_default();
        entry.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(sections)
}
