//! A file system in memory, gone when it is unmounted:
//! `memory MOUNTPOINT [READERS] [CHANNEL] [to=SOCKET]`, where the channel is `auto`, `dev` or
//! `uring`. With a socket it is handed over to whoever connects there:
//! `memory from=SOCKET [READERS]`, which then listens there itself.
//!
//! Complete enough for pjdfstest and fsx. Mounted as root it is for everybody.

mod content;
mod legacy;
mod memory;
mod tree;

use std::{
    env,
    error::Error,
    fs, io,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use memory::Memory;
use millrace_fuse_server::{
    Channel, MountOptions, Running, Session, SessionOptions, protocol::init::InitFlags,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let mut arguments = env::args_os().skip(1);
    let place = PathBuf::from(arguments.next().ok_or(USAGE)?);
    let mut options = SessionOptions::default();
    let mut socket = None;
    for argument in arguments {
        match argument.to_str() {
            Some("auto") => options.channel = Channel::Auto,
            Some("dev") => options.channel = Channel::Device,
            Some("uring") => options.channel = Channel::Uring,
            Some(to) if to.starts_with("to=") => socket = to.strip_prefix("to=").map(PathBuf::from),
            other => options.readers = Some(other.ok_or(USAGE)?.parse().map_err(|_| USAGE)?),
        }
    }
    let from = place.to_str().and_then(|place| place.strip_prefix("from=")).map(PathBuf::from);
    let session = match &from {
        Some(from) => {
            let predecessor = UnixStream::connect(from)?;
            Session::take_over(&predecessor, &options, |legacy, _| Memory::inherit(&legacy))?
        }
        None => mount(&place, &mut options)?,
    };
    let running = session.spawn()?;
    let socket = from.or(socket);
    let listener = socket.as_deref().map(listen).transpose()?;
    tracing::info!(channel = ?running.terms().channel(), terms = ?running.terms(), "serves");
    match (listener, socket) {
        (Some(listener), Some(socket)) => serve_until_inherited(running, &listener, &socket),
        _ => {
            let ended = running.join()?;
            tracing::info!(?ended, "unmounted");
            Ok(())
        }
    }
}

fn mount(
    mountpoint: &Path,
    options: &mut SessionOptions,
) -> Result<Session<Memory>, Box<dyn Error>> {
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
    let session = Session::mount(filesystem, mountpoint, &mount, options)?;
    if let Err(error) = session.mountpoint().raise_read_ahead(READ_AHEAD_KIB) {
        tracing::info!(%error, "read-ahead stays at 128 KiB");
    }
    Ok(session)
}

/// Serves until it is unmounted, or until somebody who connects to `socket` has taken over.
fn serve_until_inherited(
    mut running: Running<Memory>,
    listener: &UnixListener,
    socket: &Path,
) -> Result<(), Box<dyn Error>> {
    let interval = Timespec::try_from(LOOK_INTERVAL)?;
    loop {
        let mut heirs = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut heirs, Some(&interval))? == 0 {
            if running.is_over() {
                fs::remove_file(socket)?;
                let ended = running.join()?;
                tracing::info!(?ended, "unmounted");
                return Ok(());
            }
            continue;
        }
        let (heir, _) = listener.accept()?;
        heir.set_read_timeout(Some(PATIENCE))?;
        heir.set_write_timeout(Some(PATIENCE))?;
        match running.hand_over(&heir, PATIENCE, |memory| Ok(memory.leave())) {
            Ok(counts) => {
                tracing::info!(?counts, "handed over");
                return Ok(());
            }
            Err(refused) => {
                tracing::warn!(error = %refused.error, "goes on");
                running = refused.session.spawn()?;
            }
        }
    }
}

/// Whoever listened there before has handed over. Renamed into place, so that who connects finds
/// one of the two.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let mut own = socket.as_os_str().to_owned();
    own.push(format!(".{}", std::process::id()));
    let listener = UnixListener::bind(&own)?;
    fs::rename(&own, socket)?;
    Ok(listener)
}

const USAGE: &str =
    "usage: memory MOUNTPOINT [READERS] [auto|dev|uring] [to=SOCKET] | memory from=SOCKET";
/// Not `ATOMIC_O_TRUNC`, with which a file is truncated before the kernel sees that it is a program
/// that runs.
const WISHES: InitFlags = InitFlags::HANDLE_KILLPRIV_V2
    .with(InitFlags::DO_READDIRPLUS)
    .with(InitFlags::READDIRPLUS_AUTO)
    .with(InitFlags::CACHE_SYMLINKS)
    .with(InitFlags::EXPLICIT_INVAL_DATA);
const READ_AHEAD_KIB: u32 = 8192;
/// How often it is looked whether it was unmounted.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// For the operations that are going on, and for an heir.
const PATIENCE: Duration = Duration::from_secs(10);
