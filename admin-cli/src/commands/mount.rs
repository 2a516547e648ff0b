//! `millrace mount [-o OPTIONS] MOUNTPOINT`, also called by mount(8).

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{
    arguments::{Globals, MountArguments},
    context::Context,
    exit::Exit,
    mounting::{
        options::{MountOptions, Source},
        start::{self, Request},
    },
};

#[derive(Serialize)]
struct Mounted {
    mountpoint: String,
    source: String,
    device: String,
    log: String,
}

/// Starts the mount's daemon in the background and returns when it serves.
pub(crate) async fn run(context: &Context, arguments: MountArguments) -> anyhow::Result<Exit> {
    let options = MountOptions::parse(&arguments.options)?;
    let source = arguments.source.as_deref().map(Source::parse).transpose()?;
    let config = config(&context.globals);
    let log = || log_file(&arguments.mountpoint);
    let request = Request::new(options, source, &arguments.mountpoint, config, log)?;
    if arguments.fake {
        return Ok(Exit::Done);
    }
    let mount = start::start(&request).await?;
    if arguments.quiet {
        return Ok(Exit::Done);
    }
    let report = Mounted {
        mountpoint: mount.mountpoint.display().to_string(),
        source: mount.source.clone(),
        device: format!("{}:{}", mount.major, mount.minor),
        log: request.log.display().to_string(),
    };
    context.output.result(&report, || {
        format!("{} shows {}; log: {}", report.mountpoint, report.source, report.log)
    })?;
    Ok(Exit::Done)
}

/// Settings of the mount: `--config`, then `--dir`, then the host's own. `MILLRACE_CONFIG` names
/// those of operators, whose identity opens no mount.
fn config(globals: &Globals) -> Option<PathBuf> {
    let dir = globals.dir.as_ref().map(|dir| dir.join(CLIENT_FILE));
    let named = globals.config.clone().or(dir);
    let path = named.or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))?;
    Some(std::path::absolute(&path).unwrap_or(path))
}

/// Root's logs lie where an operator looks, a user's where they may write.
fn log_file(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    let directory = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/log/millrace")
    } else {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
        state
            .or_else(home)
            .ok_or_else(|| anyhow::anyhow!("no place for a log: set HOME, or use -o log=FILE"))?
            .join("millrace")
    };
    std::fs::create_dir_all(&directory)
        .map_err(|error| anyhow::anyhow!("cannot make {}: {error}", directory.display()))?;
    let mountpoint = std::path::absolute(mountpoint)?;
    let name = mountpoint.display().to_string();
    let name = name.trim_matches('/').replace('/', "-");
    Ok(directory.join(format!("mount-{name}.log")))
}

/// Settings of mounts within the directory of a dev cluster.
pub(crate) const CLIENT_FILE: &str = "client.toml";
const DEFAULT_FILE: &str = "/etc/millrace/client-fuse.toml";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_decides_which_settings_a_mount_gets() {
        let globals =
            Globals { config: Some("/a.toml".into()), dir: Some("/d".into()), json: false };
        assert_eq!(config(&globals), Some("/a.toml".into()));
        let dir = Globals { config: None, ..globals };
        assert_eq!(config(&dir), Some("/d/client.toml".into()));
    }
}
