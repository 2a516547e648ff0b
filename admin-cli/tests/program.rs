//! The executable as people and scripts call it, as far as that needs no cluster.

use std::{
    net::UdpSocket,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.current_dir(directory).args(arguments).env_remove("MILLRACE_CONFIG");
    command
}

fn millrace(directory: &Path, arguments: &[&str]) -> Output {
    command(directory, arguments).output().expect("the executable starts")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn a_cluster_is_made_once_and_nodes_are_invited() {
    let directory = tempfile::tempdir().unwrap();
    let made = json(&millrace(directory.path(), &["cluster", "init", "--dir", "c", "--json"]));
    assert_eq!(made["cluster"].as_str().unwrap().len(), 32);
    let again = millrace(directory.path(), &["--dir", "c", "cluster", "init"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(errors(&again).contains("cluster invite"), "{}", errors(&again));

    let mut invite =
        vec!["cluster", "invite", "--dir", "c", "--role", "client", "--out", "gpu.pem"];
    invite.extend(["--subtree", "/train", "--squash-root", "--json"]);
    let invited = json(&millrace(directory.path(), &invite));
    assert_eq!(invited["cluster"], made["cluster"]);
    assert_eq!(invited["role"], "client");
    assert_eq!(invited["subtree"], "/train");
    assert_eq!(invited["squash_root"], true);
    for file in ["gpu.pem", "c/admin.pem", "c/authority.pem"] {
        let metadata = std::fs::metadata(directory.path().join(file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{file}");
    }
    let taken = millrace(directory.path(), &invite);
    assert_eq!(taken.status.code(), Some(1));
    assert!(errors(&taken).contains("gpu.pem"), "{}", errors(&taken));
}

#[test]
fn wrong_use_ends_with_2_and_names_what_is_right() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, remedy) in [
        (&["cluster", "init"][..], "--dir D"),
        (&["dev", "up"], "--dir D"),
        (&["frobnicate"], "--help"),
        (&["link", "add", "ftp://x", "mr:/x"], "s3://"),
        (&["mount", "--source", "nowhere", "/"], "HOST"),
        (&["mount", "-f", "-o", "foo", "/"], "unknown mount option \"foo\"; known are ro, rw"),
        (&["mount", "-f", "-o", "path=nosuch", "/"], "absolute path"),
        (&["dev", "up", "--dir", "d", "--mount", "m", "--mount-options", "foo"], "\"foo\""),
        (&["dev", "up", "--dir", "d", "--capacity", "1"], "--capacity <SIZE>"),
        (&["link", "add", "s3://b", "mr:/x", "--auto-export", "3"], "--mode import-export"),
    ] {
        let output = millrace(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors(&output));
        assert!(errors(&output).contains(remedy), "{arguments:?}: {}", errors(&output));
        assert!(output.stdout.is_empty());
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_backup_takes_the_place_of_no_device_and_of_no_link() {
    let directory = tempfile::tempdir().unwrap();
    symlink("/dev/null", directory.path().join("link")).unwrap();
    for (place, word) in [("/dev/null", "no regular file"), ("link", "symbolic link")] {
        for force in [&[][..], &["--force"]] {
            let backup = [&["metadata", "backup", place][..], force].concat();
            let refused = millrace(directory.path(), &backup);
            assert_eq!(refused.status.code(), Some(1), "{place}");
            assert!(errors(&refused).contains(word), "{place}: {}", errors(&refused));
        }
        let report = millrace(directory.path(), &["job", "report", "7", "--out", place]);
        assert_eq!(report.status.code(), Some(1), "{place}");
        assert!(errors(&report).contains(word), "{place}: {}", errors(&report));
    }
    let kind = std::fs::metadata("/dev/null").unwrap().file_type();
    assert!(kind.is_char_device(), "{kind:?}");
}

#[test]
fn a_signal_takes_along_the_part_of_a_file_that_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    std::fs::create_dir(&out).unwrap();
    json(&millrace(directory.path(), &["cluster", "init", "--dir", "c", "--json"]));
    for arguments in
        [&["metadata", "backup", "out/f"][..], &["job", "report", "7", "--out", "out/f"]]
    {
        let silent = silent_server(&directory.path().join("c/admin.toml")).unwrap();
        let mut command = command(directory.path(), &[&["--dir", "c"][..], arguments].concat());
        let begun = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The file is there before anybody is asked.
        silent.recv_from(&mut [0; 2048]).expect("it asks the server");
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1, "{arguments:?}");
        kill_process(Pid::from_child(&begun), Signal::TERM).unwrap();
        let ended = begun.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(143), "{arguments:?}: {}", errors(&ended));
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0, "{arguments:?}");
    }
}

/// A server that hears and does not answer, in the settings of operators.
fn silent_server(settings: &Path) -> std::io::Result<UdpSocket> {
    let silent = UdpSocket::bind("127.0.0.1:0")?;
    silent.set_read_timeout(Some(Duration::from_secs(60)))?;
    let address = silent.local_addr()?;
    let text = format!("[cluster]\nservers = ['{address}']\nidentity = 'admin.pem'\n");
    std::fs::write(settings, text)?;
    Ok(silent)
}

#[test]
fn a_cluster_that_does_not_answer_is_unreachable_in_every_form() {
    let directory = tempfile::tempdir().unwrap();
    let none = millrace(directory.path(), &["status", "--dir", "nothing", "--json"]);
    assert_eq!(none.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&none.stdout).unwrap();
    assert_eq!(report["health"], "unreachable");
    assert_eq!(report["targets"], Value::Array(Vec::new()));

    json(&millrace(directory.path(), &["cluster", "init", "--dir", "c", "--json"]));
    let _socket = silent_server(&directory.path().join("c/admin.toml")).unwrap();
    let silent = millrace(directory.path(), &["status", "--dir", "c"]);
    assert_eq!(silent.status.code(), Some(2));
    let shown = String::from_utf8(silent.stdout).unwrap();
    assert!(shown.starts_with("unreachable"), "{shown}");
    let other = millrace(directory.path(), &["job", "list", "--dir", "c"]);
    assert_eq!(other.status.code(), Some(1), "{}", errors(&other));
}

#[test]
fn settings_that_are_wrong_are_told_with_file_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admin.toml");
    std::fs::write(&file, "[cluster]\nservers = []\nidentity = 'x'\nport = 1\n").unwrap();
    let output = millrace(directory.path(), &["job", "list", "--config", "admin.toml"]);
    assert_eq!(output.status.code(), Some(1));
    for word in ["admin.toml", "cluster.port", "servers, identity"] {
        assert!(errors(&output).contains(word), "{}", errors(&output));
    }
}

#[test]
fn called_as_the_helper_of_mount_it_takes_that_ones_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let helper = directory.path().join("mount.millrace");
    symlink(env!("CARGO_BIN_EXE_millrace"), &helper).unwrap();
    let call = |arguments: &[&str]| {
        let mut command = Command::new(&helper);
        command.args(arguments).env("XDG_STATE_HOME", directory.path());
        command.output().expect("the executable starts")
    };
    let mountpoint = directory.path().to_str().unwrap();
    let options = "rw,_netdev,identity=/i.pem";
    let checked = call(&["meta-1:/train", mountpoint, "-f", "-o", options]);
    assert!(checked.status.success(), "{}", errors(&checked));
    assert!(checked.stdout.is_empty(), "mount(8) says nothing");
    let unknown = call(&["meta-1:/train", mountpoint, "-f", "-o", "bogus"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", errors(&unknown));
    let refused = call(&["meta-1", mountpoint, "-o", "rw"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(errors(&refused).contains("HOST"), "{}", errors(&refused));
}

#[test]
fn a_mount_that_names_its_log_needs_no_other_place_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let mountpoint = directory.path().to_str().unwrap();
    let log = format!("log={mountpoint}/log");
    let mut mount = command(directory.path(), &["mount", "-f", "-o", &log, mountpoint]);
    mount.env_remove("HOME").env_remove("XDG_STATE_HOME");
    let checked = mount.output().expect("the executable starts");
    assert!(checked.status.success(), "{}", errors(&checked));
}

#[test]
fn the_operators_settings_are_none_of_a_mounts() {
    let directory = tempfile::tempdir().unwrap();
    let mountpoint = directory.path().to_str().unwrap();
    let options = format!("log={mountpoint}/log,identity=/no/identity.pem");
    let mut mount = command(directory.path(), &["mount", "-o", &options, mountpoint]);
    mount.env("MILLRACE_CONFIG", "/no/admin.toml");
    let failed = mount.output().expect("the executable starts");
    // The daemon's last words: it misses a cluster, or its identity.
    assert_eq!(failed.status.code(), Some(1), "{}", errors(&failed));
    assert!(!errors(&failed).contains("is neither beside"), "{}", errors(&failed));
    assert!(!errors(&failed).contains("admin.toml"), "{}", errors(&failed));
}

#[test]
fn the_help_of_every_command_teaches_with_an_example_or_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    for command in [
        "cluster init",
        "cluster invite",
        "dev up",
        "dev down",
        "dev status",
        "status",
        "mount",
        "umount",
        "stripe set",
        "stripe show",
        "link add",
        "link list",
        "link remove",
        "hydrate",
        "export",
        "release",
        "state",
        "job list",
        "job show",
        "job cancel",
    ] {
        let mut arguments: Vec<_> = command.split(' ').collect();
        arguments.push("--help");
        let output = millrace(directory.path(), &arguments);
        assert!(output.status.success(), "{command}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("--json") && text.contains("Usage:"), "{command}: {text}");
    }
}
