//! Sentences of `docs/semantics.md` that no other test holds to.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::ExitStatusExt,
    },
    path::Path,
    process::Command,
};

use anyhow::Result;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{PATIENCE, binaries, finish, run, wait_for},
};
use rustix::{
    fs::{FlockOperation, XattrFlags, flock, getxattr, setxattr},
    io::Errno,
};

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn a_read_only_link_lets_nothing_be_changed() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let objects = cluster.scratch()?.join("objects");
    fs::create_dir_all(objects.join("sub"))?;
    fs::write(objects.join("sub/file"), "object")?;
    let url = format!("file://{}", objects.display());
    cluster.cli(&["link", "add", &url, "mr:/set"])?.ok()?;
    let set = cluster.mount().join("set");
    let (file, new) = (set.join("sub/file"), set.join("new"));
    assert_eq!(fs::read(&file)?, b"object");

    let refused = Some(Errno::ROFS);
    assert_eq!(errno(OpenOptions::new().write(true).open(&file)), refused);
    assert_eq!(errno(File::create(&new)), refused);
    assert_eq!(errno(fs::create_dir(&new)), refused);
    assert_eq!(errno(symlink("x", &new)), refused);
    assert_eq!(errno(fs::rename(&file, &new)), refused);
    assert_eq!(errno(fs::remove_file(&file)), refused);
    assert_eq!(errno(fs::remove_dir_all(set.join("sub"))), refused);
    assert_eq!(errno(fs::set_permissions(&file, Permissions::from_mode(0o777))), refused);
    let set_attribute = setxattr(&file, "user.a", b"1", XattrFlags::empty());
    assert_eq!(set_attribute, Err(Errno::ROFS));
    assert_eq!(fs::read(objects.join("sub/file"))?, b"object");
    assert_eq!(fs::read(&file)?, b"object");
    Ok(())
}

#[test]
fn processes_of_one_host_see_each_others_writes_and_locks_at_once() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    let mut writer = File::create(&path)?;
    writer.write_all(b"unsynced")?;
    // Not closed: another process reads what lies in the mount's memory.
    assert_eq!(run("cat", &[&path])?.ok()?, "unsynced");

    flock(&writer, FlockOperation::LockExclusive)?;
    let flock_now = |path: &Path| run("flock", &[&"--nonblock", &path, &"true"]);
    assert_eq!(flock_now(&path)?.code, Some(1));
    flock(&writer, FlockOperation::Unlock)?;
    assert_eq!(flock_now(&path)?.code, Some(0));

    let nested = "import fcntl, subprocess, sys\n\
        lock = 'import fcntl, sys; fcntl.lockf(open(sys.argv[1], \"r+b\"), 6)'\n\
        with open(sys.argv[1], 'r+b') as file:\n\
        \x20   fcntl.lockf(file, fcntl.LOCK_EX)\n\
        \x20   other = [sys.executable, '-c', lock, sys.argv[1]]\n\
        \x20   assert b'BlockingIOError' in subprocess.run(other, capture_output=True).stderr\n\
        \x20   fcntl.lockf(file, fcntl.LOCK_UN)\n\
        \x20   assert subprocess.run(other).returncode == 0\n";
    run("python3", &[&"-c", &nested, &path])?.ok()?;
    Ok(())
}

#[test]
fn what_is_not_offered_is_refused_and_says_so() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    fs::write(&path, "")?;
    let none = XattrFlags::empty();
    setxattr(&path, "user.comment", b"kept", none)?;
    let mut value = [0; 16];
    let len = getxattr(&path, "user.comment", &mut value)?;
    assert_eq!(&value[..len], b"kept");
    let label = setxattr(&path, "security.selinux", b"x", none);
    assert_eq!(label, Err(Errno::OPNOTSUPP));
    let acl = getxattr(&path, "system.posix_acl_access", &mut value);
    assert_eq!(acl, Err(Errno::OPNOTSUPP));
    let said = cluster.cli(&["link", "add", "abfs://container/x", "mr:/az"])?;
    assert!(said.code == Some(2) && said.stderr.contains("az://"), "{said}");
    Ok(())
}

#[test]
fn a_mount_whose_process_was_killed_answers_enotconn_until_it_is_mounted_again() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    fs::write(&path, "kept")?;
    let mut open = File::open(&path)?;
    cluster.daemon("mount-0")?.kill()?;
    // What the process still had in hand when it died fails in another way.
    wait_for("the end of the connection", || {
        (errno(fs::read(&path)) == Some(Errno::NOTCONN)).then_some(())
    })?;
    assert_eq!(errno(open.read(&mut [0])), Some(Errno::NOTCONN));
    let told = cluster.cli(&["state", &path.display().to_string()])?;
    assert!(told.stderr.contains("umount --lazy"), "{told}");
    cluster.up()?;
    assert_eq!(fs::read(&path)?, b"kept");
    Ok(())
}

#[test]
fn the_end_of_a_mount_frees_programs_that_wait_for_absent_servers() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    cluster.mount_as("hard", &cluster.dir().join("client.pem"), "hard")?.ok()?;
    let paused = cluster.daemon("metadata")?.pause()?;
    let mut waiting = Command::new("stat").arg(cluster.mount_named("hard").join("file")).spawn()?;
    wait_for("a program that sleeps", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", waiting.id())).ok()?;
        stat.rsplit(") ").next().filter(|rest| rest.starts_with('S')).map(drop)
    })?;
    // SIGKILL alone does not reach it; the end of the mount's daemon does.
    waiting.kill()?;
    cluster.daemon("hard")?.kill()?;
    assert_eq!(waiting.wait()?.signal(), Some(9));
    drop(paused);
    let mut umount = Command::new(binaries().join("millrace"));
    umount.args(["umount", "--lazy"]).arg(cluster.mount_named("hard"));
    finish(&mut umount, PATIENCE)?.ok()?;
    Ok(())
}
