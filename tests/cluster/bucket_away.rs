//! Jobs over a bucket that is away: they wait for it and say so, also where daemons are killed
//! meanwhile, and end as if nothing had been.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    program::wait_for,
    proxy::{Proxy, Weather},
};
use serde_json::Value;

/// In each directory: more than a job has under way at a time.
const FILES: usize = 30;

/// Puts files of a directory into the bucket, under their own names and another prefix.
const FILL: &str = "
import os
for name in os.listdir(sys.argv[2]):
    client.upload_file(os.path.join(sys.argv[2], name), 'data', sys.argv[3] + name)
";

/// Says which files of a directory the bucket does not have so.
const COMPARE: &str = "
import os
def has(name):
    body = client.get_object(Bucket='data', Key=sys.argv[3] + name)['Body'].read()
    return body == open(os.path.join(sys.argv[2], name), 'rb').read()
print([name for name in os.listdir(sys.argv[2]) if not has(name)])
";

struct World {
    made: PathBuf,
    // Ended in this order: daemons, what is between them and the bucket, the bucket.
    cluster: Cluster,
    proxy: Proxy,
    bucket: Bucket,
}

fn body(number: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 31 + at / 251 + number) % 256).unwrap_or(0);
    (0..20_000).map(byte).collect()
}

fn write_all(directory: &Path) -> Result<()> {
    for number in 0..FILES {
        fs::write(directory.join(number.to_string()), body(number))?;
    }
    Ok(())
}

impl World {
    /// `set/in` is in the bucket and known here, `set/out` is only here, `set/new` only there.
    fn start() -> Result<Self> {
        let bucket = Bucket::start()?;
        let proxy = Proxy::for_endpoint(&bucket.endpoint())?;
        let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
        let made = cluster.scratch()?;
        write_all(&made)?;
        let fill = |prefix| bucket.script(FILL, &[made.to_str().context("UTF-8")?, prefix]);
        fill("set/in/")?;
        let endpoint = proxy.endpoint();
        let add = ["link", "add", "s3://data/set", "mr:/set", "--endpoint", &endpoint];
        cluster.cli(&[&add[..], &["--mode", "import-export"]].concat())?.ok()?;
        cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
        let out = cluster.mount().join("set/out");
        fs::create_dir(&out)?;
        write_all(&out)?;
        fill("set/new/")?;
        Ok(Self { made, cluster, proxy, bucket })
    }

    fn begin(&self, words: &[&str]) -> Result<String> {
        Ok(self.cluster.json(words)?["id"].to_string())
    }

    fn shown(&self, id: &str) -> Result<Value> {
        self.cluster.json(&["job", "show", id, "--at-once"])
    }

    /// Waits until the job waits, and has failed nothing.
    fn waits(&self, id: &str) -> Result<()> {
        let shown = wait_for("a job that waits", || {
            self.shown(id).ok().filter(|shown| shown["waits"].is_array())
        })
        .with_context(|| format!("{:?}", self.shown(id)))?;
        ensure!(shown["state"] == "running" && shown["errors"] == 0, "{shown}");
        ensure!(shown["waits"][0]["bucket"] == "s3://data/", "{shown}");
        Ok(())
    }

    fn ends_well(&self, id: &str) -> Result<()> {
        let ended = self.cluster.json(&["job", "show", id, "--wait"])?;
        ensure!(ended["state"] == "succeeded" && ended["waits"].is_null(), "{ended}");
        ensure!(ended["files_done"] == ended["files_total"] && ended["errors"] == 0, "{ended}");
        Ok(())
    }

    fn was_exported(&self) -> Result<()> {
        let made = self.made.to_str().context("UTF-8")?;
        let others = self.bucket.script(COMPARE, &[made, "set/out/"])?;
        ensure!(others.trim() == "[]", "{others}");
        Ok(())
    }

    fn was_hydrated(&self) -> Result<()> {
        for number in 0..FILES {
            let told = self.cluster.json(&["state", &format!("mr:/set/in/{number}")])?;
            ensure!(told["state"] == "hydrated", "{told}");
        }
        Ok(())
    }
}

#[test]
fn jobs_wait_for_a_bucket_that_is_away_and_say_so() -> Result<()> {
    let world = World::start()?;
    world.proxy.set(Weather::Down);
    let mut ids = Vec::new();
    for words in [["hydrate", "mr:/set/in"], ["export", "mr:/set/out"]] {
        let id = world.begin(&words)?;
        world.waits(&id)?;
        let told = world.cluster.cli(&["job", "show", &id, "--at-once"])?;
        ensure!(told.stdout.contains("waits for s3://data/ for "), "{told}");
        ids.push(id);
    }
    let list = world.cluster.cli(&["job", "list"])?;
    ensure!(list.stdout.matches("waits for s3://data/").count() == 2, "{list}");
    world.proxy.set(Weather::Fair);
    ids.iter().try_for_each(|id| world.ends_well(id))?;
    world.was_exported()?;
    world.was_hydrated()
}

#[test]
fn jobs_that_wait_go_on_waiting_after_each_daemon_was_killed() -> Result<()> {
    let world = World::start()?;
    world.proxy.set(Weather::Down);
    let jobs = [["hydrate", "mr:/set/in"], ["export", "mr:/set/out"], ["import", "mr:/set"]];
    let ids = jobs.iter().map(|words| world.begin(words)).collect::<Result<Vec<_>>>()?;
    let given_up = world.begin(&["hydrate", "mr:/set", "--include", "*/7"])?;
    let all = || ids.iter().chain([&given_up]).try_for_each(|id| world.waits(id));
    all()?;
    for killed in [&["metadata"][..], &["target-0"], &["metadata", "target-0", "target-1"]] {
        for name in killed {
            world.cluster.crash(name)?;
        }
        world.cluster.up()?;
        all().with_context(|| format!("{killed:?} killed"))?;
    }
    world.cluster.cli(&["job", "cancel", &given_up])?.ok()?;
    let told = world.cluster.json(&["job", "show", &given_up])?;
    ensure!(told["state"] == "cancelled" && told["errors"] == 0, "{told}");
    // One more, so that nothing is left of the wait but what the log has.
    world.cluster.crash("metadata")?;
    world.proxy.set(Weather::Fair);
    world.cluster.up()?;
    ids.iter().try_for_each(|id| world.ends_well(id))?;
    world.was_exported()?;
    world.was_hydrated()?;
    ensure!(fs::read_dir(world.cluster.mount().join("set/new"))?.count() == FILES);
    Ok(())
}

#[test]
fn a_bucket_that_takes_requests_and_says_nothing_is_waited_for_too() -> Result<()> {
    let world = World::start()?;
    world.proxy.set(Weather::Slow(Duration::from_secs(3_600)));
    let id = world.begin(&["hydrate", "mr:/set/in"])?;
    // No request has failed by then: a target waits for a minute, and tries again.
    world.waits(&id)?;
    world.proxy.set(Weather::Fair);
    world.ends_well(&id)?;
    world.was_hydrated()
}
