//! A directory, served as it is: `passthrough SOURCE MOUNTPOINT [READERS]`.
//!
//! Reads and writes go to the files themselves, without asking this program, where the kernel can
//! do that (6.9). Complete enough for pjdfstest and fsx. Needs root: files get the owners that made
//! them.

mod nodes;
mod passthrough;

use std::{env, error::Error, path::PathBuf};

use millrace_fuse_server::{MountOptions, Session, SessionOptions, protocol::init::InitFlags};
use passthrough::Passthrough;

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = env::args_os().skip(1);
    let source = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let mountpoint = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let readers = match arguments.next() {
        Some(text) => Some(text.to_str().ok_or(USAGE)?.parse()?),
        None => None,
    };
    // Files are made with the rights that the kernel has worked out.
    rustix::process::umask(rustix::fs::Mode::empty());
    let mount = MountOptions {
        subtype: "passthrough".into(),
        allow_other: true,
        suid: true,
        dev: true,
        ..MountOptions::new(source.to_string_lossy())
    };
    let mut options = SessionOptions { readers, ..SessionOptions::default() };
    options.wishes = options.wishes.with(WISHES);
    let filesystem = Passthrough::new(&source)?;
    let session = Session::mount(filesystem, &mountpoint, &mount, &options)?;
    tracing::info!(terms = ?session.terms(), "mounted");
    session.run()?;
    Ok(())
}

const USAGE: &str = "usage: passthrough SOURCE MOUNTPOINT [READERS]";
const WISHES: InitFlags = InitFlags::PASSTHROUGH
    .with(InitFlags::ATOMIC_O_TRUNC)
    .with(InitFlags::HANDLE_KILLPRIV_V2)
    .with(InitFlags::CACHE_SYMLINKS);
