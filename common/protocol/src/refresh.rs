//! Links whose directories the metadata server lists again by itself.

use millrace_types::{LinkId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::admin::PathBytes;

/// Sets how often the listed directories of a link are listed again though nobody looks.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetRefreshInterval {
    /// The link's directory, from the root.
    pub path: PathBytes,
    /// Seconds from the beginning of one round to that of the next: from
    /// [`REFRESH_INTERVAL_SECONDS_MIN`] to [`REFRESH_INTERVAL_SECONDS_MAX`]. `None`: never.
    pub every_seconds: Option<u32>,
}

/// The shortest interval.
pub const REFRESH_INTERVAL_SECONDS_MIN: u32 = 10;

/// The longest interval: thirty days.
pub const REFRESH_INTERVAL_SECONDS_MAX: u32 = 30 * 86_400;

/// Asks which links are listed again by themselves.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListRefreshIntervals {}

/// Those links; of [`SetRefreshInterval`], only that link, if it is one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RefreshIntervalsReply {
    /// Ascending by link.
    pub links: Vec<RefreshInterval>,
}

/// How one link is listed again. All but the first two is since the metadata server began to run.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RefreshInterval {
    /// The link.
    pub link: LinkId,
    /// Seconds from round to round.
    pub every_seconds: u32,
    /// Whether a round is under way.
    pub running: bool,
    /// When the last whole round ended.
    pub ended: Option<Timestamp>,
    /// Directories that rounds have listed.
    pub directories: u64,
    /// Directories that could not be listed.
    pub failed: u64,
    /// Why the last of these could not.
    pub failure: Option<String>,
}
