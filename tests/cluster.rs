//! Whole clusters of real processes: crashes, refusals, limits.

#[path = "cluster/bad_input.rs"]
mod bad_input;
#[path = "cluster/buckets.rs"]
mod buckets;
#[path = "cluster/crashes.rs"]
mod crashes;
#[path = "cluster/peers.rs"]
mod peers;
