//! The storage target daemon: chunks on the local disks of one host, and their way between disk,
//! network and bucket.
//!
//! Owns chunks and nothing else: it knows neither names nor directories, and believes only what the
//! metadata server has signed or sent. A byte whose checksum does not match is never handed out,
//! and a byte that is gone is an error, never zero.
//!
//! ```text
//!   clients ──▶ server ──▶ daemon ──▶ store ──▶ volume ──▶ disk
//!   metadata ─▶   (wire)   (answers)    │  └──▶ hydration ──▶ bucket
//!                             ▲         │
//!   metadata ◀── member ──▶ cluster     └──▶ format (bytes on disk)
//! ```
//!
//! Modules, in reading order: [`settings`], [`format`](mod@format), [`disk`], [`index`],
//! [`journal`], [`space`], [`volume`] (the engine on these), `page_checksum`, `parts` (what each
//! byte of a read is), `view` (a chunk as a capability describes it), `release` (making room),
//! `hydration`, `store` (one target), `cluster`, `links`, `sessions`, `daemon` (the answers),
//! `server` (the wire), `addresses` (where others reach it), `member` (heartbeats), `changed`
//! (objects that are not what they were), `background` (turns of fetches that nobody waits for),
//! `misses` (reads that waited), `noted` (what it and `changed` have in common), `shares` (what
//! each may hold of something), `metrics`, [`run`](mod@run). Beside them the offline tools, which
//! use [`format`](mod@format) and the walk of [`index`] alone: [`image`] (a target's bytes, opened
//! for reading), [`verify`] and [`dump`].

pub mod disk;
pub mod dump;
pub mod format;
pub mod image;
pub mod index;
pub mod journal;
pub mod run;
pub mod settings;
pub mod space;
pub mod verify;
pub mod volume;

mod addresses;
mod background;
mod changed;
mod cluster;
mod daemon;
mod hydration;
mod links;
#[cfg(test)]
#[path = "../tests/power/loop_device.rs"]
mod loop_device;
mod member;
mod metrics;
mod misses;
mod noted;
mod page_checksum;
mod parts;
mod release;
mod server;
mod sessions;
mod shares;
mod store;
mod view;

pub use metrics::exported_names;
pub use run::{Running, StartError, run};
pub use settings::{BucketSettings, ReleaseTable, ScrubTable, Settings, TargetSettings};
