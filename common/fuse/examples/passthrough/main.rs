//! A directory, served as it is: `passthrough SOURCE MOUNTPOINT [READERS] [CHANNEL]`, where the
//! channel is `auto`, `dev` or `uring`.
//!
//! Reads and writes go to the files themselves, without asking this program, where the kernel can
//! do that (6.9). Complete enough for pjdfstest and fsx. Needs root: files get the owners that made
//! them.

mod nodes;
mod passthrough;

use std::{env, error::Error, path::PathBuf};

use millrace_fuse_server::{
    Channel, MountOptions, Session, SessionOptions, protocol::init::InitFlags,
};
use passthrough::Passthrough;

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = env::args_os().skip(1);
    let source = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let mountpoint = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let mut options = SessionOptions::default();
    for argument in arguments {
        match argument.to_str() {
            Some("auto") => options.channel = Channel::Auto,
            Some("dev") => options.channel = Channel::Device,
            Some("uring") => options.channel = Channel::Uring,
            other => options.readers = Some(other.ok_or(USAGE)?.parse().map_err(|_| USAGE)?),
        }
    }
    // Files are made with the rights that the kernel has worked out.
    rustix::process::umask(rustix::fs::Mode::empty());
    let mount = MountOptions {
        subtype: "passthrough".into(),
        allow_other: true,
        suid: true,
        dev: true,
        ..MountOptions::new(source.to_string_lossy())
    };
    options.wishes = options.wishes.with(WISHES);
    let filesystem = Passthrough::new(&source)?;
    let session = Session::mount(filesystem, &mountpoint, &mount, &options)?;
    let running = session.spawn()?;
    tracing::info!(channel = ?running.terms().channel(), terms = ?running.terms(), "serves");
    let ended = running.join()?;
    tracing::info!(?ended, "unmounted");
    Ok(())
}

const USAGE: &str = "usage: passthrough SOURCE MOUNTPOINT [READERS] [auto|dev|uring]";
const WISHES: InitFlags = InitFlags::PASSTHROUGH
    .with(InitFlags::ATOMIC_O_TRUNC)
    .with(InitFlags::HANDLE_KILLPRIV_V2)
    .with(InitFlags::CACHE_SYMLINKS);
