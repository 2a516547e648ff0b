//! The file system of the example `memory`, through the kernel. Needs root and `/dev/fuse`, and
//! half of it a kernel that offers FUSE over io_uring. Without them a test fails, unless
//! `MILLRACE_TEST_WITHOUT_MOUNTS` or `MILLRACE_TEST_WITHOUT_URING` is set: then it says so and
//! passes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

#[path = "../examples/memory/content.rs"]
mod content;
#[path = "../examples/memory/memory.rs"]
mod memory;
#[path = "../examples/memory/tree.rs"]
mod tree;

/// Makes tests of functions that test one channel.
macro_rules! over_both {
    ($($test:ident),* $(,)?) => {
        mod over_device {
            $(#[test] fn $test() { super::$test(super::Channel::Device); })*
        }

        mod over_ring {
            $(#[test] fn $test() { super::$test(super::Channel::Uring); })*
        }
    };
}

#[path = "kernel/interrupts.rs"]
mod interrupts;
#[path = "kernel/notifications.rs"]
mod notifications;
#[path = "kernel/passthrough.rs"]
mod passthrough;
#[path = "kernel/payloads.rs"]
mod payloads;
#[path = "kernel/replies.rs"]
mod replies;
#[path = "kernel/scattered.rs"]
mod scattered;
#[path = "kernel/sessions.rs"]
mod sessions;
#[path = "kernel/signals.rs"]
mod signals;
#[path = "kernel/stress.rs"]
mod stress;
#[path = "kernel/successors.rs"]
mod successors;
#[path = "kernel/work.rs"]
mod work;

use std::{
    env, fs,
    num::NonZero,
    path::{Path, PathBuf},
};

use millrace_fuse_server::{
    Channel, FileSystem, MountOptions, Running, Session, SessionOptions, protocol::init::InitFlags,
};
use tempfile::TempDir;

/// A mounted file system. It is taken away when the test ends, even by a panic.
struct Mounted<F: FileSystem> {
    // In this order: the mount before the directory.
    running: Option<Running<F>>,
    directory: TempDir,
}

impl<F: FileSystem> Mounted<F> {
    /// `None` on a machine that cannot mount.
    fn new(filesystem: F, channel: Channel) -> Option<Self> {
        Self::with(filesystem, &options(channel))
    }

    /// The same, with other options.
    fn with(filesystem: F, options: &SessionOptions) -> Option<Self> {
        let directory = TempDir::new().expect("a directory");
        let session = mount(filesystem, directory.path(), options)?;
        let running = session.spawn().expect("threads");
        Some(Self { running: Some(running), directory })
    }

    fn running(&self) -> &Running<F> {
        self.running.as_ref().expect("until it ends")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Four readers, so that threads meet on a machine with few CPUs too.
fn options(channel: Channel) -> SessionOptions {
    let readers = NonZero::new(4);
    let mut options = SessionOptions { channel, readers, ..SessionOptions::default() };
    options.wishes = options.wishes.with(
        InitFlags::ATOMIC_O_TRUNC
            | InitFlags::HANDLE_KILLPRIV_V2
            | InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::POSIX_LOCKS,
    );
    options
}

fn mount<F: FileSystem>(filesystem: F, on: &Path, options: &SessionOptions) -> Option<Session<F>> {
    if !can_mount() || !is_offered(options.channel) {
        return None;
    }
    let mount = MountOptions { allow_other: true, ..MountOptions::new("test") };
    Some(Session::mount(filesystem, on, &mount, options).expect("it is mounted"))
}

/// Whether tests can mount here. If not, that has to be allowed.
fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    can || lacks("MILLRACE_TEST_WITHOUT_MOUNTS", "not root, or no /dev/fuse")
}

/// Whether the kernel serves over that channel. `scripts/test.sh` has it offer both. If not, that
/// has to be allowed.
fn is_offered(channel: Channel) -> bool {
    let parameter = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let is = channel != Channel::Uring || parameter.is_ok_and(|text| text.trim() == "Y");
    is || lacks("MILLRACE_TEST_WITHOUT_URING", "the kernel does not offer FUSE over io_uring")
}

/// Says that something is missing: `false`, for a test that passes without it because `variable` is
/// set.
fn lacks(variable: &str, what: &str) -> bool {
    assert!(env::var_os(variable).is_some(), "{what}; {variable} is not set");
    tracing::warn!("{what}: not tested");
    false
}
