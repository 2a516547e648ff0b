//! A target whose disk is gone for good, as an operator and the programs on a mount see it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::{binaries, wait_for},
};
use rustix::io::Errno;

const LEN: usize = 200_000;

fn body(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| u8::try_from((at * 7 + at / 255 + seed * 13) % 256).unwrap_or(0)).collect()
}

/// Two targets, which are offline after a short time.
fn wish() -> Wish {
    let lease = ("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned());
    Wish { environment: vec![lease], ..Wish::default() }
}

/// The target of a file's only chunk.
fn target_of(cluster: &Cluster, path: &str) -> Result<String> {
    let shown = cluster.json(&["stripe", "show", path])?;
    let target = shown["chunks"][0]["targets"][0].as_str();
    target.map(str::to_owned).with_context(|| shown.to_string())
}

fn errno_of(outcome: io::Result<impl Sized>) -> Option<Errno> {
    outcome.err().and_then(|error| Errno::from_io_error(&error))
}

/// Names of files in a directory of the mount, by whether they lie on a target.
fn sorted(cluster: &Cluster, folder: &str, target: &str) -> Result<(Vec<String>, Vec<String>)> {
    let mut sides = (Vec::new(), Vec::new());
    for entry in fs::read_dir(cluster.mount().join(folder))? {
        let name = entry?.file_name().into_string().ok().context("a name of ours")?;
        let path = format!("{folder}/{name}");
        match target_of(cluster, &format!("mr:/{path}"))? == target {
            true => sides.0.push(path),
            false => sides.1.push(path),
        }
    }
    ensure!(!sides.0.is_empty() && !sides.1.is_empty(), "both targets have files: {sides:?}");
    Ok(sides)
}

fn seed_of(path: &str) -> usize {
    path.rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// A cluster of two targets, one of which will be given up, with files of every kind on both.
struct World {
    cluster: Cluster,
    _bucket: Bucket,
    lost: String,
    /// Paths of files on the lost target, and on the other one.
    own: (Vec<String>, Vec<String>),
    set: (Vec<String>, Vec<String>),
}

impl World {
    fn start() -> Result<Self> {
        let bucket = Bucket::start()?;
        for seed in 0..12 {
            bucket.put(&format!("set/clean-{seed}"), &body(seed))?;
            bucket.put(&format!("set/dirty-{seed}"), &body(seed))?;
        }
        let cluster = Cluster::start(wish().with_bucket(&bucket))?;
        let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
        cluster.cli(&add)?.ok()?;
        let mount = cluster.mount();
        fs::create_dir(mount.join("own"))?;
        for seed in 0..12 {
            write(&mount.join(format!("own/file-{seed}")), &body(seed))?;
            // Some pages of each differ from the object's.
            let file = File::options().write(true).open(mount.join(format!("set/dirty-{seed}")))?;
            file.write_all_at(&[0xEE; 5000], 70_000)?;
            file.sync_all()?;
        }
        cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
        cluster.mount_also(&cluster.mount_named("second"))?;
        let lost = target_of(&cluster, "mr:/own/file-0")?;
        let (own, set) = (sorted(&cluster, "own", &lost)?, sorted(&cluster, "set", &lost)?);
        Ok(Self { cluster, _bucket: bucket, lost, own, set })
    }

    fn mounts(&self) -> [PathBuf; 2] {
        [self.cluster.mount(), self.cluster.mount_named("second")]
    }

    /// What the loss damages: what differs from the bucket, or is not there.
    fn damaged(&self) -> Vec<&String> {
        let dirty = self.set.0.iter().filter(|path| path.contains("dirty"));
        self.own.0.iter().chain(dirty).collect()
    }

    /// What a bucket has, or lies elsewhere, as it was written.
    fn sound(&self) -> impl Iterator<Item = &String> {
        let set = self.set.0.iter().chain(&self.set.1).filter(|path| path.contains("clean"));
        self.own.1.iter().chain(set)
    }

    /// The folder of the daemon that serves the lost target.
    fn daemon(&self) -> Result<&'static str> {
        let serves = |name: &&&str| self.cluster.log(name).contains(&self.lost);
        ["target-0", "target-1"].iter().find(serves).copied().context("a daemon serves it")
    }

    fn lose(&self) -> Result<serde_json::Value> {
        let lost = &self.lost;
        let refused = self.cluster.cli(&["target", "lost", lost, "--yes"])?;
        ensure!(refused.code == Some(1) && refused.stderr.contains("end its daemon"), "{refused}");
        self.cluster.daemon(self.daemon()?)?.kill()?;
        wait_for("the target to be offline", || {
            let listed = self.cluster.json(&["target", "list"]).ok()?;
            let found = listed.as_array()?.iter().find(|target| target["id"] == lost.as_str())?;
            (found["state"] == "offline").then_some(())
        })?;
        let preview = self.cluster.cli(&["--json", "target", "lost", lost])?;
        let told: serde_json::Value = serde_json::from_str(&preview.stdout)?;
        ensure!(preview.code == Some(1) && told["given_up"] == false, "{preview}");
        let done = self.cluster.json(&["target", "lost", lost, "--yes"])?;
        ensure!(done["given_up"] == true && done["paths"] == told["paths"], "{told} {done}");
        Ok(done)
    }

    /// Whether the state of the cluster says that so many files lack what went with the target.
    fn is_told(&self, files: usize) -> Result<bool> {
        let status = self.cluster.cli(&["--json", "status"])?;
        let told: serde_json::Value = serde_json::from_str(&status.stdout)?;
        let problems = told["problems"].as_array().context("a list")?;
        let words = [format!("{files} file"), format!("see millrace target lost {}", self.lost)];
        let says = |problem: &serde_json::Value| {
            problem.as_str().is_some_and(|text| words.iter().all(|word| text.contains(word)))
        };
        Ok(status.code == Some(1) && problems.iter().any(says))
    }

    fn check_damaged(&self, path: &str) -> Result<()> {
        let state = self.cluster.json(&["state", &format!("mr:/{path}")])?;
        ensure!(state["state"] == "lost" && state["hydrated_bytes"] == 0, "{state}");
        for root in self.mounts() {
            let read = fs::read(root.join(path));
            ensure!(errno_of(read) == Some(Errno::IO), "{path} cannot be read");
        }
        let opened = File::options().write(true).open(self.cluster.mount().join(path));
        ensure!(errno_of(opened) == Some(Errno::IO), "{path} cannot be changed");
        Ok(())
    }
}

#[test]
fn a_lost_target_costs_what_only_it_had_and_is_told_by_name() -> Result<()> {
    let world = World::start()?;
    let [mount, second] = world.mounts();
    // Opened before: what they were given must not be good for reading holes.
    let handles = world.set.0.iter().chain(&world.own.0).map(|path| {
        let file = File::open(second.join(path))?;
        Ok((path, file))
    });
    let handles: Vec<(&String, File)> = handles.collect::<Result<_>>()?;
    let damaged = world.damaged();
    let done = world.lose()?;
    let named = done["paths"].as_array().context("a list")?;
    ensure!(named.len() == damaged.len(), "{done}, and not {damaged:?}");
    ensure!(world.is_told(damaged.len())?, "status says so at once");
    for path in &damaged {
        ensure!(named.iter().any(|told| *told == *format!("/{path}")), "{path}: {done}");
        world.check_damaged(path)?;
    }
    for (path, file) in &handles {
        let mut bytes = vec![0; LEN];
        let read = file.read_exact_at(&mut bytes, 0);
        match damaged.contains(path) {
            true => ensure!(errno_of(read) == Some(Errno::IO), "{path} fails with EIO"),
            false => ensure!(read.is_ok() && bytes == body(seed_of(path)), "{path} is whole"),
        }
    }
    for path in world.sound() {
        ensure!(fs::read(mount.join(path))? == body(seed_of(path)), "{path} is there");
    }
    for seed in 0..12 {
        let name = format!("own/new-{seed}");
        write(&mount.join(&name), &body(seed))?;
        ensure!(fs::read(second.join(&name))? == body(seed), "files can be made at once");
    }
    check_remedies(&world)?;
    check_return(&world)
}

/// Small files that live in their inodes. A mount makes such ones by itself where several were made
/// within a second: a busy machine may need another try.
fn small_files(world: &World) -> Result<Vec<String>> {
    let mount = world.cluster.mount();
    for round in 0..10 {
        let folder = format!("small-{round}");
        fs::create_dir(mount.join(&folder))?;
        for number in 0..8 {
            File::create_new(mount.join(format!("{folder}/empty-{number}")))?;
        }
        let paths: Vec<_> = (0..60).map(|seed| format!("{folder}/file-{seed}")).collect();
        for path in &paths {
            fs::write(mount.join(path), &body(seed_of(path))[..100])?;
        }
        let mut small = Vec::new();
        for path in paths {
            let shown = world.cluster.json(&["stripe", "show", &format!("mr:/{path}")])?;
            small.extend((shown["inline_bytes"] == 100).then_some(path));
        }
        if small.len() > 20 {
            return Ok(small);
        }
    }
    bail!("never more than 20 of 60 live in their inodes")
}

#[test]
fn small_files_that_live_in_their_inodes_outlive_the_target_that_they_would_go_to() -> Result<()> {
    let world = World::start()?;
    let [_, second] = world.mounts();
    let small = small_files(&world)?;
    let done = world.lose()?;
    let named = done["paths"].as_array().context("a list")?;
    for path in &small {
        ensure!(!named.iter().any(|told| *told == *format!("/{path}")), "{path}: {done}");
        // Half of them would have lain there: they go to the other target now.
        let mut expected = body(seed_of(path))[..100].to_vec();
        ensure!(fs::read(second.join(path))? == expected, "{path} is whole");
        File::options().append(true).open(second.join(path))?.write_all(b"more")?;
        expected.extend_from_slice(b"more");
        for root in world.mounts() {
            ensure!(fs::read(root.join(path))? == expected, "{path} was written on");
        }
    }
    Ok(())
}

/// The bucket's version, and writing anew.
fn check_remedies(world: &World) -> Result<()> {
    let (damaged, [mount, second]) = (world.damaged(), world.mounts());
    let imported = damaged.iter().find(|path| path.contains("dirty")).context("one of them")?;
    world.cluster.cli(&["resolve", &format!("mr:/{imported}"), "--keep", "bucket"])?.ok()?;
    ensure!(fs::read(mount.join(imported))? == body(seed_of(imported)));
    write(&mount.join(damaged[0]), &body(99))?;
    ensure!(fs::read(second.join(damaged[0]))? == body(99));
    let left = world.cluster.json(&["target", "lost", &world.lost])?;
    ensure!(left["damaged_files"] == damaged.len() - 2, "{left}");
    Ok(())
}

/// The disk turns up, and then an empty one in its place.
fn check_return(world: &World) -> Result<()> {
    let (cluster, name) = (&world.cluster, world.daemon()?);
    let folder = cluster.dir().join(name);
    let mut back = Command::new(binaries().join("millrace-target"));
    back.arg("--config").arg(folder.join("target.toml")).stderr(Stdio::null());
    let mut back = back.spawn()?;
    let told = cluster.wait_for_log("metadata", &["given up", &world.lost, "is back"]);
    back.kill()?;
    back.wait()?;
    told?;
    let damaged = world.damaged();
    world.check_damaged(damaged[1])?;

    // Nobody waits for the target, whose daemon runs again, and a line says what to do about it.
    let up = cluster.cli(&["dev", "up"])?;
    let line = up.stdout.lines().find(|line| line.contains(&world.lost)).unwrap_or_default();
    let words = [format!("{name} serves nothing"), format!("{name}/data")];
    ensure!(up.code == Some(1) && words.iter().all(|word| line.contains(word)), "{up}");
    let status: serde_json::Value =
        serde_json::from_str(&cluster.cli(&["--json", "dev", "status"])?.stdout)?;
    let lost = &status["lost"][0];
    ensure!(lost["name"] == name && lost["target"] == world.lost.as_str(), "{status}");
    cluster.daemon(name)?.kill()?;

    fs::remove_dir_all(folder.join("data"))?;
    // It runs, and says that the cluster is degraded by what was lost.
    let up = cluster.cli(&["dev", "up"])?;
    ensure!(up.code == Some(1), "{up}");
    let listed = cluster.json(&["target", "list"])?;
    let ids: Vec<_> = listed.as_array().context("a list")?.iter().map(|t| &t["id"]).collect();
    ensure!(ids.len() == 2 && ids.iter().all(|id| **id != *world.lost), "{listed}");
    ensure!(world.is_told(damaged.len() - 2)?, "of what is left");
    let checked = cluster.cli(&["fsck", "start", "--wait"])?;
    // Nothing is missing where it has to be: what went with the target is known to have gone.
    let sound = ["orphans: none", "namespace: sound", "missing: none"];
    ensure!(sound.iter().all(|words| checked.stdout.contains(words)), "{checked}");
    Ok(())
}

/// Kills the daemon of a target, and gives that up.
fn lose(cluster: &Cluster, lost: &str) -> Result<()> {
    let serves = |name: &&&str| cluster.log(name).contains(lost);
    let name = ["target-0", "target-1"].iter().find(serves).context("a daemon serves it")?;
    cluster.daemon(name)?.kill()?;
    wait_for("the target to be given up", || {
        let said = cluster.cli(&["target", "lost", lost, "--yes"]).ok()?;
        (said.code == Some(0)).then_some(())
    })
}

#[test]
fn a_check_finds_nothing_missing_of_a_file_of_which_parts_went_with_a_target() -> Result<()> {
    let bucket = Bucket::start()?;
    bucket.put("wide/file", &body(1))?;
    let cluster = Cluster::start(wish().with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/wide", "mr:/wide", "--mode", "import-export"];
    cluster.cli(&add)?.ok()?;
    // Four chunks, which lie on both targets.
    let set = ["stripe", "set", "--chunk-size", "64KiB", "--count", "-1", "mr:/wide"];
    cluster.cli(&set)?.ok()?;
    // A page of the first chunk is written. The other chunks stay in the bucket, also those whose
    // target stays.
    let file = File::options().write(true).open(cluster.mount().join("wide/file"))?;
    file.write_all_at(&[0xEE; 4096], 4096)?;
    file.sync_all()?;
    drop(file);
    lose(&cluster, &target_of(&cluster, "mr:/wide/file")?)?;
    let state = cluster.json(&["state", "mr:/wide/file"])?;
    ensure!(state["state"] == "lost", "{state}");
    let checked = cluster.cli(&["fsck", "start", "--wait"])?;
    ensure!(checked.stdout.contains("missing: none"), "{checked}");
    Ok(())
}

#[test]
fn what_a_lost_target_had_acknowledged_before_the_file_was_closed_fails_at_a_later_fsync()
-> Result<()> {
    let cluster = Cluster::start(wish())?;
    let mut written = Vec::new();
    for seed in 0..12 {
        let path = format!("file-{seed}");
        fs::write(cluster.mount().join(&path), body(seed))?;
        let target = target_of(&cluster, &format!("mr:/{path}"))?;
        written.push((path, target));
    }
    let lost = written[0].1.clone();
    lose(&cluster, &lost)?;
    for (path, target) in &written {
        let synced = File::open(cluster.mount().join(path))?.sync_all();
        match *target == lost {
            true => ensure!(errno_of(synced) == Some(Errno::IO), "{path} is lost"),
            false => synced.with_context(|| format!("{path} is whole"))?,
        }
    }
    Ok(())
}

#[test]
fn what_a_lost_target_had_acknowledged_and_nobody_synced_fails_at_fsync() -> Result<()> {
    let cluster = Cluster::start(wish())?;
    let mut written = Vec::new();
    for seed in 0..12 {
        let path = format!("file-{seed}");
        let mut file = File::create(cluster.mount().join(&path))?;
        file.write_all(&body(seed))?;
        // Closing a copy sends the bytes to the target, and the size to the metadata server.
        drop(file.try_clone()?);
        let target = target_of(&cluster, &format!("mr:/{path}"))?;
        written.push((path, target, file));
    }
    let lost = written[0].1.clone();
    lose(&cluster, &lost)?;
    for (path, target, file) in &written {
        let synced = file.sync_all();
        match *target == lost {
            true => ensure!(errno_of(synced) == Some(Errno::IO), "{path} is lost"),
            false => synced.with_context(|| format!("{path} is whole"))?,
        }
    }
    for (path, _, mut file) in written.into_iter().filter(|(_, target, _)| *target == lost) {
        let more = file.write_all(b"more").and_then(|()| file.sync_all());
        ensure!(more.is_err(), "{path} takes no change");
        let read = fs::read(cluster.mount().join(&path));
        ensure!(errno_of(read) == Some(Errno::IO), "no byte of {path} became a zero");
        drop(file);
        write(&cluster.mount().join(&path), &body(99))?;
        ensure!(fs::read(cluster.mount().join(&path))? == body(99));
    }
    Ok(())
}
