//! Hydrate jobs: what they could not fetch is what they say, and a retry brings it.

use std::fs;

use anyhow::{Result, ensure};
use millrace_tests::{
    hostile::{Asked, Fault, Rule},
    program::wait_for,
};

use super::{World, bytes};

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
