//! What is agreed with the kernel when the mount begins.

use fuser::{InitFlags, KernelConfig};

/// Asks for everything that helps and that this kernel has.
///
/// Never asked for: the writeback cache (with it the kernel ignores the sizes that others set), and
/// `EXPLICIT_INVAL_DATA` (a file that grew elsewhere would keep its last page as it was, since
/// nothing tells the kernel of it yet).
pub(super) fn negotiate(config: &mut KernelConfig) {
    for (flag, name) in WANTED {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!(name, "the kernel does not offer a FUSE capability");
        }
    }
    // Each of these answers with the nearest value that it would take.
    let negotiated = [
        ("max_write", retry(TRANSFER_LEN, |wanted| config.set_max_write(wanted))),
        ("max_readahead", retry(TRANSFER_LEN, |wanted| config.set_max_readahead(wanted))),
        ("max_background", retry(BACKGROUND_MAX, |wanted| config.set_max_background(wanted))),
    ];
    for (name, taken) in negotiated {
        if !taken {
            tracing::debug!(name, "the kernel keeps its own value");
        }
    }
}

/// Sets a value, or the nearest to it.
fn retry<T>(wanted: T, mut set: impl FnMut(T) -> Result<T, T>) -> bool {
    set(wanted).or_else(set).is_ok()
}

const WANTED: [(InitFlags, &str); 6] = [
    // Several lookups and listings in one directory at a time.
    (InitFlags::FUSE_PARALLEL_DIROPS, "parallel directory operations"),
    // Direct reads of several requests are sent together.
    (InitFlags::FUSE_ASYNC_DIO, "asynchronous direct I/O"),
    // `O_TRUNC` arrives with the open: one request, and the content is replaced as a whole.
    (InitFlags::FUSE_ATOMIC_O_TRUNC, "atomic truncation"),
    // No question after `security.capability` before every write: halves the cost of small ones.
    (InitFlags::FUSE_HANDLE_KILLPRIV_V2, "dropping of privilege bits"),
    // The target of a link never changes; another link has another inode.
    (InitFlags::FUSE_CACHE_SYMLINKS, "cached symbolic links"),
    // Files opened for writing bypass the page cache and can still be mapped.
    (InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, "mapping of direct I/O files"),
];

/// The largest request: what one transfer to a target moves.
const TRANSFER_LEN: u32 = millrace_protocol::storage::TRANSFER_LEN_MAX;

/// Requests of the page cache in flight. The kernel's default of 12 starves read-ahead; 256 of
/// 1 MiB each are more than any stream needs, and the rest waits in the kernel.
const BACKGROUND_MAX: u16 = 256;
