//! Jobs with a report, a rate and a priority, and what a bucket was asked, as operators see them.

use std::fs;

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
};

#[test]
fn a_job_is_reported_file_by_file_as_lines_and_as_a_table() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in ["a", "b,c", "d"] {
        bucket.put(&format!("set/{name}"), &[7; 100_000])?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"])?.ok()?;
    let options = ["--report", "--rate", "1MiB", "--priority", "-2", "--wait"];
    let job = cluster.json(&[&["hydrate", "mr:/set"][..], &options].concat())?;
    let id = job["id"].as_u64().context("a job has a number")?.to_string();
    let shown = cluster.cli(&["job", "show", &id])?.ok()?;
    ensure!(shown.contains("--priority -2 --rate 1MiB --report"), "{shown}");
    let lines = cluster.cli(&["job", "report", &id])?.ok()?;
    let mut found = Vec::new();
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        ensure!(line["outcome"] == "done" && line["bytes"] == 100_000, "{line}");
        found.push(line["path"].as_str().context("a path")?.to_owned());
    }
    found.sort();
    assert_eq!(found, ["/set/a", "/set/b,c", "/set/d"]);

    // Through the mount's own socket, as a user without the cluster's identity does.
    fs::write(cluster.mount().join("set/new"), b"new")?;
    let open = fs::File::create(cluster.mount().join("set/open"))?;
    let path = cluster.mount().join("set");
    let path = path.to_str().context("a temporary path is text")?;
    let failed = cluster.cli(&["--json", "export", path, "--report", "--wait"])?;
    ensure!(failed.code == Some(1), "{failed}");
    drop(open);
    let job: serde_json::Value = serde_json::from_str(&failed.stdout)?;
    let id = job["id"].as_u64().context("a job has a number")?.to_string();
    let table = cluster.dir().join("report.csv");
    let out = table.to_str().context("a temporary path is text")?;
    let report = ["job", "report", &id, "--format", "csv", "--out", out];
    cluster.cli(&report)?.ok()?;
    let text = fs::read_to_string(&table)?;
    ensure!(text.starts_with("path,outcome,bytes,error\n"), "{text}");
    ensure!(text.contains("\"/set/b,c\",done,0,\n") && text.contains("/set/new,done,3,"), "{text}");
    ensure!(text.contains("/set/open,failed,0,") && text.lines().count() == 6, "{text}");
    let again = cluster.cli(&report)?;
    ensure!(again.code == Some(1) && again.stderr.contains("exists"), "{again}");

    // It goes on after a restart of the server, as the job's record does.
    cluster.crash("metadata")?;
    assert_eq!(cluster.cli(&["job", "report", &id])?.ok()?.lines().count(), 5);
    let refused = cluster.cli(&["release", "mr:/set", "--rate", "1MiB"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("hydrate and export"), "{refused}");
    let refused = cluster.cli(&["hydrate", "mr:/set", "--priority", "11"])?;
    ensure!(refused.code == Some(2) && refused.stderr.contains("--priority"), "{refused}");
    Ok(())
}

#[test]
fn what_a_bucket_was_asked_is_listed_by_kind_over_all_daemons() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in 0..20 {
        bucket.put(&format!("set/{name}"), &[7; 10_000])?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"])?.ok()?;
    cluster.cli(&["link", "add", "s3://data/other", "mr:/other"])?.ok()?;
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    fs::write(cluster.mount().join("set/new"), vec![7; 5_000])?;
    cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
    let told = cluster.json(&["link", "list", "--requests"])?;
    let [one] = told["buckets"].as_array().context("a list")?.as_slice() else {
        anyhow::bail!("two links into one bucket: {told}");
    };
    let paths = one["paths"].as_array().context("a list")?;
    ensure!(paths.len() == 2 && one["url"] == "s3://data/", "{told}");
    // The metadata server lists, the targets fetch and send: all of them are in it, exactly.
    ensure!(one["get"] == 20 && one["received_bytes"] == 200_000, "{told}");
    ensure!(one["put"] == 1 && one["sent_bytes"] == 5_000, "{told}");
    ensure!(one["list"].as_u64() > Some(0) && told["silent"] == serde_json::json!([]), "{told}");
    let words = cluster.cli(&["link", "list", "--requests"])?.ok()?;
    ensure!(words.contains("RECEIVED") && words.contains("s3://data/"), "{words}");
    Ok(())
}
