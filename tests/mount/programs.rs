//! Ordinary programs on the mount.

#[path = "programs/copies.rs"]
mod copies;
#[path = "programs/databases.rs"]
mod databases;
#[path = "programs/processes.rs"]
mod processes;
#[path = "programs/sources.rs"]
mod sources;
#[path = "programs/trees.rs"]
mod trees;
