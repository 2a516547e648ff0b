//! The harness of the tests that run real programs: clusters, buckets, mounts.
//!
//! Owns processes, mounts and temporary directories, and takes all of them down again, also when a
//! test fails. Talks to a cluster only as a user does: through the `millrace` program, through the
//! mount and through the bucket. Never links server code.

pub mod azurite;
pub mod bucket;
pub mod chance;
pub mod cloud;
pub mod cluster;
pub mod daemon;
pub mod delegated;
pub mod disk;
pub mod figures;
pub mod google;
pub mod hostile;
pub mod issuer;
pub mod program;
pub mod proxy;
pub mod requests;
pub mod starter;
pub mod stranger;
