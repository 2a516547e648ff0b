//! The wire: what the parts of Millrace say to each other, as bytes.
//!
//! Owns every message, its number, the frame around it and the versions of all of these. It opens
//! no socket and reads no clock, so that it can be fuzzed and compared with golden bytes. A peer's
//! bytes are untrusted: decoding never panics, and what it returns is bounded.
//!
//! Modules, in reading order: [`version`], [`frame`], [`codec`], [`kind`] (all requests in one
//! table), `messages` (what else is sent), [`session`], [`same_host`], [`capability`],
//! [`metadata`], [`lease`], [`delegation`], [`access`], [`lock`], [`cluster`], [`storage`],
//! [`target`], [`release`], [`admin`], [`selection`], [`job_options`], [`job_waits`], [`by_state`],
//! [`known_state`], [`upkeep`], [`loss`], [`bucket`], [`left_out`], [`refresh`], [`requests`],
//! [`ahead`], [`fsck`], [`backup`], [`control`].

pub mod access;
pub mod admin;
pub mod ahead;
pub mod backup;
pub mod bucket;
pub mod by_state;
pub mod capability;
pub mod cluster;
pub mod codec;
pub mod control;
pub mod delegation;
pub mod file_list;
pub mod frame;
pub mod fsck;
pub mod job_detail;
pub mod job_options;
pub mod job_waits;
pub mod kind;
pub mod known_state;
pub mod lease;
pub mod left_out;
pub mod lock;
pub mod loss;
mod messages;
pub mod metadata;
pub mod refresh;
pub mod release;
pub mod requests;
pub mod same_host;
pub mod selection;
pub mod session;
pub mod storage;
pub mod tallied;
pub mod target;
pub mod unused;
pub mod upkeep;
pub mod version;

pub use codec::Message;
pub use kind::{Request, RequestKind};
