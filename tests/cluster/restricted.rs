//! A client whose certificate names a subtree and squashes root sees and does only what it may.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use anyhow::Result;
use millrace_tests::cluster::{Cluster, Wish};
use rustix::io::Errno;

/// The user and group that root becomes.
const NOBODY: u32 = 65_534;

#[test]
fn a_client_for_a_subtree_sees_that_subtree_and_its_root_is_nobody() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let root = cluster.mount();
    for dir in ["team/shared", "other"] {
        fs::create_dir_all(root.join(dir))?;
    }
    fs::set_permissions(root.join("team/shared"), Permissions::from_mode(0o777))?;
    fs::write(root.join("other/secret"), "secret")?;
    fs::write(root.join("team/public"), "public")?;
    fs::write(root.join("team/private"), "private")?;
    fs::set_permissions(root.join("team/private"), Permissions::from_mode(0o600))?;
    symlink("../other/secret", root.join("team/way-out"))?;

    let identity = cluster.invite("client", &["--subtree", "/team", "--squash-root"])?;
    cluster.mount_as("team", &identity, "")?.ok()?;
    let team = cluster.mount_named("team");
    sees_the_subtree_alone(&team)?;
    does_what_nobody_may(&team)?;
    loses_nothing_by_a_truncation_that_is_refused(&root.join("team"), &team)?;
    let told = cluster.cli(&["state", &team.join("private").display().to_string()])?;
    assert!(told.stderr.contains("permission denied"), "{told}");
    cluster.cli(&["state", &team.join("public").display().to_string()])?.ok()?;
    assert_eq!(fs::read(root.join("team/shared/made"))?, b"made", "the others see what it wrote");

    let outside = cluster.mount_as("outside", &identity, "path=/other")?;
    assert!(!outside.succeeded(), "{outside}");
    assert!(outside.stderr.contains("cannot mount /other: not found"), "{outside}");
    Ok(())
}

fn sees_the_subtree_alone(team: &Path) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(team)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<_>>()?;
    names.sort();
    assert_eq!(names, ["private", "public", "shared", "way-out"]);
    assert_eq!(fs::read(team.join("public"))?, b"public");
    // A link that leads up leads out of the mount, on this host and to no other place.
    assert_eq!(errno(fs::read(team.join("way-out"))), Some(Errno::NOENT));
    assert_eq!(errno(fs::read(team.join("other/secret"))), Some(Errno::NOENT));
    Ok(())
}

fn does_what_nobody_may(team: &Path) -> Result<()> {
    let denied = Some(Errno::ACCESS);
    assert_eq!(errno(fs::read(team.join("private"))), denied, "only its owner may read it");
    assert_eq!(errno(File::options().write(true).open(team.join("public"))), denied);
    assert_eq!(errno(fs::create_dir(team.join("new"))), denied);
    assert_eq!(errno(fs::remove_file(team.join("public"))), denied);
    assert_eq!(errno(fs::rename(team.join("public"), team.join("shared/public"))), denied);
    let mode = fs::set_permissions(team.join("public"), Permissions::from_mode(0o666));
    assert_eq!(errno(mode), Some(Errno::PERM));

    let made = team.join("shared/made");
    fs::write(&made, "made")?;
    let owner = (fs::metadata(&made)?.uid(), fs::metadata(&made)?.gid());
    assert_eq!(owner, (NOBODY, NOBODY));
    assert_eq!(errno(std::os::unix::fs::chown(&made, Some(0), None)), Some(Errno::PERM));
    Ok(())
}

/// The kernel of the host takes root for root: the server is the one that refuses.
fn loses_nothing_by_a_truncation_that_is_refused(there: &Path, team: &Path) -> Result<()> {
    let name = "shared/kept";
    let mut file = File::create(team.join(name))?;
    file.write_all(b"kept")?;
    std::os::unix::fs::chown(there.join(name), Some(0), Some(0))?;
    fs::set_permissions(there.join(name), Permissions::from_mode(0o600))?;
    let cut = File::options().write(true).truncate(true).open(team.join(name));
    assert_eq!(errno(cut), Some(Errno::ACCESS));
    file.sync_all()?;
    assert_eq!(fs::read(there.join(name))?, b"kept");
    Ok(())
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}
