//! Trees with everything that a file system can hold, packed and copied by `tar` and `rsync`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{PATIENCE, finish, run},
};
use rustix::fs::{SeekFrom, seek};

/// Makes the tree in the present directory. Other users' numbers need no names.
const TREE: &str = r#"
umask 022
mkdir -p sub/deep/empty shared 'odd names'
echo plain >plain
: >zero
head -c 65536 /dev/urandom >block
head -c 9000001 /dev/urandom >chunk
ln plain sub/hard
ln plain sub/deep/hard
ln -s ../plain sub/soft
ln -s /no/where dangling
ln -P dangling dangling-too
truncate -s 40M hole
truncate -s 20M sparse
printf middle | dd of=sparse bs=1 seek=9000000 conv=notrunc status=none
mkfifo -m 640 pipe
ln pipe pipe-too
mknod -m 600 null c 1 3
mknod -m 640 disk b 259 70000
for name in 'two
lines' 'back\slash' "quote'" '"double"' -dash '*' '?' ' leading' 'trailing ' '~' '#hash' ... \
    "$(printf 'latin\351')" "$(printf '\177\001')" 'ünd mehr' "$(printf '%0255d' 7)"; do
    printf %s "$name" >"odd names/$name"
done
for mode in 4755 2755 6711 1644 0000 0777; do
    echo $mode >mode-$mode
    chmod $mode mode-$mode
done
mkdir sticky setgid && chmod 1777 sticky && chmod 2775 setgid
chown 1000:2000 sub/deep setgid
echo owned >owned && chown 4294967294:70000 owned
chown -h 1000:1000 dangling
setfattr -n user.note -v text plain
setfattr -n user.binary -v 0x00ff0a00 sub
setfattr -n user.empty block
setfattr -n user.long -v "$(printf '%03000d' 5)" owned
setfattr -n trusted.root -v only zero
setfacl -m u:1000:rw,g:2000:r,u:4000000000:x plain
setfacl -m u:1000:rwx,m::rx shared
setfacl -d -m u::rwx,u:1000:rwx,g::r-x,o::--- shared
touch shared/inherits
mkdir shared/below
chmod 2750 shared/below
find . -depth -exec touch -h -d 2001-02-03T04:05:06.123456789 {} +
touch -d 1969-12-31T23:59:58.5Z zero
touch -d 2106-02-08T00:00:00.000000001Z block
"#;

/// Runs a script with `$1`, `$2` and so on.
fn script(text: &str, arguments: &[&Path]) -> Result<String> {
    let mut command = std::process::Command::new("sh");
    command.args(["-euc", text, "sh"]).args(arguments);
    finish(&mut command, PATIENCE)?.ok()
}

/// What `rsync` would change to make the second tree like the first: nothing, if it finds none.
/// Times are compared to the nanosecond.
fn differences(one: &Path, other: &Path) -> Result<String> {
    let compare = "rsync -aHAX --checksum --dry-run --itemize-changes --delete --numeric-ids \
                   --modify-window=-1 \"$1/\" \"$2/\"";
    script(compare, &[one, other])
}

/// `rsync` finds no difference, nor does what it does not look at: numbers of names, holes.
fn assert_alike(one: &Path, other: &Path) -> Result<()> {
    for (from, to) in [(one, other), (other, one)] {
        let found = differences(from, to)?;
        ensure!(found.is_empty(), "from {} to {}:\n{found}", from.display(), to.display());
    }
    let format = "%P %y %m %U:%G %n %s %l\\n";
    let find = format!("cd \"$1\"; find . -printf '{format}' | sort");
    let list = |root: &Path| script(&find, &[root]);
    let (left, right) = (list(one)?, list(other)?);
    // A directory's size is each file system's own.
    let lines = |text: &str| -> Vec<String> {
        let of = |line: &str| if line.contains(" d ") { String::new() } else { line.to_owned() };
        text.lines().map(of).collect()
    };
    ensure!(lines(&left) == lines(&right), "{left}\n{right}");
    let numbers = "cd \"$1\"; stat --format '%n %t:%T' null disk";
    ensure!(script(numbers, &[one])? == script(numbers, &[other])?, "numbers of devices");
    Ok(())
}

/// What is not stored is known not to be: the first stretch of a file is a hole.
fn assert_sparse(root: &Path) -> Result<()> {
    for (name, hole) in [("hole", 0), ("sparse", 10 << 20)] {
        let file = File::open(root.join(name))?;
        let found = seek(&file, SeekFrom::Hole(hole))?;
        ensure!(found == hole, "{name}: the first hole from {hole} on is at {found}");
    }
    Ok(())
}

struct World {
    cluster: Cluster,
    mount: PathBuf,
    local: PathBuf,
}

impl World {
    /// A mount with access lists, and the tree on the local file system.
    fn start() -> Result<Self> {
        let cluster = Cluster::start(Wish::default())?;
        cluster.mount_as("special", &cluster.dir().join("client.pem"), "acl")?.ok()?;
        let (mount, local) = (cluster.mount_named("special"), cluster.scratch()?);
        let tree = local.join("tree");
        fs::create_dir(&tree)?;
        script(&format!("cd \"$1\"\n{TREE}"), &[&tree]).context("making the tree")?;
        Ok(Self { cluster, mount, local })
    }
}

#[test]
fn tar_packs_and_unpacks_a_tree_of_everything_on_the_mount() -> Result<()> {
    let world = World::start()?;
    let (tree, archive) = (world.local.join("tree"), world.mount.join("tree.tar"));
    // GNU tar packs two names of a pipe as two pipes.
    fs::remove_file(tree.join("pipe-too"))?;
    let keep = "--format=posix --numeric-owner --acls --xattrs --xattrs-include='*' --sparse";
    let pack = format!("tar {keep} --create --file \"$1\" -C \"$2\" tree");
    let unpack = format!("tar {keep} --extract --same-owner -p --file \"$1\" -C \"$2\"");
    script(&pack, &[&archive, &world.local])?;
    script(&unpack, &[&archive, &world.mount])?;
    assert_alike(&tree, &world.mount.join("tree"))?;
    assert_sparse(&world.mount.join("tree"))?;

    // And back: what lies on the mount is packed.
    let (again, back) = (world.mount.join("again.tar"), world.local.join("back"));
    fs::create_dir(&back)?;
    script(&pack, &[&again, &world.mount])?;
    script(&unpack, &[&again, &back])?;
    assert_alike(&tree, &back.join("tree"))?;

    // It goes with everything in it, and nothing stays.
    fs::remove_dir_all(world.mount.join("tree"))?;
    ensure!(fs::read_dir(&world.mount)?.count() == 2, "two archives are left");
    world.cluster.crash("metadata")?;
    script(&unpack, &[&again, &world.mount])?;
    assert_alike(&tree, &world.mount.join("tree"))
}

#[test]
fn rsync_copies_a_tree_of_everything_there_and_back_and_finds_no_difference() -> Result<()> {
    let world = World::start()?;
    let (tree, copy) = (world.local.join("tree"), world.mount.join("tree"));
    let copied = "rsync -aHAX --sparse --checksum --numeric-ids --delete --modify-window=-1 \
                  \"$1/\" \"$2/\"";
    script(copied, &[&tree, &copy])?;
    assert_alike(&tree, &copy)?;
    assert_sparse(&copy)?;
    let back = world.local.join("back");
    script(copied, &[&copy, &back])?;
    assert_alike(&tree, &back)?;
    assert_alike(&copy, &back)?;

    // The comparison sees a changed list, attribute, link, byte, mode and owner.
    let change = "cd \"$1\"; setfacl -m u:1000:r plain; setfattr -n user.note -v other sub/hard; \
                  ln -f owned sub/owned; printf X | dd of=chunk bs=1 seek=5000000 conv=notrunc \
                  status=none; touch -r plain chunk; chmod 600 pipe; chown 5:5 null; \
                  rm 'odd names/*'";
    script(change, &[&copy])?;
    let found = differences(&copy, &tree)?;
    // Bytes, permissions, owner and group, list and attributes; a link, and a name that is gone.
    for line in [
        ".f...p...ax plain",
        "hf+++++++++ sub/owned => owned",
        ">fc........ chunk",
        ".S...p..... pipe",
        ".D....og... null",
        "*deleting   odd names/*",
    ] {
        ensure!(found.lines().any(|found| found == line), "{line} is not in\n{found}");
    }
    // A second run changes that and nothing else.
    script(copied, &[&copy, &tree])?;
    script(copied, &[&tree, &back])?;
    assert_alike(&copy, &tree)?;
    assert_alike(&copy, &back)?;
    run("cmp", &[&copy.join("chunk"), &back.join("chunk")])?.ok()?;
    Ok(())
}
