//! O_APPEND on two mounts: every append goes to the end, and none over another.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{run, wait_for},
};

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("{} cannot be opened", path.display()))
}

/// One line, as long as its number makes it: within a page and over several.
fn line(writer: usize, number: usize) -> String {
    let filling = "x".repeat(number * 397 % 9_000);
    format!("{writer} {number} {filling}\n")
}

/// How many lines of each writer the file has: all of them whole, in their order, none twice.
fn lines(path: &Path) -> Result<BTreeMap<usize, usize>> {
    let text = fs::read_to_string(path)?;
    ensure!(text.is_empty() || text.ends_with('\n'), "the last line has no end");
    let mut next = BTreeMap::new();
    for (at, found) in text.lines().enumerate() {
        let mut words = found.split(' ');
        let writer = words.next().and_then(|word| word.parse().ok());
        let writer = writer.with_context(|| format!("line {at} is torn: {found:.60}"))?;
        let number = next.entry(writer).or_default();
        let expected = line(writer, *number);
        ensure!(
            found == &expected[..expected.len() - 1],
            "line {at}, not {expected:.40}: {found:.40}"
        );
        *number += 1;
    }
    Ok(next)
}

fn two_mounts() -> Result<(Cluster, [PathBuf; 2])> {
    let cluster = Cluster::start(Wish::default())?;
    let mounts = [cluster.mount(), cluster.mount_named("second")];
    cluster.mount_also(&mounts[1])?;
    Ok((cluster, mounts))
}

/// Some keep the file open, some open it for each line; some sync.
#[test]
fn appends_of_six_writers_on_two_mounts_all_stand() -> Result<()> {
    const LINES: usize = 80;
    let (_cluster, mounts) = two_mounts()?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..6)
            .map(|writer| {
                let path = mounts[writer % 2].join("log");
                scope.spawn(move || {
                    let mut file = open(&path)?;
                    for number in 0..LINES {
                        file.write_all(line(writer, number).as_bytes())?;
                        match writer {
                            0 | 1 if number % 7 == 0 => file.sync_all()?,
                            2 | 3 => file = open(&path)?,
                            _ => {}
                        }
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("it does not panic"))
    })?;
    for mount in &mounts {
        let found = lines(&mount.join("log"))?;
        assert_eq!(found, (0..6).map(|writer| (writer, LINES)).collect());
    }
    Ok(())
}

#[test]
fn an_append_goes_behind_what_others_have_made_of_the_file() -> Result<()> {
    let (cluster, [one, two]) = two_mounts()?;
    let mut log = open(&one.join("log"))?;
    log.write_all(b"first, ")?;
    log.sync_all()?;
    fs::write(two.join("log"), "cut, ")?;
    log.write_all(b"second, ")?;
    let mut other = open(&two.join("log"))?;
    other.write_all(b"third, ")?;
    // It had the right to append until then, and had not stored the last one.
    log.write_all(b"fourth, ")?;
    cluster.crash("metadata")?;
    other.write_all(b"fifth")?;
    log.write_all(b".")?;
    drop((log, other));
    let expected = "cut, second, third, fourth, fifth.";
    assert_eq!(fs::read_to_string(one.join("log"))?, expected);
    assert_eq!(fs::read_to_string(two.join("log"))?, expected);

    // Through such a descriptor without the flag, and through a mapping, bytes go where they
    // belong.
    let script = "import fcntl, mmap, os, sys\n\
                  fd = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)\n\
                  with mmap.mmap(fd, 0) as view:\n\
                  \x20   view[0:3] = b'CUT'\n\
                  \x20   view.flush()\n\
                  fcntl.fcntl(fd, fcntl.F_SETFL, os.O_RDWR)\n\
                  assert os.pwrite(fd, b'SECOND', 5) == 6";
    run("python3", &[&"-c", &script, &one.join("log")])?.ok()?;
    assert_eq!(fs::read_to_string(two.join("log"))?, "CUT, SECOND, third, fourth, fifth.");

    // In a file without a name as well.
    let mut kept = open(&one.join("removed"))?;
    kept.write_all(b"1")?;
    fs::remove_file(two.join("removed"))?;
    kept.write_all(b"2")?;
    kept.sync_all()?;
    assert_eq!(kept.metadata()?.len(), 2);
    Ok(())
}

/// The one that is killed has the right to append, or waits for it; the others go on once its
/// session is over.
#[test]
fn a_mount_that_dies_holds_nobody_up_for_longer_than_its_lease() -> Result<()> {
    let (cluster, mounts) = two_mounts()?;
    let over = AtomicBool::new(false);
    let (done, synced) = (AtomicU32::new(0), AtomicU32::new(0));
    let (reached, lost) = thread::scope(|scope| {
        let survivor = scope.spawn(|| {
            let mut file = open(&mounts[0].join("log"))?;
            for number in 0.. {
                if over.load(Ordering::Acquire) {
                    return Ok(number);
                }
                file.write_all(line(0, number).as_bytes())?;
                done.fetch_add(1, Ordering::AcqRel);
            }
            anyhow::Ok(0)
        });
        // Ends with an error when its mount is gone.
        let killed = scope.spawn(|| -> Result<()> {
            let mut file = open(&mounts[1].join("log"))?;
            for number in 0.. {
                file.write_all(line(1, number).as_bytes())?;
                file.sync_all()?;
                synced.fetch_add(1, Ordering::AcqRel);
            }
            Ok(())
        });
        let work = || -> Result<()> {
            let reach = |count: &AtomicU32, wanted| {
                let reached = || (count.load(Ordering::Acquire) >= wanted).then_some(());
                wait_for("both append", reached)
            };
            reach(&synced, 20)?;
            cluster.daemon("mount-1")?.kill()?;
            let before = done.load(Ordering::Acquire);
            reach(&done, before + 20)
        };
        let outcome = work();
        over.store(true, Ordering::Release);
        let survived = survivor.join().expect("it does not panic");
        let lost = killed.join().expect("it does not panic").is_err();
        outcome?;
        anyhow::Ok((survived?, lost))
    })?;
    assert!(lost);
    let found = lines(&mounts[0].join("log"))?;
    assert_eq!(found[&0], reached);
    let synced = usize::try_from(synced.load(Ordering::Acquire))?;
    assert!((synced..=synced + 1).contains(&found[&1]), "{found:?}, {synced} were synced");
    Ok(())
}
