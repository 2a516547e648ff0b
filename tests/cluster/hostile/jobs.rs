//! Hydrate jobs: what they could not fetch is what they say, and a retry brings it.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use millrace_tests::{
    hostile::{Asked, Fault, Rule},
    program::wait_for,
};
use rustix::io::Errno;

use super::{World, bytes, told};

#[test]
fn a_hydrate_job_names_what_failed_and_its_retry_brings_it() -> Result<()> {
    let cases = [
        ("500", Fault::InternalError),
        ("403", Fault::Denied),
        ("404", Fault::Vanished),
        ("cut", Fault::CutAfter(1000)),
        ("reset", Fault::Reset),
        ("other-tag", Fault::OtherTag),
    ];
    let fair = ["fair-1", "fair-2", "fair-3"];
    let names: Vec<_> = cases.iter().map(|(name, _)| *name).chain(fair).collect();
    let objects: Vec<_> =
        names.iter().enumerate().map(|(at, name)| (*name, bytes(400_000, at as u64))).collect();
    let world = World::start(&objects, &[])?;
    for (name, fault) in &cases {
        world.proxy.add(Rule::always(Asked::Get, fault.clone()).of(&format!("set/{name}")));
    }
    let job = world.job(&["hydrate", "mr:/set"])?;
    ensure!(job["files_done"] == 3 && job["errors"] == 6, "{job}");
    let failures: Vec<_> = job["failures"].as_array().into_iter().flatten().collect();
    for (name, _) in &cases {
        let path = format!("/set/{name}");
        ensure!(failures.iter().any(|failure| failure["path"] == *path), "{name}: {job}");
    }
    // What came is served without the bucket.
    world.proxy.add(Rule::always(Asked::Get, Fault::Reset));
    for (name, body) in &objects[cases.len()..] {
        ensure!(fs::read(world.set().join(name))? == *body, "{name}");
    }
    world.proxy.clear();
    let again = world.job(&["job", "retry", &job["id"].to_string()])?;
    ensure!(again["state"] == "succeeded" && again["files_done"] == 9, "{again}");
    world.is_sound(&objects)
}

#[test]
fn a_job_whose_bucket_says_nothing_runs_and_goes_on_when_it_answers() -> Result<()> {
    let objects = [("one", bytes(100_000, 1)), ("two", bytes(9_000_000, 2))];
    let world = World::start(&objects, &[])?;
    world.proxy.add(Rule::always(Asked::Get, Fault::Silence));
    let job = world.cluster.json(&["hydrate", "mr:/set"])?;
    let id = job["id"].to_string();
    wait_for("silent requests", || (world.proxy.held() >= 2).then_some(()))?;
    let shown = world.cluster.json(&["job", "show", &id])?;
    ensure!(shown["state"] == "running" && shown["files_done"] == 0, "{shown}");
    world.proxy.clear();
    let ended = world.job(&["job", "show", &id])?;
    ensure!(ended["state"] == "succeeded" && ended["files_done"] == 2, "{ended}");
    world.is_sound(&objects)
}

#[test]
fn a_bucket_that_is_silent_or_drips_is_given_up_by_readers_and_jobs() -> Result<()> {
    let objects = [("a/small", bytes(100_000, 1)), ("a/large", bytes(9_000_000, 2))];
    let objects = [&objects[..], &[("b/small", bytes(10, 3)), ("c/small", bytes(10, 4))]].concat();
    // The mount has more patience than this; what is in order is answered sooner.
    let patience = [("MILLRACE_BUCKETS__READ_TIMEOUT", "2s")];
    let world = World::start_with(&objects, &[], &patience)?;
    ensure!(fs::read_dir(world.set().join("a"))?.count() == 2, "they are listed");
    let drips = || Fault::Trickle(1, Duration::from_millis(50));
    for (asked, key, fault) in [
        (Asked::Get, "set/a/small", drips()),
        (Asked::Get, "set/a/large", drips()),
        (Asked::List, "set%2Fb%2F", Fault::Silence),
        (Asked::List, "set%2Fc%2F", drips()),
    ] {
        world.proxy.add(Rule::always(asked, fault).of(key));
    }
    thread::scope(|scope| {
        let programs = ["a/small", "a/large", "b", "c"].map(|name| {
            let path = world.set().join(name);
            scope.spawn(move || -> Result<()> {
                let begun = Instant::now();
                let outcome = match path.file_name().is_some_and(|name| name.len() == 1) {
                    true => {
                        fs::read_dir(path).and_then(|mut all| all.try_for_each(|one| one.map(drop)))
                    }
                    false => fs::read(path).map(drop),
                };
                let outcome = told(name, begun, outcome)?;
                ensure!(outcome == Err(Errno::IO), "{name}: {outcome:?}");
                Ok(())
            })
        });
        let job = scope.spawn(|| world.job(&["hydrate", "mr:/set/a/large"]));
        programs.into_iter().try_for_each(|program| program.join().expect("no panic"))?;
        let job = job.join().expect("no panic")?;
        ensure!(job["errors"] == 1, "{job}");
        Ok(())
    })?;
    world.is_sound(&objects)
}
