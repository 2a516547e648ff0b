//! Hydration over an in-memory store with the real apply, a real directory as the bucket, and
//! targets that hold whole files in memory.

mod ahead;
mod auto_export;
mod conflicts;
mod exports;
mod imports;
mod jobs;
mod late_uploads;
mod moved;
mod permissions;
mod refresh;
mod removal;
mod server;
mod transfers;
