//! Listings that are old, empty, torn, doubled, out of order, or without an end.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, time::Instant};

use anyhow::{Result, ensure};
use millrace_tests::{
    hostile::{Asked, Fault, ListFault, Rule},
    program::wait_for,
};
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

fn mode_of(world: &World, name: &str) -> Result<u32> {
    Ok(fs::symlink_metadata(world.set().join(name))?.permissions().mode() & 0o7777)
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
fn a_key_that_is_refused_hides_no_other_name_of_its_directory() -> Result<()> {
    let objects = tree(&["mixed"]);
    let objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &["--mode", "import-export"])?;
    for asked in [Asked::Head, Asked::Get] {
        world.proxy.add(Rule::always(asked, Fault::Denied).of("set/mixed/b"));
    }
    world.proxy.add(Rule::always(Asked::Head, Fault::Denied).of("set/mixed/sub/"));
    let whole: BTreeSet<_> = ["a", "b", "c", "d", "e", "f", "g", "sub"].map(str::to_owned).into();
    ensure!(names(&world, "mixed")? == whole, "{:?}", names(&world, "mixed"));
    ensure!(world.proxy.done(Asked::Head, "403") >= 2, "{}", world.proxy.told());
    for (name, mode) in [("b", 0o644), ("sub", 0o755)] {
        let found = mode_of(&world, &format!("mixed/{name}"))?;
        ensure!(found == mode, "{name} has the mode {found:o}");
    }
    for (name, body) in &objects {
        match told(name, Instant::now(), fs::read(world.set().join(name)))? {
            Ok(read) => ensure!(*name != "mixed/b" && read == *body, "{name} was read"),
            Err(errno) => ensure!(*name == "mixed/b" && errno == Errno::ACCESS, "{name}: {errno}"),
        }
    }
    let job = world.job(&["import", "mr:/set"])?;
    ensure!(job["state"] == "succeeded" && job["errors"] == 0, "{job}");
    world.is_sound(&objects)
}

#[test]
fn a_key_that_is_refused_is_found_by_its_name_where_the_bucket_lists_it() -> Result<()> {
    let objects = tree(&["mixed"]);
    let mut objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &["--mode", "import-export"])?;
    let put = "client.put_object(Bucket='data', Key='set/mixed/own', Body=b'mine', \
               Metadata={'file-permissions': '0100600'})";
    world.bucket.script(put, &[])?;
    objects.push(("mixed/own", b"mine".to_vec()));
    ensure!(names(&world, "")? == BTreeSet::from(["mixed".to_owned()]), "it is known");
    // The first look begins a listing of the directory, which does not come.
    world.proxy.add(Rule::next(1, Asked::List, Fault::Silence).of("set%2Fmixed%2F"));
    mode_of(&world, "mixed/a")?;
    wait_for("the listing", || (world.proxy.held() == 1).then_some(()))?;
    for name in ["b", "closed", "nothing"] {
        world.proxy.add(Rule::always(Asked::Head, Fault::Denied).of(&format!("set/mixed/{name}")));
    }
    world.proxy.add(Rule::always(Asked::List, Fault::Denied).of("set%2Fmixed%2Fclosed"));
    // Its credentials had just ended.
    world.proxy.add(Rule::next(1, Asked::Head, Fault::Denied).of("set/mixed/own"));
    let lookups = [
        ("b", Ok(0o644)),
        ("closed", Err(Errno::ACCESS)),
        ("nothing", Err(Errno::NOENT)),
        ("own", Ok(0o600)),
    ];
    for (name, expected) in lookups {
        let begun = Instant::now();
        let found = fs::symlink_metadata(world.set().join("mixed").join(name));
        let outcome = told(name, begun, found.map(|found| found.permissions().mode() & 0o7777))?;
        ensure!(outcome == expected, "{name}: {outcome:?}");
    }
    ensure!(world.proxy.done(Asked::Head, "403") > 4, "{}", world.proxy.told());
    world.proxy.clear();
    ensure!(names(&world, "mixed")?.len() == 9, "the listing goes on");
    for (name, expected) in [("b", 0o644), ("own", 0o600)] {
        let mode = mode_of(&world, &format!("mixed/{name}"))?;
        ensure!(mode == expected, "{name} has the mode {mode:o}");
    }
    world.is_sound(&objects)
}

#[test]
fn credentials_that_end_while_a_directory_is_listed_cost_no_name_its_mode() -> Result<()> {
    let objects = tree(&["mixed"]);
    let mut objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &["--mode", "import-export"])?;
    let put = "client.put_object(Bucket='data', Key='set/mixed/own', Body=b'mine', \
               Metadata={'file-permissions': '0100600'})";
    world.bucket.script(put, &[])?;
    objects.push(("mixed/own", b"mine".to_vec()));
    ensure!(names(&world, "")? == BTreeSet::from(["mixed".to_owned()]), "it is known");
    world.proxy.add(Rule::next(1, Asked::List, Fault::Pass).of("set%2Fmixed%2F"));
    for asked in [Asked::List, Asked::Head] {
        world.proxy.add(Rule::always(asked, Fault::Denied));
    }
    let begun = Instant::now();
    let listed = fs::read_dir(world.set().join("mixed")).and_then(Iterator::collect);
    let listed = listed.map(|entries: Vec<fs::DirEntry>| entries.len());
    let outcome = told("mixed", begun, listed)?;
    ensure!(outcome == Err(Errno::ACCESS), "{outcome:?}");
    ensure!(world.proxy.done(Asked::Head, "403") > 0, "{}", world.proxy.told());
    world.proxy.clear();
    ensure!(names(&world, "mixed")?.len() == 9, "it is listed again");
    let mode = mode_of(&world, "mixed/own")?;
    ensure!(mode == 0o600, "it has the mode {mode:o}");
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
