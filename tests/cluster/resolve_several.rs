//! Many conflicts decided by one command: those that are named, and all below a directory.

use std::fs;

use anyhow::{Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
};
use serde_json::Value;

/// More than are decided at a time.
const MANY: usize = 20;

/// `set/a` and `set/b`, with files that were written here and in the bucket.
fn in_conflict(bucket: &Bucket) -> Result<(Cluster, Vec<String>)> {
    let names: Vec<_> = (0..MANY).map(|nth| format!("a/{nth:02}")).collect();
    let names = [names, vec!["b/x".to_owned(), "b/y".to_owned()]].concat();
    for name in &names {
        bucket.put(&format!("set/{name}"), b"imported")?;
    }
    bucket.put("set/a/calm", b"imported")?;
    let cluster = Cluster::start(Wish::default().with_bucket(bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"])?.ok()?;
    cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
    let root = cluster.mount().join("set");
    for name in &names {
        fs::write(root.join(name), format!("written here {name}"))?;
        bucket.put(&format!("set/{name}"), format!("written there {name}").as_bytes())?;
    }
    cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
    ensure!(conflicts(&cluster)? == names.len());
    Ok((cluster, names))
}

fn conflicts(cluster: &Cluster) -> Result<usize> {
    Ok(cluster.json(&["conflicts", "list"])?.as_array().map_or(0, Vec::len))
}

/// What is printed, and the exit code.
fn resolved(cluster: &Cluster, arguments: &[&str]) -> Result<(Value, Option<i32>)> {
    let said = cluster.cli(&[&["--json", "conflicts", "resolve"], arguments].concat())?;
    Ok((serde_json::from_str(&said.stdout)?, said.code))
}

fn counts(told: &Value) -> [Option<u64>; 3] {
    ["decided", "failed", "untried"].map(|field| told[field].as_u64())
}

#[test]
fn all_conflicts_below_a_directory_are_decided_and_one_that_cannot_be_keeps_none_from_it()
-> Result<()> {
    let bucket = Bucket::start()?;
    let (cluster, names) = in_conflict(&bucket)?;
    let root = cluster.mount().join("set");
    let below = ["mr:/set/a", "--recursive", "--keep", "bucket"];

    let trial = [&below[..], &["--dry-run"]].concat();
    let (told, code) = resolved(&cluster, &trial)?;
    ensure!((counts(&told), code) == ([Some(20), Some(0), Some(0)], Some(0)), "{told}");
    ensure!(told["dry_run"] == true && told["files"][0]["outcome"] == "would be decided", "{told}");
    ensure!(conflicts(&cluster)? == names.len(), "nothing was decided");

    let busy = fs::OpenOptions::new().append(true).open(root.join("a/07"))?;
    let said = cluster.cli(&[&["resolve"], &below[..]].concat())?;
    ensure!(
        said.code == Some(1) && said.stderr.contains("/set/a/07 is open for writing"),
        "{said}"
    );
    let lines: Vec<_> = said.stdout.lines().collect();
    ensure!(lines.len() == MANY && lines[0].starts_with("/set/a/"), "a line for each: {said}");
    ensure!(lines[MANY - 1] == "19 conflicts decided (bucket), 1 failed", "{said}");
    drop(busy);
    // From inside the mount it is the same directory.
    let (told, code) = resolved(
        &cluster,
        &[root.join("a").to_str().unwrap_or_default(), "--recursive", "--keep", "bucket"],
    )?;
    ensure!((counts(&told), code) == ([Some(1), Some(0), Some(0)], Some(0)), "{told}");
    for name in &names[..MANY] {
        ensure!(fs::read(root.join(name))? == format!("written there {name}").as_bytes());
    }
    ensure!(conflicts(&cluster)? == 2, "what lies elsewhere is as it was");

    let again = cluster.cli(&[&["resolve"], &below[..]].concat())?;
    ensure!(again.code == Some(0) && again.stdout == "nothing is in conflict there\n", "{again}");
    let nowhere = cluster.cli(&["resolve", "mr:/set/c", "--recursive", "--keep", "local"])?;
    ensure!(nowhere.code == Some(1) && nowhere.stderr.contains("mr:/set/c"), "{nowhere}");
    Ok(())
}

#[test]
fn conflicts_that_are_named_are_decided_one_by_one_wherever_they_are_named() -> Result<()> {
    let bucket = Bucket::start()?;
    let (cluster, names) = in_conflict(&bucket)?;
    let root = cluster.mount().join("set");
    let file = root.join("a/00");
    let named = [
        file.to_str().unwrap_or_default(),
        "mr:/set/a/01",
        "mr:/set/a/calm",
        "mr:/set/a/none",
        "mr:set",
        "mr:/set/b",
    ];
    let keep = ["--keep", "local"];
    for (dry_run, left) in [(true, names.len()), (false, names.len() - 2)] {
        let options: &[&str] = if dry_run { &["--dry-run"] } else { &[] };
        let (told, code) = resolved(&cluster, &[&named[..], &keep, options].concat())?;
        ensure!((counts(&told), code) == ([Some(2), Some(4), Some(0)], Some(1)), "{told}");
        let files = told["files"].as_array().cloned().unwrap_or_default();
        let paths: Vec<_> = files.iter().filter_map(|file| file["path"].as_str()).collect();
        ensure!(paths == named, "in their order: {told}");
        for (file, word) in files[2..].iter().zip(["not in conflict", "", "mr:/", "no file"]) {
            let error = file["error"].as_str().unwrap_or_default();
            ensure!(file["outcome"] == "failed" && error.contains(word), "{file}");
        }
        ensure!(conflicts(&cluster)? == left);
    }
    ensure!(fs::read(&file)? == b"written here a/00");

    let directory = tempfile::tempdir()?;
    let list = directory.path().join("list");
    let lines: Vec<_> = names[2..].iter().map(|name| format!("mr:/set/{name}\n")).collect();
    // What is named twice is decided once.
    fs::write(&list, [&lines[..], &lines[..1]].concat().concat())?;
    let from = ["--files-from", list.to_str().unwrap_or_default()];
    let (told, code) = resolved(&cluster, &[&from[..], &keep].concat())?;
    ensure!((counts(&told), code) == ([Some(20), Some(0), Some(0)], Some(0)), "{told}");
    ensure!(conflicts(&cluster)? == 0);
    let (told, code) = resolved(&cluster, &[&from[..], &keep].concat())?;
    ensure!((counts(&told), code) == ([Some(0), Some(20), Some(0)], Some(1)), "{told}");
    Ok(())
}
