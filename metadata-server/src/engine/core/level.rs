//! The feature level, and what a new file system begins with because of it.

use millrace_protocol::{metadata::INLINE_BYTES_MAX, session::Caller};
use millrace_types::InodeId;

use super::{Core, file_system};
use crate::{
    apply::{FEATURE_LEVEL, FIRST_LEVEL},
    command::{Command, SetDefaults},
    engine::startup::StartError,
    namespace::{LayoutDefaults, tree},
};

impl Core {
    /// A program that does not know what may be there must not go on with it.
    pub(super) fn check_feature_level(&self) -> Result<(), StartError> {
        let found = file_system(self.view())?.feature_level;
        if found > FEATURE_LEVEL {
            return Err(StartError::NewerLevel { found, known: FEATURE_LEVEL });
        }
        Ok(())
    }

    /// An older log goes on with the behaviour of this program; what it has stays as it was.
    pub(super) fn raise_feature_level(&mut self) {
        match self.file_system() {
            Ok(file_system) if file_system.feature_level < FEATURE_LEVEL => {
                let (from, to) = (file_system.feature_level, FEATURE_LEVEL);
                if from == FIRST_LEVEL && file_system.inodes == 1 {
                    self.begin_inline();
                }
                match self.execute(None, Command::SetFeatureLevel(to)) {
                    Ok(_) => tracing::info!(from, to, "the feature level is raised"),
                    // It goes on as before, and the next start tries again.
                    Err(error) => tracing::warn!(%error, "cannot raise the feature level"),
                }
            }
            _ => {}
        }
    }

    /// Small files of a new file system live in their inodes.
    fn begin_inline(&mut self) {
        let root = match tree::inode(self.view(), InodeId::ROOT) {
            Ok(root) => root,
            Err(error) => return tracing::warn!(%error, "cannot read the root"),
        };
        let Ok(root) = root.directory() else { return };
        let defaults = LayoutDefaults { inline_bytes_max: INLINE_BYTES_MAX, ..root.defaults };
        let set = SetDefaults { caller: Caller::ROOT, directory: InodeId::ROOT, defaults };
        if let Err(error) = self.execute(None, Command::SetDefaults(set)) {
            tracing::warn!(%error, "small files do not live in their inodes");
        }
    }
}
