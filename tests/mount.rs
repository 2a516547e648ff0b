//! The file system as programs see it, through the kernel.

#[path = "mount/access_times.rs"]
mod access_times;
#[path = "mount/alternation.rs"]
mod alternation;
#[path = "mount/appends.rs"]
mod appends;
#[path = "mount/bare.rs"]
mod bare;
#[path = "mount/capacity.rs"]
mod capacity;
#[path = "mount/closes.rs"]
mod closes;
#[path = "mount/coherence.rs"]
mod coherence;
#[path = "mount/copies.rs"]
mod copies;
#[path = "mount/cut_off.rs"]
mod cut_off;
#[path = "mount/delegations.rs"]
mod delegations;
#[path = "mount/directories.rs"]
mod directories;
#[path = "mount/inline.rs"]
mod inline;
#[path = "mount/locks.rs"]
mod locks;
#[path = "mount/mapped.rs"]
mod mapped;
#[path = "mount/nodes.rs"]
mod nodes;
#[path = "mount/options.rs"]
mod options;
#[path = "mount/owners.rs"]
mod owners;
#[path = "mount/posix.rs"]
mod posix;
#[path = "mount/processors.rs"]
mod processors;
#[path = "mount/programs.rs"]
mod programs;
#[path = "mount/promises.rs"]
mod promises;
#[path = "mount/quiet_opens.rs"]
mod quiet_opens;
#[path = "mount/ranges.rs"]
mod ranges;
#[path = "mount/shared_directory.rs"]
mod shared_directory;
#[path = "mount/streams.rs"]
mod streams;
#[path = "mount/syncs.rs"]
mod syncs;
#[path = "mount/system.rs"]
mod system;
#[path = "mount/truncated.rs"]
mod truncated;
#[path = "mount/twin.rs"]
mod twin;
#[path = "mount/two_mounts.rs"]
mod two_mounts;
#[path = "mount/unnamed.rs"]
mod unnamed;
#[path = "mount/users.rs"]
mod users;
