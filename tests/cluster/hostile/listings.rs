//! Listings that are old, empty, torn, doubled, out of order, or without an end.

use std::{collections::BTreeSet, fs, time::Instant};

use anyhow::{Result, ensure};
use millrace_tests::hostile::{Asked, Fault, ListFault, Rule};
use rustix::io::Errno;

use super::{World, bytes, told};

fn names(world: &World, directory: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(world.set().join(directory))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(found.insert(name.clone()), "{name} comes twice");
    }
    Ok(found)
}

/// Names within a directory for each fault, with an object below another directory.
fn tree(directories: &[&str]) -> Vec<(String, Vec<u8>)> {
    let below = ["a", "b", "c", "d", "e", "f", "g", "sub/x", "sub/y"];
    let all = directories.iter().flat_map(|one| below.map(|name| format!("{one}/{name}")));
    all.enumerate().map(|(at, name)| (name, bytes(1000 + at, at as u64))).collect()
}

#[test]
fn every_name_is_there_once_however_its_listing_came() -> Result<()> {
    let once = [
        ("pages", Fault::List(ListFault::Pages(2))),
        ("single", Fault::List(ListFault::Pages(1))),
        ("torn", Fault::List(ListFault::Torn)),
        ("circle", Fault::List(ListFault::Circle(3))),
        ("dead-end", Fault::List(ListFault::DeadEnd(3))),
        ("500", Fault::InternalError),
        ("503", Fault::SlowDown),
        ("reset", Fault::Reset),
        ("cut", Fault::CutAfter(200)),
        ("403", Fault::Denied),
    ];
    let directories: Vec<_> = once.iter().map(|(name, _)| *name).collect();
    let objects = tree(&directories);
    let objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &[])?;
    let whole: BTreeSet<_> = ["a", "b", "c", "d", "e", "f", "g", "sub"].map(str::to_owned).into();
    for (name, fault) in &once {
        world.proxy.add(Rule::next(1, Asked::List, fault.clone()).of(&format!("set%2F{name}%2F")));
        let begun = Instant::now();
        let listed = fs::read_dir(world.set().join(name)).and_then(Iterator::collect);
        match told(name, begun, listed.map(|entries: Vec<fs::DirEntry>| entries.len()))? {
            Ok(count) => ensure!(count == whole.len(), "{name} shows {count} names as if all"),
            Err(errno) => ensure!([Errno::IO, Errno::ACCESS].contains(&errno), "{name}: {errno}"),
        }
        ensure!(world.proxy.done(Asked::List, fault.name()) > 0, "{name} happened");
        ensure!(names(&world, name)? == whole, "{name}, asked again");
    }
    world.is_sound(&objects)
}

#[test]
fn an_old_or_empty_listing_takes_nothing_away_and_the_next_one_brings_what_is_new() -> Result<()> {
    let objects = tree(&["old"]);
    let objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &[])?;
    let before = names(&world, "old")?;
    world.job(&["import", "mr:/set/old"])?;

    // An empty answer is not believed: each name is asked for before it goes.
    world.proxy.add(Rule::always(Asked::List, Fault::List(ListFault::Empty)).of("set%2Fold%2F"));
    world.job(&["import", "mr:/set/old"])?;
    ensure!(world.proxy.done(Asked::List, "empty list") > 0, "it happened");
    ensure!(names(&world, "old")? == before, "nothing is gone");
    world.proxy.clear();

    // A listing from before: without the new key, with the deleted one.
    world.bucket.put("set/old/new", b"new")?;
    let delete = "client.delete_object(Bucket='data', Key='set/old/a')";
    world.bucket.script(delete, &[])?;
    world.proxy.add(Rule::always(Asked::List, Fault::List(ListFault::Stale)).of("set%2Fold%2F"));
    world.job(&["import", "mr:/set/old"])?;
    ensure!(world.proxy.done(Asked::List, "stale list") > 0, "it happened");
    let outcome = told("a", Instant::now(), fs::read(world.set().join("old/a")))?;
    ensure!(matches!(outcome, Err(Errno::STALE | Errno::NOENT)), "{outcome:?}");
    world.proxy.clear();
    world.job(&["import", "mr:/set/old"])?;
    let mut after = before;
    after.remove("a");
    after.insert("new".to_owned());
    ensure!(names(&world, "old")? == after, "what is true is seen with the next listing");

    // A job that cannot list says so.
    let bad = [ListFault::Circle(2), ListFault::DeadEnd(2), ListFault::Torn];
    for fault in bad {
        world.proxy.add(Rule::always(Asked::List, Fault::List(fault)).of("set%2Fold%2F"));
        let job = world.job(&["import", "mr:/set/old"])?;
        ensure!(job["errors"] == 1 && job["failures"][0]["path"] == "/set/old", "{job}");
        world.proxy.clear();
        let again = world.job(&["job", "retry", &job["id"].to_string()])?;
        ensure!(again["state"] == "succeeded", "{again}");
        ensure!(names(&world, "old")? == after, "{fault:?}");
    }
    let mut objects: Vec<_> = objects.into_iter().filter(|(name, _)| *name != "old/a").collect();
    objects.push(("old/new", b"new".to_vec()));
    world.is_sound(&objects)
}

#[test]
fn a_name_is_found_by_two_requests_while_the_listing_of_its_directory_does_not_come() -> Result<()>
{
    let objects = tree(&["many"]);
    let objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &[])?;
    names(&world, "")?;
    // However many keys a directory has, its listing cannot take longer than this.
    world.proxy.add(Rule::always(Asked::List, Fault::Silence).of("set%2Fmany%2F"));
    world.proxy.add(Rule::always(Asked::List, Fault::Pass));
    world.proxy.add(Rule::always(Asked::Head, Fault::Pass));
    let lookups = [("c", true), ("sub", true), ("nothing", false)];
    for (at, (name, is_there)) in lookups.into_iter().enumerate() {
        let begun = Instant::now();
        let found = fs::symlink_metadata(world.set().join("many").join(name));
        match told(name, begun, found.map(|found| found.is_dir()))? {
            Ok(is_dir) => ensure!(is_there && is_dir == (name == "sub"), "{name}"),
            Err(errno) => ensure!(!is_there && errno == Errno::NOENT, "{name}: {errno}"),
        }
        let asked = [Asked::Head, Asked::List].map(|kind| world.proxy.done(kind, "pass"));
        ensure!(asked == [at as u64 + 1; 2], "{asked:?} requests after {name}");
    }
    world.proxy.clear();
    let whole: BTreeSet<_> = ["a", "b", "c", "d", "e", "f", "g", "sub"].map(str::to_owned).into();
    ensure!(names(&world, "many")? == whole, "the listing goes on");
    world.is_sound(&objects)
}
