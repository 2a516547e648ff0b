//! What a PATH argument means: a path from the file system's root, or one inside a mount.

use std::{
    ffi::OsStr,
    io::ErrorKind,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use millrace_protocol::admin::PathBytes;
use rustix::io::Errno;

use crate::mountinfo::{self, Mount};

/// A PATH argument, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// `mr:/...`: a path from the root of the configured cluster's file system.
    Cluster(PathBytes),
    /// A path inside a mount: the mount, and the path from the root of what it serves.
    Mount(Mount, PathBytes),
}

impl Place {
    /// Resolves an argument. Symbolic links outside and inside the mount are followed; components
    /// at the end of a local path may be missing.
    ///
    /// # Errors
    /// When a local path does not exist, or lies in no Millrace mount.
    pub(crate) fn resolve(argument: &Path) -> anyhow::Result<Self> {
        if let Some(path) = cluster_path(argument)? {
            return Ok(Self::Cluster(path));
        }
        let path = canonical(argument).with_context(|| cannot_find(argument))?;
        let mounts = mountinfo::mounts().context("cannot read /proc/self/mountinfo")?;
        let Some(mount) = mountinfo::mount_of(&mounts, &path).filter(|mount| mount.is_millrace())
        else {
            bail!(
                "{} is not inside a Millrace mount; mount the file system (`millrace mount`), \
                 or name a path from its root as mr:/...",
                argument.display()
            );
        };
        Ok(Self::Mount(mount.clone(), path_in(mount, &path)))
    }
}

/// How a directory may be written in front of paths below it, without a slash at the end unless it
/// is a root.
pub(crate) fn spellings(directory: &Path) -> Vec<Vec<u8>> {
    if let Ok(Some(path)) = cluster_path(directory) {
        return vec![[SCHEME, &path].concat()];
    }
    let known = [std::path::absolute(directory).ok(), canonical(directory).ok()];
    let mut spellings: Vec<Vec<u8>> = Vec::new();
    for path in known.into_iter().flatten() {
        // Collected again without a slash at its end.
        let path: PathBuf = path.components().collect();
        let bytes = path.into_os_string().into_encoded_bytes();
        if !spellings.contains(&bytes) {
            spellings.push(bytes);
        }
    }
    spellings
}

/// The path behind `mr:`, normalised; nothing for a local path.
fn cluster_path(argument: &Path) -> anyhow::Result<Option<PathBytes>> {
    let Some(path) = argument.as_os_str().as_bytes().strip_prefix(SCHEME) else {
        return Ok(None);
    };
    if !path.starts_with(b"/") {
        bail!("{}: a path from the file system's root starts with mr:/", argument.display());
    }
    let mut normal = Vec::with_capacity(path.len());
    for component in Path::new(OsStr::from_bytes(path)).components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => {
                normal.push(b'/');
                normal.extend_from_slice(name.as_bytes());
            }
            _ => bail!("{}: `..` has no meaning in mr:/ paths", argument.display()),
        }
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    if normal.len() > PATH_LEN_MAX {
        bail!("the path is longer than {PATH_LEN_MAX} bytes");
    }
    Ok(Some(normal))
}

fn cannot_find(path: &Path) -> String {
    let mut text = format!("cannot find {}", path.display());
    if let Err(error) = path.metadata()
        && Errno::from_io_error(&error) == Some(Errno::NOTCONN)
    {
        text.push_str(" (the daemon of its mount has died: `millrace umount --lazy`, mount again)");
    }
    text
}

/// The absolute path without symbolic links; components at its end may be missing.
fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    let missing = match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => error,
        other => return other,
    };
    // `..` behind something that is missing has no meaning.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(missing);
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Ok(canonical(parent)?.join(name))
}

/// Where `path` lies from the root of what the mount's daemon serves.
fn path_in(mount: &Mount, path: &Path) -> PathBytes {
    let below = path
        .strip_prefix(&mount.mountpoint)
        .expect("the mount was chosen because the path lies below it");
    // A bind mount shows a part of the file system: its root stands in front.
    let inside = match below.as_os_str().is_empty() {
        true => mount.root.clone(),
        false => mount.root.join(below),
    };
    inside.as_os_str().as_bytes().to_vec()
}

/// In front of a path from the file system's root.
const SCHEME: &[u8] = b"mr:";
/// Linux's `PATH_MAX` less the final zero.
const PATH_LEN_MAX: usize = 4095;

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(argument: &str) -> Result<Option<PathBytes>, String> {
        cluster_path(Path::new(argument)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_path_behind_mr_is_normalised() {
        assert_eq!(cluster("mr:/"), Ok(Some(b"/".to_vec())));
        assert_eq!(cluster("mr:/a//b/./c/"), Ok(Some(b"/a/b/c".to_vec())));
        assert_eq!(cluster("/mnt/a"), Ok(None));
        assert_eq!(cluster("mr"), Ok(None));
    }

    #[test]
    fn a_path_behind_mr_must_be_absolute_and_without_parents() {
        assert!(cluster("mr:a").unwrap_err().contains("mr:/"));
        assert!(cluster("mr:/a/../b").unwrap_err().contains(".."));
        assert!(cluster(&format!("mr:/{}", "x/".repeat(3000))).is_err());
    }

    #[test]
    fn a_directory_may_be_written_with_and_without_its_links() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        assert_eq!(spellings(&link.join("")), [bytes(&link), bytes(&real)]);
        assert_eq!(spellings(Path::new("mr:/a//b/")), [b"mr:/a/b"]);
        assert_eq!(spellings(Path::new("mr:/")), [b"mr:/"]);
    }

    #[test]
    fn a_bind_mount_of_a_part_puts_that_part_in_front() {
        let mount = Mount {
            major: 0,
            minor: 52,
            root: "/train".into(),
            mountpoint: "/srv/t".into(),
            fs_type: mountinfo::FS_TYPE.into(),
            source: "meta:/".into(),
            user: 0,
        };
        assert_eq!(path_in(&mount, Path::new("/srv/t/a/b")), b"/train/a/b");
        assert_eq!(path_in(&mount, Path::new("/srv/t")), b"/train");
        let whole = Mount { root: "/".into(), ..mount };
        assert_eq!(path_in(&whole, Path::new("/srv/t/a")), b"/a");
        assert_eq!(path_in(&whole, Path::new("/srv/t")), b"/");
    }

    #[test]
    fn a_local_path_outside_a_mount_is_refused_with_the_remedy() {
        let error = Place::resolve(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(error.contains("mr:/"), "{error}");
        let error = Place::resolve(Path::new("/no/../such")).unwrap_err().to_string();
        assert!(error.contains("/no/../such"), "{error}");
    }

    #[test]
    fn components_at_the_end_may_be_missing_and_links_before_them_are_followed() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(canonical(&link.join("new")).unwrap(), real.join("new"));
        assert_eq!(canonical(&link.join("new/deep")).unwrap(), real.join("new/deep"));
        assert!(canonical(&link.join("new/../deep")).is_err());
    }
}
