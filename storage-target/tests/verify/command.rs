//! The program itself: exit codes, sentences, JSON, and what it refuses to look at.

use std::{
    fs::File,
    os::fd::AsFd as _,
    path::Path,
    process::{Command, Output},
};

use super::{
    snapshot::{PAGE, Snapshot},
    target::Target,
};

async fn closed() -> Snapshot {
    let mut target = Target::new(21).await;
    for _ in 0..50 {
        target.change().await;
    }
    target.close().await;
    target.snapshot().await
}

fn run(arguments: &[&str], path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-target"));
    command.args(arguments).arg(path).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn the_exit_code_says_whether_a_target_is_sound() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let mut snapshot = closed().await;
    snapshot.write_to(&File::create(&image).unwrap());
    let sound = run(&["verify"], &image);
    let said = text(&sound.stdout);
    assert_eq!(sound.status.code(), Some(0), "{said} {}", text(&sound.stderr));
    assert!(said.ends_with("\nsound: nothing is wrong\n"), "{said}");
    assert!(said.starts_with("target 0707070707070707 of cluster 0909"), "{said}");
    assert_eq!(text(&sound.stderr), "", "no bar where there is no terminal");

    // In a directory it is the file `store`.
    let target = directory.path().join("target");
    std::fs::create_dir(&target).unwrap();
    snapshot.flip(0, 70, 1);
    snapshot.write_to(&File::create(target.join("store")).unwrap());
    let damaged = run(&["verify", "--quick"], &target);
    let said = text(&damaged.stdout);
    assert_eq!(damaged.status.code(), Some(1), "{said}");
    assert!(said.contains("damage: page 0: copy A of the superblock is damaged: "), "{said}");
    assert!(said.contains("the data was not read"), "{said}");
    assert!(said.ends_with("\ndamaged: 1 damage\n"), "{said}");

    let json = run(&["verify", "--json"], &target);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json.status.code(), Some(1));
    assert_eq!(value["remarks"][0]["kind"], "superblock");
    assert_eq!(value["remarks"][0]["page"], 0);
    assert_eq!(value["summary"]["damages"], 1);
    assert!(value["summary"]["checked_pages"].as_u64() > Some(0));
    let json = run(&["verify", "--json"], &image);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((json.status.code(), value["remarks"].as_array().map(Vec::len)), (Some(0), Some(0)));
}

#[tokio::test]
async fn what_cannot_be_checked_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path, words: &str| {
        let output = run(&["verify"], path);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(output.stdout.is_empty());
    };
    refused(&directory.path().join("nothing"), "No such file or directory");
    refused(directory.path(), "there is no file store in it");
    refused(Path::new("/dev/null"), "is no directory, block device or image file");
    let foreign = directory.path().join("foreign");
    std::fs::write(&foreign, [7; 50 * PAGE]).unwrap();
    refused(&foreign, "neither copy of the superblock begins with its magic number");
    std::fs::write(&foreign, [0; 50 * PAGE]).unwrap();
    refused(&foreign, "it is blank");
    std::fs::write(&foreign, [0; 100]).unwrap();
    refused(&foreign, "too short");
}

#[tokio::test]
async fn a_target_in_use_is_refused_and_one_of_version_1_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = closed().await;
    let store = directory.path().join("store");
    snapshot.write_to(&File::create(&store).unwrap());
    let daemon = File::open(directory.path()).unwrap();
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(daemon.as_fd(), lock).unwrap();
    // By either name.
    for path in [directory.path(), &store] {
        let output = run(&["verify"], path);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("is in use"), "{}", text(&output.stderr));
    }
    drop(daemon);
    assert_eq!(run(&["verify"], directory.path()).status.code(), Some(0));

    let old = directory.path().join("old");
    std::fs::create_dir(&old).unwrap();
    let mut superblock = snapshot.superblock().encode(0);
    superblock[12] = 1;
    let checksum = millrace_types::Crc32c::of(&superblock[12..]);
    superblock[8..12].copy_from_slice(&checksum.0.to_le_bytes());
    std::fs::write(old.join("superblock"), &superblock).unwrap();
    let output = run(&["verify"], &old);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("format version 1"), "{}", text(&output.stderr));
}

#[test]
fn without_a_command_it_is_the_daemon() {
    let nothing = Path::new("/nonexistent/settings.toml");
    let messages: Vec<_> = [&["--config"][..], &["serve", "--config"]]
        .iter()
        .map(|arguments| {
            let output = run(arguments, nothing);
            assert_eq!(output.status.code(), Some(2));
            text(&output.stderr).to_owned()
        })
        .collect();
    assert!(messages[0].contains("settings.toml"), "{}", messages[0]);
    assert_eq!(messages[0], messages[1]);
}
