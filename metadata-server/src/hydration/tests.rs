//! Hydration over an in-memory store with the real apply, a real directory as the bucket, and
//! targets that hold whole files in memory.

mod again;
mod ahead;
mod auto_export;
mod away;
mod by_state;
mod conflict_rule;
mod conflicts;
mod copies;
mod deletions;
mod exports;
mod file_lists;
mod import_filters;
mod imports;
mod intervals;
mod job_options;
mod jobs;
mod late_uploads;
mod left_behind;
mod left_out;
mod marks;
mod moved;
mod permissions;
mod publish;
mod refresh;
mod removal;
mod report_to;
mod requests;
mod retries;
mod server;
mod sweep;
mod symlinks;
mod transfers;
mod trials;
mod turns;
mod walks;
