//! The metadata server: owns the namespace, layouts, sessions, the cluster map, links and jobs.
//!
//! It never sees file data, except small files that live in their inodes. Every change is a
//! [`command`], appended to the [`log`] (the only commit point) and then [`apply`]-ed to the
//! [`store`], which is derived state. One thread owns all of it ([`engine`]); everything else asks
//! that thread.
//!
//! Modules, in reading order: [`command`], [`namespace`], [`store`], [`apply`], [`files`], [`log`],
//! [`snapshot`], [`engine`], [`sessions`], [`leases`], [`locks`], [`written`], [`targets`],
//! [`capability`], [`ops`], [`hydration`], [`server`], [`daemon`], [`settings`], [`metrics`],
//! [`memory`].

pub mod apply;
pub mod capability;
pub mod command;
pub mod consistency;
pub mod daemon;
pub mod engine;
pub mod files;
pub mod hydration;
pub mod leases;
pub mod locks;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod namespace;
pub mod ops;
pub mod reconcile;
pub mod server;
pub mod sessions;
pub mod settings;
pub mod snapshot;
pub mod store;
pub mod targets;
pub mod written;
