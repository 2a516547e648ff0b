//! kill -9 of every daemon at random moments of an import, a hydrate, an export and a release of
//! many files: each job ends by itself, tells exactly what it did, and does no finished file again.
//!
//! The moments are the job's own: the bucket stops to answer at a request whose number is drawn,
//! then a daemon is killed and started again. A release asks no bucket for anything: while a
//! target says nothing all of them are killed.
//!
//! `MILLRACE_TEST_SEED` chooses the seed, `MILLRACE_TEST_LENGTH` makes it so many times as many
//! files.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_runtime::Random;
use millrace_tests::{
    bucket::Bucket,
    chance,
    cluster::{Cluster, Wish},
    figures,
    hostile::{Asked, Fault, Gate, HostileProxy, Rule},
    program::wait_for,
};
use serde_json::{Value, json};

/// With them in forty directories, a listing has a page each.
const FILES: u64 = 500;
const DIRECTORIES: u64 = 40;
/// Of several parts each.
const LARGE: u64 = 3;
const LARGE_LEN: usize = 20_000_000;

const DAEMONS: [&str; 3] = ["metadata", "target-0", SILENT];
/// What says nothing while a release is to be at work.
const SILENT: &str = "target-1";
/// Kills in one job, of each daemon as often.
const KILLS: u64 = 6;

/// What is begun again after one kill, at most: requests that a target has under way in a hydrate
/// (what had come is kept), and both have in an export; directories that an import lists, of which
/// only the metadata server knows.
const FETCHED_AGAIN: u64 = 64;
const SENT_AGAIN: u64 = 2 * 16;
const LISTED_AGAIN: u64 = 12;

/// Puts what the test makes here into the bucket, as others would.
const FILL: &str = "
import concurrent.futures, os
root = sys.argv[2]
def put(path):
    key = 'set/' + os.path.relpath(path, root)
    client.upload_file(path, 'data', key)
paths = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(put, paths))
";

/// What of the bucket is not as the directory is, and what is left of uploads.
const COMPARE: &str = "
import concurrent.futures, os
root = sys.argv[2]
def is_other(key):
    body = client.get_object(Bucket='data', Key=key)['Body'].read()
    with open(os.path.join(root, key.removeprefix('set/')), 'rb') as file:
        return body != file.read()
pages = client.get_paginator('list_objects_v2').paginate(Bucket='data')
keys = [entry['Key'] for page in pages for entry in page.get('Contents', [])]
uploads = client.list_multipart_uploads(Bucket='data').get('Uploads', [])
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    others = [key for key, other in zip(keys, pool.map(is_other, keys)) if other]
print(json.dumps({'objects': len(keys), 'others': others, 'uploads': len(uploads)}))
";

struct World {
    // Ended in this order: daemons, what is between them and the bucket, the bucket.
    cluster: Cluster,
    _proxy: HostileProxy,
    bucket: Bucket,
    gate: Gate,
    random: Random,
    files: u64,
    /// How often a daemon was killed while a job was at work.
    kills: u64,
}

fn bytes(len: usize, number: u64) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at as u64 * 31 + at as u64 / 253 + number * 7) % 256);
    (0..len).map(|at| byte(at).unwrap_or(0)).collect()
}

/// The path of a file, and its bytes in a version.
fn file(number: u64, version: u64) -> (PathBuf, Vec<u8>) {
    let seed = number * 2 + version;
    if number < LARGE {
        return (PathBuf::from(format!("large-{number}")), bytes(LARGE_LEN, seed));
    }
    let path = format!("d{}/f{number}", number % DIRECTORIES);
    (PathBuf::from(path), bytes(5_000 + usize::try_from(number % 3_000).unwrap_or(0), seed))
}

fn write_all(root: &Path, files: u64, version: u64) -> Result<()> {
    for number in 0..files {
        let (path, body) = file(number, version);
        let path = root.join(path);
        fs::create_dir_all(path.parent().context("it has one")?)?;
        fs::write(path, body)?;
    }
    Ok(())
}

fn is_over(job: &Value) -> bool {
    job["state"] != "queued" && job["state"] != "running"
}

fn count(counts: &BTreeMap<String, u64>, kind: &str) -> u64 {
    counts.get(kind).copied().unwrap_or(0)
}

impl World {
    fn start() -> Result<Self> {
        let random = Random::seeded(chance::seed()?);
        let files = FILES * chance::length()?;
        let bucket = Bucket::start()?;
        let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
        let scratch = cluster.scratch()?;
        write_all(&scratch, files, 0)?;
        bucket.script(FILL, &[scratch.to_str().context("UTF-8")?])?;
        let (proxy, gate) = (HostileProxy::for_endpoint(&bucket.endpoint())?, Gate::default());
        let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
        let options = ["--fetch", "asked", "--endpoint", &proxy.endpoint()];
        cluster.cli(&[&add[..], &options].concat())?.ok()?;
        for asked in [Asked::List, Asked::Get, Asked::Put, Asked::Part, Asked::Complete] {
            proxy.add(Rule::always(asked, Fault::Gate(gate.clone())));
        }
        Ok(Self { bucket, cluster, _proxy: proxy, gate, random, files, kills: 0 })
    }

    fn set(&self) -> PathBuf {
        self.cluster.mount().join("set")
    }

    /// Starts a job, kills daemons in its middle, and tells at its end what it says of itself and
    /// the requests that it made.
    fn job(&mut self, kind: &str) -> Result<(Value, BTreeMap<String, u64>)> {
        let before = self.bucket.requests()?;
        // Fewer in all than the job cannot do without: each kill finds it at work.
        let apart = match kind {
            "import" => DIRECTORIES / KILLS,
            _ => self.files / KILLS,
        };
        let silent = match kind {
            "release" => Some(self.cluster.daemon(SILENT)?.pause()?),
            _ => None,
        };
        if silent.is_none() {
            self.gate.close_at(1 + self.random.within(0..apart));
        }
        let begun = self.cluster.json(&[kind, "mr:/set", "--report"])?;
        let id = begun["id"].to_string();
        let kills = match silent {
            // Nothing is left of it to go on.
            Some(_silent) => self.kill_all(&id)?,
            None => self.kill_by_requests(kind, &id, apart)?,
        };
        let job = wait_for(kind, || self.show(&id).filter(is_over))?;
        let after = self.bucket.requests()?;
        let made = after.iter().map(|(kind, all)| (kind.clone(), all - count(&before, kind)));
        let made: BTreeMap<_, _> = made.collect();
        let asked = made.iter().filter(|(_, count)| **count > 0);
        let asked: Vec<_> = asked.map(|(kind, count)| format!("{kind} {count}")).collect();
        let asked = if asked.is_empty() { "nothing".to_owned() } else { asked.join(", ") };
        figures::report(&format!(
            "{kind} under {kills} kills: {} of {} files, {} errors; the bucket was asked {asked}",
            job["files_done"], job["files_total"], job["errors"]
        ))?;
        self.kills += kills;
        ensure!(job["state"] == "succeeded" && job["errors"] == 0, "{kind}: {job}");
        self.check_outcomes(&job)?;
        Ok((job, made))
    }

    /// Kills each daemon as often, in an order that is drawn, each time at a request whose number
    /// is drawn, and sees that the job is not over after the restart.
    fn kill_by_requests(&mut self, kind: &str, id: &str, apart: u64) -> Result<u64> {
        let mut left = [DAEMONS, DAEMONS].concat();
        for number in 1..=KILLS {
            let drawn = self.random.within(0..left.len() as u64);
            let daemon = left.swap_remove(usize::try_from(drawn)?);
            let context = || format!("{daemon}, kill {number} in {kind}");
            wait_for("a request that waits", || self.gate.is_closed().then_some(()))
                .with_context(context)?;
            self.cluster.crash(daemon).with_context(context)?;
            let job = wait_for("the job", || self.show(id)).with_context(context)?;
            ensure!(!is_over(&job), "{}: the job is over: {job}", context());
            match number {
                KILLS => self.gate.open(),
                _ => self.gate.close_at(1 + self.random.within(0..apart)),
            }
        }
        Ok(KILLS)
    }

    /// Kills all daemons, the silent one last: until then the job cannot end. Then starts them.
    fn kill_all(&mut self, id: &str) -> Result<u64> {
        let job = wait_for("the job", || self.show(id))?;
        ensure!(!is_over(&job), "a target says nothing: {job}");
        for daemon in DAEMONS {
            thread::sleep(Duration::from_millis(self.random.within(0..self.files / 20)));
            self.cluster.daemon(daemon)?.kill()?;
        }
        self.cluster.up()?;
        Ok(DAEMONS.len() as u64)
    }

    /// The job as it is told now; nothing if nobody answers.
    fn show(&self, id: &str) -> Option<Value> {
        self.cluster.json(&["job", "show", id, "--at-once"]).ok()
    }

    /// The job's report has each file once, with the bytes that the job is about.
    fn check_outcomes(&self, job: &Value) -> Result<()> {
        let lines = self.cluster.cli(&["job", "report", &job["id"].to_string()])?.ok()?;
        let mut told = BTreeMap::new();
        for line in lines.lines() {
            let line: Value = serde_json::from_str(line)?;
            ensure!(line["outcome"] == "done", "{line}");
            let path = line["path"].as_str().context("a path")?.to_owned();
            ensure!(told.insert(path, line["bytes"].as_u64()).is_none(), "twice: {line}");
        }
        ensure!(Some(told.len() as u64) == job["files_done"].as_u64(), "{} of {job}", told.len());
        for number in 0..self.files {
            let (path, body) = file(number, 0);
            let bytes = told.get(&format!("/set/{}", path.display()));
            ensure!(bytes == Some(&Some(body.len() as u64)), "{}: {bytes:?}", path.display());
        }
        Ok(())
    }

    /// The report of a job that did all files.
    fn check_report(&self, job: &Value) -> Result<()> {
        let (files, bytes) = (job["files_done"].as_u64(), job["bytes_done"].as_u64());
        ensure!(files == Some(self.files) && job["files_total"] == job["files_done"], "{job}");
        let all: usize = (0..self.files).map(|number| file(number, 0).1.len()).sum();
        ensure!(bytes == Some(all as u64) && job["bytes_total"] == job["bytes_done"], "{job}");
        Ok(())
    }

    fn check_files(&self, version: u64) -> Result<()> {
        for number in 0..self.files {
            let (path, body) = file(number, version);
            ensure!(fs::read(self.set().join(&path))? == body, "{} is another", path.display());
        }
        Ok(())
    }

    /// The bucket has these files, whole, and nothing else.
    fn check_bucket(&self, version: u64) -> Result<()> {
        let scratch = self.cluster.scratch()?;
        write_all(&scratch, self.files, version)?;
        let scratch = scratch.to_str().context("UTF-8")?;
        let told: Value = serde_json::from_str(&self.bucket.script(COMPARE, &[scratch])?)?;
        let expected = json!({ "objects": self.files, "others": [], "uploads": 0 });
        ensure!(told == expected, "{told}");
        Ok(())
    }
}

#[test]
fn jobs_end_with_a_true_report_whatever_is_killed_meanwhile() -> Result<()> {
    let begun = Instant::now();
    let mut world = World::start()?;
    let files = world.files;

    let (_, asked) = world.job("import")?;
    let pages = (DIRECTORIES + 1) * files.div_ceil(1_000 * DIRECTORIES);
    let again = KILLS / DAEMONS.len() as u64 * LISTED_AGAIN;
    ensure!(count(&asked, "LIST") <= pages + again, "{asked:?} for {pages} pages");
    // Each object is asked for its attributes.
    let most = files + pages + again * files.div_ceil(DIRECTORIES);
    ensure!(count(&asked, "GET") <= most, "{asked:?} for {files} files");
    let names: usize = fs::read_dir(world.set())?
        .map(|entry| Ok(fs::read_dir(entry?.path()).map_or(1, Iterator::count)))
        .sum::<Result<_>>()?;
    ensure!(names as u64 == files, "{names} names");

    let (job, asked) = world.job("hydrate")?;
    world.check_report(&job)?;
    let parts = LARGE * (LARGE_LEN as u64).div_ceil(8 << 20) * 2;
    let most = files + parts + KILLS * FETCHED_AGAIN;
    ensure!(count(&asked, "GET") <= most, "{asked:?} for {files} files");
    let state = world.cluster.json(&["state", "mr:/set"])?;
    ensure!(state["state"] == "hydrated", "{state}");
    world.check_files(0)?;

    write_all(&world.set(), files, 1)?;
    let (job, asked) = world.job("export")?;
    world.check_report(&job)?;
    let most = files + parts + KILLS * SENT_AGAIN;
    ensure!(count(&asked, "PUT") <= most, "{asked:?} for {files} files");
    world.check_bucket(1)?;

    let (job, _) = world.job("release")?;
    world.check_report(&job)?;
    let held = world.cluster.json(&["state", "mr:/set"])?;
    ensure!(held["hydrated_bytes"] == 0, "{held}");
    world.check_files(1)?;
    figures::report(&format!(
        "{} kills of daemons under jobs over {files} files in {:.0} s: each job told the truth, \
         every object is whole",
        world.kills,
        begun.elapsed().as_secs_f64(),
    ))
}
