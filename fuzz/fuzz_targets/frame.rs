//! Any bytes as the header of a frame.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::wire::frame(bytes));
