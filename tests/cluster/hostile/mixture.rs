//! All faults by chance, from a seed, under readers, jobs and exports at the same time.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::Instant,
};

use anyhow::{Result, ensure};
use millrace_tests::{
    chance::{length, seed},
    hostile::Storm,
};

use super::{World, bytes, first_difference, told};

/// Files that are read, and files that are written and exported, in each round.
const FILES: u64 = 12;

#[test]
fn a_mixture_of_all_faults_leaves_readers_jobs_and_bucket_right() -> Result<()> {
    let seed = seed()?;
    let rounds = length()? * 2;
    let named: Vec<_> = (0..rounds * FILES)
        .map(|at| {
            let len = [0, 1000, 300_000, 1_048_576, 3_000_000, 17_000_000][at as usize % 6];
            (format!("in-{}/{at}", at / FILES), bytes(len, seed ^ at))
        })
        .collect();
    let objects: Vec<_> = named.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &["--mode", "import-export"])?;
    let mut written = Vec::new();
    for round in 0..rounds {
        world.proxy.storm(Storm { seed: seed ^ round, one_in: 4 });
        let of_round = &objects[(round * FILES) as usize..((round + 1) * FILES) as usize];
        let made = under_a_storm(&world, seed, round, of_round)?;
        world.proxy.clear();
        for job in made.jobs {
            let again = world.job(&["job", "retry", &job])?;
            ensure!(again["state"] == "succeeded", "seed {seed}: {again}");
        }
        written.extend(made.files);
    }
    let mut all = objects.clone();
    all.extend(written.iter().map(|(name, body)| (&**name, body.clone())));
    world.bucket_has(&all)?;
    world.is_sound(&all)
}

/// What a round made: files, and the jobs that ended.
struct Made {
    files: Vec<(String, Vec<u8>)>,
    jobs: Vec<String>,
}

fn under_a_storm(
    world: &World,
    seed: u64,
    round: u64,
    objects: &[(&str, Vec<u8>)],
) -> Result<Made> {
    let out = format!("out-{round}");
    // Whether anything below a name is in the bucket is asked before it is made.
    let mut tries = 0;
    while let Err(errno) = told(&out, Instant::now(), fs::create_dir(world.set().join(&out)))? {
        tries += 1;
        ensure!(tries < 20, "{out}: {errno}");
    }
    let mut files = Vec::new();
    for at in 0..FILES {
        let len = [0, 100, 70_000, 2_000_000, 9_000_000][at as usize % 5];
        let (name, body) = (format!("{out}/{at}"), bytes(len, seed ^ round ^ (at << 32)));
        let mut tries = 0;
        while let Err(errno) =
            told(&name, Instant::now(), fs::write(world.set().join(&name), &body))?
        {
            tries += 1;
            ensure!(tries < 20, "{name}: {errno}");
        }
        files.push((name, body));
    }
    thread::scope(|scope| -> Result<Made> {
        let half = objects.len() / 2;
        let readers = [&objects[..half], &objects[half..]]
            .map(|some| scope.spawn(|| some.iter().try_for_each(|(n, b)| reads(world, n, b))));
        let (below, exported) = (format!("mr:/set/in-{round}"), format!("mr:/set/{out}"));
        let hydrate = scope.spawn(move || started(world, &["hydrate", &below]));
        let export = scope.spawn(move || started(world, &["export", &exported]));
        for reader in readers {
            reader.join().expect("no panic")?;
        }
        let jobs = [hydrate, export].map(|job| job.join().expect("no panic"));
        let jobs = jobs.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Made { files, jobs })
    })
}

/// Runs a job to its end; a path that cannot be resolved now is tried again.
fn started(world: &World, arguments: &[&str]) -> Result<String> {
    let mut tries = 0;
    loop {
        match world.job(arguments) {
            Ok(job) => return Ok(job["id"].to_string()),
            Err(error) if tries < 20 && error.to_string().contains("exit Some(1)") => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Whole, and in pieces from the end: each gives what is right or an errno.
fn reads(world: &World, name: &str, body: &[u8]) -> Result<()> {
    let path = world.set().join(name);
    if let Ok(read) = told(name, Instant::now(), fs::read(&path))? {
        ensure!(read == *body, "{name} is wrong: {}", first_difference(&read, body));
    }
    let mut offset = body.len().saturating_sub(40_000);
    while offset > 0 {
        let mut piece = vec![0; 30_000.min(body.len() - offset)];
        let begun = Instant::now();
        if told(name, begun, read_at(&path, &mut piece, offset as u64))?.is_ok() {
            ensure!(piece == body[offset..offset + piece.len()], "{name} is wrong at {offset}");
        }
        offset = offset.saturating_sub(2_500_000);
    }
    Ok(())
}

fn read_at(path: &Path, piece: &mut [u8], offset: u64) -> io::Result<()> {
    File::open(path)?.read_exact_at(piece, offset)
}
