//! The storage target: chunks on the local disks of one host.

pub mod disk;
pub mod engine;
pub mod format;
mod parts;
