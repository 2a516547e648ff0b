//! How soon clients hear of what a command changes.

use super::Command;

impl Command {
    /// Whether what it changes may be seen late: then nothing is taken back for it that clients
    /// keep.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        matches!(self, Self::NoteReads(_))
    }

    /// Whether it has files follow their bucket, or decides which version of one stays: whoever had
    /// it executed waits until the next open of anybody shows that.
    #[must_use]
    pub fn follows_bucket(&self) -> bool {
        matches!(
            self,
            Self::ImportEntries(_)
                | Self::ObserveObject(_)
                | Self::ResolveConflict(_)
                | Self::ForgetEntries(_)
                | Self::DropDirectory(_)
        )
    }
}
