//! Large directories, read in pieces on one mount while another one changes them.
//!
//! `MILLRACE_TEST_SEED` chooses the seed; `MILLRACE_TEST_LENGTH` makes the directory so many times
//! as large.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    mem::MaybeUninit,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use millrace_runtime::Random;
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
    figures,
    program::finish,
};
use rustix::fs::{CWD, FileType, Mode, RawDir, SeekFrom, mknodat, seek};

/// Names that stay. Made at some thousand a second.
const STABLE: u64 = 10_000;
const MAKERS: u64 = 8;
/// Names of a directory that is changed by who lists it: three pages of the server's.
const RENAMED: u64 = 3_000;
/// Listings from beginning to end, and how many ways there are to list.
const LISTINGS: u64 = 15;
const WAYS: u64 = 5;
/// Names that come and go there are at most so many at a time.
const PASSING_MAX: usize = 200;
/// The largest listing of the longest run takes minutes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1800);

#[test]
fn each_name_that_stays_is_listed_once_while_others_come_and_go() -> Result<()> {
    let (seed, stable) = (chance::seed()?, STABLE * chance::length()?);
    let random = Random::seeded(seed);
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount().join("large"), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let two = two.join("large");
    fs::create_dir(&one)?;
    let begun = Instant::now();
    make(&one, stable)?;
    let made = begun.elapsed();

    let (ended, passing) = (AtomicBool::new(false), Mutex::new(Passing::default()));
    let mut longest = Duration::ZERO;
    thread::scope(|scope| {
        let changing = scope.spawn(|| change(&two, &ended, &passing, &random));
        let mut listed = Ok(());
        for listing in 0..LISTINGS {
            let begun = Instant::now();
            listed = check_listing(&one, listing % WAYS, stable, &passing, &random)
                .with_context(|| format!("listing {listing} of seed {seed}"));
            longest = longest.max(begun.elapsed());
            if listed.is_err() {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
        let changed = changing.join().expect("it answers with errors");
        listed.and(changed)
    })?;
    let changes = passing.lock().expect("nobody panicked with it").next;
    ensure!(changes > 20, "{changes} names came: nothing changed while it was listed");

    let plain = time(&["ls", "-f"], &two, stable)?;
    let long = time(&["ls", "-l"], &two, stable)?;
    let again = time(&["ls", "-l"], &two, stable)?;
    figures::report(&format!(
        "a directory of {stable} names (made in {:.0} s) was listed {LISTINGS} times with seeks, \
         {:.1} s at most, while {changes} names came and went on another mount: each that stayed \
         was there once; on that mount `ls -f` took {:.2} s, `ls -l` {:.2} s, then {:.2} s",
        made.as_secs_f64(),
        longest.as_secs_f64(),
        plain.as_secs_f64(),
        long.as_secs_f64(),
        again.as_secs_f64(),
    ))
}

#[test]
fn a_listing_whose_reader_renames_each_entry_shows_each_once_and_ends() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (folder, spare) = (cluster.mount().join("renamed"), cluster.mount().join("spare"));
    fs::create_dir(&folder)?;
    make(&folder, RENAMED)?;
    // Written anew, as editors do: each name is there throughout.
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        File::create_new(&spare)?;
        fs::rename(&spare, &path)?;
        ensure!(seen.insert(path.clone()), "{} is listed again", path.display());
    }
    ensure!(seen.len() as u64 == RENAMED, "{} names of {RENAMED}", seen.len());

    let mut renamed = 0;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        ensure!(path.extension().is_none(), "{} was made meanwhile", path.display());
        fs::rename(&path, path.with_extension("bak"))?;
        renamed += 1;
    }
    ensure!(renamed == RENAMED, "{renamed} names of {RENAMED}");
    let listed = fs::read_dir(&folder)?.count();
    ensure!(listed as u64 == RENAMED, "{listed} names of {RENAMED} after that");
    Ok(())
}

/// Makes the names that stay.
fn make(folder: &Path, count: u64) -> Result<()> {
    thread::scope(|scope| {
        let making: Vec<_> = (0..MAKERS)
            .map(|maker| {
                scope.spawn(move || -> Result<()> {
                    for number in (maker..count).step_by(usize::try_from(MAKERS)?) {
                        let path = folder.join(format!("stays-{number}"));
                        let mode = Mode::from_raw_mode(0o644);
                        mknodat(CWD, path, FileType::RegularFile, mode, 0)?;
                    }
                    Ok(())
                })
            })
            .collect();
        making.into_iter().try_for_each(|maker| maker.join().expect("it answers with errors"))
    })
}

/// Names that come and go. None comes twice.
#[derive(Default)]
struct Passing {
    /// The number of the next one.
    next: u64,
    /// Those that are there, and those that are being made or removed.
    there: BTreeSet<u64>,
}

/// Makes and removes names until `ended`.
fn change(
    folder: &Path,
    ended: &AtomicBool,
    passing: &Mutex<Passing>,
    random: &Random,
) -> Result<()> {
    let path = |number: u64| folder.join(format!("passes-{number}"));
    let lock = || passing.lock().expect("nobody panics with it");
    while !ended.load(Ordering::Relaxed) {
        let many = lock().there.len();
        if many < PASSING_MAX && random.within(0..2) == 0 {
            let number = {
                let mut passing = lock();
                passing.next += 1;
                let number = passing.next;
                passing.there.insert(number);
                number
            };
            File::create_new(path(number))?;
        } else if many > 0 {
            let at = usize::try_from(random.within(0..many as u64))?;
            let number = lock().there.iter().nth(at).copied().context("only this one removes")?;
            fs::remove_file(path(number))?;
            lock().there.remove(&number);
        }
    }
    Ok(())
}

/// Lists once, and checks what was listed.
fn check_listing(
    folder: &Path,
    way: u64,
    stable: u64,
    passing: &Mutex<Passing>,
    random: &Random,
) -> Result<()> {
    let lock = || passing.lock().expect("nobody panics with it");
    let before = lock().there.clone();
    let first = lock().next;
    let listed = list(folder, way, random)?;
    let last = lock().next;
    let mut seen = BTreeSet::new();
    for name in &listed {
        ensure!(seen.insert(name), "{name} was listed twice");
    }
    for number in 0..stable {
        let name = format!("stays-{number}");
        ensure!(seen.remove(&name), "{name} was not listed");
    }
    ensure!(seen.remove(&".".to_owned()) && seen.remove(&"..".to_owned()), "the dots");
    for name in seen {
        let number = name.strip_prefix("passes-").with_context(|| format!("{name} is nobody's"))?;
        let number = number.parse()?;
        // Removed before the listing began, or made after its end: it is not there.
        let possible = before.contains(&number) || (first < number && number <= last);
        ensure!(possible, "{name} was not there");
    }
    Ok(())
}

/// The names in the order in which they are listed. Each `way` has its own size of a piece, and
/// its own times when it leaves the rest of a piece and goes on where it was, as `telldir` and
/// `seekdir` do: every third time on another descriptor.
fn list(folder: &Path, way: u64, random: &Random) -> Result<Vec<String>> {
    let mut buffer = vec![MaybeUninit::uninit(); 512 << (2 * way)];
    let mut names = Vec::new();
    let mut file = File::open(folder)?;
    loop {
        let mut left = if way == 0 { u64::MAX } else { random.within(1..100 * way * way) };
        let mut reading = RawDir::new(&file, &mut buffer);
        let mut place = None;
        while let Some(entry) = reading.next() {
            let entry = entry?;
            names.push(String::from_utf8(entry.file_name().to_bytes().to_vec())?);
            left -= 1;
            if left == 0 {
                place = Some(entry.next_entry_cookie());
                break;
            }
        }
        let Some(place) = place else { return Ok(names) };
        if random.within(0..3) == 0 {
            file = File::open(folder)?;
        }
        seek(&file, SeekFrom::Start(place))?;
    }
}

/// How long a program takes to list everything. It prints a line for each name, at least.
fn time(program: &[&str], folder: &Path, names: u64) -> Result<Duration> {
    let mut command = std::process::Command::new(program[0]);
    command.args(&program[1..]).arg(PathBuf::from(folder));
    let begun = Instant::now();
    let said = finish(&mut command, PATIENCE)?.ok()?;
    let took = begun.elapsed();
    let lines = said.lines().filter(|line| line.contains("stays-")).count();
    ensure!(lines as u64 == names, "{program:?} printed {lines} names of {names}");
    Ok(took)
}
