//! What every daemon needs besides its job: settings, logs, metrics, readiness, a clean end.
//!
//! Owns how the four programs are configured, observed and stopped, so that they all behave alike.
//! It knows no daemon's settings, metrics or protocol (but for the names of tables of settings, and
//! the options of a mount, which two programs read), opens no connection to another part, and is
//! never on a data path.
//!
//! Modules, in reading order: [`daemon`] (the skeleton of a `main`), [`config`], [`address`],
//! [`cluster`], [`control_socket`], [`duration`], [`mount_options`], [`telemetry`], [`metrics`],
//! [`systemd`], [`processors`].

pub mod address;
pub mod cluster;
pub mod config;
pub mod control_socket;
pub mod daemon;
pub mod duration;
pub mod metrics;
pub mod mount_options;
pub mod processors;
pub mod systemd;
pub mod telemetry;
