use std::{net::SocketAddr, time::Duration};

use millrace_types::{ByteLen, MIB};
use serde::Deserialize;

use super::*;
use crate::address::ServerAddress;

#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Settings {
    listen: Listen,
    #[serde(default)]
    cache: Cache,
    #[serde(default)]
    servers: Vec<ServerAddress>,
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Listen {
    address: SocketAddr,
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, default)]
struct Cache {
    size: ByteLen,
    #[serde(with = "crate::duration")]
    age: Duration,
    mode: Mode,
}

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    Off,
    WriteBehind,
}

impl Default for Cache {
    fn default() -> Self {
        Self { size: ByteLen(64 * MIB), age: Duration::from_secs(30), mode: Mode::Off }
    }
}

fn load_text(toml: &str, environment: &[(&str, &str)]) -> Result<Settings, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("daemon.toml");
    std::fs::write(&path, toml).unwrap();
    let environment =
        environment.iter().map(|&(name, value)| (OsString::from(name), OsString::from(value)));
    load_with(Some(&path), ENV_PREFIX, environment).map_err(|error| {
        let text = error.to_string();
        text.replace(&path.display().to_string(), "daemon.toml")
    })
}

#[test]
fn the_environment_wins_over_the_file_and_the_file_over_the_defaults() {
    let settings = load_text(
        "servers = ['meta:7440']\n[listen]\naddress = '127.0.0.1:7440'\n[cache]\nsize = '8MiB'\n",
        &[
            ("MILLRACE_CACHE__AGE", "2m"),
            ("MILLRACE_CACHE__MODE", "write-behind"),
            ("MILLRACE_CONFIG", "/elsewhere"),
            ("OTHER_CACHE__AGE", "1s"),
        ],
    )
    .unwrap();
    assert_eq!(settings.cache.size, ByteLen(8 * MIB));
    assert_eq!(settings.cache.age, Duration::from_secs(120));
    assert_eq!(settings.cache.mode, Mode::WriteBehind);
    assert_eq!(settings.listen.address.port(), 7440);
    assert_eq!(settings.servers[0].to_string(), "meta:7440");
}

#[test]
fn an_unknown_key_is_refused_with_the_source_and_the_keys_that_exist() {
    let error = load_text("[listen]\naddress = '[::1]:1'\n[cache]\nsise = 1\n", &[]).unwrap_err();
    assert_eq!(error, "daemon.toml: unknown key cache.sise; allowed here: size, age, mode");
    let error =
        load_text("[listen]\naddress = '[::1]:1'\n", &[("MILLRACE_CACHE__SISE", "1")]).unwrap_err();
    assert_eq!(
        error,
        "environment variable MILLRACE_CACHE__SISE: unknown key cache.sise; allowed here: \
         size, age, mode"
    );
}

#[test]
fn a_section_of_another_program_is_passed_over_in_the_environment_but_not_in_the_file() {
    let listen = "[listen]\naddress = '[::1]:1'\n";
    let variables = [("MILLRACE_SCRUB__RATE", "1"), ("MILLRACE_SCRUB__INTERVAL", "1s")];
    assert!(load_text(listen, &variables).is_ok());
    let error = load_text(&format!("{listen}[scrub]\nrate = 1\n"), &variables).unwrap_err();
    assert_eq!(error, "daemon.toml: unknown key scrub; allowed here: listen, cache, servers");
}

#[test]
fn a_section_that_no_program_has_is_refused_in_the_environment() {
    let listen = "[listen]\naddress = '[::1]:1'\n";
    for (name, key) in [("MILLRACE_METRIC__ADDRESS", "metric"), ("MILLRACE__BUFFERS", "buffers")] {
        let error = load_text(listen, &[("MILLRACE_SCRUB__RATE", "1"), (name, "1")]).unwrap_err();
        assert_eq!(
            error,
            format!(
                "environment variable {name}: unknown key {key}; allowed here: listen, cache, \
                 servers"
            )
        );
    }
    // What is no setting at all is none of this module's business.
    let others = [("MILLRACE_TEST_SEED", "1"), ("MILLRACE_PORT_7440_UDP", "x"), ("X__Y", "1")];
    assert!(load_text(listen, &others).is_ok());
}

#[test]
fn a_key_above_the_first_section_is_set_with_two_underscores() {
    let listen = "[listen]\naddress = '[::1]:1'\n";
    let variables = [("MILLRACE__SERVERS", "[\"meta:1\"]"), ("MILLRACE__DRAIN", "1s")];
    assert_eq!(load_text(listen, &variables).unwrap().servers.len(), 1);
    for (name, key) in [
        ("CACHE__SIZE", Some("cache.size")),
        ("_SERVERS", Some("servers")),
        ("_CACHE__SIZE", Some("cache.size")),
        ("CONFIG", None),
        ("CACHE__", None),
        ("__X", None),
        ("", None),
    ] {
        assert_eq!(setting(name).as_deref(), key, "{name}");
    }
}

#[test]
fn a_missing_key_is_named_with_the_two_places_where_it_can_be_set() {
    let error = load_text("[listen]\n", &[]).unwrap_err();
    assert_eq!(
        error,
        "daemon.toml: listen.address is missing; set it in the file or as \
         MILLRACE_LISTEN__ADDRESS"
    );
}

#[test]
fn a_value_of_the_wrong_kind_says_what_it_must_be() {
    let listen = "[listen]\naddress = '127.0.0.1:1'\n";
    for (toml, words) in [
        ("[cache]\nage = 'soon'\n", &["cache.age", "not a duration", "30s"][..]),
        ("[cache]\nage = 30\n", &["cache.age", "must be", "30s"]),
        ("[cache]\nsize = '8 apples'\n", &["cache.size", "not a size"]),
        ("[cache]\nmode = 'on'\n", &["cache.mode", "off, write-behind"]),
    ] {
        let error = load_text(&format!("{listen}{toml}"), &[]).unwrap_err();
        assert!(error.starts_with("daemon.toml: "), "{error}");
        for word in words {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
    }
    let error = load_text("servers = ['meta:port']\n[listen]\naddress = '[::1]:1'\n", &[]);
    assert!(error.unwrap_err().contains("host:port"));
}

#[test]
fn a_file_that_is_no_toml_or_not_there_is_told_by_name() {
    let error = load_text("[listen\n", &[]).unwrap_err();
    assert!(error.contains("daemon.toml is not valid TOML"), "{error}");
    assert!(error.contains("line 1"), "{error}");
    let missing = load_with::<Settings>(Some(Path::new("/no/such.toml")), ENV_PREFIX, []);
    assert!(missing.unwrap_err().to_string().contains("/no/such.toml"));
}

#[test]
fn effective_settings_load_again_to_the_same() {
    let toml = "[listen]\naddress = '127.0.0.1:1'\n[cache]\nage = '90s'\n";
    let first = effective(&load_text(toml, &[]).unwrap()).unwrap();
    let again = effective(&load_text(&first, &[]).unwrap()).unwrap();
    assert_eq!(first, again);
    assert!(first.contains("age = \"1m 30s\""), "{first}");
}
