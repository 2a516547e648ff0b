//! What must hold for any bytes from a disk, a peer or the kernel, as functions: libFuzzer calls
//! them in `fuzz_targets`, and `storage-target/tests/formats.rs` and
//! `common/fuse/tests/protocol.rs` with mutated samples in every run of the tests, so that they do
//! not rot.
//!
//! A decoder never panics; what it returns can be used without panicking; where a format promises
//! one form for one content, what was decoded is encoded to the same bytes; and what is decoded is
//! never much larger than the bytes. Checksums are made right first: a fuzzer would not get past
//! them.

// Of the storage target the formats alone (links to its files), which need nothing else of it: so a
// session begins in a minute, and not after building a whole daemon.
extern crate self as millrace_storage_target;

pub mod disk;
pub mod format;
pub mod kernel;
pub mod wire;
