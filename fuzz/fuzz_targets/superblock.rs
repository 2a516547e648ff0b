//! Any bytes as a copy of the superblock.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::disk::superblock(bytes));
