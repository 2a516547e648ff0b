//! Snapshots: the store's whole contents at exactly one index of the command log, as a file.
//!
//! With a snapshot, a store that is made anew does not need the log from its beginning, and the
//! segments below the older of the two that are kept are removed. A backup is a file of the same
//! format without the signing keys.
//!
//! Invariants: a snapshot has its name only when its bytes, and the log up to its index, are on
//! stable storage; a file with a name is never changed; nothing of the log above the older of the
//! two newest snapshots is ever removed. What the keys and values mean is not this module's
//! business.
//!
//! Modules, in reading order: [`mod@format`] (bytes), [`run`] (one index seen while the store goes
//! on), [`writer`] (the file), [`kept`] (those that there are), [`load`] (into a store).

pub mod format;
pub mod kept;
pub mod load;
pub mod run;
pub mod writer;
