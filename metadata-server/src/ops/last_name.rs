//! What is about to lose its last name, and for whom it stays.

use millrace_types::{ErrorKind, Failure, FileName, InodeId, SessionId};

use super::Client;
use crate::{
    command::Opener,
    engine::Core,
    namespace::{Body, Inode},
};

/// An inode whose last name a command is about to take.
#[derive(Debug)]
pub(super) struct Losing {
    inode: InodeId,
    /// Who reads it, or may.
    reading: Vec<SessionId>,
    /// The name, and who may be about to open the file, of one.
    late: Option<((InodeId, FileName), Vec<SessionId>)>,
}

impl Losing {
    /// What is to be known for it before the command; nothing of an inode with other names.
    pub(super) fn of(
        core: &Core,
        inode: &Inode,
        (directory, name): (InodeId, &FileName),
    ) -> Option<Self> {
        if inode.links != 1 {
            return None;
        }
        let name = (directory, name.clone());
        let keepers = core.readers.late.keepers(&name, core.now());
        let is_file = matches!(inode.body, Body::File(_));
        let late = is_file.then_some((name, keepers));
        Some(Self { inode: inode.id, reading: core.readers.of(inode.id), late })
    }

    /// For whom it stays without names, for the command.
    pub(super) fn readers(&self) -> Vec<SessionId> {
        let late = self.late.iter().flat_map(|(_, keepers)| keepers);
        let mut readers: Vec<_> = self.reading.iter().chain(late).copied().collect();
        readers.sort_unstable();
        readers.dedup();
        readers
    }

    /// The command is executed.
    pub(super) fn handle_lost(self, core: &mut Core) {
        if let Some((name, keepers)) = self.late {
            let now = core.now();
            core.readers.late.handle_gone(self.inode, name, keepers, now);
        }
    }
}

/// As [`Client::enter`], of what a program's open has found by its name: the kernel looks at it,
/// and opens it. If it is gone, what has that name next is kept. Not for a client that is
/// restricted to a directory: nobody can say any more whether this lay there, nor what will.
///
/// # Errors
/// As [`Client::enter`].
pub(super) fn enter_found(
    core: &mut Core,
    client: &Client,
    Opener { session, inode }: Opener,
) -> Result<Inode, Failure> {
    let entered = client.enter(core, inode);
    let is_gone = entered.as_ref().is_err_and(|failure| failure.kind == ErrorKind::Stale);
    if is_gone && client.subtree.is_none() {
        let now = core.now();
        core.readers.late.handle_missed(inode, session, now);
    }
    entered
}
