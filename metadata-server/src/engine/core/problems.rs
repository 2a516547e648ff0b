//! What an operator has to know of the engine itself: why it takes no changes, or soon will not.

use millrace_types::ByteLen;

use super::Core;

impl Core {
    /// Why nothing can be changed, if so.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_ref().map(|failure| failure.message.as_str())
    }

    /// Whether changes are refused: until there is room, until the store is made anew, or until the
    /// server is started again.
    #[must_use]
    pub fn takes_no_changes(&self) -> bool {
        self.broken.is_some() || self.log.is_stopped() || !self.room.is_enough()
    }

    /// What is wrong with the engine, its disk and its clock, in sentences.
    #[must_use]
    pub fn own_problems(&self) -> Vec<String> {
        let dir = self.settings.dir.display();
        let mut problems = Vec::new();
        problems.extend(self.broken().map(str::to_owned));
        if self.log.is_stopped() {
            problems.push(format!(
                "the command log cannot be written, and nothing is changed any more: look at the \
                 disk of {dir}, then restart the metadata server"
            ));
        }
        if !self.room.is_enough() {
            problems.push(format!(
                "the disk of {dir} has less than {} free: changes get ENOSPC until there is room",
                ByteLen(self.room.reserve())
            ));
        }
        problems.extend(self.snapshots.problem(self.now()));
        problems.extend(self.clock.problem());
        problems
    }
}
