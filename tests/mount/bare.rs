//! What has no extended attributes, of which a mount with access control lists says so without
//! asking.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{run, wait_for},
    requests::{answered, serving},
};
use rustix::{
    fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr},
    io::Errno,
};

const FILES: usize = 300;
const LIST: &str = "system.posix_acl_access";
const COMMENT: &str = "user.comment";

/// The bytes of a list with one user beside what the mode says.
const LIST_LEN: usize = 4 + 5 * 8;

/// The files that have something, with what that is.
const COMMENTED: usize = 7;
const LISTED: usize = 209;

fn file(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("file-{number:03}"))
}

/// How many bytes an attribute has; `None` where there is none.
fn len(path: &Path, name: &str) -> Result<Option<usize>> {
    match getxattr(path, name, &mut [0; 256]) {
        Ok(len) => Ok(Some(len)),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{name} of {}", path.display())),
    }
}

/// Lists a directory, and asks for the attributes of each entry as `ls -l` and archivers do.
fn look(directory: &Path) -> Result<()> {
    let mut seen = 0;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let comment = (path == file(directory, COMMENTED)).then_some(4);
        let list = (path == file(directory, LISTED)).then_some(LIST_LEN);
        let names: usize = [(COMMENT, comment), (LIST, list)]
            .into_iter()
            .filter_map(|(name, len)| len.map(|_| name.len() + 1))
            .sum();
        ensure!(len(&path, LIST)? == list, "the list of {}", path.display());
        ensure!(len(&path, COMMENT)? == comment, "the comment of {}", path.display());
        ensure!(listxattr(&path, &mut [0; 256])? == names, "the names of {}", path.display());
        seen += 1;
    }
    ensure!(seen == FILES, "{seen} entries");
    Ok(())
}

/// How many requests about extended attributes were answered.
fn asked(answered: &BTreeMap<String, u64>) -> u64 {
    ["GetXattr", "ListXattrs"].iter().filter_map(|kind| answered.get(*kind)).sum()
}

#[test]
fn what_has_no_extended_attributes_is_known_from_its_directory_until_it_has_one() -> Result<()> {
    let cluster = Cluster::start(Wish { environment: vec![serving()], ..Wish::default() })?;
    let identity = cluster.dir().join("client.pem");
    cluster.mount_as("first", &identity, "acl")?.ok()?;
    cluster.mount_as("second", &identity, "acl")?.ok()?;
    let [first, second] = ["first", "second"].map(|mount| cluster.mount_named(mount).join("many"));
    fs::create_dir(&second)?;
    for number in 0..FILES {
        fs::write(file(&second, number), "x")?;
    }
    let modify = |path: &Path| run("setfacl", &[&"--modify", &"u:1000:r", &path])?.ok().map(drop);
    let none = XattrFlags::empty();
    setxattr(file(&first, COMMENTED), COMMENT, b"kept", none)?;
    modify(&file(&first, LISTED))?;

    // Two files of which it is not known what they lack, each with three questions.
    wait_for("nothing to be asked about files without attributes", || {
        let before = answered(&cluster).ok()?;
        look(&first).unwrap();
        let after = answered(&cluster).ok()?;
        (asked(&after) - asked(&before) <= 6).then_some(())
    })?;

    // Another host sets what was not there, and takes it away again.
    let here = |number| file(&first, number);
    let there = |number| file(&second, number);
    modify(&there(20))?;
    ensure!(len(&here(20), LIST)? == Some(LIST_LEN));
    setxattr(there(21), COMMENT, b"new", none)?;
    ensure!(len(&here(21), COMMENT)? == Some(3) && len(&here(21), LIST)?.is_none());
    run("setfacl", &[&"--remove-all", &there(20)])?.ok()?;
    removexattr(there(21), COMMENT)?;
    ensure!(len(&here(20), LIST)?.is_none() && len(&here(21), COMMENT)?.is_none());

    // And so does this one.
    ensure!(len(&here(22), COMMENT)?.is_none());
    setxattr(here(22), COMMENT, b"own", none)?;
    ensure!(len(&here(22), COMMENT)? == Some(3));
    ensure!(listxattr(here(22), &mut [0; 256])? == COMMENT.len() + 1);
    modify(&here(23))?;
    ensure!(len(&here(23), LIST)? == Some(LIST_LEN));
    removexattr(here(22), COMMENT)?;
    run("setfacl", &[&"--remove-all", &here(23)])?.ok()?;
    ensure!(len(&here(22), COMMENT)?.is_none() && len(&here(23), LIST)?.is_none());

    // What nobody may store is refused, and not said to be missing.
    let refused = getxattr(here(24), "system.other", &mut [0; 9]);
    ensure!(refused == Err(Errno::OPNOTSUPP), "{refused:?}");
    ensure!(len(&here(24), "user.millrace.state")?.is_some(), "it is computed");
    look(&first)
}
