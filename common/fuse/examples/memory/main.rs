//! A file system in memory, gone when it is unmounted: `memory MOUNTPOINT [READERS] [CHANNEL]`,
//! where the channel is `auto`, `dev` or `uring`.
//!
//! Complete enough for pjdfstest and fsx. Mounted as root it is for everybody.

mod content;
mod memory;
mod tree;

use std::{env, error::Error, path::PathBuf};

use memory::Memory;
use millrace_fuse_server::{
    Channel, MountOptions, Session, SessionOptions, protocol::init::InitFlags,
};

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = env::args_os().skip(1);
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
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let root = user.is_root();
    let mount = MountOptions {
        subtype: "memory".into(),
        allow_other: root,
        suid: root,
        dev: root,
        ..MountOptions::new("memory")
    };
    options.wishes = options.wishes.with(WISHES);
    let filesystem = Memory::new(user.as_raw(), group.as_raw());
    let session = Session::mount(filesystem, &mountpoint, &mount, &options)?;
    if let Err(error) = session.raise_read_ahead(READ_AHEAD_KIB) {
        tracing::info!(%error, "read-ahead stays at 128 KiB");
    }
    let running = session.spawn()?;
    tracing::info!(channel = ?running.terms().channel(), terms = ?running.terms(), "mounted");
    let ended = running.join()?;
    tracing::info!(?ended, "unmounted");
    Ok(())
}

const USAGE: &str = "usage: memory MOUNTPOINT [READERS] [auto|dev|uring]";
/// Not `ATOMIC_O_TRUNC`, with which a file is truncated before the kernel sees that it is a program
/// that runs.
const WISHES: InitFlags = InitFlags::HANDLE_KILLPRIV_V2
    .with(InitFlags::DO_READDIRPLUS)
    .with(InitFlags::READDIRPLUS_AUTO)
    .with(InitFlags::CACHE_SYMLINKS)
    .with(InitFlags::EXPLICIT_INVAL_DATA);
const READ_AHEAD_KIB: u32 = 8192;
