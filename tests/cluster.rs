//! Whole clusters of real processes: crashes, refusals, limits.

#[path = "cluster/added_targets.rs"]
mod added_targets;
#[path = "cluster/ahead.rs"]
mod ahead;
#[path = "cluster/auto_export.rs"]
mod auto_export;
#[path = "cluster/backup.rs"]
mod backup;
#[path = "cluster/bad_input.rs"]
mod bad_input;
#[path = "cluster/bucket_away.rs"]
mod bucket_away;
#[path = "cluster/buckets.rs"]
mod buckets;
#[path = "cluster/changes.rs"]
mod changes;
#[path = "cluster/clouds.rs"]
mod clouds;
#[path = "cluster/crashes.rs"]
mod crashes;
#[path = "cluster/exactly_once.rs"]
mod exactly_once;
#[path = "cluster/export_to.rs"]
mod export_to;
#[path = "cluster/failing_disk.rs"]
mod failing_disk;
#[path = "cluster/flaws.rs"]
mod flaws;
#[path = "cluster/flood.rs"]
mod flood;
#[path = "cluster/full_disk.rs"]
mod full_disk;
#[path = "cluster/hostile.rs"]
mod hostile;
#[path = "cluster/interrupted_export.rs"]
mod interrupted_export;
#[path = "cluster/interrupts.rs"]
mod interrupts;
#[path = "cluster/issued_keys.rs"]
mod issued_keys;
#[path = "cluster/job_options.rs"]
mod job_options;
#[path = "cluster/killed_jobs.rs"]
mod killed_jobs;
#[path = "cluster/lost_power.rs"]
mod lost_power;
#[path = "cluster/lost_target.rs"]
mod lost_target;
#[path = "cluster/operator.rs"]
mod operator;
#[path = "cluster/patience.rs"]
mod patience;
#[path = "cluster/peers.rs"]
mod peers;
#[path = "cluster/publish.rs"]
mod publish;
#[path = "cluster/reclaim.rs"]
mod reclaim;
#[path = "cluster/resolve_several.rs"]
mod resolve_several;
#[path = "cluster/restricted.rs"]
mod restricted;
#[path = "cluster/room.rs"]
mod room;
#[path = "cluster/secrets.rs"]
mod secrets;
#[path = "cluster/service_manager.rs"]
mod service_manager;
#[path = "cluster/signals.rs"]
mod signals;
#[path = "cluster/targets.rs"]
mod targets;
#[path = "cluster/two_mounts.rs"]
mod two_mounts;
#[path = "cluster/unwritten.rs"]
mod unwritten;
