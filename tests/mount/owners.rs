//! Whom a file belongs to is decided on one host and counts on the others from then on, also where
//! their kernels decide by themselves.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    thread,
};

use anyhow::{Context as _, Result};
use millrace_tests::cluster::{Cluster, Wish};
use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    thread::{Uid, set_thread_res_uid},
};

const USER: u32 = 1001;

/// What an ordinary user gets from `act`; the thread ends with it.
pub(crate) fn as_user<R: Send>(act: impl FnOnce() -> R + Send) -> Result<R> {
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            let user = Uid::from_raw(USER);
            set_thread_res_uid(user, user, user)?;
            io::Result::Ok(act())
        });
        Ok(user.join().expect("it does not panic")?)
    })
}

fn give(path: &Path) -> Result<()> {
    Ok(chown(path, Some(USER), None)?)
}

#[test]
fn a_new_owner_may_change_at_once_what_another_host_gave_him() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    for at in 0..20 {
        // A directory of its own for each: one that changes all the time is kept by nobody.
        let (here, there) = (one.join(format!("{at}")), two.join(format!("{at}")));
        fs::create_dir(&here)?;
        fs::set_permissions(&here, Permissions::from_mode(0o1777))?;
        fs::write(here.join("file"), "text")?;
        fs::create_dir(here.join("below"))?;
        for name in ["file", "below"] {
            // From here on the kernel of this host may know the name and whose it is.
            fs::metadata(here.join(name))?;
            give(&there.join(name))?;
            let mode = Permissions::from_mode(0o751);
            as_user(|| fs::set_permissions(here.join(name), mode))?
                .with_context(|| format!("the mode of {at}/{name}"))?;
        }
        // Only his own he may remove, where the sticky bit is set.
        fs::write(here.join("other"), "text")?;
        fs::metadata(here.join("other"))?;
        give(&there.join("other"))?;
        as_user(|| fs::remove_file(here.join("other")))?
            .with_context(|| format!("removing {at}/other"))?;
        // What another host takes away is his no more.
        fs::metadata(here.join("file"))?;
        chown(there.join("file"), Some(0), None)?;
        let refused = as_user(|| fs::remove_file(here.join("file")))?;
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
    Ok(())
}

#[test]
fn a_new_owner_is_known_also_by_the_name_that_a_file_was_moved_to() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    for at in 0..20 {
        let (here, there) = (one.join(format!("{at}")), two.join(format!("{at}")));
        fs::create_dir(&here)?;
        fs::set_permissions(&here, Permissions::from_mode(0o777))?;
        fs::create_dir(here.join("first"))?;
        fs::metadata(there.join("first"))?;
        // The kernel moves with a rename what it knows of a name.
        fs::metadata(here.join("first"))?;
        fs::rename(here.join("first"), here.join("second"))?;
        give(&there.join("second"))?;
        as_user(|| fs::set_permissions(here.join("second"), Permissions::from_mode(0o751)))?
            .with_context(|| format!("the mode of {at}"))?;
    }
    Ok(())
}

#[test]
fn what_is_mounted_in_a_directory_stays_when_another_host_changes_its_owner() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (one, two) = (cluster.mount(), cluster.mount_named("second"));
    cluster.mount_also(&two)?;
    let here = one.join("directory");
    fs::create_dir(&here)?;
    mount("tmpfs", &here, "tmpfs", MountFlags::empty(), Some(c"size=1m"))?;
    let check = || -> Result<()> {
        fs::write(here.join("local"), "only here")?;
        for owner in 0..10 {
            fs::metadata(here.join("local"))?;
            chown(two.join("directory"), Some(owner), None)?;
        }
        assert_eq!(fs::read(here.join("local"))?, b"only here");
        Ok(())
    };
    let checked = check();
    unmount(&here, UnmountFlags::empty())?;
    assert!(!here.join("local").exists());
    checked
}
