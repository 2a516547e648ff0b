//! One file for each command (for the four that start a job one together): it asks, and prints the
//! answer. Nothing is decided here that a server
//! could decide.

mod auto_export;
pub(crate) mod cluster_init;
pub(crate) mod cluster_invite;
pub(crate) mod conflicts_list;
pub(crate) mod dev_down;
pub(crate) mod dev_status;
pub(crate) mod dev_up;
mod fetch_policy;
mod file_list;
pub(crate) mod fsck;
pub(crate) mod job_cancel;
pub(crate) mod job_list;
pub(crate) mod job_report;
pub(crate) mod job_retry;
pub(crate) mod job_show;
pub(crate) mod link_add;
pub(crate) mod link_check;
pub(crate) mod link_left_out;
pub(crate) mod link_list;
pub(crate) mod link_remove;
mod link_requests;
pub(crate) mod link_set;
pub(crate) mod link_uploads;
pub(crate) mod metadata_backup;
pub(crate) mod metadata_restore;
pub(crate) mod mount;
pub(crate) mod pin;
mod plain_http;
mod preview;
mod propagation;
mod refresh_interval;
mod removal;
pub(crate) mod resolve;
pub(crate) mod start_job;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod stripe_set;
pub(crate) mod stripe_show;
pub(crate) mod target_add;
pub(crate) mod target_drain_check;
pub(crate) mod target_list;
pub(crate) mod target_lost;
pub(crate) mod target_scrub;
pub(crate) mod target_show;
pub(crate) mod umount;
