//! Many programs on two hosts that change one directory at the same time.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    chance,
    cluster::{Cluster, Wish},
};

use crate::delegations::mounts;

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
