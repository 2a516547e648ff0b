//! Who may do what beyond permission bits: access control lists, attributes of the system, groups.
//! What a local file system says to the same script is what is right.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::{Said, run},
};
use rustix::{
    fs::{XattrFlags, getxattr, getxattr_query, listxattr, setxattr},
    io::Errno,
};

/// Runs a script in a directory, with a way for each of some users to run one there too. The way to
/// the directory is for root alone: whoever stands in it needs no way.
fn inside(directory: &Path, script: &str) -> Result<Said> {
    let users =
        "as() { ids=$1; shift; setpriv --reuid=${ids%%:*} --regid=$(echo $ids | cut -d: -f2) \
                 --groups=${ids##*:} sh -euc \"$*\" 2>&1 || true; }
                 show() { getfacl --omit-header --numeric --no-effective \"$@\"; \
                 stat --format '%n %A %u %g' \"$@\"; }";
    let whole = format!("cd '{}'\nexec 2>&1\numask 022\n{users}\n{script}", directory.display());
    run("sh", &[&"-euc", &whole])
}

/// What the script says on the mount, after it said the same on the local file system.
fn said_alike(cluster: &Cluster, mount: &Path, script: &str) -> Result<String> {
    let local = cluster.scratch()?.join("local");
    fs::create_dir_all(&local)?;
    run("chmod", &[&"755", &local])?.ok()?;
    let (right, said) = (inside(&local, script)?, inside(mount, script)?);
    assert_eq!(said.stdout, right.stdout, "on the left as the mount has it\n{said}\n{right}");
    said.ok()
}

fn mounted(cluster: &Cluster, options: &str) -> Result<PathBuf> {
    cluster.mount_as("special", &cluster.dir().join("client.pem"), options)?.ok()?;
    let mount = cluster.mount_named("special");
    run("chmod", &[&"755", &mount])?.ok()?;
    Ok(mount)
}

#[test]
fn access_lists_are_kept_checked_and_in_agreement_with_the_mode() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = mounted(&cluster, "acl")?;
    let script = "
        echo secret >file
        chmod 640 file
        setfacl --modify u:1000:rw,g:2000:r file
        show file
        as 1000:1000:1000 'echo more >>file; cat file'
        as 1001:1001:1001 'cat file'
        as 1001:1001:2000 'cat file; echo no >>file'
        ls -l file | cut -c 1-11
        chmod 640 file; show file
        as 1000:1000:1000 'cat file; echo no >>file'
        chmod 607 file; show file
        setfacl --modify m::rwx file; show file
        as 1000:1000:1000 'setfacl --modify u:1000:rwx file'
        cp --archive file copy; show copy
        mv copy moved; show moved
        setfacl --remove-all file; show file
        ls -l file | cut -c 1-11
        setfacl --remove-all file
        # Three entries are what the mode says.
        setfacl --set u::rw,g::r,o::- file; show file

        # Who is not in the file's group loses setgid with a new list.
        touch mine; chown 1000:3000 mine; chmod 2770 mine
        as 1000:1000:1000 'setfacl --modify u:1001:r mine'; show mine
        chmod 2770 mine
        as 1000:1000:3000 'setfacl --modify u:1001:rw mine'; show mine

        # Names are checked by the server: who may add, list and remove them.
        mkdir dir; chmod 700 dir
        setfacl --modify u:1000:rwx,u:1001:r,g:2000:wx dir
        as 1000:1000:1000 'touch dir/one; ls dir; rm dir/one; mkdir dir/sub; rmdir dir/sub'
        as 1001:1001:1001 'ls dir; touch dir/two'
        as 1002:1002:2000 'touch dir/three; mv dir/three dir/four; ls dir'
        as 1003:1003:1003 'ls dir; touch dir/five'
        ls dir
        ln -s dir link; show dir";
    let said = said_alike(&cluster, &mount, script)?;
    assert!(said.contains("user:1000:rw-") && said.contains("-rw-rw----+"), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    Ok(())
}

#[test]
fn new_entries_inherit_the_default_list_in_place_of_the_umask() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = mounted(&cluster, "acl")?;
    let script = "
        mkdir dir plain
        setfacl --default --modify u::rwx,u:1000:rwx,g::r-x,m::rwx,o::--- dir
        show dir
        for umask in 000 027 077; do
            umask $umask
            for dir in dir plain; do
                touch $dir/file$umask; mkdir $dir/sub$umask; mkdir -m 700 $dir/narrow$umask
                mkfifo $dir/pipe$umask; ln -s nowhere $dir/link$umask
                mkdir -p $dir/sub$umask/deeper; touch $dir/sub$umask/deeper/file
                show $dir/file$umask $dir/sub$umask $dir/narrow$umask $dir/pipe$umask \\
                    $dir/sub$umask/deeper $dir/sub$umask/deeper/file
                stat --format '%n %A' $dir/link$umask
            done
        done
        as 1000:1000:1000 'cd dir/sub077; touch his; echo mine >file; stat --format %A his'
        # A default list of three entries is a list all the same.
        mkdir three; setfacl --default --set u::rwx,g::r,o::- three
        umask 000; touch three/file; mkdir three/sub; show three/file three/sub
        setfacl --remove-default dir three; show dir three
        umask 022; touch dir/after; show dir/after
        setfacl --default --modify u:1:r dir/after || echo refused
        chmod 2775 dir; chgrp 3000 dir; setfacl --default --modify u:1:rwx dir
        mkdir dir/group; touch dir/group/file; show dir/group dir/group/file";
    let said = said_alike(&cluster, &mount, script)?;
    assert!(said.contains("default:user:1000:rwx") && said.contains("refused"), "{said}");
    Ok(())
}

#[test]
fn lists_hold_on_mounts_without_them_and_after_a_crash() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = mounted(&cluster, "acl")?;
    let set = "mkdir dir; chown 0:2000 dir; chmod 770 dir
        setfacl --modify u:1000:rwx,g::--- dir
        setfacl --default --modify u:1000:rwx,o::- dir
        show dir";
    let before = inside(&mount, set)?.ok()?;
    cluster.crash("metadata")?;
    assert_eq!(inside(&mount, "show dir")?.ok()?, before);

    // The kernel of that mount sees the mode, which lets the group in; the server knows better.
    let other = cluster.mount();
    let said = inside(&other, "ls -ld dir; as 1001:1001:2000 'touch dir/file'")?.ok()?;
    assert!(said.starts_with("drwxrwx--- ") && said.contains("Permission denied"), "{said}");
    inside(&other, "touch dir/plain")?.ok()?;
    let shown = inside(&mount, "show dir/plain")?.ok()?;
    assert!(shown.contains("user:1000:rwx") && shown.contains("other::---"), "{shown}");
    let mut names = [0_u8; 1024];
    let len = listxattr(other.join("dir"), &mut names)?;
    assert_eq!(len, 0, "what is not offered is not listed");
    let refused = setxattr(other.join("dir"), "system.posix_acl_access", b"", XattrFlags::empty());
    assert_eq!(refused, Err(Errno::OPNOTSUPP));
    Ok(())
}

/// Prints what comes of one call of Python's `os` a line.
const CALLS: &str = r#"
import errno, os, struct, sys
def do(call):
    try:
        found = eval(call)
    except OSError as error:
        found = errno.errorcode[error.errno]
    print(call[:60], found)
capability = struct.pack('<5I', 0x02000001, 1 << 13, 0, 0, 0)
for line in sys.stdin:
    if line.strip():
        do(line.strip())
"#;

fn calls(lines: &[&str]) -> String {
    format!("python3 -c \"$CALLS\" <<'END'\n{}\nEND\n", lines.join("\n"))
}

#[test]
fn attributes_of_the_system_are_kept_for_whom_they_are() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = mounted(&cluster, "security_xattrs")?;
    let by_root = calls(&[
        "os.setxattr('file', 'trusted.a', b'1')",
        "os.setxattr('file', 'security.label', b'2')",
        "os.setxattr('file', 'user.b', b'3')",
        "sorted(os.listxattr('file'))",
        "os.getxattr('file', 'trusted.a')",
        "os.getxattr('file', 'security.none')",
        "os.getxattr('file', 'trusted.none')",
        "os.removexattr('file', 'trusted.none')",
        "os.setxattr('file', 'user.b', b'4', os.XATTR_CREATE)",
        "os.setxattr('file', 'user.c', b'4', os.XATTR_REPLACE)",
        "os.setxattr('file', 'user.b', b'5', os.XATTR_REPLACE)",
        "os.setxattr('file', 'user.' + 'n' * 251, b'')",
        "os.setxattr('file', 'user.long', b'x' * 65537)",
        "os.setxattr('file', 'nothing', b'')",
        "os.setxattr('file', 'user.', b'')",
        "os.setxattr('link', 'user.a', b'', follow_symlinks=False)",
        "os.setxattr('link', 'trusted.a', b'', follow_symlinks=False)",
        "os.setxattr('dir', 'user.a', b'')",
        "os.setxattr('pipe', 'user.a', b'')",
    ]);
    let by_others = calls(&[
        "os.getxattr('file', 'trusted.a')",
        "os.setxattr('file', 'trusted.a', b'')",
        "os.removexattr('file', 'trusted.a')",
        "os.getxattr('file', 'security.label')",
        "os.setxattr('file', 'security.label', b'')",
        "os.setxattr('file', 'user.b', b'')",
        "os.getxattr('file', 'user.b')",
    ]);
    let script = format!(
        "export CALLS='{}'
        echo bytes >file; mkdir dir; ln -s nowhere link; mkfifo pipe
        {by_root}
        as 1000:1000:1000 \"$(cat <<'OTHERS'\n{by_others}\nOTHERS\n)\"",
        CALLS.replace('\'', "'\\''"),
    );
    let said = said_alike(&cluster, &mount, &script)?;
    for word in ["ENODATA", "EPERM", "EEXIST", "ERANGE", "E2BIG", "ENOTSUP", "b'2'"] {
        assert!(said.contains(word), "{word}: {said}");
    }

    let file = mount.join("file");
    let none = XattrFlags::empty();
    assert_eq!(getxattr_query(&file, "security.label"), Ok(1));
    setxattr(&file, "security.label", b"longer", none)?;
    assert_eq!(getxattr(&file, "security.label", &mut [0; 3]), Err(Errno::RANGE));
    setxattr(&file, "user.large", &[7; 60_000], none)?;
    assert_eq!(setxattr(&file, "user.more", &[7; 60_000], none), Err(Errno::NOSPC));
    assert_eq!(listxattr(&file, &mut [0; 5]), Err(Errno::RANGE));
    let other = cluster.mount().join("file");
    assert_eq!(getxattr(&other, "security.label", &mut [0; 9]), Err(Errno::OPNOTSUPP));
    let mut names = [0; 200];
    let len = listxattr(&other, &mut names)?;
    assert!(!names[..len].windows(9).any(|word| word == b"security."), "not offered there");
    Ok(())
}

#[test]
fn a_programs_capabilities_go_when_its_bytes_or_its_owner_change() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = mounted(&cluster, "security_xattrs")?;
    let mut capabilities = vec![
        "os.close(os.open('program', os.O_CREAT | os.O_WRONLY))".to_owned(),
        "os.getxattr('program', 'security.capability')".to_owned(),
    ];
    let changes = [
        "os.write(os.open('program', os.O_WRONLY), b'changed')",
        "os.truncate('program', 3)",
        "os.chown('program', 1000, -1)",
        "os.close(os.open('program', os.O_TRUNC | os.O_WRONLY))",
        "os.chmod('program', 0o755)",
        "os.utime('program')",
        "os.rename('program', 'renamed') or os.rename('renamed', 'program')",
    ];
    for change in changes {
        capabilities.extend([
            "os.setxattr('program', 'security.capability', capability)".to_owned(),
            change.to_owned(),
            // Its descriptor is closed, and what was written is stored.
            "os.closerange(3, 50)".to_owned(),
            "os.getxattr('program', 'security.capability')".to_owned(),
        ]);
    }
    // As copying programs do it: bytes first, and then the attribute, through one descriptor.
    capabilities.extend(
        [
            "os.open('copy', os.O_CREAT | os.O_WRONLY) == 3 and os.write(3, b'bytes')",
            "os.setxattr(3, 'security.capability', capability)",
            "os.closerange(3, 50)",
            "os.getxattr('copy', 'security.capability') == capability",
        ]
        .map(str::to_owned),
    );
    let capabilities: Vec<_> = capabilities.iter().map(String::as_str).collect();
    let script =
        format!("export CALLS='{}'\n{}", CALLS.replace('\'', "'\\''"), calls(&capabilities));
    let said = said_alike(&cluster, &mount, &script)?;
    assert!(said.contains("ENODATA") && said.contains("True"), "{said}");
    assert!(said.contains("b'\\x01"), "what changes neither leaves them: {said}");
    Ok(())
}

/// The kernel has them removed first, in the name of whoever changes the program.
#[test]
fn whoever_may_change_a_program_may_do_so_and_its_capabilities_go() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let mount = mounted(&cluster, "security_xattrs")?;
    let mut script = "chmod 777 .; cp /etc/passwd /etc/group .".to_owned();
    for (user, change) in [
        ("1000:1000:1000", "truncate --size=10 program"),
        ("1000:1000:1000", "fallocate --punch-hole --offset=0 --length=4096 program"),
        ("1000:1000:2000", "chgrp 2000 program"),
        ("1000:1000:1000", "chown 1000 program"),
        ("1000:1000:1000", "dd if=passwd of=program bs=10 count=1 conv=notrunc status=none"),
        ("1000:1000:1000", "cp group program"),
        ("1001:1001:1001", "truncate --size=10 program"),
        ("1001:1001:1001", "chgrp 1001 program"),
        ("1000:1000:1000", "setfattr --remove=security.capability program"),
    ] {
        script += &format!(
            "
            rm -f program; head -c 9000 /dev/zero >program
            chown 1000:1000 program; chmod 757 program
            setfattr --name=security.capability --value={CAPABILITY} program
            as {user} '{change} && echo done || echo refused'
            stat --format='%s %g %a' program
            getfattr --name=security.capability --encoding=hex program || echo none",
        );
    }
    let said = said_alike(&cluster, &mount, &script)?;
    assert!(said.contains("done") && said.contains(CAPABILITY), "{said}");
    Ok(())
}

/// To listen on ports below 1024.
const CAPABILITY: &str = "0x0100000200040000000000000000000000000000";

#[test]
fn every_one_of_forty_groups_counts() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let groups: Vec<String> = (3000..3040).map(|group| group.to_string()).collect();
    let script = format!(
        "for group in 3000 3016 3039 3040; do
            mkdir $group; chown 0:$group $group; chmod 770 $group
            as 1000:1000:{} \"echo in >$group/file; cat $group/file; mv $group/file $group/moved; \
                chgrp $group $group/moved; stat --format %g $group/moved\"
        done",
        groups.join(",")
    );
    run("chmod", &[&"755", &cluster.mount()])?.ok()?;
    let said = said_alike(&cluster, &cluster.mount(), &script)?;
    assert_eq!(said.matches("in\n").count(), 3, "{said}");
    assert_eq!(said.matches("Permission denied").count(), 1, "{said}");
    Ok(())
}
