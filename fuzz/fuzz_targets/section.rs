//! Any bytes as a section record.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::disk::section(bytes));
