//! Hydration over an in-memory store with the real apply, a real directory as the bucket, and
//! targets that hold whole files in memory.

mod conflicts;
mod exports;
mod imports;
mod jobs;
mod moved;
mod permissions;
mod refresh;
mod removal;
mod server;
mod transfers;
