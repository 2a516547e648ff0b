//! The end of what sessions have open, in commands of bounded size.
//!
//! What has no name goes with its last open, and is queued then for up to every target of its pool.
//! All that one session keeps so, or all that the sessions of a backup do, may be more than fits
//! into memory as the changes of one command.

use millrace_types::{InodeId, SessionId};

use crate::{
    command::{BATCH_MAX, Command, Opener},
    store::records::OpenRecord,
};

/// Inodes whose opens end in one command: over the most targets of a cluster some 131,000 entries
/// of their queues.
pub(super) const OPENS_MAX: usize = 256;

/// The commands that end opens of one session, as its end does.
pub(super) fn ends(session: SessionId, opens: &[(InodeId, OpenRecord)]) -> Vec<Command> {
    let each = opens.iter().flat_map(|&(inode, open)| (0..open.writes).map(move |_| inode));
    let writes: Vec<InodeId> = each.collect();
    let closes = writes
        .chunks(BATCH_MAX)
        .map(|inodes| Command::CloseWrites { session, inodes: inodes.to_vec() });
    let readers = opens.iter().filter(|(_, open)| open.reads);
    let drops = readers.map(|&(inode, _)| Command::DropReader(Opener { session, inode }));
    closes.chain(drops).collect()
}
