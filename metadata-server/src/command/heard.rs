//! What a command means to those who do not have it executed: how soon clients hear of what it
//! changes, and whether others wait for it.

use super::Command;

impl Command {
    /// Whether what it changes may be seen late: then nothing is taken back for it that clients
    /// keep.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        matches!(self, Self::NoteReads(_))
    }

    /// Whether all that it does is to end something that a client had: where the server does so by
    /// itself, others may wait for that, also on a full disk. What frees chunks of targets is left
    /// out: of that there may be much. The start of a run, which ends what was known before it, is
    /// logged in front of all of them.
    #[must_use]
    pub fn only_ends(&self) -> bool {
        matches!(
            self,
            Self::BeginRun(_)
                | Self::CloseSession(_)
                | Self::CloseWrite(_)
                | Self::CloseWrites { .. }
                | Self::CloseUnwritten { .. }
                | Self::DropReader(_)
                | Self::Trimmed { .. }
        )
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
                | Self::ForgetSaved(_)
                | Self::DropDirectory(_)
        )
    }
}
