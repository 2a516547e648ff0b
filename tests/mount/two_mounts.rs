//! Two mounts of one cluster: what one closes, the other sees.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
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
    program::wait_for,
};

use rustix::fs::OFlags;

use crate::owners::as_user;

#[test]
fn what_one_mount_has_closed_the_other_sees_at_once() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;

    fs::write(one.join("shared"), vec![1; 3_000_000])?;
    assert!(fs::read(two.join("shared"))? == vec![1; 3_000_000]);
    fs::write(two.join("shared"), "shorter")?;
    assert_eq!(fs::read(one.join("shared"))?, b"shorter");

    let mut file = OpenOptions::new().append(true).open(one.join("shared"))?;
    file.write_all(b" and longer")?;
    file.sync_all()?;
    assert_eq!(fs::read(two.join("shared"))?, b"shorter and longer");

    fs::rename(two.join("shared"), two.join("renamed"))?;
    assert!(!one.join("shared").exists());
    assert_eq!(fs::metadata(one.join("renamed"))?.len(), 18);
    fs::remove_file(one.join("renamed"))?;
    assert!(fs::read_dir(&two)?.next().is_none());
    Ok(())
}

#[test]
fn a_directory_that_one_has_moved_the_other_moves_on() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    for name in ["a", "b", "c", "a/x", "a/x/below"] {
        fs::create_dir(one.join(name))?;
    }
    // The other one's kernel knows the directory in its old place, also when it moves it there.
    for to in ["a/x", "b/y", "c/w"] {
        assert!(two.join("a/x/below").is_dir());
        fs::rename(one.join("a/x"), one.join("b/x")).context("what the other one moved last")?;
        fs::rename(two.join("b/x"), two.join("c/x")).context("after the other one")?;
        assert!(one.join("c/x/below").is_dir() && two.join("c/x/below").is_dir());
        assert!(!two.join("a/x").exists() && !two.join("b/x").exists());
        fs::rename(one.join("c/x"), one.join(to)).with_context(|| format!("to {to}"))?;
        fs::rename(two.join(to), two.join("c/z")).with_context(|| format!("from {to}"))?;
        fs::rename(one.join("c/z"), one.join("b/z")).context("to and fro")?;
        fs::rename(two.join("b/z"), two.join("a/x")).context("back, where it was first")?;
    }
    Ok(())
}

#[test]
fn a_file_that_both_append_to_in_turn_keeps_every_line() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    File::create_new(one.join("log"))?;
    let mut expected = String::new();
    for round in 0..20 {
        for mount in [&one, &two] {
            let line = format!("{round} {}\n", mount.display());
            OpenOptions::new().append(true).open(mount.join("log"))?.write_all(line.as_bytes())?;
            expected.push_str(&line);
        }
    }
    assert_eq!(fs::read_to_string(one.join("log"))?, expected);
    assert_eq!(fs::read_to_string(two.join("log"))?, expected);
    Ok(())
}

#[test]
fn an_open_sees_what_was_synced_elsewhere_although_older_bytes_are_cached() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount().join("file"), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let two = two.join("file");
    fs::write(&one, vec![b'a'; 300_000])?;
    // Stays open and keeps its pages in the kernel's cache.
    let mut before = File::open(&two)?;
    let mut old = vec![0; 300_000];
    before.read_exact(&mut old)?;
    let mut writer = OpenOptions::new().write(true).open(&one)?;
    writer.write_all(b"changed")?;
    writer.sync_all()?;
    assert_eq!(&fs::read(&two)?[..9], b"changedaa", "not closed, but synced");
    let mut begun = [0; 7];
    before.read_exact_at(&mut begun, 0)?;
    assert_eq!(&begun, b"changed", "the open of another program renews what this one reads");
    writer.set_len(3)?;
    assert_eq!((before.metadata()?.len(), fs::metadata(&two)?.len()), (3, 3));
    assert_eq!(fs::read(&two)?, b"cha");
    Ok(())
}

#[test]
fn who_reads_on_sees_what_was_synced_elsewhere_although_nobody_opens_the_file_again() -> Result<()>
{
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount().join("file"), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    fs::write(&one, vec![b'-'; 300_000])?;
    let older = File::open(two.join("file"))?;
    let begin = || -> Result<[u8; 7]> {
        let mut begin = [0; 7];
        older.read_exact_at(&mut begin, 0)?;
        Ok(begin)
    };
    ensure!(begin()? == *b"-------");
    let comes = |text: &[u8; 7]| {
        let what = format!("{} to be shown", String::from_utf8_lossy(text));
        wait_for(&what, || (begin().ok()? == *text).then_some(()))
    };
    let writer = File::options().write(true).open(&one)?;
    for text in [b"changed", b"another"] {
        writer.write_all_at(text, 0)?;
        writer.sync_all()?;
        comes(text)?;
    }
    drop(writer);
    File::options().write(true).open(&one)?.write_all_at(b"a third", 0)?;
    comes(b"a third")?;
    fs::remove_file(&one)?;
    ensure!(begin()? == *b"a third", "it is open");
    Ok(())
}

#[test]
fn what_is_written_after_another_mount_has_truncated_stays() -> Result<()> {
    type Cut = fn(&Path) -> Result<()>;
    let opened: Cut = |path| Ok(File::create(path).map(drop)?);
    let emptied: Cut = |path| Ok(OpenOptions::new().write(true).open(path)?.set_len(0)?);
    let shrunk: Cut = |path| Ok(OpenOptions::new().write(true).open(path)?.set_len(10)?);
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let cuts = [("opened", opened, 0), ("emptied", emptied, 0), ("shrunk", shrunk, 10)];
    for (name, cut, left) in cuts {
        for round in 0..4_u8 {
            let (path, other) = (one.join(name), two.join(name));
            let written = File::options().read(true).write(true).create_new(true).open(&path)?;
            written.write_all_at(&[b'-'; 100_000], 0)?;
            // Known to the servers, or only here.
            if round < 2 {
                written.sync_all()?;
            }
            cut(&other).with_context(|| format!("{name}, round {round}"))?;
            // Behind the end, or where the cut has left nothing.
            let at = if round % 2 == 0 { left } else { 100_000 };
            written.write_all_at(b"after", at)?;
            written.sync_all()?;
            let context = || format!("{name}, round {round}, written at {at}");
            let mut seen = vec![0; 5];
            File::open(&other)?.read_exact_at(&mut seen, at).with_context(context)?;
            assert_eq!(seen, b"after", "{}", context());
            let here = fs::read(&path).with_context(context)?;
            drop(written);
            let there = fs::read(&other).with_context(context)?;
            assert!(here == there, "{}: the mounts show two files", context());
            let from = usize::try_from(at)?;
            assert_eq!(&there[from..from + 5], b"after", "{}", context());
            if round < 2 {
                let rest = &there[usize::try_from(left)?..from];
                assert_eq!(there.len(), from + 5, "{}", context());
                assert!(rest.iter().all(|&byte| byte == 0), "{}: what was cut", context());
            }
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

type Hear = fn(&Path) -> Result<()>;

/// Whatever the writer's host asks the server first after the cut, it learns of the cut with that.
#[test]
fn a_hole_is_known_however_the_writers_mount_has_heard_of_the_cut() -> Result<()> {
    let looked: Hear = |path| Ok(fs::metadata(path).map(drop)?);
    let read: Hear = |path| Ok(fs::read(path).map(drop)?);
    let written: Hear = |path| Ok(OpenOptions::new().write(true).open(path).map(drop)?);
    let begun: Hear = |path| {
        let mut first = [0; 1];
        File::open(path)?.read_at(&mut first, 0)?;
        Ok(())
    };
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let mut witness = Witness::new(&one, &two)?;
    let ways = [("looked", looked), ("read", read), ("written", written), ("begun", begun)];
    for (name, hear) in ways {
        for left in [0, 10] {
            let mut attempt = 0;
            loop {
                let file = format!("{name}-{left}-{attempt}");
                let paths = (one.join(&file), two.join(&file));
                witness.write()?;
                if is_hole_known(&paths, left, hear).with_context(|| file.clone())? {
                    break;
                }
                // The mount stores what waits every two seconds. What it had stored before the cut
                // is rightly gone: such a round says nothing.
                let is_stored = witness.is_stored()?;
                ensure!(is_stored && attempt < 10, "{file}: the mounts show something else");
                attempt += 1;
            }
        }
    }
    Ok(())
}

/// Writes behind the end of a file that is then cut by the other mount; whether both show what was
/// left of it, a hole, and what was written.
fn is_hole_known((path, other): &(PathBuf, PathBuf), left: u64, hear: Hear) -> Result<bool> {
    const AT: u64 = 3_000_000;
    let file = File::create_new(path)?;
    file.write_all_at(&[b'-'; 100_000], 0)?;
    file.sync_all()?;
    // Waits in memory.
    file.write_all_at(b"after", AT)?;
    OpenOptions::new().write(true).open(other)?.set_len(left)?;
    hear(path)?;
    file.sync_all()?;
    let mut expected = vec![b'-'; usize::try_from(left)?];
    expected.resize(usize::try_from(AT)?, 0);
    expected.extend(b"after");
    let is_known = fs::read(other)? == expected && fs::read(path)? == expected;
    drop(file);
    fs::remove_file(path)?;
    Ok(is_known)
}

/// A byte that waits in the memory of a mount, and is stored when the mount stores what waits.
struct Witness {
    file: File,
    elsewhere: PathBuf,
    len: u64,
}

impl Witness {
    fn new(here: &Path, there: &Path) -> Result<Self> {
        let file = File::create_new(here.join("witness"))?;
        Ok(Self { file, elsewhere: there.join("witness"), len: 0 })
    }

    /// Writes a byte, when those before it are stored.
    fn write(&mut self) -> Result<()> {
        self.file.sync_all()?;
        self.file.write_all_at(b"x", self.len)?;
        self.len += 1;
        Ok(())
    }

    /// Whether the other mount shows that byte.
    fn is_stored(&self) -> Result<bool> {
        Ok(fs::metadata(&self.elsewhere)?.len() == self.len)
    }
}

#[test]
fn a_writer_that_goes_on_while_another_mount_truncates_loses_nothing_later() -> Result<()> {
    const RECORD: u64 = 1000;
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let (path, other) = (one.join("log"), two.join("log"));
    let file = File::create_new(&path)?;
    let record = |number: u64| format!("{number:>999}\n").into_bytes();
    let (begun, synced, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let write = || -> Result<()> {
        while !over.load(SeqCst) {
            let number = begun.fetch_add(1, SeqCst) + 1;
            file.write_all_at(&record(number), number * RECORD)?;
            file.sync_all()?;
            synced.store(number, SeqCst);
        }
        Ok(())
    };
    let cut = || -> Result<()> {
        for round in 0..40_u64 {
            // To nothing, or to a little more than what is sure to be there by then.
            let size = if round % 2 == 0 { 0 } else { RECORD + round };
            OpenOptions::new().write(true).open(&other)?.set_len(size)?;
            let first = begun.load(SeqCst) + 1;
            let deadline = Instant::now() + Duration::from_secs(60);
            while synced.load(SeqCst) < first + 2 {
                ensure!(Instant::now() < deadline, "round {round}: the writer has stopped");
                thread::yield_now();
            }
            let reader = File::open(&other)?;
            for number in first..first + 2 {
                let mut seen = vec![0; record(number).len()];
                let context = || format!("round {round}: record {number}, first {first}");
                reader.read_exact_at(&mut seen, number * RECORD).with_context(context)?;
                ensure!(seen == record(number), "{} is not there", context());
            }
            fs::read(&other).with_context(|| format!("round {round}: what lies before"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let writer = scope.spawn(write);
        let done = cut();
        over.store(true, SeqCst);
        writer.join().expect("the writer does not panic")?;
        done
    })
}

#[test]
fn who_may_not_keep_setuid_takes_it_away_by_a_write_on_whatever_mount_it_was_set() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let (here, there) = (one.join("program"), two.join("program"));
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    let shown = |path: &Path| fs::metadata(path).map(|found| found.mode() & 0o7777);
    fs::write(&here, "first")?;
    set(&here, 0o777)?;
    let file = OpenOptions::new().write(true).open(&here)?;
    let write = || as_user(|| file.write_all_at(b"his", 0));
    // From here on its mode is known to the writer's mount.
    write()??;
    for (mode, left) in [(0o4777, 0o777), (0o6755, 0o755), (0o6745, 0o2745)] {
        set(&there, mode)?;
        write()??;
        // With what was written at the latest.
        file.sync_all()?;
        assert_eq!((shown(&there)?, shown(&here)?), (left, left), "{mode:o}");
    }
    // What the other mount has set since is not undone.
    set(&here, 0o4755)?;
    set(&there, 0o600)?;
    write()??;
    file.sync_all()?;
    assert_eq!((shown(&there)?, shown(&here)?), (0o600, 0o600));

    // Of a file that both write neither may keep what it knows.
    let other = OpenOptions::new().write(true).open(&there)?;
    set(&there, 0o755)?;
    write()??;
    set(&there, 0o4755)?;
    write()??;
    file.sync_all()?;
    assert_eq!((shown(&there)?, shown(&here)?), (0o755, 0o755));
    // But whoever sets it after what was written means that.
    write()??;
    set(&here, 0o4755)?;
    file.sync_all()?;
    assert_eq!((shown(&there)?, shown(&here)?), (0o4755, 0o4755));
    drop(other);
    Ok(())
}

/// What one takes back from the other's kernel waits behind that one's own changes of the same
/// directory, which wait for the first: neither may wait for good.
#[test]
fn changes_of_both_in_the_same_directories_do_not_wait_in_a_circle() -> Result<()> {
    const DIRECTORIES: u64 = 30;
    const CHANGES: u64 = 400;
    let random = Random::seeded(chance::seed()?);
    let changes = CHANGES * chance::length()?;
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    for directory in 0..DIRECTORIES {
        fs::create_dir(one.join(format!("d{directory}")))?;
    }
    let work = |top: &Path| -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for _ in 0..changes {
            let directory = top.join(format!("d{}", random.within(0..DIRECTORIES)));
            let path = |number: u64| directory.join(format!("n{number}"));
            let (name, other) = (path(random.within(0..4)), path(random.within(0..4)));
            // The kernel has them all in hand when one changes.
            for number in 0..4 {
                allowed(fs::symlink_metadata(path(number)).map(drop), true)?;
            }
            let change = random.within(0..3);
            let began = Instant::now();
            let done = match change {
                0 => fs::write(&name, "x"),
                1 => fs::remove_file(&name),
                _ => fs::rename(&name, &other),
            };
            longest = longest.max(began.elapsed());
            // Who makes a file finds one or makes it.
            allowed(done, change != 0).with_context(|| format!("{change}: {}", name.display()))?;
        }
        Ok(longest)
    };
    let longest = thread::scope(|scope| {
        let threads = [&one, &two, &one, &two].map(|top| scope.spawn(|| work(top)));
        let all = threads.map(|thread| thread.join().expect("no panic"));
        all.into_iter().collect::<Result<Vec<_>>>()
    })?;
    let longest = longest.into_iter().max().unwrap_or_default();
    // A lease lasts 30 s: nobody waited for one to end.
    ensure!(longest < Duration::from_secs(25), "a change took {longest:?}");
    ensure!(!cluster.log("metadata").contains("session ends:"), "a mount was given up");
    for directory in 0..DIRECTORIES {
        let names = |top: &Path| -> Result<BTreeSet<OsString>> {
            let listed = fs::read_dir(top.join(format!("d{directory}")))?;
            Ok(listed.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?)
        };
        let left = names(&one)?;
        assert_eq!(left, names(&two)?, "d{directory}");
        for name in &left {
            for top in [&one, &two] {
                let path = top.join(format!("d{directory}")).join(name);
                let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
                assert_eq!(bytes, b"x", "{}: who wrote it last wrote all of it", path.display());
            }
        }
    }
    figures::report(&format!(
        "{} changes of both mounts in the same directories: the longest took {longest:.1?}",
        4 * changes
    ))
}

/// What may come of an operation on a name that others remove, make and rename meanwhile: that it
/// is not there, if it `may_lack`; or that they removed what it had found, twice in a row.
fn allowed(outcome: io::Result<()>, may_lack: bool) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => Ok(()),
        Err(error) if may_lack && error.kind() == ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// How often two programs make the same name.
const MEETINGS: usize = 150;

#[test]
fn what_another_host_makes_at_that_moment_is_opened_with_the_rights_that_it_gives() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let (here, there) = (cluster.mount().join("shared"), second.join("shared"));
    fs::create_dir(&here)?;
    fs::set_permissions(&here, Permissions::from_mode(0o777))?;
    let meeting = Barrier::new(2);
    let (of_user, of_root) = thread::scope(|scope| {
        let of_user = || (0..MEETINGS).map(|at| user_opens(&meeting, &here.join(at.to_string())));
        let user = scope.spawn(move || as_user(|| of_user().collect::<Vec<_>>()));
        let of_root = (0..MEETINGS).map(|at| {
            meeting.wait();
            let path = there.join(at.to_string());
            OpenOptions::new().write(true).create(true).truncate(false).open(path)
        });
        let of_root: Vec<_> = of_root.collect();
        (user.join().expect("it does not panic"), of_root)
    });
    of_root.into_iter().collect::<io::Result<Vec<_>>>()?;
    for (at, (to_read, to_write)) in of_user?.into_iter().enumerate() {
        let read = to_read.with_context(|| format!("{at}: whoever made it, it may be read"))?;
        let is_own = read.metadata()?.uid() != 0;
        match to_write {
            Ok(_) => ensure!(is_own, "{at}: what is root's was opened for writing"),
            Err(error) => {
                ensure!(!is_own && error.kind() == ErrorKind::PermissionDenied, "{error}")
            }
        }
    }
    Ok(())
}

/// As `flock` opens what it locks, and as databases open what they write.
fn user_opens(meeting: &Barrier, path: &Path) -> (io::Result<File>, io::Result<File>) {
    let mut options = OpenOptions::new();
    meeting.wait();
    let to_read = options.read(true).custom_flags(OFlags::CREATE.bits().cast_signed()).open(path);
    let to_write = options.write(true).create(true).truncate(false).open(path);
    (to_read, to_write)
}
