//! A file system in memory, gone when it is unmounted: `memory MOUNTPOINT [READERS]`.
//!
//! Complete enough for pjdfstest and fsx. Mounted as root it is for everybody.

mod content;
mod memory;
mod tree;

use std::{env, error::Error, path::PathBuf};

use memory::Memory;
use millrace_fuse_server::{MountOptions, Session, SessionOptions, protocol::init::InitFlags};

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = env::args_os().skip(1);
    let mountpoint = PathBuf::from(arguments.next().ok_or("usage: memory MOUNTPOINT [READERS]")?);
    let readers = match arguments.next() {
        Some(text) => Some(text.to_str().ok_or("READERS is a number")?.parse()?),
        None => None,
    };
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let root = user.is_root();
    let mount = MountOptions {
        subtype: "memory".into(),
        allow_other: root,
        suid: root,
        dev: root,
        ..MountOptions::new("memory")
    };
    let mut options = SessionOptions { readers, ..SessionOptions::default() };
    options.wishes = options.wishes.with(WISHES);
    let filesystem = Memory::new(user.as_raw(), group.as_raw());
    let session = Session::mount(filesystem, &mountpoint, &mount, &options)?;
    if let Err(error) = session.raise_read_ahead(READ_AHEAD_KIB) {
        tracing::info!(%error, "read-ahead stays at 128 KiB");
    }
    tracing::info!(terms = ?session.terms(), "mounted");
    session.run()?;
    Ok(())
}

const WISHES: InitFlags = InitFlags::ATOMIC_O_TRUNC
    .with(InitFlags::HANDLE_KILLPRIV_V2)
    .with(InitFlags::DO_READDIRPLUS)
    .with(InitFlags::READDIRPLUS_AUTO)
    .with(InitFlags::CACHE_SYMLINKS)
    .with(InitFlags::EXPLICIT_INVAL_DATA);
const READ_AHEAD_KIB: u32 = 8192;
