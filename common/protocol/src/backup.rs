//! Backups of the metadata: an operator has the metadata server see everything at one index of its
//! log, and fetches the bytes a piece at a time.
//!
//! What the bytes are is the server's business; who fetches them compares checksums and keeps them.

use millrace_types::{ByteLen, Crc32c, Failure, LogIndex};
use rkyv::{Archive, Deserialize, Serialize};

/// Begins a backup, or asks how far it is: the same number again is the same backup.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PrepareBackup {
    /// A number that the caller drew.
    pub backup: u64,
}

/// How far a backup is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct BackupReply {
    /// Where it stands.
    pub state: BackupState,
    /// Bytes that are there; all of them once it is ready.
    pub size: ByteLen,
    /// The last command of the log that it shows; 0 until it is ready.
    pub index: LogIndex,
    /// The checksum of all bytes, once it is ready.
    pub checksum: Crc32c,
}

/// Where a backup stands. One that is ready and not read for a minute is forgotten.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum BackupState {
    /// The server is at it.
    Preparing,
    /// It can be read.
    Ready,
    /// It came to nothing.
    Failed(Failure),
}

/// Reads a part of a backup that is ready; the bytes are the reply's body.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReadBackup {
    /// Which.
    pub backup: u64,
    /// Where the part begins.
    pub offset: u64,
    /// Bytes wanted, 1 to [`BACKUP_PIECE_MAX`]; there are fewer only at the end.
    pub len: u32,
}

/// The most bytes of one piece.
pub const BACKUP_PIECE_MAX: u32 = 1 << 20;

/// What the body holds.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct BackupPiece {
    /// The checksum of the body.
    pub checksum: Crc32c,
}
