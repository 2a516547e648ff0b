//! Access to buckets: `s3://` through object_store, `gs://` and `az://` with its credentials,
//! `file://` through the local file system.
//!
//! Owns how a link's URL becomes requests: addresses, credentials, signatures, limits, retries,
//! timeouts, and the translation of every answer into an [`Error`]. It never decides what is
//! imported or exported, knows no inode and no chunk, and keeps no data.
//!
//! Invariants: bytes handed out by [`Bucket::get_range`] are of the version that was asked for, and
//! those of [`Bucket::get_whole`] match the bucket's checksum too, where it has one; an object
//! appears whole or not at all, and only while the [`Condition`] holds; that one is gone is the
//! bucket's own word ([`Bucket::look`]); a secret is never in a message or a log line; every wait
//! ends.
//!
//! Modules, in reading order: [`LinkSpec`] (`link`), [`Bucket`] (`bucket`), `object` (the nouns),
//! `attributes`, `s3`, `google`, `azure`, `directory`; what those share: `web`, `transport`, `tls`,
//! `metered`, `collect`, `listing`, `parts`, `digest`, `temporary`, `trial`; `credentials`,
//! `limits`, `pace`, `counters`, `tally`.

mod attributes;
mod azure;
mod bucket;
mod buckets;
mod collect;
mod counters;
mod credentials;
mod digest;
mod directory;
mod error;
mod google;
mod limits;
mod link;
mod listing;
mod metered;
mod object;
mod pace;
mod parts;
mod s3;
mod settings;
mod tally;
mod temporary;
mod tls;
mod transport;
mod trial;
mod web;

pub use attributes::{EXPORT_ID_KEY, PosixAttributes, StoredSymlink};
pub use bucket::{Bucket, RangeBody};
pub use buckets::Buckets;
pub use counters::{Counters, RequestClass};
pub use digest::{HeldPart, Md5Sum, PartDigest};
pub use error::Error;
pub use link::{ANONYMOUS, LinkSpec, Location};
pub use object::{
    BegunUpload, Condition, Continuation, Entry, EntryKind, Head, KEY_LEN_MAX, LEFT_OUT_MAX,
    LeftOut, LeftOutReason, Metadata, ObjectVersion, PARTS_MAX, Page, PartPlace, Stored, Tag,
    UploadId, UploadedPart, UploadsPage, WHOLE_LEN_MAX,
};
pub use settings::Settings;
pub use tally::{Tally, tallied};
pub use trial::{Trial, Untried};
