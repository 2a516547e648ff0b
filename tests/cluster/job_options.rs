//! Jobs with a report, a rate and a priority, and what a bucket was asked, as operators see them.

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::binaries,
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
    let written = cluster.json(&report)?;
    let text = fs::read_to_string(&table)?;
    assert_eq!(written, serde_json::json!({"file": out, "size_bytes": text.len()}));
    let refused = cluster.cli(&["--json", "job", "report", &id, "--format", "csv"])?;
    ensure!(refused.code == Some(2) && refused.stderr.contains("--out"), "{refused}");
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
fn a_release_of_what_nobody_uses_keeps_what_was_read_since() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in ["old", "read", "written"] {
        bucket.put(&format!("set/{name}"), &[7; 100_000])?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--mode", "import"])?.ok()?;
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    let now = SystemTime::now();
    let long_ago = now - Duration::from_hours(40 * 24);
    let set = cluster.mount().join("set");
    for (name, read, written) in
        [("old", long_ago, long_ago), ("read", now, long_ago), ("written", long_ago, now)]
    {
        let times = fs::FileTimes::new().set_accessed(read).set_modified(written);
        fs::File::open(set.join(name))?.set_times(times)?;
    }
    // Through the mount's own socket, as a user without the cluster's identity does.
    let path = set.to_str().context("a temporary path is text")?;
    let release = ["release", path, "--unused", "30d", "--report", "--wait"];
    let job = cluster.json(&release)?;
    ensure!(job["files_total"] == 1 && job["files_done"] == 1, "{job}");
    let id = job["id"].to_string();
    let report = cluster.cli(&["job", "report", &id])?.ok()?;
    ensure!(report.contains("/set/old") && report.lines().count() == 1, "{report}");
    let state = cluster.json(&["state", "mr:/set"])?;
    ensure!(state["hydrated_bytes"] == 200_000, "{state}");
    let shown = cluster.cli(&["job", "show", &id])?.ok()?;
    ensure!(shown.contains("--unused 2592000s --report"), "{shown}");
    let refused = cluster.cli(&["export", "mr:/set", "--atomic", "--unused", "30d"])?;
    ensure!(refused.code == Some(2) && refused.stderr.contains("--atomic"), "{refused}");
    Ok(())
}

#[test]
fn a_job_by_state_passes_over_what_is_in_another() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in ["here", "away"] {
        bucket.put(&format!("set/{name}"), &[7; 100_000])?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"])?.ok()?;
    cluster.cli(&["hydrate", "mr:/set/here", "--wait"])?.ok()?;
    let set = cluster.mount().join("set");
    fs::write(set.join("new"), b"new")?;
    let counted = ["hydrate", "mr:/set", "--state", "released,partial", "--dry-run", "--wait"];
    let counted = cluster.json(&counted)?;
    ensure!(counted["files_total"] == 1 && counted["bytes_total"] == 100_000, "{counted}");
    // Through the mount's own socket, as a user without the cluster's identity does.
    let path = set.to_str().context("a temporary path is text")?;
    let export = ["export", path, "--state", "dirty", "--state", "conflict", "--wait"];
    let job = cluster.json(&export)?;
    ensure!(job["files_done"] == 1 && job["bytes_done"] == 3, "{job}");
    let id = job["id"].to_string();
    let shown = cluster.cli(&["job", "show", &id])?.ok()?;
    ensure!(shown.contains("--state dirty,conflict"), "{shown}");
    let release = cluster.json(&["release", "mr:/set", "--state", "exported", "--wait"])?;
    ensure!(release["files_done"] == 1, "{release}");
    let state = cluster.json(&["state", "mr:/set/here"])?;
    ensure!(state["state"] == "hydrated", "{state}");

    // The job is what it was after a restart of the server, and when it is started once more.
    cluster.crash("metadata")?;
    let again = cluster.json(&["job", "retry", &id, "--wait"])?;
    ensure!(again["files_total"] == 0, "nothing is dirty any more: {again}");
    let shown = cluster.json(&["job", "show", &again["id"].to_string()])?;
    let states = &shown["selection"]["states"];
    ensure!(*states == serde_json::json!(["dirty", "conflict"]), "{shown}");
    let refused = cluster.cli(&["export", "mr:/set", "--state", "unsaved"])?;
    ensure!(refused.code == Some(2) && refused.stderr.contains("hydrated, dirty"), "{refused}");
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
    // The attributes of what was imported. What was stored is not asked for: the answer to the PUT
    // had its checksum.
    ensure!(one["head"] == 20, "{told}");
    ensure!(one["list"].as_u64() > Some(0) && told["silent"] == serde_json::json!([]), "{told}");
    let words = cluster.cli(&["link", "list", "--requests"])?.ok()?;
    ensure!(words.contains("RECEIVED") && words.contains("s3://data/"), "{words}");
    Ok(())
}

/// So many small objects in four directories.
const FILL: &str = "
for number in range(int(sys.argv[2])):
    key = f'set/d{number % 4}/{number}'
    client.put_object(Bucket='data', Key=key, Body=b'7' * 3000)
";

#[test]
fn a_job_over_a_list_of_many_files_goes_on_after_a_kill_and_tells_what_is_not_there() -> Result<()>
{
    const FILES: u64 = 400;
    // Names of files that are not there: a list of any length is read in pages.
    const MISSING: u64 = 20_000;
    let bucket = Bucket::start()?;
    bucket.script(FILL, &[&FILES.to_string()])?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let link = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&[&link[..], &["--fetch", "asked"]].concat())?.ok()?;
    let set = cluster.mount().join("set");
    let set = set.to_str().context("a temporary path is text")?;
    let mut names = String::from("./d0\0");
    for number in (1..FILES).step_by(2) {
        names.push_str(&format!("{set}/d{}/{number}\0", number % 4));
    }
    for number in 0..MISSING {
        names.push_str(&format!("d3/none-{number}\0"));
    }
    let list = cluster.dir().join("list");
    fs::write(&list, names)?;
    // Through the mount, from standard input; the rate keeps the job busy.
    let mut command = Command::new(binaries().join("millrace"));
    command.arg("--dir").arg(cluster.dir()).args(["--json", "hydrate", set, "--report"]);
    command.args(["--files-from", "-", "-0", "--rate", "400KiB"]).stdin(fs::File::open(&list)?);
    let begun = command.output()?;
    ensure!(begun.status.success(), "{begun:?}");
    let told = String::from_utf8(begun.stderr)?;
    // Where a look at the tree takes long, as on a busy machine, it is not waited for.
    let is_told = told.contains("s3://data/set/") || told.contains("what is not here");
    ensure!(is_told && told.contains("2 targets"), "{told}");
    let job: serde_json::Value = serde_json::from_slice(&begun.stdout)?;
    let id = job["id"].as_u64().context("a job has a number")?.to_string();
    cluster.crash("metadata")?;
    cluster.crash("target-0")?;
    let ended = cluster.cli(&["--json", "job", "show", &id, "--wait", "--directories"])?;
    ensure!(ended.code == Some(1), "{ended}");
    let job: serde_json::Value = serde_json::from_str(&ended.stdout)?;
    // A quarter by its directory, and every second file.
    let done = FILES / 4 + FILES / 2;
    ensure!(job["files_done"] == done && job["errors"] == MISSING, "{job}");
    ensure!(job["options"]["files"] == true, "{job}");
    let directories = job["directories"].as_array().context("a list")?;
    let rows = directories.iter().map(|row| (row["name"].as_str(), row["files_done"].as_u64()));
    let rows: Vec<_> = rows.collect();
    let expected = [("d0", 100), ("d1", 100), ("d3", 100)];
    assert_eq!(rows, expected.map(|(name, files)| (Some(name), Some(files))));
    let gets = job["requests"]["get"].as_u64().context("a count")?;
    ensure!(gets > 0 && gets <= bucket.requests()?["GET"], "{job}");
    let mut paths = BTreeSet::new();
    for line in cluster.cli(&["job", "report", &id])?.ok()?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        let path = line["path"].as_str().context("a path")?.to_owned();
        ensure!((line["outcome"] == "failed") == path.contains("none-"), "{line}");
        ensure!(paths.insert(path), "twice: {line}");
    }
    ensure!(paths.len() as u64 == done + MISSING, "{} lines", paths.len());

    // Once more, over the same list: what is done costs nothing.
    let asked = bucket.requests()?["GET"];
    let again = cluster.cli(&["--json", "job", "retry", &id, "--wait"])?;
    let job: serde_json::Value = serde_json::from_str(&again.stdout)?;
    ensure!(job["files_done"] == done && job["errors"] == MISSING, "{job}");
    ensure!(job["requests"]["get"] == 0 && bucket.requests()?["GET"] == asked, "{job}");
    let listed = cluster.cli(&["link", "list"])?.ok()?;
    ensure!(listed.contains("s3://data/ was asked: ") && listed.contains(" GET"), "{listed}");
    Ok(())
}
