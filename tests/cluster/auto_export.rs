//! Links that export by themselves, as a training run and an operator see them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    chance,
    cluster::{Cluster, Wish},
    program::wait_for,
    proxy::{Proxy, Weather},
};
use serde_json::Value;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 31 + at / 253 + seed * 7) % 256).unwrap_or(0)).collect()
}

fn linked(bucket: &Bucket, quiet: &str, more: &[&str]) -> Result<Cluster> {
    let cluster = Cluster::start(Wish::default().with_bucket(bucket))?;
    let add = ["link", "add", "s3://data/run", "mr:/run", "--mode", "import-export"];
    cluster.cli(&[&add[..], &["--auto-export", quiet], more].concat())?.ok()?;
    Ok(cluster)
}

fn auto_export(cluster: &Cluster) -> Result<Value> {
    Ok(cluster.json(&["link", "list"])?[0]["auto_export"].clone())
}

/// Until so many files were sent, and so many wait.
fn sent(cluster: &Cluster, files: u64, waiting: u64) -> Result<Value> {
    wait_for("the files to be sent", || {
        let told = auto_export(cluster).ok()?;
        let done = told["files"].as_u64()? >= files && told["waiting"] == waiting;
        done.then_some(told)
    })
}

fn keys(bucket: &Bucket) -> Result<Vec<String>> {
    let listed = bucket.script(
        "for page in client.get_paginator('list_objects_v2').paginate(Bucket='data'):\n    \
         for entry in page.get('Contents', []): print(entry['Key'])",
        &[],
    )?;
    Ok(listed.lines().map(str::to_owned).collect())
}

#[test]
fn checkpoints_are_in_the_bucket_without_anybody_asking() -> Result<()> {
    const QUIET: Duration = Duration::from_secs(3);
    let bucket = Bucket::start()?;
    bucket.put("run/config.json", b"{}")?;
    let cluster = linked(&bucket, "3", &[])?;
    let root = cluster.mount().join("run");
    let log = File::create(root.join("train.log"))?;
    let (small, large) = (bytes(1_000, 1), bytes(20_000_000, 2));
    fs::create_dir(root.join("step-1"))?;
    // As checkpoints are written: under another name, then renamed when they are whole.
    let begun = Instant::now();
    for (name, body) in [("model.pt", &large), ("optim.pt", &small)] {
        fs::write(root.join(format!("{name}.tmp")), body)?;
        fs::rename(root.join(format!("{name}.tmp")), root.join("step-1").join(name))?;
    }
    symlink("step-1", root.join("latest"))?;
    let in_time = begun.elapsed() < QUIET;
    writeln!(&log, "step 1")?;

    // The log is open, and waits.
    sent(&cluster, 2, 1)?;
    assert!(bucket.get("run/step-1/model.pt")? == large);
    assert!(bucket.get("run/step-1/optim.pt")? == small);
    assert_eq!(bucket.get("run/latest")?, b"step-1");
    let known = keys(&bucket)?;
    assert!(!in_time || !known.iter().any(|key| key.ends_with(".tmp")), "{known:?}");
    assert!(!known.contains(&"run/train.log".to_owned()), "it is open: {known:?}");
    drop(log);
    let told = sent(&cluster, 3, 0)?;
    assert_eq!(bucket.get("run/train.log")?, b"step 1\n");
    assert_eq!(told["failing"], 0, "{told}");
    // What was sent is the bucket's: it may be dropped, and comes back.
    cluster.cli(&["release", "mr:/run", "--wait"])?.ok()?;
    assert!(fs::read(root.join("step-1/model.pt"))? == large);

    let shown = cluster.cli(&["link", "list"])?;
    ensure!(shown.stdout.contains("AUTO-EXPORT") && shown.stdout.contains("3 s"), "{shown}");
    let off = cluster.cli(&["link", "set", "mr:/run", "--auto-export", "off"])?;
    ensure!(off.code == Some(0) && !off.stdout.contains("by themselves"), "{off}");
    assert!(auto_export(&cluster)?.is_null());
    let refused = cluster.cli(&["link", "set", "mr:/run", "--auto-export", "often"])?;
    ensure!(refused.code == Some(2) && refused.stderr.contains("off"), "{refused}");
    Ok(())
}

#[test]
fn a_link_that_cannot_have_one_of_the_options_gets_none_of_them() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let data = cluster.scratch()?.join("data");
    fs::create_dir(&data)?;
    cluster.cli(&["link", "add", &format!("file://{}", data.display()), "mr:/set"])?.ok()?;
    let before = cluster.json(&["link", "list"])?;
    let some = ["link", "set", "mr:/set", "--refresh", "300", "--attributes", "objects"];
    for more in [&["--auto-export", "30"][..], &["--propagate-deletes"]] {
        let refused = cluster.cli(&[&some[..], more].concat())?;
        let is_told = refused.stderr.contains(more[0]) && refused.stderr.contains("read-only");
        ensure!(refused.code == Some(2) && is_told, "{refused}");
        let now = cluster.json(&["link", "list"])?;
        ensure!(now[0]["refresh_seconds"] == 0 && now[0]["attributes"] == "listing", "{now}");
        assert_eq!(now[0]["auto_export"], before[0]["auto_export"]);
    }
    let set = cluster.json(&some)?;
    ensure!(set["refresh_seconds"] == 300 && set["attributes"] == "objects", "{set}");
    Ok(())
}

#[test]
fn a_bucket_that_is_away_gets_its_files_when_it_is_back() -> Result<()> {
    let bucket = Bucket::start()?;
    let proxy = Proxy::for_endpoint(&bucket.endpoint())?;
    let cluster = linked(&bucket, "0", &["--endpoint", &proxy.endpoint()])?;
    let path = cluster.mount().join("run/model.pt");
    fs::read_dir(cluster.mount().join("run"))?.for_each(drop);
    proxy.set(Weather::Down);
    let body = bytes(300_000, 3);
    fs::write(&path, &body)?;
    let failing = wait_for("the failure", || {
        let told = auto_export(&cluster).ok()?;
        (told["failing"] == 1).then_some(told)
    })?;
    assert_eq!(failing["failures"][0]["path"], "/run/model.pt", "{failing}");
    let shown = cluster.cli(&["link", "list"])?;
    ensure!(shown.stdout.contains("1 failing") && shown.stdout.contains("/run/model.pt: "));
    proxy.set(Weather::Fair);
    let told = sent(&cluster, 1, 0)?;
    assert_eq!(told["failing"], 0, "{told}");
    assert!(bucket.get("run/model.pt")? == body);
    Ok(())
}

#[test]
fn daemons_that_are_killed_meanwhile_lose_no_file_and_send_few_twice() -> Result<()> {
    const FILES: usize = 240;
    /// As many as are under way at a time.
    const AT_ONCE: u64 = 16;
    let seed = chance::seed()?;
    let bucket = Bucket::start()?;
    let cluster = linked(&bucket, "1", &[])?;
    let root = cluster.mount().join("run");
    let expected: BTreeMap<_, _> = (0..FILES)
        .map(|number| (format!("d{}/f{number}", number % 7), bytes(40_000 + number, number)))
        .collect();
    let before = bucket.requests()?;
    let kills = ["metadata", "target-0", "metadata", "target-1", "metadata"];
    let mut kills = kills.into_iter();
    for (number, (name, body)) in expected.iter().enumerate() {
        let path = root.join(name);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        fs::write(path, body)?;
        if number % 40 == 39 {
            // At any moment of what goes on meanwhile.
            let pause = seed.rotate_left(u32::try_from(number)?) % 1_500;
            std::thread::sleep(Duration::from_millis(pause));
            if let Some(daemon) = kills.next() {
                let back = cluster.crash(daemon);
                back.with_context(|| {
                    cluster
                        .cli(&["status"])
                        .map_or_else(|error| error.to_string(), |said| said.stdout)
                })?;
            }
        }
    }
    wait_for("all files to be exported", || {
        let told = cluster.json(&["state", "mr:/run"]).ok()?;
        (told["state"] == "exported").then_some(())
    })?;
    let count = |counts: &BTreeMap<String, u64>| counts.get("PUT").copied().unwrap_or(0);
    let puts = count(&bucket.requests()?) - count(&before);
    let most = FILES as u64 + 5 * AT_ONCE;
    ensure!(puts <= most, "{puts} PUTs for {FILES} files and 5 kills");
    let told = auto_export(&cluster)?;
    assert_eq!((&told["waiting"], &told["failing"]), (&0.into(), &0.into()), "{told}");
    // What is read now comes from the bucket.
    let released = cluster.cli(&["release", "mr:/run", "--wait"])?;
    ensure!(released.code == Some(0), "{released}");
    let held = cluster.json(&["state", "mr:/run"])?;
    assert_eq!(held["hydrated_bytes"], 0, "{held} after {released}");
    for (name, body) in &expected {
        ensure!(fs::read(root.join(name))? == *body, "{name} is another one");
    }
    Ok(())
}
