//! A namespace that does not agree with itself, on the other store engine, as an operator meets it;
//! and the wait for a check whose server says nothing for a while.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use millrace_metadata_server::{
    namespace::tree,
    store::{Batch, MetaStore as _, keys, records::Record as _, sled::SledStore},
};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{binaries, wait_for},
};
use millrace_types::InodeId;
use serde_json::Value;

fn cluster() -> Result<Cluster> {
    let environment = vec![
        ("MILLRACE_STORE__ENGINE".to_owned(), "sled".to_owned()),
        ("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned()),
    ];
    Cluster::start(Wish { targets: 1, environment, ..Wish::default() })
}

/// Runs a check of everything to its end; tells whether the tool is content.
fn check(cluster: &Cluster, repair: bool) -> Result<(Value, bool)> {
    let mut all = vec!["--json", "fsck", "start", "--wait"];
    all.extend(repair.then_some("--repair"));
    wait_for("a check of every target", || {
        let said = cluster.cli(&all).ok()?;
        let report: Value = serde_json::from_str(&said.stdout).ok()?;
        let whole = report["targets"].as_array()?.iter().all(|t| t["not_checked"].is_null());
        (whole && report["state"] == "done").then(|| (report, said.succeeded()))
    })
}

/// Has a file say that it has seven names, and a name of it that nobody knows; while no server
/// runs.
fn plant(cluster: &Cluster) -> Result<InodeId> {
    let data = cluster.dir().join("metadata/data");
    ensure!(!data.join("store-lsm").exists(), "the setting counts");
    let mut store = SledStore::open(&data.join("store"), 8 << 20)?;
    let mut batch = Batch::default();
    let mut file = tree::resolve(&store, InodeId::ROOT, b"/a/file")?;
    file.links = 7;
    batch.put(keys::inode(file.id), file.encode());
    let lost = tree::resolve(&store, InodeId::ROOT, b"/a/lost")?;
    let a = tree::resolve(&store, InodeId::ROOT, b"/a")?;
    let gone = lost.parent.context("it has a name")?.name;
    batch.delete(keys::entry(a.id, gone.as_bytes()));
    store.commit(&batch)?;
    store.checkpoint()?;
    Ok(lost.id)
}

#[test]
fn a_damaged_namespace_is_told_of_repaired_on_command_and_sound_after_that() -> Result<()> {
    let cluster = cluster()?;
    let mount = cluster.mount();
    fs::create_dir(mount.join("a"))?;
    fs::write(mount.join("a/file"), b"kept")?;
    fs::write(mount.join("a/lost"), b"found again")?;
    let (report, sound) = check(&cluster, false)?;
    ensure!(sound && report["namespace"]["flaws"] == serde_json::json!([]), "{report}");

    cluster.cli(&["dev", "down"])?.ok()?;
    let lost = plant(&cluster)?;
    cluster.up()?;
    let (report, sound) = check(&cluster, false)?;
    ensure!(!sound, "something is left wrong: {report}");
    let namespace = &report["namespace"];
    let findings = namespace["findings"].as_array().context("a list")?;
    let found = |kind: &str| findings.iter().find(|finding| finding["kind"] == kind);
    let links = found("wrong-links").with_context(|| namespace.to_string())?;
    assert_eq!((&links["path"], &links["repaired"]), (&"/a/file".into(), &false.into()));
    assert_eq!(found("nameless").context("it is told")?["inode"], lost.0);
    let status: Value = serde_json::from_str(&cluster.cli(&["--json", "status"])?.stdout)?;
    ensure!(status["problems"].to_string().contains("does not agree with itself"), "{status}");

    let (report, sound) = check(&cluster, true)?;
    ensure!(sound, "everything is repaired: {report}");
    let said = cluster.cli(&["fsck", "show"])?.ok()?;
    ensure!(said.contains("wrong-links: 1, 1 repaired"), "{said}");
    cluster.crash("metadata")?;
    let (report, sound) = check(&cluster, true)?;
    ensure!(sound && report["namespace"]["flaws"] == serde_json::json!([]), "{report}");
    assert_eq!(fs::metadata(mount.join("a/file"))?.nlink(), 1);
    assert_eq!(fs::read(mount.join(format!("lost+found/{}", lost.0)))?, b"found again");
    assert_eq!(fs::metadata(mount.join("lost+found"))?.mode() & 0o7777, 0o700);
    Ok(())
}

#[test]
fn a_check_is_waited_for_while_its_server_says_nothing_for_a_while() -> Result<()> {
    // So slow that it takes longer than the silence.
    let slow = ("MILLRACE_FSCK__CONTENTS_PER_SECOND".to_owned(), "30".to_owned());
    let cluster = Cluster::start(Wish { targets: 1, environment: vec![slow], ..Wish::default() })?;
    // Of an empty namespace: from then on the target can be checked.
    check(&cluster, false)?;
    for number in 0..20 {
        fs::write(cluster.mount().join(number.to_string()), b"")?;
    }
    let mut command = Command::new(binaries().join("millrace"));
    command.arg("--dir").arg(cluster.dir()).args(["--json", "fsck", "start", "--wait"]);
    let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(waiting.stderr.take().context("stderr is piped")?);
    wait_for("the check to run", || {
        (cluster.json(&["fsck", "show"]).ok()?["state"] == "listing").then_some(())
    })?;
    let paused = cluster.daemon("metadata")?.pause()?;
    let mut line = String::new();
    said.read_line(&mut line)?;
    ensure!(line.starts_with("waits for the cluster: "), "{line}");
    drop(paused);
    let ended = waiting.wait_with_output()?;
    let report: Value = serde_json::from_slice(&ended.stdout)?;
    ensure!(ended.status.success() && report["state"] == "done", "{report}");
    Ok(())
}
