//! `millrace umount MOUNTPOINT [--lazy]`.

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
    let mountpoint = absolute(&arguments.mountpoint)?;
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

/// The mount point as the kernel lists it: without symbolic links above it.
pub(crate) fn absolute(path: &std::path::Path) -> anyhow::Result<std::path::PathBuf> {
    let path =
        std::path::absolute(path).with_context(|| format!("cannot use {}", path.display()))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path);
    };
    let parent =
        parent.canonicalize().with_context(|| format!("cannot find {}", parent.display()))?;
    Ok(parent.join(name))
}
