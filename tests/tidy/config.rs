//! Every file in `config/` can be read by what reads it.

use std::{collections::BTreeMap, path::Path, process::Command};

use millrace_tests::program::{PATIENCE, binaries, finish, repository, run};

use crate::files::{expect_none, texts};

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
        // Otherwise it is given up for good after five quick ends.
        let limit = unit["Unit"].get("StartLimitIntervalSec").map(String::as_str);
        assert_eq!(limit, Some("0"), "{}", path.display());
    }
}

#[test]
fn servers_wait_for_the_file_systems_that_their_data_lies_on() {
    for (unit, settings, key) in [
        ("millrace-metadata.service", "metadata-server.toml", "data"),
        ("millrace-target.service", "storage-target.toml", "directory"),
    ] {
        let unit = parse_unit(&read(&format!("config/systemd/{unit}"))).expect("sections");
        let waited_for = unit["Unit"].get("RequiresMountsFor").expect("it waits for a place");
        let settings = read(&format!("config/{settings}"));
        let line = settings.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        let place = line.and_then(|rest| rest.strip_suffix('"')).expect("the settings name it");
        assert!(Path::new(place).starts_with(waited_for), "{place} is not below {waited_for}");
    }
}

#[test]
fn servers_wait_for_their_clock() {
    for unit in ["millrace-metadata.service", "millrace-target.service"] {
        let sections = parse_unit(&read(&format!("config/systemd/{unit}"))).expect("sections");
        for key in ["After", "Wants"] {
            let waited_for = sections["Unit"].get(key).expect("it waits for others");
            let waits = waited_for.split_whitespace().any(|name| name == "time-sync.target");
            assert!(waits, "{unit}: {key}={waited_for}");
        }
    }
}

#[test]
fn mounts_end_before_the_servers_of_their_host() {
    let mount = "millrace-fuse@.service";
    let unit = parse_unit(&read(&format!("config/systemd/{mount}"))).expect("sections");
    let before: Vec<_> = unit["Unit"]["After"].split_ascii_whitespace().collect();
    for (path, _) in texts(&["service"]).iter().filter(|(path, _)| path.starts_with("config")) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a file");
        assert!(name == mount || before.contains(&name), "{mount} is not after {name}");
    }
}

#[test]
fn mounts_do_not_hold_up_the_start_of_their_host_for_ever() {
    let sections = |unit: &str| {
        parse_unit(&read(&format!("config/systemd/{unit}"))).expect("sections of a unit")
    };
    let seconds = |section: &BTreeMap<String, String>, key: &str| -> u32 {
        section[key].parse().expect("a number of seconds")
    };
    let mount = sections("millrace-fuse@.service");
    let given_up = seconds(&mount["Unit"], "JobTimeoutSec");
    // But whoever only takes long gets what the other limits allow.
    assert!(given_up > seconds(&mount["Service"], "TimeoutStopSec"));
    let start = seconds(&mount["Service"], "TimeoutStartSec");
    for server in ["millrace-metadata.service", "millrace-target.service"] {
        let before = seconds(&sections(server)["Service"], "TimeoutStartSec");
        assert!(given_up > before + start, "{server} takes {before} s");
    }
}

#[test]
fn logs_of_mounts_are_turned_over_where_they_are_written() {
    let rule = read("config/logrotate/millrace");
    assert!(rule.contains("/var/log/millrace/*.log {"), "{rule}");
    // Their daemons keep them open, and append.
    assert!(rule.lines().any(|line| line.trim() == "copytruncate"), "{rule}");
}

#[test]
fn who_reaches_buckets_is_given_their_keys_by_an_optional_file() {
    let document = read("docs/operations.md");
    for (unit, file) in [
        ("millrace-metadata.service", "/etc/millrace/metadata.env"),
        ("millrace-target.service", "/etc/millrace/target.env"),
    ] {
        let unit = parse_unit(&read(&format!("config/systemd/{unit}"))).expect("sections");
        let named = unit["Service"].get("EnvironmentFile");
        assert_eq!(named, Some(&format!("-{file}")));
        assert!(document.contains(file), "docs/operations.md does not name {file}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let directory = tempfile::tempdir().expect("a directory");
    let programs = format!("{}/", binaries().display());
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for (path, text) in texts(&["service"]).iter().filter(|(path, _)| path.starts_with("config")) {
        // Programs are where they were built, and a template needs an instance.
        let name = path.file_name().expect("a file").to_string_lossy().replace('@', "@mnt-data");
        let unit = directory.path().join(name);
        std::fs::write(&unit, text.replace("/usr/bin/", &programs)).expect("it is written");
        verify.arg(unit);
    }
    if run("sh", &[&"-c", &"command -v systemd-analyze"]).is_ok_and(|said| !said.succeeded()) {
        return; // Not every machine has it; the test above has read the units.
    }
    let said = finish(&mut verify, PATIENCE).expect("systemd-analyze runs");
    // It also complains about units of the machine itself.
    let of_ours = |line: &&str| line.contains(directory.path().to_str().expect("text"));
    let complaints: Vec<_> = said.stderr.lines().filter(of_ours).map(str::to_owned).collect();
    expect_none(&complaints);
    assert!(said.succeeded(), "{said}");
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).expect("it is there")
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
