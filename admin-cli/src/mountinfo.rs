//! Which file system a path lies in, from `/proc/self/mountinfo`.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// The type of file system under which the client mounts.
pub(crate) const FS_TYPE: &str = "fuse.millrace";

/// One mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The device number, which also names the daemon's control socket.
    pub(crate) major: u32,
    /// The low part of the device number.
    pub(crate) minor: u32,
    /// The directory of the file system that the mount shows (not `/` for a bind mount of a part).
    pub(crate) root: PathBuf,
    /// Where it is mounted.
    pub(crate) mountpoint: PathBuf,
    /// Such as `ext4` or `fuse.millrace`.
    pub(crate) fs_type: String,
    /// What was mounted.
    pub(crate) source: String,
    /// Of a FUSE mount, the user who made it; otherwise 0.
    pub(crate) user: u32,
}

impl Mount {
    /// Whether a Millrace client serves it.
    pub(crate) fn is_millrace(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// The mounts that this process sees, in the order in which they were made.
///
/// # Errors
/// Those of reading `/proc`.
pub(crate) fn mounts() -> std::io::Result<Vec<Mount>> {
    std::fs::read("/proc/self/mountinfo").map(|table| parse(&table))
}

/// The mount that `path` (absolute, without symbolic links) lies in: the one with the longest
/// mount point, and of several on one point the last, which hides the others.
pub(crate) fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.mountpoint))
        // `max_by_key` gives the last of equals.
        .max_by_key(|mount| mount.mountpoint.as_os_str().len())
}

/// Lines that are not of the documented form (proc(5)) are left out.
fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = unescape(fields.next()?);
    let mountpoint = unescape(fields.next()?);
    // Mount options and any number of optional fields end with a single dash.
    fields.find(|field| *field == b"-")?;
    let fs_type = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let source = unescape(fields.next()?);
    let options = std::str::from_utf8(fields.next()?).ok()?;
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id="));
    Some(Mount {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        root,
        mountpoint,
        fs_type,
        source: source.to_string_lossy().into_owned(),
        user: user.and_then(|user| user.parse().ok()).unwrap_or(0),
    })
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:25 / /run rw,nosuid shared:2 master:7 - tmpfs tmpfs rw
61 22 0:52 / /mnt/my\\040data rw,nosuid,nodev - fuse.millrace meta-1:/ rw,user_id=0
62 22 0:52 /train /srv/train ro - fuse.millrace meta-1:/ rw,user_id=1000,group_id=0
63 22 0:53 / /mnt/my\\040data rw - fuse.millrace meta-2:/x rw
not a line
";

    #[test]
    fn the_table_is_read_with_escapes_and_optional_fields() {
        let mounts = parse(TABLE.as_bytes());
        assert_eq!(mounts.len(), 5);
        assert_eq!(mounts[0].fs_type, "ext4");
        assert_eq!(mounts[1].mountpoint, Path::new("/run"));
        assert_eq!(mounts[2].mountpoint, Path::new("/mnt/my data"));
        assert_eq!((mounts[2].major, mounts[2].minor), (0, 52));
        assert_eq!(mounts[3].root, Path::new("/train"));
        assert_eq!((mounts[0].user, mounts[3].user), (0, 1000));
        assert_eq!(mounts[4].source, "meta-2:/x");
    }

    #[test]
    fn a_path_belongs_to_the_longest_and_last_mount_point_above_it() {
        let mounts = parse(TABLE.as_bytes());
        let minor = |path: &str| mount_of(&mounts, Path::new(path)).map(|mount| mount.minor);
        assert_eq!(minor("/mnt/my data/a"), Some(53));
        assert_eq!(minor("/mnt/my data"), Some(53));
        assert_eq!(minor("/mnt/my datamart"), Some(1));
        assert_eq!(minor("/srv/train/x"), Some(52));
        assert_eq!(minor("/"), Some(1));
    }

    #[test]
    fn bad_escapes_stay_as_they_are() {
        assert_eq!(unescape(b"a\\"), Path::new("a\\"));
        assert_eq!(unescape(b"a\\04"), Path::new("a\\04"));
        assert_eq!(unescape(b"a\\999b"), Path::new("a\\999b"));
        assert_eq!(unescape(b"\\134\\011"), Path::new("\\\t"));
    }

    #[test]
    fn this_process_has_a_root_file_system() {
        let mounts = mounts().unwrap();
        assert!(mount_of(&mounts, Path::new("/")).is_some());
    }
}
