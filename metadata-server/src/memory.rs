//! How the process takes memory from the kernel.

/// Takes memory in pages of 4 KiB from now on, whatever the host's setting of transparent huge
/// pages: the whole process, and what it starts.
///
/// The store's engine makes and drops pieces of all sizes from several threads. With pages of 2 MiB
/// what is in use is spread over them, and one piece keeps 2 MiB resident: 78 to 91 MiB where 18
/// were in use, and 44 to 61 without them (docs/performance.md). The bound of the server's memory
/// that operators are told holds only so. Call it before anything else: pages that are there stay.
///
/// # Errors
/// Where the kernel has no such call, which is no reason not to serve.
pub fn in_small_pages() -> std::io::Result<()> {
    rustix::thread::disable_transparent_huge_pages(true).map_err(Into::into)
}
