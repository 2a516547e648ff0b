//! Any bytes as a message of a peer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| millrace_fuzz::wire::message(bytes));
