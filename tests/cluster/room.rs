//! Targets smaller than what lies in the bucket: what was used longest ago makes room, and nothing
//! that is written, pinned or being changed does.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_runtime::Random;
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
    figures,
};

const MIB: usize = 1 << 20;

/// Of one object.
const OBJECT_LEN: usize = 8 * MIB;

/// With the journal of 16 MiB and the index it holds some ten of them.
const CAPACITY: &str = "128MiB";

/// A cluster with one small target, and a directory that is its bucket.
struct World {
    cluster: Cluster,
    bucket: tempfile::TempDir,
    seed: u64,
}

impl World {
    fn start(objects: usize, mode: &str) -> Result<Self> {
        let bucket = tempfile::tempdir()?;
        let seed = chance::seed()?;
        let wish = Wish { targets: 1, capacity: Some(CAPACITY.to_owned()), ..Wish::default() };
        let world = Self { cluster: Cluster::start(wish)?, bucket, seed };
        for number in 0..objects {
            fs::write(world.bucket.path().join(name(number)), world.object(number))?;
        }
        let url = format!("file://{}", world.bucket.path().display());
        world.cluster.cli(&["link", "add", &url, "mr:/set", "--mode", mode])?.ok()?;
        Ok(world)
    }

    fn object(&self, number: usize) -> Vec<u8> {
        let mut bytes = vec![0; OBJECT_LEN];
        Random::seeded(self.seed.wrapping_add(number as u64)).fill(&mut bytes);
        bytes
    }

    fn path(&self, number: usize) -> std::path::PathBuf {
        self.cluster.mount().join("set").join(name(number))
    }

    fn check(&self, number: usize) -> Result<()> {
        let seen = fs::read(self.path(number)).with_context(|| name(number))?;
        ensure!(seen == self.object(number), "{} shows other bytes", name(number));
        Ok(())
    }

    fn state(&self, number: usize) -> Result<String> {
        let told = self.cluster.json(&["state", &format!("mr:/set/{}", name(number))])?;
        told["state"].as_str().map(str::to_owned).with_context(|| told.to_string())
    }

    fn cli(&self, arguments: &[&str]) -> Result<()> {
        self.cluster.cli(arguments)?.ok().map(drop)
    }
}

fn name(number: usize) -> String {
    format!("object-{number:02}")
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[test]
fn a_bucket_larger_than_the_targets_is_read_again_and_again() -> Result<()> {
    const OBJECTS: usize = 30;
    let world = World::start(OBJECTS, "import")?;
    // One is pinned, of one the beginning is changed, of one that is open a byte is.
    world.cli(&["pin", "mr:/set/object-00"])?;
    world.cli(&["hydrate", "mr:/set/object-00", "--wait"])?;
    let changed = OpenOptions::new().write(true).open(world.path(1))?;
    changed.write_all_at(b"changed", 0)?;
    changed.sync_all()?;
    drop(changed);
    let open = OpenOptions::new().read(true).write(true).open(world.path(2))?;
    open.write_all_at(b"!", 5 * MIB as u64)?;
    open.sync_all()?;
    let began = Instant::now();
    for _ in 0..2 {
        (3..OBJECTS).try_for_each(|number| world.check(number))?;
    }
    let rate = (2 * (OBJECTS - 3) * OBJECT_LEN / MIB) as f64 / began.elapsed().as_secs_f64();
    world.cluster.wait_for_log("target-0", &["dropped what the bucket has too"])?;
    assert_eq!(world.state(0)?, "hydrated", "it is pinned");

    // What nobody has saved finds its place, and stays.
    let written = world.object(OBJECTS);
    for number in 0..5 {
        write_synced(&world.cluster.mount().join(format!("written-{number}")), &written)?;
    }
    (3..OBJECTS).try_for_each(|number| world.check(number))?;
    for number in 0..5 {
        let seen = fs::read(world.cluster.mount().join(format!("written-{number}")))?;
        ensure!(seen == written, "written-{number} shows other bytes");
    }
    let mut expected = world.object(1);
    expected[..7].copy_from_slice(b"changed");
    ensure!(fs::read(world.path(1))? == expected, "of the changed file something is lost");
    let mut expected = world.object(2);
    expected[5 * MIB] = b'!';
    let mut seen = vec![0; OBJECT_LEN];
    open.read_exact_at(&mut seen, 0)?;
    ensure!(seen == expected, "of the open file something is lost");
    assert_eq!(world.state(0)?, "hydrated", "it is pinned");
    figures::report(&format!(
        "{OBJECTS} objects of 8 MiB read over and over through {CAPACITY}: {rate:.0} MiB/s"
    ))
}

#[test]
fn what_is_pinned_stays_when_a_write_finds_no_space_and_goes_when_it_is_not() -> Result<()> {
    let world = World::start(10, "read-only")?;
    world.cli(&["pin", "mr:/set"])?;
    world.cli(&["hydrate", "mr:/set", "--wait"])?;
    let path = world.cluster.mount().join("written");
    let bytes = world.object(10);
    let large: Vec<u8> = bytes.iter().copied().cycle().take(6 * OBJECT_LEN).collect();
    let refused = write_synced(&path, &large).expect_err("there is no room for it");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    world.cli(&["release", "mr:/set", "--wait"])?;
    for number in 0..10 {
        assert_eq!(world.state(number)?, "hydrated", "{} is pinned", name(number));
    }
    let listed = world.cluster.json(&["pin"])?;
    assert_eq!(listed[0]["path"], "/set", "{listed}");
    let told = world.cluster.json(&["pin", "mr:/set/object-03"])?;
    assert_eq!((&told["changed"], &told["above"][0]), (&true.into(), &"/set".into()));

    fs::remove_file(&path)?;
    world.cli(&["unpin", "mr:/set"])?;
    // The directory's pin was the only one of the others.
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = write_synced(&path, &large) {
        // A target that found nothing to drop does not look again at once.
        ensure!(error.kind() == io::ErrorKind::StorageFull, "{error}");
        ensure!(Instant::now() < deadline, "no room is made");
    }
    ensure!(fs::read(&path)? == large, "the file shows other bytes");
    assert_eq!(world.state(3)?, "hydrated", "it has a pin of its own");
    (0..10).try_for_each(|number| world.check(number))
}

#[test]
fn only_the_owner_pins_and_a_pin_goes_with_its_file() -> Result<()> {
    let world = World::start(1, "import")?;
    let said = world.cluster.cli(&["pin", "mr:/set/none"])?;
    ensure!(said.code == Some(1) && said.stderr.contains("does not exist"), "{}", said.stderr);
    for _ in 0..2 {
        world.cli(&["pin", world.path(0).to_str().context("a path")?])?;
    }
    assert_eq!(world.cluster.json(&["pin"])?.as_array().map(Vec::len), Some(1));
    fs::remove_file(world.path(0))?;
    assert_eq!(world.cluster.json(&["pin"])?.as_array().map(Vec::len), Some(0));
    Ok(())
}

#[test]
fn the_space_of_what_was_removed_or_replaced_a_moment_ago_is_there() -> Result<()> {
    let wish = Wish { targets: 1, capacity: Some(CAPACITY.to_owned()), ..Wish::default() };
    let cluster = Cluster::start(wish)?;
    let path = cluster.mount().join("checkpoint");
    // Two of them do not fit.
    let bytes = vec![7; 64 * MIB];
    for round in 0..3 {
        write_synced(&path, &bytes).with_context(|| format!("written over, round {round}"))?;
    }
    for round in 0..3 {
        fs::remove_file(&path)?;
        write_synced(&path, &bytes).with_context(|| format!("made anew, round {round}"))?;
    }
    ensure!(fs::read(&path)? == bytes);
    Ok(())
}

#[test]
fn what_could_not_be_stored_is_no_damage_afterwards() -> Result<()> {
    let wish = Wish { targets: 2, capacity: Some(CAPACITY.to_owned()), ..Wish::default() };
    let cluster = Cluster::start(wish)?;
    cluster.cli(&["stripe", "set", "mr:/", "--count", "2"])?.ok()?;
    // More than a chunk, so that one part of a file may find room and the other not.
    let bytes = vec![7; OBJECT_LEN + MIB];
    let mut failed = Vec::new();
    for number in 0..40 {
        let path = cluster.mount().join(name(number));
        if let Err(error) = write_synced(&path, &bytes) {
            ensure!(error.kind() == io::ErrorKind::StorageFull, "{error}");
            failed.push(path);
        }
    }
    ensure!(failed.len() > 5, "the targets are full");
    for path in failed {
        let seen = fs::read(&path).with_context(|| path.display().to_string())?;
        ensure!(seen.iter().all(|&byte| byte == 7 || byte == 0), "nobody has written that");
    }
    let told = cluster.cli(&["fsck", "start", "--wait"])?;
    told.ok().map(drop)
}
