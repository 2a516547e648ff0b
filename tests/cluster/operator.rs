//! What an operator gets wrong, or others do to an operator: refused in words, and without traces.

use std::{
    fs,
    net::UdpSocket,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use millrace_admin_cli::arguments::CAPACITY_MIN;
use millrace_storage_target::format::superblock::Layout;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{PATIENCE, Said, binaries, finish},
};
use serde_json::Value;

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("our paths are UTF-8")
}

fn refused(said: &Said, code: i32, words: &[&str]) -> Result<()> {
    let told = words.iter().all(|word| said.stderr.contains(word));
    ensure!(said.code == Some(code) && told, "{said}");
    Ok(())
}

/// The names of the directories where the cluster is mounted.
fn mounts(status: &Value) -> Result<Vec<&str>> {
    let mounts = status["mounts"].as_array().context("a list")?;
    let names = mounts.iter().map(|mount| mount.as_str().and_then(|path| path.rsplit('/').next()));
    names.map(|name| name.context("a path")).collect()
}

#[test]
fn a_mount_that_cannot_be_made_is_in_the_way_of_no_other() -> Result<()> {
    let cluster = Cluster::prepare(Wish { targets: 1, ..Wish::default() })?;
    let file = cluster.scratch()?.join("file");
    fs::write(&file, "precious")?;
    let wrong = cluster.cli(&["dev", "up", "--targets", "1", "--mount", text(&file)?])?;
    refused(&wrong, 1, &["no directory"])?;
    cluster.up()?;
    let other = cluster.mount_named("other");
    let up = ["dev", "up", "--mount", text(&other)?, "--mount-options"];
    refused(&cluster.cli(&[&up[..], &["bogus"]].concat())?, 2, &["\"bogus\"", "nolocal_locks"])?;
    // This one is known, and the daemon refuses its value.
    refused(&cluster.cli(&[&up[..], &["memory=1M"]].concat())?, 1, &["16 MiB is the least"])?;
    let status = cluster.json(&["dev", "up"])?;
    assert_eq!(mounts(&status)?, ["mount"]);
    cluster.cli(&[&up[..], &["memory=64MiB"]].concat())?.ok()?;
    let again = cluster.cli(&[&up[..], &["ro"]].concat())?;
    refused(&again, 1, &["memory=64MiB", "millrace umount"])?;

    // One that stood in the plan and cannot be had again makes room for another.
    cluster.cli(&["umount", text(&other)?])?.ok()?;
    fs::remove_dir(&other)?;
    fs::write(&other, "a file by now")?;
    refused(&cluster.cli(&["dev", "up"])?, 1, &["--mount M", "/other"])?;
    cluster.mount_also(&cluster.mount_named("third"))?;
    assert_eq!(mounts(&cluster.json(&["dev", "status"])?)?, ["mount", "third"]);
    assert_eq!(fs::read_to_string(&other)?, "a file by now");
    Ok(())
}

#[test]
fn another_capacity_is_taken_when_targets_start_and_refused_while_they_run() -> Result<()> {
    assert_eq!(CAPACITY_MIN.0, Layout::capacity_min() * 4096, "what a target needs at least");
    let wish = Wish { targets: 1, capacity: Some("128MiB".to_owned()), ..Wish::default() };
    let cluster = Cluster::prepare(wish)?;
    refused(&cluster.cli(&["dev", "up", "--capacity", "1"])?, 2, &["--capacity", "49 MiB"])?;
    ensure!(!cluster.dir().exists(), "nothing was made");
    cluster.up()?;
    let capacity = || -> Result<u64> {
        let listed = cluster.json(&["target", "list"])?;
        listed[0]["capacity_bytes"].as_u64().context("a number")
    };
    let before = capacity()?;
    let larger = ["dev", "up", "--capacity", "256MiB"];
    refused(&cluster.cli(&larger)?, 1, &["--capacity", "target-0", "128 MiB", "dev down"])?;
    let recorded = fs::read_to_string(cluster.dir().join("dev.toml"))?;
    ensure!(recorded.contains("capacity = 134217728"), "{recorded}");
    cluster.cli(&["dev", "down"])?.ok()?;
    cluster.cli(&larger)?.ok()?;
    ensure!(capacity()? >= before + (96 << 20), "{} after {before}", capacity()?);
    Ok(())
}

#[test]
fn a_cluster_that_has_never_served_gets_other_ports_where_one_was_taken_meanwhile() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let before = cluster.address("target-0")?;
    cluster.cli(&["dev", "down"])?.ok()?;
    let _taken = UdpSocket::bind(&before)?;
    // One that has served keeps them; its metadata server is left running.
    let plan = cluster.dir().join("dev.toml");
    let served = fs::read_to_string(&plan)?;
    refused(&cluster.cli(&["dev", "up"])?, 1, &["target-0 ended", "already in use"])?;
    ensure!(fs::read_to_string(&plan)? == served, "{served}");
    let left = cluster.daemon("metadata")?.pid;
    // What an interrupted first start leaves differs in this word.
    fs::write(&plan, format!("never_served = true\n{served}"))?;
    cluster.up()?;
    ensure!(cluster.address("target-0")? != before, "{before}");
    ensure!(cluster.daemon("metadata")?.pid != left, "it has begun again with other settings");
    ensure!(!fs::read_to_string(&plan)?.contains("never_served"));
    Ok(())
}

#[test]
fn no_name_acts_on_the_terminal_of_who_lists_it() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let name = std::ffi::OsStr::from_bytes(b"red\x1b[31m\nline");
    let path = cluster.mount().join(name);
    fs::write(&path, "x")?;
    let told = "red\\u{1b}[31m\\nline";
    for command in [&["state", text(&path)?][..], &["pin", text(&path)?], &["pin"]] {
        let said = cluster.cli(command)?;
        ensure!(said.stdout.contains(told) && said.succeeded(), "{said}");
        ensure!(!said.stdout.contains('\x1b') && said.stdout.lines().count() == 1, "{said}");
    }
    let data = cluster.scratch()?.join("data");
    fs::create_dir(&data)?;
    let url = format!("file://{}", text(&data)?);
    let add = ["link", "add", &url, "mr:/pics"];
    cluster.cli(&[&add[..], &["--mode", "import-export"]].concat())?.ok()?;
    let pics = cluster.mount().join("pics");
    let open = fs::File::create(pics.join(name))?;
    let job = cluster.cli(&["export", text(&pics)?, "--wait"])?;
    ensure!(job.code == Some(1) && job.stdout.contains(told), "{job}");
    ensure!(!job.stdout.contains('\x1b') && !job.stderr.contains('\x1b'), "{job}");
    drop(open);
    let missing = cluster.cli(&["state", text(&path.with_extension("\x1b]0;x\x07"))?])?;
    ensure!(missing.code == Some(1) && !missing.stderr.contains('\x1b'), "{missing}");
    let exact = cluster.json(&["state", text(&path)?])?;
    ensure!(exact["path"] == text(&path)?, "{exact}");
    Ok(())
}

#[test]
fn a_backup_replaces_no_device_and_a_link_is_not_made_before_its_options_make_sense() -> Result<()>
{
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let device = cluster.cli(&["metadata", "backup", "/dev/null", "--force"])?;
    refused(&device, 1, &["/dev/null", "no regular file"])?;
    let (file, link) = (cluster.scratch()?.join("backup"), cluster.scratch()?.join("newest"));
    cluster.cli(&["metadata", "backup", text(&file)?])?.ok()?;
    symlink(&file, &link)?;
    let through = cluster.cli(&["metadata", "backup", text(&link)?, "--force"])?;
    refused(&through, 1, &["symbolic link"])?;
    cluster.cli(&["metadata", "backup", text(&file)?, "--force"])?.ok()?;

    let data = cluster.scratch()?.join("data");
    fs::create_dir(&data)?;
    let url = format!("file://{}", text(&data)?);
    let add = ["link", "add", &url, "mr:/pics"];
    let wrong = cluster.cli(&[&add[..], &["--auto-export", "3"]].concat())?;
    refused(&wrong, 2, &["--auto-export", "--mode import-export"])?;
    ensure!(cluster.json(&["link", "list"])? == serde_json::json!([]));
    let right = ["--auto-export", "3", "--mode", "import-export"];
    cluster.cli(&[&add[..], &right].concat())?.ok()?;
    Ok(())
}

#[test]
fn a_pid_file_holds_the_process_id_and_a_mount_says_where_it_is() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    for daemon in cluster.daemons() {
        let file = cluster.dir().join(&daemon.name).join("daemon.pid");
        assert_eq!(fs::read_to_string(file)?, format!("{}\n", daemon.pid), "{}", daemon.name);
    }
    let mountpoint = cluster.mount_named("second");
    fs::create_dir(&mountpoint)?;
    let source = format!("{}:/", cluster.address("metadata")?);
    let (identity, log) = (cluster.dir().join("client.pem"), cluster.scratch()?.join("log"));
    let options = format!("identity={},log={}", text(&identity)?, text(&log)?);
    let mount = ["mount", "--source", &source, "-o", &options, text(&mountpoint)?];
    let said = cluster.cli(&mount)?;
    let told = format!("/second shows {source}; log: {}", text(&log)?);
    ensure!(said.succeeded() && said.stdout.contains(&told), "{said}");
    cluster.cli(&["umount", text(&mountpoint)?])?.ok()?;

    let helper = cluster.scratch()?.join("mount.millrace");
    symlink(binaries().join("millrace"), &helper)?;
    let mut command = Command::new(&helper);
    command.args([source.as_str(), text(&mountpoint)?, "-o", &options]);
    let said = finish(&mut command, PATIENCE)?;
    ensure!(said.succeeded() && said.stdout.is_empty(), "{said}");
    cluster.cli(&["umount", text(&mountpoint)?])?.ok()?;
    Ok(())
}

/// One of another cluster, and one that somebody has made by hand where the cluster's was.
#[test]
fn a_mount_of_somebody_else_at_the_same_place_stays() -> Result<()> {
    let cluster = Cluster::start(Wish { targets: 1, ..Wish::default() })?;
    let other = Cluster::prepare(Wish { targets: 1, ..Wish::default() })?;
    let (mountpoint, file) = (cluster.mount(), cluster.mount().join("file"));
    fs::write(&file, "here")?;
    let up = ["dev", "up", "--targets", "1", "--mount", text(&mountpoint)?];
    refused(&other.cli(&up)?, 1, &["another mount is on", "millrace umount"])?;
    assert_eq!(fs::read_to_string(&file)?, "here");

    let source = format!("{}:/", cluster.address("metadata")?);
    cluster.cli(&["umount", text(&mountpoint)?])?.ok()?;
    let (identity, log) = (cluster.dir().join("client.pem"), cluster.scratch()?.join("log"));
    let options = format!("identity={},log={}", text(&identity)?, text(&log)?);
    let mount = ["mount", "--source", &source, "-o", &options, text(&mountpoint)?];
    cluster.cli(&mount)?.ok()?;
    let down = cluster.cli(&["dev", "down"])?;
    ensure!(down.succeeded() && down.stderr.contains("and stays"), "{down}");
    cluster.cli(&["dev", "up", "--targets", "1"])?.ok()?;
    assert_eq!(fs::read_to_string(&file)?, "here");
    cluster.cli(&["umount", text(&mountpoint)?])?.ok()?;
    Ok(())
}
