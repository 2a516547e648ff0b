//! Any bytes as a request of the kernel over FUSE.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::kernel::request(bytes));
