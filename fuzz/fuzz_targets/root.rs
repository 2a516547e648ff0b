//! Any bytes as an index root.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::disk::root(bytes));
