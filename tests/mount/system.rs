//! Mounting as the system does: mount(8), fstab(5), and users who are not root.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{PATIENCE, Said, binaries, finish, run},
};

/// Runs a shell script in a mount namespace of its own: what it puts over directories of the
/// system is seen by nobody else, and gone with it. `$PLACE` is a directory for it.
fn alone(cluster: &Cluster, script: &str) -> Result<Said> {
    let place = cluster.scratch()?;
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-euc", script]);
    shell.env("PLACE", &place).env("BINARIES", binaries());
    shell.env("SERVER", cluster.address("metadata")?);
    shell.env("IDENTITY", cluster.dir().join("client.pem"));
    finish(&mut shell, PATIENCE)
}

/// Puts the helper among the system's programs.
const WITH_HELPER: &str = "mkdir $PLACE/old $PLACE/new $PLACE/point
mount --bind /usr/sbin $PLACE/old
ln -s $PLACE/old/* $PLACE/new/
ln -s $BINARIES/millrace $PLACE/new/mount.millrace
mount --bind $PLACE/new /usr/sbin
cd $PLACE
";

#[test]
fn mount_8_and_fstab_mount_through_the_helper() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    fs::create_dir(cluster.mount().join("team"))?;
    fs::write(cluster.mount().join("team/file"), "of the team\n")?;
    let script = [
        WITH_HELPER,
        "options=identity=$IDENTITY,log=$PLACE/log
        mount -t millrace $SERVER:/team point -o ro,$options
        cat point/file
        ! touch point/new 2>&1
        umount point
        echo \"$SERVER:/ $PLACE/point millrace $options,_netdev,nofail 0 0\" >fstab
        mount -T fstab point
        echo changed >point/team/file
        umount point
        mount -T fstab --all
        mount -T fstab --all
        findmnt --noheadings --output FSTYPE,SOURCE point
        umount point
        ! mount -t millrace $SERVER:/ point -o nonsense,$options 2>&1
        ! mount -t millrace nowhere point -o $options 2>&1",
    ]
    .concat();
    let said = alone(&cluster, &script)?;
    let text = said.clone().ok()?;
    assert!(text.starts_with("of the team\n"), "{said}");
    assert!(text.contains("Read-only file system"), "{said}");
    let source = format!("fuse.millrace {}:/", cluster.address("metadata")?);
    assert!(text.contains(&source), "{said}");
    assert!(text.contains("unknown mount option \"nonsense\""), "{said}");
    assert!(text.contains("HOST[:PORT][,HOST...]:/PATH"), "{said}");
    assert_eq!(fs::read(cluster.mount().join("team/file"))?, b"changed\n");
    Ok(())
}

#[test]
fn the_daemon_of_a_mount_leaves_the_group_and_the_terminal_of_who_mounts() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    cluster.mount_as("apart", &cluster.dir().join("client.pem"), "")?.ok()?;
    let daemon = cluster.daemon("apart")?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid))?;
    // proc(5): behind the name come state, parent, process group and session.
    let (_, fields) = stat.rsplit_once(") ").context("a name in parentheses")?;
    let ids: Vec<_> = fields.split(' ').skip(2).take(2).collect();
    let own = daemon.pid.to_string();
    assert_eq!(ids, [own.as_str(), own.as_str()], "{stat}");
    Ok(())
}

/// An automount as systemd makes it, autofs(5): `cat` looks into it and waits until `millrace`,
/// which is run in this process group, has mounted there. Whoever else looked would wait as well.
const AUTOMOUNTER: &str = r#"
import ctypes, fcntl, os, select, struct, subprocess, sys

millrace, source, options, point = sys.argv[1:]
MISSING_DIRECT, READY, FAIL = 5, 0x9360, 0x9361
reader, writer = os.pipe()
os.mkdir(point)
data = f"fd={writer},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
libc = ctypes.CDLL(None, use_errno=True)
arguments = [b"automount", point.encode(), b"autofs", ctypes.c_ulong(0), data.encode()]
assert libc.mount(*arguments) == 0, os.strerror(ctypes.get_errno())
trap = os.open(point, os.O_RDONLY)
cat = subprocess.Popen(["cat", f"{point}/file"], start_new_session=True, stdout=subprocess.PIPE)
_, kind, token = struct.unpack_from("=iiI", os.read(reader, 4096))
assert kind == MISSING_DIRECT, kind
mounted = subprocess.run([millrace, "mount", "--source", source, "-o", options, point])
fcntl.ioctl(trap, FAIL if mounted.returncode else READY, token)
print(cat.communicate()[0].decode(), end="", flush=True)
subprocess.run([millrace, "umount", point], check=True)
assert not select.select([reader], [], [], 0)[0], "it is to be mounted again"
"#;

#[test]
fn an_automount_is_mounted_for_who_looks_into_it_and_not_again_by_the_end_of_the_mount()
-> Result<()> {
    if !fs::read_to_string("/proc/filesystems")?.contains("autofs") {
        return Ok(()); // Not every kernel has it.
    }
    let cluster = Cluster::start(Wish::default())?;
    fs::write(cluster.mount().join("file"), "for who looks\n")?;
    let script = format!(
        "python3 -c '{AUTOMOUNTER}' $BINARIES/millrace $SERVER:/ \
         identity=$IDENTITY,log=$PLACE/log $PLACE/point"
    );
    let said = alone(&cluster, &script)?;
    let text = said.clone().ok()?;
    assert!(text.contains("for who looks\n") && text.contains("is unmounted"), "{said}");
    Ok(())
}

#[test]
fn a_user_mounts_asks_about_files_and_unmounts_without_root() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    fs::write(cluster.mount().join("file"), "for everybody\n")?;
    // Where /dev/fuse and the programs are for root alone, and no login session has begun.
    let script = "umask 022
        mount -t tmpfs -o mode=755 none /mnt
        mkdir /mnt/bin /mnt/home /mnt/home/point
        mknod /mnt/fuse c 10 229
        chmod 666 /mnt/fuse
        mount --bind /mnt/fuse /dev/fuse
        mount --bind $BINARIES /mnt/bin
        cp $IDENTITY /mnt/home/client.pem
        chown -R nobody /mnt/home
        cd /mnt/home
        export PATH=/mnt/bin:$PATH HOME=/mnt/home
        setpriv --reuid nobody --regid nogroup --clear-groups sh -euc '
            millrace mount --source $SERVER:/ -o identity=$HOME/client.pem point
            cat point/file
            ls /tmp/millrace-$(id -u)/
            millrace state point/file
            millrace umount point
            cat $HOME/.local/state/millrace/mount-mnt-home-point.log'
        rmdir /tmp/millrace-$(id -u nobody)";
    let said = alone(&cluster, script)?;
    let text = said.clone().ok()?;
    let mounted = "/mnt/home/point shows ";
    assert!(text.starts_with(mounted) && text.contains("\nfor everybody\nmount-"), "{said}");
    assert!(text.contains("point/file: dirty"), "{said}");
    assert!(text.contains("is unmounted"), "{said}");
    assert!(text.contains("mounted mountpoint=/mnt/home/point"), "{said}");
    Ok(())
}

#[test]
fn root_mounts_where_the_usual_place_of_control_sockets_is_read_only() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let script = "mkdir -p /run/millrace $PLACE/point
        mount -t tmpfs -o ro none /run/millrace
        cd $PLACE
        options=identity=$IDENTITY,log=$PLACE/log
        $BINARIES/millrace mount --source $SERVER:/ -o $options point
        ls /run/user/0/millrace/*.sock /tmp/millrace-0/*.sock 2>/dev/null || true
        $BINARIES/millrace state point
        $BINARIES/millrace umount point
        for directory in /run/user/0/millrace /tmp/millrace-0; do
            mkdir $directory 2>/dev/null || true
            ! test -d $directory || mount -t tmpfs -o ro none $directory
        done
        ! $BINARIES/millrace mount --source $SERVER:/ -o $options point 2>&1
        ! mountpoint point
        umount /tmp/millrace-0
        rmdir /run/user/0/millrace /tmp/millrace-0 2>/dev/null || true";
    let said = alone(&cluster, script)?;
    let text = said.clone().ok()?;
    let (mounted, refused) = text.split_once("point is unmounted").context(said.to_string())?;
    assert!(mounted.contains(".sock"), "{said}");
    assert!(refused.contains("make one of these directories writable: /run/millrace/"), "{said}");
    assert!(refused.contains("is not a mountpoint"), "{said}");
    Ok(())
}

#[test]
fn a_mount_answers_although_the_daemon_of_one_that_is_gone_still_listens_under_its_number()
-> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let identity = cluster.dir().join("client.pem");
    cluster.mount_as("gone", &identity, "")?.ok()?;
    let paused = cluster.daemon("gone")?.pause()?;
    run("umount", &[&"--lazy", &cluster.mount_named("gone")])?.ok()?;
    // The kernel gives the lowest number that is free, which is usually the same.
    cluster.mount_as("here", &identity, "")?.ok()?;
    let here = cluster.mount_named("here");
    let told = cluster.json(&["state", here.to_str().context("a temporary path is text")?])?;
    assert_eq!(told["directory"], true, "{told}");
    drop(paused);
    Ok(())
}

#[test]
fn a_job_is_watched_as_its_start_says_where_no_settings_can_be_used() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let data = cluster.scratch()?.join("data");
    fs::create_dir(&data)?;
    fs::write(data.join("file"), "content")?;
    let url = format!("file://{}", data.display());
    cluster.cli(&["link", "add", &url, "mr:/set"])?.ok()?;
    // Settings of an operator are there in the end, and only root may read their identity.
    let script = r#"umask 022
        ! test -d /etc/millrace || mount -t tmpfs none /etc/millrace
        unset MILLRACE_CONFIG
        mount -t tmpfs -o mode=755 none /mnt
        mkdir /mnt/bin "/mnt/my data" /mnt/etc
        mount --bind $BINARIES /mnt/bin
        mount --bind $PLACE/../mount "/mnt/my data"
        chmod 755 "/mnt/my data"
        export PATH=/mnt/bin:$PATH
        cd /
        hint=$(millrace hydrate "/mnt/my data/set" | sed -n 's/.*watch it with .\(.*\).$/\1/p')
        echo "hint: $hint"
        sh -c "$hint"
        ! millrace job list 2>&1
        cp $(dirname $IDENTITY)/admin.pem /mnt/etc/
        chmod 600 /mnt/etc/admin.pem
        printf '[cluster]\nservers = ["%s"]\nidentity = "admin.pem"\n' $SERVER >/mnt/etc/admin.toml
        export MILLRACE_CONFIG=/mnt/etc/admin.toml
        millrace job list
        as_nobody="setpriv --reuid nobody --regid nogroup --clear-groups"
        ! $as_nobody millrace job list 2>&1
        cd "/mnt/my data"
        $as_nobody millrace job show 1
        ! millrace --dir /nowhere job show 1 2>&1"#;
    let said = alone(&cluster, script)?;
    let text = said.clone().ok()?;
    assert!(text.contains("hint: (cd '/mnt/my data' && millrace job show 1 --wait)\n"), "{said}");
    assert_eq!(text.matches("job 1 succeeded: 1 of 1 file").count(), 2, "{said}");
    assert!(text.contains("no cluster is configured"), "{said}");
    assert!(text.contains("in a directory of a mount, which then is asked"), "{said}");
    assert!(text.contains("cannot use the operator's identity"), "{said}");
    assert!(text.contains("/nowhere holds no running cluster"), "{said}");
    Ok(())
}
