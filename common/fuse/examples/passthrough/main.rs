//! A directory, served as it is: `passthrough SOURCE MOUNTPOINT [READERS] [CHANNEL] [SYNC]`, where
//! the channel is `auto`, `dev` or `uring`.
//!
//! With `sync-us=1000` a sync takes 1,000 us at least, one at a time, as on a disk whose cache is
//! lost without power: what syncs cost can be measured on a disk that hardly charges for them.
//!
//! Reads and writes go to the files themselves, without asking this program, where the kernel can
//! do that (6.9). Complete enough for pjdfstest and fsx. Needs root: files get the owners that made
//! them.

mod nodes;
mod passthrough;
mod syncs;

use std::{env, error::Error, path::PathBuf, time::Duration};

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
    let mut sync = Duration::ZERO;
    for argument in arguments {
        let argument = argument.to_str().ok_or(USAGE)?;
        match (argument, argument.strip_prefix("sync-us=")) {
            ("auto", _) => options.channel = Channel::Auto,
            ("dev", _) => options.channel = Channel::Device,
            ("uring", _) => options.channel = Channel::Uring,
            (_, Some(micros)) => sync = Duration::from_micros(micros.parse().map_err(|_| USAGE)?),
            _ => options.readers = Some(argument.parse().map_err(|_| USAGE)?),
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
    let filesystem = Passthrough::new(&source, sync)?;
    let session = Session::mount(filesystem, &mountpoint, &mount, &options)?;
    let running = session.spawn()?;
    tracing::info!(channel = ?running.terms().channel(), terms = ?running.terms(), "serves");
    let ended = running.join()?;
    tracing::info!(?ended, "unmounted");
    Ok(())
}

const USAGE: &str =
    "usage: passthrough SOURCE MOUNTPOINT [READERS] [auto|dev|uring] [sync-us=MICROSECONDS]";
const WISHES: InitFlags = InitFlags::PASSTHROUGH
    .with(InitFlags::ATOMIC_O_TRUNC)
    .with(InitFlags::HANDLE_KILLPRIV_V2)
    .with(InitFlags::CACHE_SYMLINKS);
