//! Files that a mount makes by itself and tells the metadata server of when they are closed: where
//! the server cannot be heard, when another host looks, and when both want one name.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Barrier, mpsc},
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    delegated::{delegated, delegated_within},
    starter::Starter,
};

/// Much longer than a call takes that waits for nobody.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Two mounts that make files by themselves where they may.
pub(crate) fn mounts(cluster: &Cluster) -> Result<(PathBuf, PathBuf)> {
    let mounted = |name: &str| -> Result<PathBuf> {
        cluster.mount_as(name, &cluster.dir().join("client.pem"), "delegations")?.ok()?;
        Ok(cluster.mount_named(name))
    };
    Ok((mounted("first")?, mounted("second")?))
}

/// What `act` returns, if it returns soon.
pub(crate) fn soon<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> Result<R> {
    within(PATIENCE, act)
}

/// What `act` returns, if it returns within this time.
pub(crate) fn within<R: Send + 'static>(
    most: Duration,
    act: impl FnOnce() -> R + Send + 'static,
) -> Result<R> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    wait.recv_timeout(most).context("it waits for somebody")
}

#[test]
fn files_are_made_and_written_while_the_server_is_silent_and_there_when_they_are_closed()
-> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    let directory = delegated(&one, "d")?;
    let (path, bytes) = (directory.join("silent"), vec![7; 100_000]);
    let paused = cluster.daemon("metadata")?.pause()?;
    let (there, written) = (path, bytes.clone());
    let open = soon(move || -> io::Result<File> {
        let mut file = OpenOptions::new().create_new(true).write(true).open(there)?;
        file.write_all(&written)?;
        Ok(file)
    })??;
    drop(paused);
    drop(open);
    for mount in [&one, &two] {
        ensure!(fs::read(mount.join("d/silent"))? == bytes, "{}", mount.display());
    }
    let refused = OpenOptions::new().create_new(true).write(true).open(two.join("d/silent"));
    ensure!(refused.unwrap_err().kind() == io::ErrorKind::AlreadyExists);
    Ok(())
}

#[test]
fn of_two_hosts_that_make_one_name_one_succeeds() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    for round in 0..12 {
        let name = format!("d{round}");
        delegated(&one, &name)?;
        let barrier = Barrier::new(2);
        let make = |mount: &Path| -> Result<Vec<bool>> {
            barrier.wait();
            let mut made = Vec::new();
            for number in 0..10 {
                let path = mount.join(&name).join(format!("n{number}"));
                match OpenOptions::new().create_new(true).write(true).open(path) {
                    Ok(mut file) => {
                        file.write_all(mount.as_os_str().as_encoded_bytes())?;
                        made.push(true);
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => made.push(false),
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(made)
        };
        let (first, second) = thread::scope(|scope| {
            let (first, second) = (scope.spawn(|| make(&one)), scope.spawn(|| make(&two)));
            (first.join().expect("no panic"), second.join().expect("no panic"))
        });
        for (number, (first, second)) in first?.into_iter().zip(second?).enumerate() {
            ensure!(first != second, "round {round}, {number}: {first} and {second}");
            let maker = if first { &one } else { &two };
            for mount in [&one, &two] {
                let path = mount.join(&name).join(format!("n{number}"));
                ensure!(fs::read(path)? == maker.as_os_str().as_encoded_bytes());
            }
        }
    }
    Ok(())
}

#[test]
fn another_host_sees_each_file_from_its_close_on_and_soon_what_stays_open() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    for round in 0..4 {
        let name = format!("d{round}");
        let (here, there) = (delegated(&one, &name)?, two.join(&name));
        for number in 0..300 {
            let file = format!("f{number}");
            fs::write(here.join(&file), vec![7; number])?;
            // Looking ends what the other one has, most often; not each time.
            if number % 50 == 49 {
                ensure!(fs::metadata(there.join(&file))?.len() == u64::try_from(number)?);
            }
        }
        let names = fs::read_dir(&there)?.count();
        ensure!(names == fs::read_dir(&here)?.count() && names > 300, "{names}");
    }
    let here = delegated(&one, "open")?;
    let open = File::create(here.join("stays"))?;
    let deadline = SystemTime::now() + PATIENCE;
    while !two.join("open/stays").exists() {
        ensure!(SystemTime::now() < deadline, "it is never seen");
        thread::yield_now();
    }
    // What is removed elsewhere while it is open stays readable here.
    fs::remove_file(two.join("open/stays"))?;
    open.write_all_at(b"text", 0)?;
    open.sync_all()?;
    ensure!(open.metadata()?.len() == 4 && !here.join("stays").exists());
    Ok(())
}

/// Does something with a file that was just made by this mount itself; `there` is how the other
/// one shows its directory.
type Deed = fn(file: File, here: &Path) -> Result<()>;
type Seen = fn(there: &Path) -> Result<bool>;

const DEEDS: &[(&str, Deed, Seen)] = &[
    (
        "mode",
        |file, _| Ok(file.set_permissions(fs::Permissions::from_mode(0o600))?),
        |there| Ok(fs::metadata(there.join("f"))?.mode() & 0o777 == 0o600),
    ),
    (
        "time",
        |file, _| Ok(file.set_modified(long_ago())?),
        |there| Ok(fs::metadata(there.join("f"))?.modified()? == long_ago()),
    ),
    ("shorter", |file, _| Ok(file.set_len(4)?), |there| Ok(fs::read(there.join("f"))? == b"0123")),
    (
        "another name",
        |_file, here| Ok(fs::hard_link(here.join("f"), here.join("g"))?),
        |there| {
            Ok(fs::read(there.join("g"))? == TEXT && fs::metadata(there.join("f"))?.nlink() == 2)
        },
    ),
    (
        "moved",
        |_file, here| Ok(fs::rename(here.join("f"), here.join("g"))?),
        |there| Ok(fs::read(there.join("g"))? == TEXT && !there.join("f").exists()),
    ),
    (
        "replaced",
        |file, here| {
            fs::rename(here.join("before-0"), here.join("f"))?;
            ensure!(file.metadata()?.nlink() == 0);
            Ok(())
        },
        |there| Ok(fs::read(there.join("f"))? == b"x"),
    ),
    (
        "removed",
        |file, here| {
            fs::remove_file(here.join("f"))?;
            let mut bytes = [0; TEXT.len()];
            file.read_exact_at(&mut bytes, 0)?;
            ensure!(bytes == *TEXT);
            Ok(())
        },
        |there| Ok(!there.join("f").exists()),
    ),
    (
        "opened again",
        |_file, here| Ok(OpenOptions::new().append(true).open(here.join("f"))?.write_all(b"+")?),
        |there| Ok(fs::read(there.join("f"))? == b"0123456789+"),
    ),
    (
        "locked",
        |file, here| {
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
            let other = File::open(here.join("f"))?;
            let busy = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            ensure!(rustix::fs::flock(&other, busy) == Err(rustix::io::Errno::WOULDBLOCK));
            Ok(())
        },
        |there| Ok(there.join("f").exists()),
    ),
    (
        "a range locked",
        |file, _| Ok(rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive)?),
        |there| Ok(there.join("f").exists()),
    ),
    (
        "a hole",
        |file, _| Ok(file.write_all_at(b"end", 100_000)?),
        |there| {
            let read = fs::read(there.join("f"))?;
            Ok(read.len() == 100_003 && read[..10] == *TEXT && read[50_000] == 0)
        },
    ),
    (
        "an attribute",
        |file, _| {
            Ok(rustix::fs::fsetxattr(&file, c"user.a", b"v", rustix::fs::XattrFlags::CREATE)?)
        },
        |there| {
            let mut value = [0; 16];
            Ok(rustix::fs::getxattr(there.join("f"), c"user.a", &mut value[..])? == 1)
        },
    ),
    (
        "asked about",
        |file, here| {
            rustix::fs::fstatfs(&file)?;
            ensure!(file.metadata()?.len() == 10 && fs::metadata(here.join("f"))?.len() == 10);
            ensure!(fs::read_dir(here)?.any(|entry| entry.is_ok_and(|at| at.file_name() == "f")));
            Ok(())
        },
        |there| Ok(fs::read(there.join("f"))? == TEXT),
    ),
    (
        "its directory synced",
        |_file, here| Ok(File::open(here)?.sync_all()?),
        |there| Ok(there.join("f").exists()),
    ),
];

const TEXT: &[u8; 10] = b"0123456789";

fn long_ago() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

#[test]
fn what_is_done_with_a_file_that_was_just_made_counts() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    for (name, deed, seen) in DEEDS {
        // Whoever looks from the other mount ends this: each has a directory of its own.
        let (here, there) = (delegated(&one, name)?, two.join(name));
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).open(here.join("f"))?;
        file.write_all(TEXT)?;
        deed(file, &here).with_context(|| format!("{name}, here"))?;
        ensure!(seen(&there).with_context(|| format!("{name}, there"))?, "{name}");
    }
    // Who changes the directory itself finds that changed in what is made there next.
    let here = delegated(&one, "group")?;
    fs::set_permissions(&here, fs::Permissions::from_mode(0o2777))?;
    std::os::unix::fs::chown(&here, None, Some(77))?;
    fs::write(here.join("f"), "x")?;
    ensure!(fs::metadata(two.join("group/f"))?.gid() == 77);
    Ok(())
}

#[test]
fn who_does_not_want_it_asks_for_every_file() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let identity = cluster.dir().join("client.pem");
    cluster.mount_as("asks", &identity, "nodelegations")?.ok()?;
    delegated_within(&cluster.mount_named("asks"), "d", 300).unwrap_err();
    // By default it is wanted.
    cluster.mount_as("makes", &identity, "")?.ok()?;
    delegated(&cluster.mount_named("makes"), "e")?;
    Ok(())
}

#[test]
fn a_server_that_is_killed_is_told_what_its_next_life_must_not_give_away() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = mounts(&cluster)?;
    let mut starter = Starter::new(&cluster)?;
    for round in 0..3 {
        let name = format!("d{round}");
        let here = delegated(&one, &name)?;
        let metadata = cluster.daemon("metadata")?;
        // Before its clients can see that it is gone.
        let paused = metadata.pause()?;
        let there = here.clone();
        let mut open =
            soon(move || OpenOptions::new().create_new(true).write(true).open(there.join("n")))??;
        metadata.kill()?;
        drop(paused);
        let taken = thread::scope(|scope| -> Result<bool> {
            let other = scope.spawn(|| {
                let path = two.join(&name).join("n");
                OpenOptions::new().create_new(true).write(true).open(path)
            });
            starter.begin()?;
            ensure!(starter.finish()?, "the server does not start");
            open.write_all(b"mine")?;
            open.sync_all()?;
            let made = other.join().expect("no panic");
            Ok(made.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists))
        })?;
        ensure!(taken, "round {round}");
        ensure!(fs::read(two.join(&name).join("n"))? == b"mine");
    }
    Ok(())
}
