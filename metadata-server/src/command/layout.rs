//! What new files in a directory get.

use millrace_protocol::session::Caller;
use millrace_types::InodeId;
use rkyv::{Archive, Deserialize, Serialize};

use crate::namespace::LayoutDefaults;

/// Sets what new files in a directory get.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetDefaults {
    /// For whom.
    pub caller: Caller,
    /// The directory.
    pub directory: InodeId,
    /// What they get.
    pub defaults: LayoutDefaults,
}
