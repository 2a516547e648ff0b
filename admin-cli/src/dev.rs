//! A whole cluster of real daemons on this machine, under one directory D.
//!
//! ```text
//! D/authority.pem, admin.pem      the cluster's authority and the operator's identity
//! D/dev.toml                      ports, targets and mounts: what `dev up` made (see `plan`)
//! D/admin.toml                    settings of this CLI; `--dir D` reads it
//! D/client.toml, client.pem       settings and identity of mounts; `mount --dir D` reads them
//! D/lock                          held by the one `dev` command at work
//! D/<daemon>/<role>.toml          settings; named on the daemon's command line
//! D/<daemon>/identity.pem         certificate and key
//! D/<daemon>/data/                what it stores
//! D/<daemon>/daemon.log           its log
//! D/<daemon>/daemon.pid           its process id, and nothing else; daemon.start: when it started
//! ```
//!
//! `<daemon>` is `metadata`, `target-0`, `target-1`, ..., `mount-0`, ... A daemon that runs is
//! found by its process id and checked by its start time and command line, so that a number that
//! the kernel gave to another process is never signalled. Settings files are written anew by each
//! `dev up`; data and identities are never touched again, nor are ports once it has served.

pub(crate) mod daemon;
pub(crate) mod directory;
pub(crate) mod health;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod lost;
pub(crate) mod mount;
pub(crate) mod plan;
pub(crate) mod process;
