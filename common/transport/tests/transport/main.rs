//! Clients and servers over loopback, in one process; and one that is killed, in another.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod exchange;
mod raw;
mod refusal;
mod restart;
mod same_host;
mod spread;
mod world;
