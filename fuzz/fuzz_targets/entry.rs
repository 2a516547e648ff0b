//! Any bytes as an entry of the index.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::disk::entry(bytes));
