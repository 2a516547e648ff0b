//! Damage on a target's disk, as an operator and as readers see it, through the real daemons.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::wait_for,
};
use rustix::io::Errno;
use serde_json::Value;

const PAGE: usize = 4096;
const LEN: usize = 300_000;

/// Bytes of which every 16 say where they are and in which file.
fn body(file: u64) -> Vec<u8> {
    let words = (0..LEN.div_ceil(16) as u64).flat_map(|at| [at, file].map(u64::to_le_bytes));
    words.flatten().take(LEN).collect()
}

fn write(path: &Path, body: &[u8]) -> Result<()> {
    let file = File::create(path)?;
    file.write_all_at(body, 0)?;
    file.sync_all()?;
    Ok(())
}

/// A cluster with one target, a file that a bucket has, and one that none has.
struct World {
    cluster: Cluster,
    id: String,
    bucket: Bucket,
}

impl World {
    fn start() -> Result<Self> {
        let bucket = Bucket::start()?;
        bucket.put("set/clean", &body(1))?;
        let wish = Wish { targets: 1, capacity: Some("256MiB".to_owned()), ..Wish::default() };
        let cluster = Cluster::start(wish.with_bucket(&bucket))?;
        let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
        cluster.cli(&add)?.ok()?;
        cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
        write(&cluster.mount().join("dirty"), &body(2))?;
        for mount in ["second", "third"] {
            cluster.mount_also(&cluster.mount_named(mount))?;
        }
        let listed = cluster.json(&["target", "list"])?;
        let id = listed[0]["id"].as_str().context("one target")?.to_owned();
        Ok(Self { cluster, id, bucket })
    }

    /// The file that the target keeps its bytes in.
    fn store(&self) -> PathBuf {
        self.cluster.dir().join("target-0/data/store")
    }

    /// Flips a bit of a page of a file, where it lies on the target's disk.
    fn damage(&self, file: u64, page: usize) -> Result<()> {
        let wanted = &body(file)[page * PAGE..(page + 1) * PAGE];
        let store = fs::read(self.store())?;
        let found = store.chunks_exact(PAGE).position(|page| page == wanted);
        let place = found.context("the page is on the disk")? * PAGE;
        let disk = File::options().write(true).open(self.store())?;
        disk.write_all_at(&[wanted[9] ^ 4], place as u64 + 9)?;
        Ok(disk.sync_all()?)
    }

    fn show(&self) -> Result<Value> {
        self.cluster.json(&["target", "show", &self.id])
    }

    /// Scrubs; the exit code.
    fn scrub(&self) -> Result<Option<i32>> {
        let said = self.cluster.cli(&["target", "scrub", &self.id, "--start", "--wait"])?;
        ensure!(said.stdout.contains(&self.id), "{said}");
        Ok(said.code)
    }

    /// Scrubs until a pass has dropped the damaged block that the bucket has. While the host is
    /// busy the metadata server's answer may come too late; then it is not asked for a minute.
    fn scrub_until_dropped(&self) -> Result<Value> {
        let pass = || -> Result<Option<Value>> {
            assert_eq!(self.scrub()?, Some(1), "the scrub says that it found something");
            let shown = self.show()?;
            Ok((shown["scrub"]["dropped_blocks"] == 1).then_some(shown))
        };
        wait_for("a pass that drops what the bucket has", || pass().transpose())?
    }

    /// Opens a file in another mount than the one that wrote it.
    fn opened(&self, mount: &str, file: &str) -> Result<File> {
        Ok(File::open(self.cluster.mount_named(mount).join(file))?)
    }

    fn drain_check(&self) -> Result<(Option<i32>, Value)> {
        let said = self.cluster.cli(&["--json", "target", "drain-check", &self.id])?;
        let told = serde_json::from_str(&said.stdout).with_context(|| said.to_string())?;
        Ok((said.code, told))
    }
}

fn read_page(file: &File, page: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; PAGE];
    file.read_exact_at(&mut bytes, (page * PAGE) as u64)?;
    Ok(bytes)
}

#[test]
fn damage_is_found_by_a_scrub_outlives_restarts_and_goes_with_the_bytes() -> Result<()> {
    let world = World::start()?;
    let cluster = &world.cluster;
    assert_eq!(world.scrub()?, Some(0), "nothing is damaged yet");
    assert_eq!(world.show()?["findings"], serde_json::json!([]));
    world.damage(1, 30)?;
    world.damage(2, 20)?;

    // What the bucket has is dropped, the rest is listed with its file. The pass met both.
    let shown = world.scrub_until_dropped()?;
    assert_eq!(shown["scrub"]["findings"], 2, "{shown}");
    let findings = shown["findings"].as_array().context("a list")?.clone();
    assert_eq!((findings.len(), &shown["findings_total"]), (1, &1.into()));
    assert_eq!((&findings[0]["path"], &findings[0]["block"]), (&"/dirty".into(), &1.into()));
    assert_eq!(findings[0]["fault"], "checksum");
    cluster.wait_for_log("target-0", &["a block is damaged"])?;
    // The cluster is degraded by it, which is the exit code.
    wait_for("the heartbeat that tells of it", || {
        let said = cluster.cli(&["--json", "status"]).ok()?;
        let told: Value = serde_json::from_str(&said.stdout).ok()?;
        (said.code == Some(1) && told["targets"][0]["bad_blocks"] == 1).then_some(())
    })?;

    // It is never served; what is around it is; and what the bucket has is fetched silently.
    let dirty = world.opened("second", "dirty")?;
    let refused = read_page(&dirty, 20).unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::IO), "{refused}");
    ensure!(read_page(&dirty, 40)? == body(2)[40 * PAGE..41 * PAGE], "another block");
    ensure!(fs::read(cluster.mount_named("second").join("set/clean"))? == body(1), "fetched again");

    cluster.daemon("target-0")?.kill()?;
    // It starts everything, and says by its exit code that the cluster is still degraded.
    let up = cluster.up_once().err().context("degraded")?.to_string();
    ensure!(up.contains("exit Some(1)") && up.contains("degraded"), "{up}");
    let after = || world.show().ok().filter(|shown| shown["error"].is_null());
    let after = wait_for("the target", after)?;
    assert_eq!(after["findings"].as_array(), Some(&findings), "the same, since the same time");
    let refused = read_page(&world.opened("third", "dirty")?, 20).unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::IO), "{refused}");

    // The file gets other content, and with the old one goes what was found in it.
    write(&cluster.mount().join("dirty"), &body(3))?;
    wait_for("the old content to be reclaimed", || {
        world.show().ok().filter(|shown| shown["findings"] == serde_json::json!([])).map(drop)
    })?;
    ensure!(read_page(&world.opened("third", "dirty")?, 20)? == body(3)[20 * PAGE..21 * PAGE]);
    assert_eq!(world.scrub()?, Some(0));
    Ok(())
}

#[test]
fn what_is_damaged_of_a_renamed_file_whose_object_is_gone_costs_it_nothing_else() -> Result<()> {
    let world = World::start()?;
    let set = world.cluster.mount().join("set");
    fs::rename(set.join("clean"), set.join("moved"))?;
    world.bucket.put("set/clean", &body(5))?;
    world.damage(1, 30)?;
    let assert_kept = || -> Result<()> {
        assert_eq!(world.scrub()?, Some(1));
        let shown = world.show()?;
        assert_eq!(shown["scrub"]["dropped_blocks"], 0, "{shown}");
        let findings = shown["findings"].as_array().context("a list")?;
        assert_eq!(findings.len(), 1, "{shown}");
        assert_eq!(
            (&findings[0]["path"], &findings[0]["block"]),
            (&"/set/moved".into(), &1.into())
        );
        Ok(())
    };
    assert_kept()?;
    // In the same block, before and behind it.
    let moved = world.opened("second", "set/moved")?;
    for page in [20, 31] {
        ensure!(read_page(&moved, page)? == body(1)[page * PAGE..(page + 1) * PAGE], "{page}");
    }
    let refused = read_page(&world.opened("third", "set/moved")?, 30).unwrap_err();
    let errno = Errno::from_io_error(&refused);
    ensure!(errno == Some(Errno::STALE) || errno == Some(Errno::IO), "{refused}");
    ensure!(read_page(&moved, 25)? == body(1)[25 * PAGE..26 * PAGE], "after a read that failed");
    assert_kept()
}

#[test]
fn an_operator_sees_what_would_be_lost_and_steers_the_scrub() -> Result<()> {
    let world = World::start()?;
    let cluster = &world.cluster;
    let (code, told) = world.drain_check()?;
    assert_eq!((code, &told["safe"], &told["lost_files"]), (Some(1), &false.into(), &1.into()));
    assert_eq!(told["paths"], serde_json::json!(["/dirty"]));
    assert_eq!((&told["backed_files"], &told["lost_bytes"]), (&1.into(), &LEN.into()));
    ensure!(told["written_bytes"].as_u64() >= Some(LEN as u64), "{told}");

    let scrub = |action: &[&str]| -> Result<Value> {
        Ok(cluster.json(&[&["target", "scrub", "--all"], action].concat())?[0]["scrub"].clone())
    };
    assert_eq!(scrub(&["--pause"])?["state"], "paused");
    let refused = cluster.cli(&["target", "scrub", "--all", "--rate", "0"])?;
    ensure!(refused.succeeded() && refused.stdout.contains("off"), "{refused}");
    let waits = cluster.cli(&["target", "scrub", &world.id, "--start", "--wait"])?;
    ensure!(waits.code == Some(1) && waits.stderr.contains("is off"), "{waits}");
    assert_eq!(scrub(&["--rate", "64MiB"])?["bytes_per_second"], 64 << 20);
    assert_eq!(world.scrub()?, Some(0));

    // Without its daemon nobody can tell, and everything says so.
    cluster.daemon("target-0")?.kill()?;
    let list = cluster.json(&["target", "list"])?;
    ensure!(list[0]["error"].is_string() && list[0]["id"] == world.id.as_str(), "{list}");
    let show = cluster.cli(&["target", "show", &world.id])?;
    ensure!(show.code == Some(1) && show.stdout.contains("does not tell more"), "{show}");
    let drain = cluster.cli(&["target", "drain-check", &world.id])?;
    ensure!(drain.code == Some(1) && drain.stdout.is_empty(), "{drain}");
    let unknown = cluster.cli(&["target", "show", "00000000000000aa"])?;
    ensure!(
        unknown.code == Some(1) && unknown.stderr.contains("no target has the id"),
        "{unknown}"
    );
    cluster.up()?;

    // Without the file that no bucket has, nothing would be lost.
    fs::remove_file(cluster.mount().join("dirty"))?;
    wait_for("the bytes to be freed", || {
        let (code, told) = world.drain_check().ok()?;
        (code == Some(0) && told["safe"] == true).then_some(())
    })?;
    Ok(())
}

#[test]
fn a_file_that_was_renamed_and_not_exported_counts_as_one_that_no_bucket_has() -> Result<()> {
    let world = World::start()?;
    let (cluster, set) = (&world.cluster, world.cluster.mount().join("set"));
    fs::remove_file(cluster.mount().join("dirty"))?;
    fs::rename(set.join("clean"), set.join("old"))?;
    // Its object goes: another file has its key.
    write(&set.join("clean"), &body(4))?;
    cluster.cli(&["export", "mr:/set/clean", "--wait"])?.ok()?;
    let told = wait_for("the bytes of the removed file to be freed", || {
        let (code, told) = world.drain_check().ok()?;
        assert_eq!(code, Some(1), "{told}");
        (told["written_bytes"] == 0).then_some(told)
    })?;
    assert_eq!((&told["safe"], &told["paths"]), (&false.into(), &serde_json::json!(["/set/old"])));
    assert_eq!((&told["backed_files"], &told["lost_bytes"]), (&1.into(), &LEN.into()), "{told}");
    let preview = cluster.cli(&["--json", "target", "lost", &world.id])?;
    let told: Value = serde_json::from_str(&preview.stdout)?;
    assert_eq!(told["renamed_paths"], serde_json::json!(["/set/old"]), "{preview}");
    assert_eq!(told["damaged_files"], 0, "{preview}");

    // In the bucket under the name that it has now, it can be had again.
    cluster.cli(&["export", "mr:/set/old", "--wait"])?.ok()?;
    let (code, told) = world.drain_check()?;
    assert_eq!((code, &told["safe"]), (Some(0), &true.into()), "{told}");
    Ok(())
}
