//! Readers of cold files while single requests, or all of them, go wrong.

use std::{
    fs::{self, File},
    os::unix::{fs::FileExt, process::ExitStatusExt},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::hostile::{Asked, Fault, Hook, Rule};
use rustix::io::Errno;

use super::{World, bytes, first_difference, told};

/// A small object, which comes whole with one request, and one of several chunks.
const SMALL: usize = 300_000;
const LARGE: usize = 9_000_000;

/// What one reader may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Bytes,
    BytesOr(Errno),
    Only(Errno),
}

/// What goes wrong once with the first GET of an object of its own.
fn once() -> Vec<(&'static str, Fault, Expected)> {
    use Expected::{Bytes, BytesOr};
    vec![
        ("500", Fault::InternalError, Bytes),
        ("503", Fault::SlowDown, Bytes),
        ("reset", Fault::Reset, Bytes),
        ("lost-answer", Fault::LostAnswer, Bytes),
        ("reset-after-headers", Fault::ResetAfter(0), Bytes),
        ("reset-in-body", Fault::ResetAfter(100_000), Bytes),
        ("cut-in-body", Fault::CutAfter(100_000), Bytes),
        ("silence", Fault::SilenceFor(Duration::from_millis(500)), Bytes),
        ("trickle", Fault::Trickle(32 * 1024, Duration::from_millis(10)), Bytes),
        ("too-long", Fault::LengthTooLong(1000), Bytes),
        ("too-short", Fault::LengthTooShort(1000), BytesOr(Errno::IO)),
        ("404", Fault::Vanished, BytesOr(Errno::STALE)),
        ("403", Fault::Denied, BytesOr(Errno::ACCESS)),
        ("other-tag", Fault::OtherTag, BytesOr(Errno::STALE)),
        ("other-size", Fault::OtherSize, BytesOr(Errno::IO)),
    ]
}

#[test]
fn a_reader_gets_the_right_bytes_or_a_clear_errno_when_a_request_goes_wrong_once() -> Result<()> {
    let cases = once();
    let objects: Vec<_> = cases
        .iter()
        .enumerate()
        .flat_map(|(at, (name, ..))| {
            let of_size = |len, suffix| (format!("{name}{suffix}"), bytes(len, at as u64));
            [of_size(SMALL, ""), of_size(LARGE, "-large")]
        })
        .collect();
    let objects: Vec<_> = objects.iter().map(|(name, body)| (&**name, body.clone())).collect();
    let world = World::start(&objects, &[])?;
    ensure!(fs::read_dir(world.set())?.count() == objects.len(), "all are listed");
    for (name, fault, _) in &cases {
        for suffix in ["", "-large"] {
            let key = format!("set/{name}{suffix}");
            world.proxy.add(Rule::next(1, Asked::Get, fault.clone()).of(&key));
        }
    }
    let reading = &world;
    thread::scope(|scope| {
        let readers: Vec<_> = objects
            .iter()
            .zip(cases.iter().flat_map(|case| [case.2, case.2]))
            .map(|((name, body), expected)| {
                scope.spawn(move || reads_as(reading, name, body, expected))
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("no panic"))
    })?;
    for (name, fault, _) in &cases {
        let times = world.proxy.done(Asked::Get, fault.name());
        ensure!(times >= 2, "{name} happened {times} times: {}", world.proxy.told());
    }
    world.is_sound(&objects)
}

fn reads_as(world: &World, name: &str, body: &[u8], expected: Expected) -> Result<()> {
    let path = world.set().join(name);
    match (told(name, Instant::now(), fs::read(path))?, expected) {
        (Ok(read), Expected::Bytes | Expected::BytesOr(_)) => {
            ensure!(read == body, "{name} is wrong: {}", first_difference(&read, body));
        }
        (Err(errno), Expected::BytesOr(clear) | Expected::Only(clear)) if errno == clear => {}
        (Ok(_), _) => anyhow::bail!("{name} was read and should not have been"),
        (Err(errno), _) => anyhow::bail!("{name}: {errno}, expected {expected:?}"),
    }
    Ok(())
}

#[test]
fn while_a_request_goes_wrong_each_time_readers_get_its_errno_and_then_the_bytes() -> Result<()> {
    let cases = [
        ("500", Fault::InternalError, Errno::IO),
        ("503", Fault::SlowDown, Errno::IO),
        ("403", Fault::Denied, Errno::ACCESS),
        ("404", Fault::Vanished, Errno::STALE),
        ("reset", Fault::Reset, Errno::IO),
        ("reset-in-body", Fault::ResetAfter(1000), Errno::IO),
        ("cut", Fault::CutAfter(1000), Errno::IO),
        ("too-short", Fault::LengthTooShort(10), Errno::IO),
        ("silence", Fault::Silence, Errno::IO),
        ("trickle", Fault::Trickle(1, Duration::from_millis(500)), Errno::IO),
        ("other-tag", Fault::OtherTag, Errno::STALE),
    ];
    let objects: Vec<_> =
        cases.iter().map(|(name, ..)| (*name, bytes(SMALL, name.len() as u64))).collect();
    let world = World::start(&objects, &[])?;
    // What is silent or asks to wait takes as long as the mount's patience.
    let identity = world.cluster.dir().join("client.pem");
    world.cluster.mount_as("soft", &identity, "timeout=10s")?.ok()?;
    let soft = world.cluster.mount_named("soft").join("set");
    ensure!(fs::read_dir(&soft)?.count() == objects.len(), "all are listed");
    for (name, fault, _) in &cases {
        world.proxy.add(Rule::always(Asked::Get, fault.clone()).of(&format!("set/{name}")));
    }
    thread::scope(|scope| {
        let readers: Vec<_> = cases
            .iter()
            .map(|(name, _, errno)| {
                let path = soft.join(name);
                scope.spawn(move || -> Result<()> {
                    let read = told(name, Instant::now(), fs::read(path))?;
                    ensure!(read.as_ref().err() == Some(errno), "{name}: {:?}", read.err());
                    Ok(())
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("no panic"))
    })?;
    drop(world.cluster.cli(&["umount", &world.cluster.mount_named("soft").display().to_string()])?);
    world.is_sound(&objects)
}

#[test]
fn pieces_and_mapped_pages_are_right_under_cuts_and_resets() -> Result<()> {
    let body = bytes(20_000_000, 5);
    let world = World::start(&[("pieces", body.clone()), ("mapped", body.clone())], &[])?;
    let set = world.set();
    let file = File::open(set.join("pieces"))?;
    for (at, fault) in [
        (Fault::ResetAfter(10_000)),
        (Fault::CutAfter(0)),
        (Fault::LengthTooLong(1)),
        (Fault::InternalError),
        (Fault::Trickle(100_000, Duration::from_millis(5))),
    ]
    .into_iter()
    .enumerate()
    {
        world.proxy.add(Rule::next(2, Asked::Get, fault).of("set/pieces"));
        for piece in [3, 1, 2] {
            let offset = at * 4_000_000 + piece * 1_111_111;
            let mut read = vec![0; 50_000];
            let what = format!("{at} at {offset}");
            let outcome = file.read_exact_at(&mut read, offset as u64);
            told(&what, Instant::now(), outcome)?.ok().with_context(|| what.clone())?;
            ensure!(read == body[offset..offset + 50_000], "{what} is wrong");
        }
    }
    for fault in [Fault::ResetAfter(500_000), Fault::CutAfter(1_000_000), Fault::SlowDown] {
        world.proxy.add(Rule::next(1, Asked::Get, fault).of("set/mapped"));
    }
    let copy = world.cluster.scratch()?.join("copy");
    let status = Command::new("python3")
        .args(["-c", COPIES_A_MAPPING])
        .args([&set.join("mapped"), &copy])
        .status()?;
    // A page that cannot be had is SIGBUS; these can, with another request.
    ensure!(status.success(), "{status} {:?}", status.signal());
    ensure!(fs::read(copy)? == body, "mapped pages are wrong");
    world.is_sound(&[("pieces", body.clone()), ("mapped", body)])
}

const COPIES_A_MAPPING: &str = "\
import mmap, sys
with open(sys.argv[1], 'rb') as file, open(sys.argv[2], 'wb') as copy:
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        copy.write(view)
";

#[test]
fn an_object_that_is_replaced_in_the_middle_of_an_answer_is_never_mixed() -> Result<()> {
    let (old, new) = (bytes(LARGE, 1), bytes(LARGE, 2));
    let world = World::start(&[("replaced", old), ("removed", bytes(LARGE, 3))], &[])?;
    ensure!(fs::read_dir(world.set())?.count() == 2, "all are listed");
    thread::scope(|scope| -> Result<()> {
        // The bucket is changed by another client while the proxy has a request wait.
        let (asks, asked) = std::sync::mpsc::channel::<&str>();
        let (done, finished) = std::sync::mpsc::channel::<()>();
        let finished = std::sync::Arc::new(std::sync::Mutex::new(finished));
        let (bucket, new) = (&world.bucket, &new);
        scope.spawn(move || -> Result<()> {
            while let Ok(what) = asked.recv() {
                match what {
                    "replaced" => bucket.put("set/replaced", new)?,
                    key => {
                        let delete = "client.delete_object(Bucket='data', Key=sys.argv[2])";
                        bucket.script(delete, &[&format!("set/{key}")])?;
                    }
                }
                done.send(())?;
            }
            Ok(())
        });
        for name in ["replaced", "removed"] {
            let (asks, finished) = (asks.clone(), std::sync::Arc::clone(&finished));
            let meanwhile = Hook::new(move || {
                asks.send(name).expect("somebody listens");
                finished.lock().expect("sound").recv().expect("it was done");
            });
            let key = format!("set/{name}");
            world.proxy.add(Rule::next(1, Asked::Get, Fault::ResetAfter(300_000)).of(&key));
            world.proxy.add(Rule::next(1, Asked::Get, Fault::Meanwhile(meanwhile)).of(&key));
            let outcome = told(name, Instant::now(), fs::read(world.set().join(name)))?;
            ensure!(outcome.as_ref().err() == Some(&Errno::STALE), "{name}: {:?}", outcome.err());
        }
        drop(asks);
        world.proxy.clear();
        Ok(())
    })?;
    ensure!(fs::read(world.set().join("replaced"))? == new, "the next open has the new version");
    let gone = fs::read(world.set().join("removed")).err().context("it is gone")?;
    ensure!(Errno::from_io_error(&gone) == Some(Errno::NOENT), "{gone}");
    world.is_sound(&[("replaced", new)])
}

#[test]
fn a_flipped_bit_in_a_small_object_is_noticed_and_the_object_asked_for_again() -> Result<()> {
    let names = ["first", "middle", "last", "always", "inner"];
    let objects: Vec<_> = names.iter().map(|name| (*name, bytes(SMALL, 9))).collect();
    let world = World::start(&objects, &[])?;
    ensure!(fs::read_dir(world.set())?.count() == objects.len(), "all are listed");
    for (name, at) in [("first", 0), ("middle", 150_000), ("last", 299_999)] {
        let key = format!("set/{name}");
        world.proxy.add(Rule::next(1, Asked::Get, Fault::FlippedBit(at)).of(&key));
    }
    for (name, body) in &objects[..3] {
        reads_as(&world, name, body, Expected::Bytes)?;
    }
    ensure!(world.proxy.done(Asked::Get, "flipped bit") == 3, "{}", world.proxy.told());
    // It comes whole also for who begins to read behind the bit.
    world.proxy.add(Rule::next(1, Asked::Get, Fault::FlippedBit(0)).of("set/inner"));
    let mut read = vec![0; 4096];
    File::open(world.set().join("inner"))?.read_exact_at(&mut read, 200_000)?;
    ensure!(read == objects[4].1[200_000..204_096], "the middle is wrong");
    ensure!(world.proxy.done(Asked::Get, "flipped bit") == 4, "{}", world.proxy.told());
    // Another bit each time: no two answers are alike.
    for at in 0..20 {
        let rule = Rule::next(1, Asked::Get, Fault::FlippedBit(at)).of("set/always");
        world.proxy.add(rule);
    }
    reads_as(&world, "always", &objects[3].1, Expected::Only(Errno::IO))?;
    world.is_sound(&objects)
}
