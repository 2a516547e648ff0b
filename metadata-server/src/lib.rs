//! The metadata server: owns the namespace, layouts, sessions, the cluster map, links and jobs.
//!
//! It never sees file data, except small files that live in their inodes. Every change is a
//! [`command`], appended to the [`log`] (the only commit point) and then [`apply`]-ed to the
//! [`store`], which is derived state. One thread owns all of it ([`engine`]); everything else asks
//! that thread.
//!
//! Modules, in reading order: [`command`], [`namespace`], [`store`], [`apply`], [`log`], [`engine`].

#![expect(
    missing_debug_implementations,
    reason = "rkyv derives an archived twin of every record; those are never printed"
)]

pub mod apply;
pub mod command;
pub mod log;
pub mod namespace;
pub mod store;
