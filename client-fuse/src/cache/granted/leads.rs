//! Names that the kernel may have of an inode.

use std::collections::HashMap;

use millrace_types::{FileName, InodeId};

use super::Leave;

/// Where the kernel may find inodes, and until when, at latest.
#[derive(Debug, Default)]
pub(super) struct Leads {
    of: HashMap<InodeId, Vec<Lead>>,
    /// At how many inodes those are looked for that are over.
    sweep_at: usize,
}

#[derive(Debug)]
struct Lead {
    directory: InodeId,
    name: FileName,
    until: Leave,
}

/// Below so many inodes nothing is swept.
const SWEEP_MIN: usize = 256;

/// Names of one inode: whoever lists thousands of links to it has them looked through each time.
const NAMES_MAX: usize = 64;

impl Leads {
    /// The kernel may find `inode` under this name until then; `false` where as many names of it
    /// are remembered as may be.
    pub(super) fn note(
        &mut self,
        inode: InodeId,
        (directory, name): (InodeId, &FileName),
        (now, until): (Leave, Leave),
    ) -> bool {
        let leads = self.of.entry(inode).or_default();
        leads.retain(|lead| lead.until > now);
        let is_it = |lead: &Lead| lead.directory == directory && lead.name == *name;
        match leads.iter().position(is_it) {
            Some(at) => leads[at].until = leads[at].until.max(until),
            None if leads.len() >= NAMES_MAX => return false,
            None => leads.push(Lead { directory, name: name.clone(), until }),
        }
        if self.of.len() > self.sweep_at.max(SWEEP_MIN) {
            self.of.retain(|_, leads| leads.iter().any(|lead| lead.until > now));
            self.sweep_at = 2 * self.of.len();
        }
        true
    }

    /// The names under which the kernel may find it.
    pub(super) fn of(&self, inode: InodeId, now: Leave) -> Vec<(InodeId, FileName)> {
        let leads = self.of.get(&inode).into_iter().flatten();
        let current = leads.filter(|lead| lead.until > now);
        current.map(|lead| (lead.directory, lead.name.clone())).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }
}
