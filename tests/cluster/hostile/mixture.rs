//! All faults by chance, from a seed, under readers, jobs and exports at the same time, while
//! another client replaces objects.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    azurite::Azurite,
    bucket::Bucket,
    chance::{length, seed},
    cloud::Cloud,
    google::GoogleServer,
    hostile::Storm,
};

use super::{World, bytes, first_difference, told};

/// Files that are read, and files that are written and exported, in each round.
const FILES: usize = 12;

/// Rounds of one run of the length 1.
const ROUNDS: u64 = 2;

/// What is refused for now is tried so often: more than one request of four going wrong explains.
const TRIES_MAX: usize = 20;

/// Lengths of objects: nothing, a piece of a page, whole with one request and just so, one chunk,
/// several.
const READ: [usize; 6] = [0, 1000, 300_000, 1_048_576, 3_000_000, 17_000_000];

/// Lengths of files that are exported: in the namespace itself, of one chunk, by parts.
const WRITTEN: [usize; 5] = [0, 100, 70_000, 2_000_000, 9_000_000];

struct Object {
    name: String,
    /// The first one, and perhaps the one that replaces it while it is read.
    versions: Vec<Vec<u8>>,
}

impl Object {
    fn of(round: u64, at: usize, seed: u64) -> Self {
        let body =
            |version| bytes(READ[at % READ.len()], seed ^ (round << 16) ^ at as u64 ^ version);
        let mut versions = vec![body(0)];
        // Two of each round: one that comes whole with one request, and one of several chunks.
        if at == 2 || at == 5 {
            versions.push(body(1 << 40));
        }
        Self { name: format!("in-{round}/{at}"), versions }
    }

    /// Where a piece of any version would have to be, that is what was read, if it was.
    fn check(&self, offset: usize, len: usize, read: &[u8]) -> Result<()> {
        let of_one = self.versions.iter().any(|body| body.get(offset..offset + len) == Some(read));
        let differs = || first_difference(read, &self.versions[0][offset..]);
        ensure!(of_one, "{} is wrong at {offset}: {}", self.name, differs());
        Ok(())
    }

    fn len(&self) -> usize {
        self.versions[0].len()
    }
}

fn a_mixture_leaves_all_right<C: Cloud + Sync>(bucket: C) -> Result<()> {
    let seed = seed()?;
    let rounds = length()? * ROUNDS;
    let objects: Vec<Vec<_>> = (0..rounds)
        .map(|round| (0..FILES).map(|at| Object::of(round, at, seed)).collect())
        .collect();
    let first = |object: &Object| (object.name.clone(), object.versions[0].clone());
    let begin: Vec<_> = objects.iter().flatten().map(first).collect();
    let begin: Vec<_> = begin.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let options = ["--mode", "import-export", "--fetch", "ahead"];
    let world = World::start_at(bucket, &begin, &options, &[])?;
    let mut end = Vec::new();
    for (objects, round) in objects.iter().zip(0..) {
        world.proxy.storm(Storm { seed: seed ^ round, one_in: 4 - 2 * (round % 2) });
        let made = under_a_storm(&world, seed, round, objects);
        let made = made.with_context(|| format!("round {round}: {}", world.proxy.told()))?;
        world.proxy.clear();
        for job in made.jobs {
            let again = world.job(&["job", "retry", &job])?;
            ensure!(again["state"] == "succeeded", "{again}");
        }
        end.extend(made.files);
    }
    // What was replaced after it was read is found by listing it again.
    let import = world.job(&["import", "mr:/set"])?;
    ensure!(import["state"] == "succeeded", "{import}");
    let last =
        |object: &Object| object.versions.last().map(|body| (object.name.clone(), body.clone()));
    end.extend(objects.iter().flatten().filter_map(last));
    let faults = world.proxy.faults();
    ensure!(faults > 20 * rounds, "it was no storm: {}", world.proxy.told());
    let end: Vec<_> = end.iter().map(|(name, body)| (&**name, body.clone())).collect();
    world.bucket_has(&end)?;
    world.is_sound(&end).with_context(|| world.proxy.told())
}

#[test]
fn a_mixture_of_all_faults_leaves_readers_jobs_and_bucket_right() -> Result<()> {
    a_mixture_leaves_all_right(Bucket::start()?)
}

#[test]
fn a_mixture_of_all_faults_leaves_all_right_with_google() -> Result<()> {
    a_mixture_leaves_all_right(GoogleServer::start()?)
}

#[test]
fn a_mixture_of_all_faults_leaves_all_right_with_azure() -> Result<()> {
    a_mixture_leaves_all_right(Azurite::start()?)
}

/// What a round made: files, and the jobs that ended.
struct Made {
    files: Vec<(String, Vec<u8>)>,
    jobs: Vec<String>,
}

fn under_a_storm<C: Cloud + Sync>(
    world: &World<C>,
    seed: u64,
    round: u64,
    objects: &[Object],
) -> Result<Made> {
    let files = written(world, seed, round)?;
    thread::scope(|scope| -> Result<Made> {
        let (one, other) = objects.split_at(objects.len() / 2);
        let readers = [one, other]
            .map(|some| scope.spawn(|| some.iter().try_for_each(|object| reads(world, object))));
        let (read, made) = (format!("mr:/set/in-{round}"), format!("mr:/set/out-{round}"));
        let hydrate = scope.spawn(move || job(world, &["hydrate", &read]));
        let export = scope.spawn(move || job(world, &["export", &made]));
        for object in objects {
            if let [_, new] = &object.versions[..] {
                world.bucket.put(&format!("set/{}", object.name), new)?;
            }
        }
        for reader in readers {
            reader.join().expect("no panic")?;
        }
        let jobs = [hydrate, export].map(|job| job.join().expect("no panic"));
        Ok(Made { files, jobs: jobs.into_iter().collect::<Result<_>>()? })
    })
}

/// Makes files: whether the bucket has something of their names is asked first.
fn written<C: Cloud + Sync>(
    world: &World<C>,
    seed: u64,
    round: u64,
) -> Result<Vec<(String, Vec<u8>)>> {
    let directory = format!("out-{round}");
    again(&directory, || fs::create_dir(world.set().join(&directory)))?;
    let mut files = Vec::new();
    for at in 0..FILES {
        let body = bytes(WRITTEN[at % WRITTEN.len()], !seed ^ (round << 16) ^ at as u64);
        let name = format!("{directory}/{at}");
        again(&name, || fs::write(world.set().join(&name), &body))?;
        files.push((name, body));
    }
    Ok(files)
}

fn again(what: &str, work: impl Fn() -> io::Result<()>) -> Result<()> {
    let mut errno = None;
    for _ in 0..TRIES_MAX {
        match told(what, Instant::now(), work())? {
            Ok(()) => return Ok(()),
            Err(last) => errno = Some(last),
        }
    }
    anyhow::bail!("{what}: {errno:?} each time")
}

/// Runs a job to its end, whatever that is; a path that cannot be resolved now is tried again.
fn job<C: Cloud + Sync>(world: &World<C>, arguments: &[&str]) -> Result<String> {
    let mut tries = 0;
    loop {
        match world.job(arguments) {
            Ok(job) => return Ok(job["id"].to_string()),
            Err(error) if tries < TRIES_MAX && error.to_string().contains("exit Some(1)") => {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whole, and in pieces from the end: each gives what is right or an errno.
fn reads<C: Cloud + Sync>(world: &World<C>, object: &Object) -> Result<()> {
    let (name, path) = (&object.name, world.set().join(&object.name));
    if let Ok(read) = told(name, Instant::now(), fs::read(&path))? {
        object.check(0, object.len(), &read)?;
    }
    let mut offset = object.len().saturating_sub(40_000);
    while offset > 0 {
        let mut piece = vec![0; 30_000.min(object.len() - offset)];
        if told(name, Instant::now(), read_at(&path, &mut piece, offset as u64))?.is_ok() {
            object.check(offset, piece.len(), &piece)?;
        }
        offset = offset.saturating_sub(2_500_000);
    }
    Ok(())
}

fn read_at(path: &Path, piece: &mut [u8], offset: u64) -> io::Result<()> {
    File::open(path)?.read_exact_at(piece, offset)
}
