//! Two mounts of one cluster: what one closes, the other sees.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::FileExt,
};

use anyhow::{Context, Result};
use millrace_tests::cluster::{Cluster, Wish};

#[test]
fn what_one_mount_has_closed_the_other_sees_at_once() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;

    fs::write(one.join("shared"), vec![1; 3_000_000])?;
    assert!(fs::read(two.join("shared"))? == vec![1; 3_000_000]);
    fs::write(two.join("shared"), "shorter")?;
    assert_eq!(fs::read(one.join("shared"))?, b"shorter");

    let mut file = OpenOptions::new().append(true).open(one.join("shared"))?;
    file.write_all(b" and longer")?;
    file.sync_all()?;
    assert_eq!(fs::read(two.join("shared"))?, b"shorter and longer");

    fs::rename(two.join("shared"), two.join("renamed"))?;
    assert!(!one.join("shared").exists());
    assert_eq!(fs::metadata(one.join("renamed"))?.len(), 18);
    fs::remove_file(one.join("renamed"))?;
    assert!(fs::read_dir(&two)?.next().is_none());
    Ok(())
}

#[test]
fn a_directory_that_one_has_moved_the_other_moves_on() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    for name in ["a", "b", "c", "a/x", "a/x/below"] {
        fs::create_dir(one.join(name))?;
    }
    // The other one's kernel knows the directory in its old place, also when it moves it there.
    for to in ["a/x", "b/y", "c/w"] {
        assert!(two.join("a/x/below").is_dir());
        fs::rename(one.join("a/x"), one.join("b/x")).context("what the other one moved last")?;
        fs::rename(two.join("b/x"), two.join("c/x")).context("after the other one")?;
        assert!(one.join("c/x/below").is_dir() && two.join("c/x/below").is_dir());
        assert!(!two.join("a/x").exists() && !two.join("b/x").exists());
        fs::rename(one.join("c/x"), one.join(to)).with_context(|| format!("to {to}"))?;
        fs::rename(two.join(to), two.join("c/z")).with_context(|| format!("from {to}"))?;
        fs::rename(one.join("c/z"), one.join("b/z")).context("to and fro")?;
        fs::rename(two.join("b/z"), two.join("a/x")).context("back, where it was first")?;
    }
    Ok(())
}

#[test]
fn a_file_that_both_append_to_in_turn_keeps_every_line() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    File::create_new(one.join("log"))?;
    let mut expected = String::new();
    for round in 0..20 {
        for mount in [&one, &two] {
            let line = format!("{round} {}\n", mount.display());
            OpenOptions::new().append(true).open(mount.join("log"))?.write_all(line.as_bytes())?;
            expected.push_str(&line);
        }
    }
    assert_eq!(fs::read_to_string(one.join("log"))?, expected);
    assert_eq!(fs::read_to_string(two.join("log"))?, expected);
    Ok(())
}

#[test]
fn an_open_sees_what_was_synced_elsewhere_although_older_bytes_are_cached() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount().join("file"), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let two = two.join("file");
    fs::write(&one, vec![b'a'; 300_000])?;
    // Stays open and keeps its pages in the kernel's cache.
    let mut before = File::open(&two)?;
    let mut old = vec![0; 300_000];
    before.read_exact(&mut old)?;
    let mut writer = OpenOptions::new().write(true).open(&one)?;
    writer.write_all(b"changed")?;
    writer.sync_all()?;
    assert_eq!(&fs::read(&two)?[..9], b"changedaa", "not closed, but synced");
    let mut begun = [0; 7];
    before.read_exact_at(&mut begun, 0)?;
    assert_eq!(&begun, b"changed", "the open of another program renews what this one reads");
    writer.set_len(3)?;
    assert_eq!((before.metadata()?.len(), fs::metadata(&two)?.len()), (3, 3));
    assert_eq!(fs::read(&two)?, b"cha");
    Ok(())
}
