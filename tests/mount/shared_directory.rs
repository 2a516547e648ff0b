//! Many programs on two hosts that change one directory at the same time.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
    program::wait_for,
    requests::{answered, serving},
};

use crate::delegations::{PATIENCE, mounts, soon};

/// Programs on each host.
const PROGRAMS: u32 = 4;

/// What one program does: files of its own, some of them under another name in the end and some
/// removed again, and names that all of them want.
fn work(directory: &Path, own: &str, files: u32, won: &AtomicU32) -> Result<BTreeSet<String>> {
    let mut stay = BTreeSet::new();
    for number in 0..files {
        let name = format!("{own}-{number}");
        let path = directory.join(&name);
        fs::write(&path, &name).with_context(|| format!("writing {name}"))?;
        match number % 8 {
            3 => {
                let last = format!("{name}-last");
                fs::rename(&path, directory.join(&last))
                    .with_context(|| format!("{name}: move"))?;
                stay.insert(last);
            }
            5 => fs::remove_file(&path).with_context(|| format!("removing {name}"))?,
            _ => drop(stay.insert(name)),
        }
        let wanted = directory.join(format!("wanted-{number}"));
        match OpenOptions::new().create_new(true).write(true).open(wanted) {
            Ok(mut file) => {
                file.write_all(own.as_bytes())?;
                won.fetch_add(1, SeqCst);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context("a name that all want"),
        }
    }
    Ok(stay)
}

#[test]
fn what_many_programs_of_two_hosts_make_in_one_directory_is_there_once() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    fs::create_dir(one.join("shared"))?;
    let files = 40 * u32::try_from(chance::length()?)?;
    let (won, barrier) = (AtomicU32::new(0), Barrier::new(2 * PROGRAMS as usize));
    let is_over = AtomicBool::new(false);
    let stay: Vec<Result<BTreeSet<String>>> = thread::scope(|scope| {
        // Somebody lists it all the while.
        let listed = scope.spawn(|| -> io::Result<u32> {
            let mut times = 0;
            while !is_over.load(SeqCst) {
                fs::read_dir(two.join("shared"))?.try_for_each(|entry| entry.map(drop))?;
                times += 1;
            }
            Ok(times)
        });
        let programs: Vec<_> = (0..2 * PROGRAMS)
            .map(|nth| {
                let directory = if nth % 2 == 0 { &one } else { &two }.join("shared");
                let (won, barrier) = (&won, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    work(&directory, &format!("of-{nth}"), files, won)
                })
            })
            .collect();
        let ended: Vec<_> = programs.into_iter().map(|program| program.join()).collect();
        // Also after a panic: it would be listed for ever.
        is_over.store(true, SeqCst);
        assert!(listed.join().expect("no panic").expect("it can be listed") > 0);
        ended.into_iter().map(|stay| stay.expect("no panic")).collect()
    });
    let mut expected: BTreeSet<_> = (0..files).map(|number| format!("wanted-{number}")).collect();
    for names in stay {
        expected.append(&mut names?);
    }
    ensure!(won.load(SeqCst) == files, "{} of {files} names were made", won.load(SeqCst));
    for mount in [&one, &two] {
        let directory = mount.join("shared");
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&directory)? {
            let name = entry?.file_name().into_string().expect("plain names");
            let text = fs::read_to_string(directory.join(&name))?;
            let is_right = match name.strip_prefix("wanted-") {
                Some(_) => text.starts_with("of-"),
                None => name.strip_suffix("-last").unwrap_or(&name) == text,
            };
            ensure!(is_right, "{name} holds {text:?} on {}", mount.display());
            ensure!(names.insert(name), "a name is listed twice");
        }
        ensure!(names == expected, "{}: {names:?}", mount.display());
    }
    Ok(())
}

/// Makes a file on each of two hosts in turn in a directory that both know; it has so many then.
fn take_turn(directories: &[PathBuf; 2], round: u64) -> Result<u64> {
    let mut count = 2 * round;
    for (maker, other) in [(0, 1), (1, 0)] {
        let name = format!("{round}-of-{maker}");
        let other = directories[other].join(&name);
        let absent = fs::metadata(&other).expect_err("it is not made yet").kind();
        ensure!(absent == io::ErrorKind::NotFound, "{name}: {absent}");
        File::create_new(directories[maker].join(&name))?;
        count += 1;
        ensure!(fs::metadata(&other)?.is_file(), "{name} is there on the other host");
        for directory in directories {
            let size = fs::metadata(directory)?.len();
            ensure!(size == count, "{} shows {size} of {count} names", directory.display());
        }
    }
    Ok(count)
}

/// Takes so many turns, and then more until both hosts know after one what the directory shows.
/// Where one hears slowly of names, as on a busy machine, the server leaves the directory alone
/// until nobody has made any for a moment.
fn take_turns(cluster: &Cluster, directories: &[PathBuf; 2], rounds: u64) -> Result<u64> {
    for round in 0..rounds {
        take_turn(directories, round)?;
    }
    let mut round = rounds;
    wait_for("hosts that ask for nothing after a turn", || {
        let turn = take_turn(directories, round).and_then(|count| {
            round += 1;
            Ok((look(cluster, directories, &format!("absent-{round}"))?, count))
        });
        match turn {
            Ok((true, count)) => Some(Ok(count)),
            Ok((false, _)) => look_until_known(cluster, directories, round).err().map(Err),
            Err(error) => Some(Err(error)),
        }
    })?
}

/// Looks at the directory on both hosts until they ask for nothing.
fn look_until_known(cluster: &Cluster, directories: &[PathBuf; 2], round: u64) -> Result<()> {
    let mut number = 0;
    wait_for("hosts that ask for nothing", || {
        number += 1;
        match look(cluster, directories, &format!("absent-{round}-{number}")) {
            Ok(is_known) => is_known.then_some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    })?
}

/// Asks both hosts what the directory shows, and for a name that is not there; whether they have
/// not asked the server.
fn look(cluster: &Cluster, directories: &[PathBuf; 2], absent: &str) -> Result<bool> {
    let before = answered(cluster)?;
    for directory in directories {
        fs::metadata(directory)?;
        let found = fs::metadata(directory.join(absent)).map(drop);
        ensure!(found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound), "{absent}");
    }
    Ok(is_unasked(&before, &answered(cluster)?))
}

/// Whether nobody has asked the server in between what a directory shows.
fn is_unasked(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> bool {
    let mut kinds = ["FindName", "ListEntries", "ShowInode"].into_iter();
    kinds.all(|kind| before.get(kind) == after.get(kind))
}

fn shared(cluster: &Cluster) -> Result<[PathBuf; 2]> {
    let (one, two) = mounts(cluster)?;
    let directories = [one.join("shared"), two.join("shared")];
    fs::create_dir(&directories[0])?;
    ensure!(fs::read_dir(&directories[1])?.next().is_none(), "it is new");
    Ok(directories)
}

#[test]
fn who_makes_files_beside_another_host_knows_what_that_has_made_without_asking() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let directories = shared(&cluster)?;
    let count = take_turns(&cluster, &directories, 30)?;
    // Each has heard of the last name by now, which the other one has waited for.
    let paused = cluster.daemon("metadata")?.pause()?;
    for directory in directories {
        let (shown, absent) = soon(move || {
            (fs::metadata(&directory), fs::metadata(directory.join("never")).map(drop))
        })?;
        ensure!(shown?.len() == count, "it knows what the directory shows");
        let absent = absent.expect_err("nobody has made it").kind();
        ensure!(absent == io::ErrorKind::NotFound, "it knows what is not there: {absent}");
    }
    drop(paused);
    Ok(())
}

#[test]
fn who_makes_a_file_is_answered_when_the_other_host_has_heard_of_it() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let directories = shared(&cluster)?;
    take_turns(&cluster, &directories, 10)?;
    let paused = cluster.daemon("second")?.pause()?;
    let (done, made) = mpsc::channel();
    let new = directories[0].join("new");
    let maker = thread::spawn(move || done.send(File::create_new(new).map(drop)));
    let early = made.recv_timeout(Duration::from_millis(500));
    drop(paused);
    ensure!(matches!(early, Err(mpsc::RecvTimeoutError::Timeout)), "it waits: {early:?}");
    made.recv_timeout(PATIENCE).context("and no longer than that")??;
    ensure!(fs::metadata(directories[1].join("new"))?.is_file());
    maker.join().expect("no panic")?;
    Ok(())
}

#[test]
fn names_that_are_not_there_are_known_from_a_list_of_those_that_are() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let [one, two] = shared(&cluster)?;
    for number in 0..100 {
        fs::write(one.join(format!("there-{number}")), "x")?;
    }
    // None of them is asked for twice. A list that comes while the other host still tells of its
    // names does not last.
    let numbers = Cell::new(0);
    wait_for("a name that is known not to be there", || {
        let before = answered(&cluster).ok()?;
        let absent =
            fs::metadata(two.join(format!("absent-{}", numbers.replace(numbers.get() + 1))));
        assert!(absent.is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        is_unasked(&before, &answered(&cluster).ok()?).then_some(())
    })?;
    let paused = cluster.daemon("metadata")?.pause()?;
    let directory = two.clone();
    let absent = soon(move || fs::metadata(directory.join("never")).map(drop))?;
    ensure!(absent.is_err_and(|error| error.kind() == io::ErrorKind::NotFound), "it is known");
    drop(paused);
    fs::write(one.join("never"), "x")?;
    ensure!(fs::read(two.join("never"))? == b"x", "and no longer than it is true");
    fs::remove_file(one.join("there-5"))?;
    let gone = fs::metadata(two.join("there-5"));
    ensure!(gone.is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    Ok(())
}

#[test]
fn who_makes_a_file_waits_no_longer_for_another_host_that_died_than_its_lease() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let directories = shared(&cluster)?;
    take_turns(&cluster, &directories, 10)?;
    cluster.daemon("second")?.kill()?;
    let began = Instant::now();
    let new = directories[0].join("after");
    let alone = new.clone();
    // Longer than a lease and the clock error.
    let (made, seen) = thread::scope(|scope| {
        let made = scope.spawn(|| File::create_new(&new).map(drop));
        // Whoever looks meanwhile is not held up by it.
        let seen = soon(move || fs::read_dir(alone.parent().expect("it has one")).map(drop));
        (made.join().expect("no panic"), seen)
    });
    made?;
    seen??;
    ensure!(began.elapsed() < 3 * PATIENCE, "it took {:?}", began.elapsed());
    ensure!(fs::metadata(&new)?.is_file());
    Ok(())
}
