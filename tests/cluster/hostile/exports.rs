//! Exports whose requests fail, and those that succeed without anybody being told.

use std::fs;

use anyhow::{Result, ensure};
use millrace_tests::hostile::{Asked, Fault, Rule};
use serde_json::Value;

use super::{World, bytes};

const EXPORT: [&str; 2] = ["--mode", "import-export"];

/// Files that are stored by one put: in the namespace itself, of one chunk; and by parts.
const SIZES: [(&str, usize); 4] =
    [("empty", 0), ("inline", 100), ("chunk", 2_000_000), ("parts", 20_000_000)];

/// What goes wrong once with each kind of request of an export.
fn once() -> Vec<(&'static str, Fault)> {
    vec![
        ("500", Fault::InternalError),
        ("503", Fault::SlowDown),
        ("reset", Fault::Reset),
        ("lost-answer", Fault::LostAnswer),
        ("failed-answer", Fault::FailedAnswer),
    ]
}

fn uploads_left(world: &World) -> Result<usize> {
    let count = "print(len(client.list_multipart_uploads(Bucket='data').get('Uploads', [])))";
    Ok(world.bucket.script(count, &[])?.trim().parse()?)
}

/// Exports everything; what fails once more, because an upload whose beginning is unclear is begun
/// by another export only, and once more when the weather is fair.
fn exported(world: &World) -> Result<Value> {
    let mut job = world.job(&["export", "mr:/set"])?;
    for is_fair in [false, true] {
        if job["state"] == "succeeded" {
            break;
        }
        if is_fair {
            world.proxy.clear();
        }
        job = world.job(&["job", "retry", &job["id"].to_string()])?;
    }
    Ok(job)
}

#[test]
fn an_object_is_whole_in_the_bucket_whatever_request_of_its_export_goes_wrong() -> Result<()> {
    let world = World::start(&[("there", b"there".to_vec())], &EXPORT)?;
    let mut objects = vec![("there".to_owned(), b"there".to_vec())];
    for (at, (fault, _)) in once().iter().enumerate() {
        for (size, len) in SIZES {
            let (name, body) = (format!("{fault}-{size}"), bytes(len, at as u64));
            fs::write(world.set().join(&name), &body)?;
            objects.push((name, body));
        }
    }
    for (name, fault) in once() {
        for (size, _) in SIZES {
            let key = format!("set/{name}-{size}");
            for asked in [Asked::Put, Asked::Create, Asked::Part, Asked::Complete] {
                world.proxy.add(Rule::next(1, asked, fault.clone()).of(&key));
            }
        }
    }
    let job = exported(&world)?;
    ensure!(job["state"] == "succeeded", "{job}");
    for asked in [Asked::Put, Asked::Create, Asked::Part, Asked::Complete] {
        ensure!(world.proxy.done(asked, "lost answer") > 0, "{asked:?}: {}", world.proxy.told());
    }
    ensure!(uploads_left(&world)? == 0, "no upload stays behind, begun without an answer or not");
    for (name, _) in &objects {
        let told = world.cluster.json(&["state", &format!("mr:/set/{name}")])?;
        let state = told["state"].as_str().unwrap_or_default();
        ensure!(["exported", "released"].contains(&state) || name == "there", "{name}: {told}");
    }
    world.cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
    let objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    world.bucket_has(&objects)?;
    world.is_sound(&objects)
}

#[test]
fn an_export_that_cannot_be_says_so_harms_nothing_and_its_retry_succeeds() -> Result<()> {
    let old = bytes(3_000_000, 1);
    let world = World::start(&[("file", old.clone())], &EXPORT)?;
    let new = bytes(12_000_000, 2);
    fs::write(world.set().join("file"), &new)?;
    for asked in [Asked::Put, Asked::Part, Asked::Complete] {
        world.proxy.add(Rule::always(asked, Fault::Denied));
    }
    // Nor can the upload be aborted.
    world.proxy.add(Rule::always(Asked::Abort, Fault::Reset));
    let job = world.job(&["export", "mr:/set"])?;
    ensure!(uploads_left(&world)? == 1, "it was begun");
    ensure!(job["errors"] == 1 && job["failures"][0]["path"] == "/set/file", "{job}");
    ensure!(world.bucket.get("set/file")? == old, "the object is as it was");
    ensure!(fs::read(world.set().join("file"))? == new, "the file is as it was");
    // The completion is done and nobody is told, nor can anybody look. (The first look is that for
    // what the last export left: it gives that upload up. The second one is for the version that
    // the completion is to replace.)
    world.proxy.clear();
    world.proxy.add(Rule::next(2, Asked::Head, Fault::Pass));
    world.proxy.add(Rule::always(Asked::Complete, Fault::LostAnswer));
    world.proxy.add(Rule::always(Asked::Head, Fault::Reset));
    let job = world.job(&["job", "retry", &job["id"].to_string()])?;
    ensure!(job["errors"] == 1, "what is not known is not called done: {job}");
    ensure!(world.bucket.get("set/file")? == new, "it was stored all the same");
    world.proxy.clear();
    let puts = world.proxy.done(Asked::Complete, "lost answer");
    let job = world.job(&["job", "retry", &job["id"].to_string()])?;
    ensure!(job["state"] == "succeeded", "{job}");
    ensure!(puts >= 1 && world.bucket.get("set/file")? == new, "whole");
    ensure!(world.cluster.json(&["state", "mr:/set/file"])?["state"] == "exported", "no conflict");
    ensure!(uploads_left(&world)? == 0, "no upload stays behind, not the first one either");
    world.cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
    world.is_sound(&[("file", new)])
}
