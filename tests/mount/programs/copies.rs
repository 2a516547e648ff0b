//! Programs that copy trees.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::Result;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::run,
};

/// A small tree with what copying tools get wrong: modes, links, empty files, holes, odd names.
fn make_tree(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("sub/empty"))?;
    fs::write(root.join("plain"), "plain")?;
    fs::write(root.join("zero"), "")?;
    fs::write(root.join("sub/name with spaces ünd mehr"), vec![7; 300_000])?;
    fs::hard_link(root.join("plain"), root.join("sub/hard"))?;
    symlink("../plain", root.join("sub/soft"))?;
    symlink("nowhere", root.join("dangling"))?;
    // The times lie long ago: rsync leaves a directory or link alone whose time is right to the
    // second, and everything here happens within one.
    let script = "chmod 4755 plain && chmod 0700 sub && truncate -s 5M hole \
                  && find . -depth -exec touch -h -d 2001-02-03T04:05:06.123456789 {} +";
    run("sh", &[&"-c", &format!("cd {} && {script}", root.display())])?.ok()?;
    Ok(())
}

/// Compares names, types, modes, owners, sizes, times, link targets and contents.
fn assert_same_trees(one: &Path, other: &Path) -> Result<()> {
    let list = |root: &Path| -> Result<String> {
        let format = "%P %y %m %U %G %n %l %T@\\n";
        let script =
            format!("cd {} && find . -mindepth 1 -printf '{format}' | sort", root.display());
        run("sh", &[&"-c", &script])?.ok()
    };
    assert_eq!(list(one)?, list(other)?);
    run("diff", &[&"--recursive", &"--no-dereference", &one, &other])?.ok()?;
    Ok(())
}

#[test]
fn cp_tar_and_rsync_copy_trees_there_and_back() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let (mount, scratch) = (cluster.mount(), cluster.scratch()?);
    let source = scratch.join("source");
    make_tree(&source)?;

    run("cp", &[&"--archive", &source, &mount.join("copied")])?.ok()?;
    assert_same_trees(&source, &mount.join("copied"))?;
    run("cp", &[&"--archive", &mount.join("copied"), &scratch.join("back")])?.ok()?;
    assert_same_trees(&source, &scratch.join("back"))?;

    let archive = mount.join("tree.tar");
    // tar's default format keeps whole seconds only.
    let kept = "--format=posix";
    run("tar", &[&"--create", &kept, &"--file", &archive, &"-C", &scratch, &"source"])?.ok()?;
    run("tar", &[&"--extract", &"--same-permissions", &"--file", &archive, &"-C", &mount])?.ok()?;
    assert_same_trees(&source, &mount.join("source"))?;

    let (from, to) = (format!("{}/", source.display()), mount.join("synced"));
    run("rsync", &[&"-aH", &from, &to])?.ok()?;
    assert_same_trees(&source, &to)?;
    fs::write(source.join("plain"), "changed")?;
    run("rsync", &[&"-aH", &"--delete", &from, &to])?.ok()?;
    assert_same_trees(&source, &to)?;
    Ok(())
}
