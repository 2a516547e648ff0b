//! What is fetched before anybody asks, as a reader and an operator see it.

use std::{fs, os::unix::fs::FileExt as _, thread};

use anyhow::{Context, Result, ensure};
use millrace_runtime::Random;
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
    program::wait_for,
};
use serde_json::Value;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A cluster, and a directory that plays its bucket.
struct World {
    cluster: Cluster,
    bucket: tempfile::TempDir,
    random: Random,
    seed: u64,
}

impl World {
    fn start(wish: Wish) -> Result<Self> {
        let seed = chance::seed()?;
        let (bucket, random) = (tempfile::tempdir()?, Random::seeded(seed));
        Ok(Self { cluster: Cluster::start(wish)?, bucket, random, seed })
    }

    fn bytes(&self, number: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Random::seeded(self.seed.wrapping_add(number as u64)).fill(&mut bytes);
        bytes
    }

    /// So many objects, and a link to them.
    fn link(&self, name: &str, (files, len): (usize, usize), more: &[&str]) -> Result<()> {
        let directory = self.bucket.path().join(name);
        fs::create_dir(&directory)?;
        for number in 0..files {
            fs::write(directory.join(format!("{number:04}")), self.bytes(number, len))?;
        }
        let (url, path) = (format!("file://{}", directory.display()), format!("mr:/{name}"));
        self.cluster.cli(&[&["link", "add", &url, &path], more].concat())?.ok()?;
        Ok(())
    }

    fn check(&self, name: &str, number: usize, len: usize) -> Result<()> {
        let path = self.cluster.mount().join(name).join(format!("{number:04}"));
        let seen = fs::read(&path).with_context(|| path.display().to_string())?;
        ensure!(seen == self.bytes(number, len), "{} shows other bytes", path.display());
        Ok(())
    }

    /// Reads some files, none twice, in no order.
    fn read_some(&mut self, name: &str, (files, len): (usize, usize), count: usize) -> Result<()> {
        let mut left: Vec<usize> = (0..files).collect();
        for _ in 0..count {
            let at = usize::try_from(self.random.within(0..left.len() as u64))?;
            self.check(name, left.swap_remove(at), len)?;
        }
        Ok(())
    }

    /// Files of which all bytes are here.
    fn here(&self, name: &str) -> Result<u64> {
        let told = self.cluster.json(&["state", &format!("mr:/{name}")])?;
        let states = told["states"].as_array().context("sums")?;
        let here = states.iter().find(|sum| sum["state"] == "hydrated");
        Ok(here.and_then(|sum| sum["files"].as_u64()).unwrap_or(0))
    }

    /// What a link tells of what it fetched before anybody asked.
    fn fetch(&self, name: &str) -> Result<Value> {
        let links = self.cluster.json(&["link", "list"])?;
        let mut links = links.as_array().context("links")?.iter();
        let link = links.find(|link| link["path"] == format!("/{name}")).context("the link")?;
        Ok(link["fetch"].clone())
    }
}

#[test]
fn who_reads_some_files_of_a_directory_has_the_others_fetched() -> Result<()> {
    const SET: (usize, usize) = (300, 20 * KIB);
    let mut world = World::start(Wish::default())?;
    world.link("asked", SET, &["--fetch", "asked"])?;
    world.link("set", SET, &[])?;
    world.read_some("asked", SET, 30)?;
    world.read_some("set", SET, 30)?;
    // Ten of the thirty found nothing here, at least: a hundred follow. The others were fetched
    // when they were read.
    wait_for("other files", || (world.here("set").ok()? >= 100).then_some(()))?;
    let told = wait_for("the figures", || {
        let told = world.fetch("set").ok()?;
        (told["files"].as_u64()? >= 70).then_some(told)
    })?;
    ensure!(told["policy"] == "ahead" && told["files"].as_u64() < Some(300), "{told}");
    (0..SET.0).try_for_each(|number| world.check("set", number, SET.1))?;
    ensure!(world.here("asked")? == 30, "nothing but what was asked for");
    ensure!(world.fetch("asked")?["files"] == 0, "{}", world.fetch("asked")?);

    // What was dropped comes back the same way.
    world.cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
    ensure!(world.here("set")? == 0, "released");
    world.cluster.cli(&["link", "set", "mr:/asked", "--fetch", "ahead"])?.ok()?;
    let others = world.cluster.mount_named("second");
    world.cluster.mount_also(&others)?;
    for number in 100..200 {
        fs::read(others.join(format!("asked/{number:04}")))?;
    }
    wait_for("other files", || (world.here("asked").ok()? >= 200).then_some(()))
}

#[test]
fn the_rest_of_what_was_read_in_part_follows_where_the_link_says_so() -> Result<()> {
    const LARGE: (usize, usize) = (1, 40 * MIB);
    let world = World::start(Wish::default())?;
    for policy in ["asked", "chunk", "file"] {
        world.link(policy, LARGE, &["--fetch", policy])?;
    }
    let mut piece = [0; 4 * KIB];
    for policy in ["asked", "chunk", "file"] {
        let file = fs::File::open(world.cluster.mount().join(policy).join("0000"))?;
        file.read_exact_at(&mut piece, 20 * MIB as u64)?;
        ensure!(piece == world.bytes(0, LARGE.1)[20 * MIB..][..4 * KIB], "{policy}");
    }
    let here = |policy: &str| {
        let told = world.cluster.json(&["state", &format!("mr:/{policy}/0000")])?;
        told["hydrated_bytes"].as_u64().context("a number")
    };
    wait_for("the file", || (here("file").ok()? == LARGE.1 as u64).then_some(()))?;
    wait_for("the chunk", || (here("chunk").ok()? >= 8 * MIB as u64).then_some(()))?;
    ensure!(here("chunk")? < 20 * MIB as u64, "of {} bytes", here("chunk")?);
    ensure!(here("asked")? < 8 * MIB as u64, "of {} bytes", here("asked")?);
    Ok(())
}

#[test]
fn what_nobody_asked_for_pushes_nothing_out() -> Result<()> {
    const SET: (usize, usize) = (200, MIB);
    let wish = Wish { targets: 1, capacity: Some("128MiB".to_owned()), ..Wish::default() };
    let world = World::start(wish)?;
    world.link("set", SET, &[])?;
    // All at once, so that enough of them find nothing here for more to follow than fits.
    let mut numbers: Vec<usize> = (0..SET.0).collect();
    let numbers: Vec<usize> = (0..24)
        .map(|_| numbers.swap_remove(usize::try_from(world.random.within(0..100)).unwrap_or(0)))
        .collect();
    let reader = &world;
    thread::scope(|scope| {
        let check = |&number| scope.spawn(move || reader.check("set", number, SET.1));
        let readers: Vec<_> = numbers.iter().map(check).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("it does not panic"))
    })?;
    let words = "nothing is fetched ahead of readers for a while";
    world.cluster.wait_for_log("metadata", &[words])?;
    let dropped = "dropped what the bucket has too";
    ensure!(!world.cluster.log("target-0").contains(dropped), "{}", world.cluster.log("target-0"));
    ensure!(world.here("set")? > 40, "as far as there was room");
    // Readers go on, and what is dropped for them is not what they read last.
    (0..SET.0).try_for_each(|number| world.check("set", number, SET.1))
}
