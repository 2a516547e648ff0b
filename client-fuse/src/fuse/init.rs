//! What is agreed with the kernel when the mount begins.

use millrace_fuse_server::{Terms, Wishes, protocol::init::InitFlags};

/// Asks for everything that helps; what this kernel does not have is left out. With `local_locks`
/// the kernel decides about locks by itself; with `acl` it checks access control lists, and leaves
/// the umask to the server, which knows where a default list stands in its place.
///
/// Never asked for: the writeback cache (with it the kernel ignores the sizes that others set),
/// `AUTO_INVAL_DATA` (every read would ask for attributes first), and `EXPLICIT_INVAL_DATA` (a file
/// that grew elsewhere would keep its last page as it was, since nothing tells the kernel of it
/// yet).
pub(crate) fn wishes(local_locks: bool, acl: bool) -> Wishes {
    let flags = WANTED.into_iter().fold(InitFlags::EMPTY, InitFlags::with);
    let flags = if local_locks { flags } else { flags.with(LOCKS) };
    let flags = if acl { flags.with(LISTS) } else { flags };
    Wishes {
        flags,
        max_write: TRANSFER_LEN,
        max_readahead: TRANSFER_LEN,
        max_background: BACKGROUND_MAX,
        ..Wishes::default()
    }
}

/// Whether the kernel can be told to look a name up again, without dropping what is below it.
pub(crate) fn expires_names(terms: &Terms) -> bool {
    terms.flags.contains(InitFlags::HAS_EXPIRE_ONLY)
}

const WANTED: [InitFlags; 13] = [
    // Several reads of one file at a time.
    InitFlags::ASYNC_READ,
    // Writes of more than a page.
    InitFlags::BIG_WRITES,
    // Several lookups and listings in one directory at a time.
    InitFlags::PARALLEL_DIROPS,
    // Listings with attributes, for programs that look at each entry.
    InitFlags::DO_READDIRPLUS,
    InitFlags::READDIRPLUS_AUTO,
    // Direct reads of several requests are sent together.
    InitFlags::ASYNC_DIO,
    // `O_TRUNC` arrives with the open: one request, and the content is replaced as a whole.
    InitFlags::ATOMIC_O_TRUNC,
    // No question after `security.capability` before every write: halves the cost of small ones.
    InitFlags::HANDLE_KILLPRIV_V2,
    // The target of a link never changes; another link has another inode.
    InitFlags::CACHE_SYMLINKS,
    // Files opened for writing bypass the page cache and can still be mapped.
    InitFlags::DIRECT_IO_ALLOW_MMAP,
    // Who waits when the mount is cut off by force is told so.
    InitFlags::ABORT_ERROR,
    // A name can be taken back without what is mounted below it.
    InitFlags::HAS_EXPIRE_ONLY,
    // What was read and not answered can be asked for again.
    InitFlags::HAS_RESEND,
];

/// Locks of flock and fcntl come here.
const LOCKS: InitFlags = InitFlags::POSIX_LOCKS.with(InitFlags::FLOCK_LOCKS);

/// Access control lists: the kernel asks for them and checks them.
const LISTS: InitFlags = InitFlags::POSIX_ACL.with(InitFlags::DONT_MASK);

/// The largest request: what one transfer to a target moves.
const TRANSFER_LEN: u32 = millrace_protocol::storage::TRANSFER_LEN_MAX;

/// Requests of the page cache in flight. The kernel's default of 12 starves read-ahead; 256 of
/// 1 MiB each are more than any stream needs, and the rest waits in the kernel.
const BACKGROUND_MAX: u16 = 256;
