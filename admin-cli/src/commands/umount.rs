//! `millrace umount MOUNTPOINT [--lazy]`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::{arguments::UmountArguments, context::Context, exit::Exit, mounting::end};

#[derive(Serialize)]
struct Unmounted {
    mountpoint: String,
    mounted: bool,
}

/// Unmounts, and waits for the daemon to write back what it holds.
pub(crate) async fn run(context: &Context, arguments: UmountArguments) -> anyhow::Result<Exit> {
    // Not canonicalised as a whole: that would ask the mount itself, which may be broken.
    let mountpoint = followed(&arguments.mountpoint)?;
    let Some(mount) = end::mount_at(&mountpoint)? else {
        bail!(
            "{} is no Millrace mount; `findmnt -t fuse.millrace` lists them",
            mountpoint.display()
        );
    };
    end::end(&mount, arguments.lazy).await?;
    let report = Unmounted { mountpoint: mountpoint.display().to_string(), mounted: false };
    context.output.result(&report, || format!("{} is unmounted", report.mountpoint))?;
    Ok(Exit::Done)
}

/// The mount point that a path leads to, if by symbolic links.
///
/// The kernel says by itself that a mount's root is none: no daemon is asked, which may have died.
fn followed(path: &Path) -> anyhow::Result<PathBuf> {
    let mut place = absolute(path)?;
    for _ in 0..LINKS_MAX {
        let Ok(target) = place.read_link() else { return Ok(place) };
        let parent = place.parent().unwrap_or_else(|| Path::new("/"));
        place = absolute(&parent.join(target))?;
    }
    bail!("{} leads from one symbolic link to the next and nowhere", path.display())
}

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;

/// The mount point as the kernel lists it: without symbolic links above it.
pub(crate) fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let path =
        std::path::absolute(path).with_context(|| format!("cannot use {}", path.display()))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path);
    };
    let parent =
        parent.canonicalize().with_context(|| format!("cannot find {}", parent.display()))?;
    Ok(parent.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symbolic_links_lead_to_the_mount_point_and_end_somewhere() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir_all(at("deep/mnt")).unwrap();
        symlink("deep/mnt", at("relative")).unwrap();
        symlink(at("relative"), at("absolute")).unwrap();
        symlink("../absolute", at("deep/up")).unwrap();
        symlink("deep", at("above")).unwrap();
        for path in ["deep/mnt", "relative", "absolute", "deep/up", "above/up", "relative/"] {
            assert_eq!(followed(&at(path)).unwrap(), at("deep/mnt"), "{path}");
        }
        symlink("circle", at("circle")).unwrap();
        let refused = followed(&at("circle")).unwrap_err().to_string();
        assert!(refused.contains("symbolic link"), "{refused}");
        assert_eq!(followed(&at("missing")).unwrap(), at("missing"), "to be looked up");
    }
}
