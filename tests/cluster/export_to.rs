//! Exports to another bucket, and deletions that reach a bucket, as operators and programs on a
//! mount see them.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::wait_for,
};
use serde_json::Value;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 31 + at / 253 + seed * 7) % 256).unwrap_or(0)).collect()
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary path is text")
}

fn keys(bucket: &Bucket, name: &str) -> Result<Vec<String>> {
    let listed = bucket.script(
        "for page in client.get_paginator('list_objects_v2').paginate(Bucket=sys.argv[2]):\n    \
         for entry in page.get('Contents', []): print(entry['Key'])",
        &[name],
    )?;
    Ok(listed.lines().map(str::to_owned).collect())
}

fn object(bucket: &Bucket, name: &str, key: &str, file: &Path) -> Result<bool> {
    let script = "
body = client.get_object(Bucket=sys.argv[2], Key=sys.argv[3])['Body'].read()
print(body == open(sys.argv[4], 'rb').read())
";
    Ok(bucket.script(script, &[name, key, text(file)?])?.trim() == "True")
}

/// A bucket `checkpoints`, and a cluster with an empty directory that goes there.
fn with_run() -> Result<(Bucket, Cluster, PathBuf)> {
    let bucket = Bucket::start()?;
    bucket.script("make_bucket(client, 'checkpoints')", &[])?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let run = cluster.mount().join("run");
    fs::create_dir(&run)?;
    Ok((bucket, cluster, run))
}

#[test]
fn checkpoints_go_to_another_bucket_and_nothing_here_counts_as_exported() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.script("make_bucket(client, 'checkpoints')", &[])?;
    bucket.put("set/cold.bin", &bytes(300_000, 1))?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    cluster.cli(&["link", "add", "s3://data/set", "mr:/set"])?.ok()?;
    let run = cluster.mount().join("run");
    fs::create_dir(&run)?;
    // Chunks far below the bucket's smallest part: one target puts a part together from all.
    cluster.cli(&["stripe", "set", text(&run)?, "--chunk-size", "64KiB", "--count", "-1"])?.ok()?;
    fs::write(run.join("model.pt"), bytes(20_000_000, 2))?;
    fs::write(run.join("small"), b"small")?;
    symlink("model.pt", run.join("latest"))?;
    let export = |path: &str, more: &[&str]| {
        let to = ["export", path, "--to", "s3://checkpoints/run7", "--report", "--wait"];
        cluster.cli(&[&to[..], more].concat())
    };
    let job: Value = serde_json::from_str(&export(text(&run)?, &["--json"])?.ok()?)?;
    let asked = &job["requests"];
    // The link and the small file by one put each; what targets send is counted for the job.
    ensure!(asked["put"] == 2 && asked["part"].as_u64() >= Some(2), "{job}");
    for name in ["model.pt", "small"] {
        ensure!(
            object(&bucket, "checkpoints", &format!("run7/{name}"), &run.join(name))?,
            "{name}"
        );
    }
    // Also below a link that never exports, and what was never fetched.
    export("mr:/set/cold.bin", &[])?.ok()?;
    let cold = cluster.mount().join("set/cold.bin");
    ensure!(object(&bucket, "checkpoints", "run7/cold.bin", &cold)?, "cold.bin");
    assert_eq!(
        keys(&bucket, "checkpoints")?,
        ["run7/cold.bin", "run7/latest", "run7/model.pt", "run7/small"]
    );
    // Again: nothing is sent. Changed: that file is. Somebody else's: an error.
    let again: Value = serde_json::from_str(&export(text(&run)?, &["--json"])?.ok()?)?;
    ensure!(again["bytes_done"] == 0 && again["files_done"] == 3, "{again}");
    fs::write(run.join("small"), b"changed")?;
    bucket.script("client.put_object(Bucket='checkpoints', Key='run7/other', Body=b'x')", &[])?;
    fs::write(run.join("other"), b"mine")?;
    let failed = export(text(&run)?, &[])?;
    ensure!(failed.code == Some(1) && failed.stdout.contains("--overwrite"), "{failed}");
    ensure!(object(&bucket, "checkpoints", "run7/small", &run.join("small"))?, "the new version");
    export(text(&run)?, &["--overwrite", "--dry-run"])?.ok()?;
    ensure!(!object(&bucket, "checkpoints", "run7/other", &run.join("other"))?, "a dry run");
    export(text(&run)?, &["--overwrite", "--atomic"])?.ok()?;
    let manifest = keys(&bucket, "checkpoints")?;
    ensure!(manifest.contains(&"run7/.millrace-manifest.json".to_owned()), "{manifest:?}");
    ensure!(object(&bucket, "checkpoints", "run7/other", &run.join("other"))?, "replaced");
    let refused = cluster.cli(&["export", text(&run)?, "--to", "s3://nowhere-at-all/x"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("nowhere-at-all"), "{refused}");
    Ok(())
}

#[test]
fn an_export_to_another_bucket_survives_kills_and_does_no_file_twice() -> Result<()> {
    const FILES: usize = 200;
    let (bucket, cluster, run) = with_run()?;
    for at in 0..FILES {
        fs::write(run.join(format!("{at:03}")), bytes(20_000, at))?;
    }
    fs::write(run.join("model.pt"), bytes(60_000_000, 7))?;
    let to = ["--json", "export", text(&run)?, "--to", "s3://checkpoints/run"];
    let job: Value = serde_json::from_str(&cluster.cli(&to)?.ok()?)?;
    let id = job["id"].as_u64().context("a job has a number")?.to_string();
    for name in ["metadata", "target-0", "metadata", "target-1"] {
        let before = keys(&bucket, "checkpoints")?.len();
        wait_for("some progress", || {
            let now = keys(&bucket, "checkpoints").ok()?.len();
            (now >= (before + 20).min(FILES)).then_some(())
        })?;
        cluster.crash(name)?;
    }
    let ended = wait_for("the job to end", || {
        let job = cluster.json(&["job", "show", &id, "--at-once"]).ok()?;
        ["succeeded", "failed"].contains(&job["state"].as_str()?).then_some(job)
    })?;
    ensure!(ended["state"] == "succeeded", "{ended}");
    assert_eq!(ended["files_done"], FILES + 1);
    for at in 0..FILES {
        let name = format!("{at:03}");
        if at % 20 == 0 {
            ensure!(
                object(&bucket, "checkpoints", &format!("run/{name}"), &run.join(&name))?,
                "{name}"
            );
        }
    }
    ensure!(object(&bucket, "checkpoints", "run/model.pt", &run.join("model.pt"))?, "model.pt");
    let left = "print(len(client.list_multipart_uploads(Bucket='checkpoints').get('Uploads', [])))";
    assert_eq!(bucket.script(left, &[])?.trim(), "0", "no upload is left");
    Ok(())
}

#[test]
fn small_files_that_live_in_their_inodes_go_to_a_bucket_like_others() -> Result<()> {
    const FILES: usize = 300;
    let (bucket, cluster, run) = with_run()?;
    for at in 0..FILES {
        fs::write(run.join(format!("{at:03}")), bytes(at + 1, at))?;
    }
    let lives_inline = |at: &usize| -> Result<bool> {
        let path = run.join(format!("{at:03}"));
        let shown = cluster.json(&["stripe", "show", text(&path)?])?;
        Ok(shown["inline_bytes"] == shown["size_bytes"])
    };
    let all: Vec<_> = (0..FILES).rev().collect();
    let small: Vec<_> = all.iter().filter(|at| lives_inline(at).unwrap_or(false)).take(3).collect();
    ensure!(small.len() == 3, "{small:?} live in their inodes");
    let export = |to: &str| cluster.cli(&["export", text(&run)?, "--to", to, "--wait"])?.ok();
    export("s3://checkpoints/run")?;
    ensure!(keys(&bucket, "checkpoints")?.len() == FILES);
    for at in small {
        let name = format!("{at:03}");
        let key = format!("run/{name}");
        ensure!(object(&bucket, "checkpoints", &key, &run.join(&name))?, "{name}");
        // Written again, it is sent from a target.
        fs::write(run.join(&name), bytes(5000, *at))?;
    }
    export("s3://checkpoints/again")?;
    ensure!(keys(&bucket, "checkpoints")?.len() == 2 * FILES);
    Ok(())
}

#[test]
fn what_is_removed_and_renamed_on_a_mount_is_so_in_the_bucket_too() -> Result<()> {
    let bucket = Bucket::start()?;
    for name in ["a", "b", "dir/c", "kept"] {
        bucket.put(&format!("run/{name}"), &bytes(10_000, 3))?;
    }
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/run", "mr:/run", "--mode", "import-export"];
    cluster.cli(&[&add[..], &["--propagate-deletes"]].concat())?.ok()?;
    let run = cluster.mount().join("run");
    fs::remove_file(run.join("a"))?;
    fs::rename(run.join("b"), run.join("moved"))?;
    // Of what nobody has listed an export knows nothing: it goes with the export after that.
    ensure!(fs::read_dir(run.join("dir"))?.count() == 1, "one file");
    fs::rename(run.join("dir"), run.join("other"))?;
    let told = cluster.json(&["link", "list"])?;
    ensure!(told[0]["propagate_deletes"]["waiting"].as_u64() >= Some(1), "{told}");
    ensure!(keys(&bucket, "data")?.contains(&"run/a".to_owned()), "nothing goes before an export");
    cluster.crash("metadata")?;
    // Who has it open reads on from wherever the object goes.
    let mut open = fs::File::open(run.join("moved"))?;
    cluster.cli(&["export", "mr:/run", "--wait"])?.ok()?;
    let mut found = keys(&bucket, "data")?;
    found.retain(|key| key.starts_with("run/") && !key.ends_with('/'));
    assert_eq!(found, ["run/kept", "run/moved", "run/other/c"]);
    cluster.cli(&["release", "mr:/run/moved", "--wait"])?.ok()?;
    ensure!(cluster.json(&["state", "mr:/run/moved"])?["hydrated_bytes"] == 0, "nothing is here");
    let mut read = Vec::new();
    open.read_to_end(&mut read)?;
    ensure!(read == bytes(10_000, 3), "the content that was opened");
    drop(open);
    ensure!(object(&bucket, "data", "run/moved", &run.join("moved"))?, "moved");

    // By itself, too.
    cluster.cli(&["link", "set", "mr:/run", "--auto-export", "1"])?.ok()?;
    // It is from before the restart: who may have it open has told of that by now.
    let removed = Instant::now();
    fs::remove_file(run.join("moved"))?;
    fs::write(run.join("new"), b"new")?;
    wait_for("the bucket to follow", || {
        let found = keys(&bucket, "data").ok()?;
        let has = |key: &str| found.iter().any(|found| found == key);
        (!has("run/moved") && has("run/new") && has("run/kept")).then_some(())
    })?;
    // Of a mount that did not say what it has open, it would be kept for 96 s.
    ensure!(removed.elapsed() < Duration::from_secs(85), "nobody was waited for");
    cluster.cli(&["link", "set", "mr:/run", "--propagate-deletes=off"])?.ok()?;
    let told = cluster.json(&["link", "list"])?;
    ensure!(told[0]["propagate_deletes"].is_null(), "{told}");

    let begin = "print(client.create_multipart_upload(Bucket='data', Key='run/left')['UploadId'])";
    bucket.script(begin, &[])?;
    let listed = cluster.json(&["link", "uploads", "mr:/run"])?;
    ensure!(listed["total"] == 1 && listed["uploads"][0]["key"] == "run/left", "{listed}");
    let young = cluster.json(&["link", "uploads", "mr:/run", "--abort-older-than", "1d"])?;
    ensure!(young["aborted"] == 0, "{young}");
    let old = cluster.json(&["link", "uploads", "mr:/run", "--abort-older-than", "0s"])?;
    ensure!(old["aborted"] == 1, "{old}");
    ensure!(cluster.json(&["link", "uploads", "mr:/run"])?["total"] == 0, "it is gone");
    Ok(())
}
