//! Times of access follow reads as Linux's `relatime` has it, lazily: at once on the mount that
//! reads, and elsewhere when the metadata server has been told.

use std::{
    fs::{self, File, OpenOptions},
    io::Read as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use anyhow::{Context as _, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{PATIENCE, binaries, finish, run, wait_for},
};
use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_OMIT, utimensat};

/// Long ago.
const OLD: i64 = 1_000_000_000;

/// Mounts with these options, and with these settings from the environment.
pub(crate) fn mount(
    cluster: &Cluster,
    name: &str,
    options: &str,
    settings: &[(&str, &str)],
) -> Result<Mount> {
    let folder = cluster.scratch()?.join(name);
    fs::create_dir_all(&folder)?;
    let mountpoint = cluster.mount_named(name);
    fs::create_dir_all(&mountpoint)?;
    let (server, identity) = (cluster.address("metadata")?, cluster.dir().join("client.pem"));
    let config = folder.join("mount.toml");
    let text = format!("[cluster]\nservers = ['{server}']\nidentity = '{}'\n", identity.display());
    fs::write(&config, text)?;
    let log = folder.join("daemon.log");
    let all = format!("config={},log={}{options}", config.display(), log.display());
    let mut command = Command::new(binaries().join("millrace"));
    command.args(["mount", "-o", &all]).arg(&mountpoint).envs(settings.iter().copied());
    finish(&mut command, PATIENCE)?.ok()?;
    Ok(Mount { path: mountpoint })
}

/// A mount that ends with its test, if it was not ended before.
pub(crate) struct Mount {
    pub(crate) path: PathBuf,
}

impl Mount {
    /// Unmounts, which tells the metadata server all that was noted.
    pub(crate) fn end(self) -> Result<()> {
        self.try_end()
    }

    fn try_end(&self) -> Result<()> {
        let mut command = Command::new(binaries().join("millrace"));
        finish(command.arg("umount").arg(&self.path), PATIENCE)?.ok().map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // After `end` there is nothing to unmount.
        drop(self.try_end());
    }
}

fn set_accessed(path: &Path, seconds: i64) -> Result<()> {
    let last_access = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let last_modification = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let times = Timestamps { last_access, last_modification };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    assert_eq!(accessed(path)?, (seconds, 0), "as it was set");
    Ok(())
}

fn accessed(path: &Path) -> Result<(i64, i64)> {
    let shown = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    Ok((shown.atime(), shown.atime_nsec()))
}

/// Whether a time of access is one of this test.
fn is_now((seconds, _): (i64, i64)) -> Result<bool> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    Ok((0..1000).contains(&(i64::try_from(now)? - seconds)))
}

fn list(directory: &Path) -> Result<usize> {
    Ok(fs::read_dir(directory)?.count())
}

#[test]
fn a_read_moves_an_old_time_of_access_once_and_others_see_it_after_the_unmount() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let reader = mount(&cluster, "reader", "", &[])?;
    let directory = reader.path.join("directory");
    let (file, mapped) = (directory.join("file"), directory.join("mapped"));
    let link = directory.join("link");
    fs::create_dir(&directory)?;
    fs::write(&file, "contents")?;
    fs::write(&mapped, "contents")?;
    symlink("file", &link)?;
    for path in [&file, &mapped, &link, &directory] {
        set_accessed(path, OLD)?;
    }

    let changed = |path: &Path| fs::metadata(path).map(|shown| (shown.ctime(), shown.ctime_nsec()));
    let before = changed(&file)?;
    assert_eq!(fs::read(&file)?, b"contents");
    let first = accessed(&file)?;
    assert!(is_now(first)?, "{first:?}");
    assert_eq!(fs::read(&file)?, b"contents");
    assert_eq!(accessed(&file)?, first, "within the day");
    let script = "import mmap, sys\n\
        with open(sys.argv[1], 'rb') as file:\n\
        \x20   assert mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[0] == ord('c')\n";
    run("python3", &[&"-c", &script, &mapped])?.ok()?;
    assert!(is_now(accessed(&mapped)?)?, "through a mapping");
    assert_eq!(fs::read_link(&link)?, Path::new("file"));
    assert_eq!(accessed(&directory)?, (OLD, 0), "nobody has listed it");
    assert_eq!(list(&directory)?, 3);
    let all = [&file, &mapped, &link, &directory];
    let seen = all.map(|path| accessed(path));
    assert_eq!(changed(&file)?, before, "reading changes nothing else");
    reader.end()?;

    let other = cluster.mount().join("directory");
    let all = all.map(|path| match path.strip_prefix(&directory) {
        Ok(below) if below != Path::new("") => other.join(below),
        _ => other.clone(),
    });
    for (path, seen) in all.iter().zip(seen) {
        let seen = seen?;
        assert!(is_now(seen)?, "{}: {seen:?}", path.display());
        assert_eq!(accessed(path)?, seen, "{}", path.display());
    }
    Ok(())
}

#[test]
fn a_change_makes_the_next_read_count_and_a_time_that_is_set_stands() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (reader, other) = (mount(&cluster, "reader", "", &[])?, cluster.mount());
    let file = reader.path.join("file");
    fs::write(&file, "one")?;
    fs::read(&file)?;
    let first = accessed(&file)?;
    fs::write(&file, "two")?;
    fs::read(&file)?;
    let second = accessed(&file)?;
    assert!(second > first, "{first:?} {second:?}");

    // On the same mount, also to what it was before the read.
    set_accessed(&file, OLD)?;
    let through = |flags: OFlags| -> Result<()> {
        let flags = i32::try_from(flags.bits())?;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&file)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        assert_eq!(text, "two");
        Ok(())
    };
    through(OFlags::NOATIME)?;
    assert_eq!(accessed(&file)?, (OLD, 0), "O_NOATIME");
    through(OFlags::empty())?;
    assert!(is_now(accessed(&file)?)?);
    set_accessed(&file, OLD)?;
    drop(File::open(&file)?);
    assert_eq!(accessed(&file)?, (OLD, 0), "opened, and not read");
    drop(File::open(&file)?);
    assert!(is_now(accessed(&file)?)?, "an open that may read what the kernel keeps");

    // On another mount, after what was read here and not told yet.
    let elsewhere = other.join("file");
    set_accessed(&elsewhere, OLD + 1)?;
    assert_eq!(accessed(&file)?, (OLD + 1, 0));
    reader.end()?;
    assert_eq!(accessed(&elsewhere)?, (OLD + 1, 0));
    let fresh = mount(&cluster, "fresh", "", &[])?;
    assert_eq!(accessed(&fresh.path.join("file"))?, (OLD + 1, 0));
    fresh.end()
}

#[test]
fn mounts_that_leave_times_of_access_alone_do() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let home = cluster.mount();
    fs::create_dir(home.join("directory"))?;
    fs::write(home.join("directory/file"), "contents")?;
    for (options, files, directories) in [
        (",noatime", false, false),
        (",ro", false, false),
        (",nodiratime", true, false),
        (",noatime,relatime", true, true),
    ] {
        set_accessed(&home.join("directory"), OLD)?;
        set_accessed(&home.join("directory/file"), OLD)?;
        let name = options.replace(',', "-");
        let reader = mount(&cluster, &name, options, &[])?;
        let shown = fs::read_to_string("/proc/mounts")?;
        let path = reader.path.display().to_string();
        let line = shown.lines().find(|line| line.contains(&path)).context("it is mounted")?;
        let has = |word| line.split([' ', ',']).any(|shown| shown == word);
        assert_eq!((has("noatime"), has("relatime")), (options == ",noatime", !has("noatime")));
        assert_eq!(has("nodiratime"), options == ",nodiratime", "{line}");
        let directory = reader.path.join("directory");
        assert_eq!((list(&directory)?, fs::read(directory.join("file"))?.len()), (1, 8));
        let moved = [&directory, &directory.join("file")].map(|path| accessed(path));
        let [of_directory, of_file] = moved;
        assert_eq!(of_directory? != (OLD, 0), directories, "{options}");
        assert_eq!(of_file? != (OLD, 0), files, "{options}");
        reader.end()?;
        let fresh = mount(&cluster, &format!("after{name}"), ",noatime", &[])?;
        let directory = fresh.path.join("directory");
        assert_eq!(accessed(&directory)? != (OLD, 0), directories, "{options}");
        assert_eq!(accessed(&directory.join("file"))? != (OLD, 0), files, "{options}");
        fresh.end()?;
    }
    let refused = cluster.mount_as("strict", &cluster.dir().join("client.pem"), "strictatime")?;
    assert!(!refused.succeeded() && refused.to_string().contains("relatime"), "{refused}");
    Ok(())
}

#[test]
fn a_mount_that_goes_on_tells_what_it_read_after_a_while() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let reader = mount(&cluster, "reader", "", &[("MILLRACE_MOUNT__ACCESS_PERIOD", "1s")])?;
    // Keeps nothing, and so asks each time.
    let other = mount(&cluster, "other", "", &[("MILLRACE_CACHE__NAMES", "0")])?;
    let (file, elsewhere) = (reader.path.join("file"), other.path.join("file"));
    fs::write(&file, "contents")?;
    for _ in 0..2 {
        set_accessed(&file, OLD)?;
        assert_eq!(accessed(&elsewhere)?, (OLD, 0));
        fs::read(&file)?;
        let first = accessed(&file)?;
        assert!(is_now(first)?);
        wait_for("the time of access on the other mount", || {
            (accessed(&elsewhere).ok()? == first).then_some(())
        })?;
        assert_eq!(accessed(&file)?, first);
    }
    other.end()?;
    reader.end()
}
