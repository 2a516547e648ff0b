//! Storage targets: which there are, whether they answer, and the map that tells everybody.
//!
//! What must survive (targets, groups, addresses) is changed by commands; what heartbeats tell
//! (health, use) is kept here in memory.
//!
//! Modules: [`liveness`] (one target), [`registry`] (all of them), [`map`] (the cluster map),
//! [`peers`] (connections to their daemons), [`trims`] (what shrinks ask of them), [`spills`] (what
//! they take over from inodes), [`upkeep`] (what operators ask of them), [`losses`] (those that
//! will not come back), `fate` (what becomes of a file then).

mod fate;
pub mod liveness;
pub mod losses;
pub mod map;
pub mod peers;
pub mod registry;
pub mod spills;
pub mod trims;
pub mod upkeep;

pub use registry::Registry;
