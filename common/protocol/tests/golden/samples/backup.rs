//! Messages about backups of the metadata.

use millrace_protocol::backup::{BackupPiece, BackupReply, BackupState, PrepareBackup, ReadBackup};
use millrace_types::{ByteLen, Crc32c, LogIndex};

use super::{Sample, pair};

pub(super) fn all() -> Vec<Sample> {
    let reply = BackupReply {
        state: BackupState::Ready,
        size: ByteLen(0x0102_0304_0506),
        index: LogIndex(77),
        checksum: Crc32c(0x1122_3344),
    };
    let read = ReadBackup { backup: 0x0a0b_0c0d_0e0f, offset: 1 << 33, len: 1 << 20 };
    [
        pair(&PrepareBackup { backup: 0x0a0b_0c0d_0e0f }, &reply),
        pair(&read, &BackupPiece { checksum: Crc32c(0x5566_7788) }),
    ]
    .into_iter()
    .flatten()
    .collect()
}
