//! Ordinary programs on the mount.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::Result;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{repository, run},
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

#[test]
fn git_clones_commits_and_checks_itself() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let clone = cluster.mount().join("clone");
    let source = cluster.scratch()?.join("source");
    let make = "git init -q \"$0\" && cd \"$0\" && cp -r \"$1/common\" \"$1/scripts\" . \
                && git add . && git -c user.name=t -c user.email=t@localhost commit -q -m first";
    run("sh", &[&"-c", &make, &source, &repository()])?.ok()?;
    run("git", &[&"clone", &"-q", &"--no-hardlinks", &source, &clone])?.ok()?;
    let work = "cd \"$0\" && echo more >> new && git add new \
                && git -c user.name=t -c user.email=t@localhost commit -q -m second \
                && git checkout -q HEAD~1 && git checkout -q - && git gc -q && git fsck --strict \
                && git status --porcelain";
    let said = run("sh", &[&"-c", &work, &clone])?.ok()?;
    assert_eq!(said, "");
    run("diff", &[&"-r", &source.join("common"), &clone.join("common")])?.ok()?;
    Ok(())
}

#[test]
fn sqlite_keeps_a_database_and_its_locks() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let database = cluster.mount().join("data.db");
    let fill = "create table t(id integer primary key, body text);\
                with recursive n(i) as (select 1 union all select i+1 from n where i < 5000)\
                insert into t select i, printf('row %d', i) from n;\
                update t set body = body || '!' where id % 7 = 0;";
    run("sqlite3", &[&database, &fill])?.ok()?;
    let check = "pragma integrity_check; select count(*), sum(length(body)) from t;";
    let said = run("sqlite3", &[&database, &check])?.ok()?;
    assert!(said.starts_with("ok\n5000|"), "{said}");
    Ok(())
}

#[test]
fn vim_edits_a_file_in_place() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("text");
    fs::write(&path, "first\nsecond\n")?;
    let found = run("sh", &[&"-c", &"command -v vim || command -v vim.tiny"])?.ok()?;
    let arguments = "%s/second/changed/ | wq";
    run(found.trim(), &[&"-u", &"NONE", &"-es", &"-c", &arguments, &path])?;
    assert_eq!(fs::read_to_string(&path)?, "first\nchanged\n");
    Ok(())
}
