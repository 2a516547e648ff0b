//! A bucket behind a network that does everything wrong: readers get the right bytes or a clear
//! errno in time, jobs tell the truth, and nothing wrong is stored or served.

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cloud::Cloud,
    cluster::{Cluster, Wish},
    daemon::Daemon,
    hostile::HostileProxy,
    program::wait_for,
};
use rustix::io::Errno;
use serde_json::Value;

#[path = "hostile/absence.rs"]
mod absence;
#[path = "hostile/exports.rs"]
mod exports;
#[path = "hostile/jobs.rs"]
mod jobs;
#[path = "hostile/listings.rs"]
mod listings;
#[path = "hostile/mixture.rs"]
mod mixture;
#[path = "hostile/reads.rs"]
mod reads;

/// No operation on a file takes longer, whatever its bucket does: attempts and pauses of one
/// request, some times, on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// A linked directory `set` whose bucket is behind the proxy.
struct World<C = Bucket> {
    cluster: Cluster,
    daemons: Vec<Daemon>,
    proxy: HostileProxy,
    bucket: C,
    /// Where the credentials are.
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts all of it with an S3 server, with these objects below `set/`.
    fn start(objects: &[(&str, Vec<u8>)], options: &[&str]) -> Result<Self> {
        Self::start_with(objects, options, &[])
    }

    /// The same, with daemons that have these variables too.
    fn start_with(
        objects: &[(&str, Vec<u8>)],
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start_at(Bucket::start()?, objects, options, environment)
    }
}

impl<C: Cloud> World<C> {
    fn start_at(
        bucket: C,
        objects: &[(&str, Vec<u8>)],
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let keyed = objects.iter().map(|(name, body)| (format!("set/{name}"), &body[..]));
        bucket.put_all(&keyed.collect::<Vec<_>>())?;
        let proxy = HostileProxy::for_endpoint(&bucket.endpoint())?;
        let folder = tempfile::tempdir()?;
        let mut wish = Wish::default();
        let access = bucket.access(&mut wish, folder.path())?;
        // Checks wait for leases.
        wish.environment.push(("MILLRACE_SESSIONS__LEASE".to_owned(), "5s".to_owned()));
        let own = environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        wish.environment.extend(own);
        let cluster = Cluster::start(wish)?;
        let (url, endpoint) = (format!("{}://data/set", C::SCHEME), proxy.endpoint());
        let add = ["link", "add", &url, "mr:/set", "--endpoint", &endpoint];
        // What is fetched ahead of readers would meet the faults that are meant for them.
        let fetch: &[&str] = if options.contains(&"--fetch") { &[] } else { &["--fetch", "asked"] };
        cluster.cli(&[&add, access, fetch, options].concat())?.ok()?;
        let daemons = cluster.daemons();
        Ok(Self { cluster, daemons, proxy, bucket, _folder: folder })
    }

    /// Each object is in the bucket as it should be, as another client reads it.
    fn bucket_has(&self, objects: &[(&str, Vec<u8>)]) -> Result<()> {
        let keys: Vec<_> = objects.iter().map(|(name, _)| format!("set/{name}")).collect();
        for (object, (name, body)) in self.bucket.get_all(&keys)?.iter().zip(objects) {
            let wrong = || format!("{name} in the bucket: {}", first_difference(object, body));
            ensure!(object == body, wrong());
        }
        Ok(())
    }

    fn set(&self) -> PathBuf {
        self.cluster.mount().join("set")
    }

    /// Runs a command that starts a job and waits for its end; what the job says of itself.
    fn job(&self, arguments: &[&str]) -> Result<Value> {
        let all = [&["--json"], arguments, &["--wait"]].concat();
        let begun = Instant::now();
        let said = self.cluster.cli(&all)?;
        ensure!(begun.elapsed() < BOUND, "{arguments:?} took {:?}", begun.elapsed());
        let job: Value = serde_json::from_str(&said.stdout).with_context(|| said.to_string())?;
        let succeeded = job["state"] == "succeeded";
        ensure!(said.code == Some(i32::from(!succeeded)), "the exit code is the result: {said}");
        ensure!(succeeded == (job["errors"] == 0), "the report is true: {job}");
        Ok(job)
    }

    /// The weather is fair again: every daemon is the one of the beginning and healthy, checks find
    /// nothing, and another host reads what is right, from the bucket or not.
    fn is_sound(&self, objects: &[(&str, Vec<u8>)]) -> Result<()> {
        self.proxy.clear();
        let now = self.cluster.daemons();
        ensure!(now == self.daemons, "{now:?} were {:?}", self.daemons);
        let second = self.cluster.mount_named("second");
        self.cluster.mount_also(&second)?;
        for mount in [self.set(), second.join("set")] {
            for (name, body) in objects {
                let read = fs::read(mount.join(name)).with_context(|| (*name).to_owned())?;
                ensure!(read == *body, "{name} is wrong: {}", first_difference(&read, body));
            }
        }
        self.checks_find_nothing()
    }

    fn checks_find_nothing(&self) -> Result<()> {
        let report = wait_for("a check of every target", || {
            let said = self.cluster.cli(&["--json", "fsck", "start", "--wait"]).ok()?;
            let report: Value = serde_json::from_str(&said.stdout).ok()?;
            let whole = report["targets"].as_array()?.iter().all(|t| t["not_checked"].is_null());
            (whole && report["state"] == "done").then_some((said.succeeded(), report))
        })?;
        ensure!(report.0, "{}", report.1);
        let scrub = ["target", "scrub", "--all", "--start", "--wait"];
        self.cluster.cli(&scrub)?.ok().context("a scrub finds nothing")?;
        wait_for("a healthy cluster", || {
            self.cluster.cli(&["status"]).ok()?.succeeded().then_some(())
        })
    }
}

fn first_difference(read: &[u8], body: &[u8]) -> String {
    let at = read.iter().zip(body).position(|(a, b)| a != b);
    format!("{} bytes of {}, the first other one at {at:?}", read.len(), body.len())
}

/// Bytes in which each place is told from its neighbours, and each file from the others.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut made = Vec::with_capacity(len + 8);
    while made.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        made.extend_from_slice(&state.to_le_bytes());
    }
    made.truncate(len);
    made
}

/// What an operation gave, if that was in time and clear.
fn told<T>(what: &str, begun: Instant, outcome: io::Result<T>) -> Result<Result<T, Errno>> {
    ensure!(begun.elapsed() < BOUND, "{what} took {:?}", begun.elapsed());
    let errno = match outcome {
        Ok(value) => return Ok(Ok(value)),
        Err(error) => Errno::from_io_error(&error).with_context(|| format!("{what}: {error}"))?,
    };
    let clear = [Errno::IO, Errno::STALE, Errno::ACCESS, Errno::NOENT].contains(&errno);
    ensure!(clear, "{what}: {errno}");
    Ok(Err(errno))
}
