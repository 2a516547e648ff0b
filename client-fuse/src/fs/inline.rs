//! Small files whose bytes live in their inode: which ones are published so, and what is read of
//! them.
//!
//! A file has its bytes there from its publication on, or never, and until somebody writes it: then
//! the server has brought them to the targets before, under another write epoch.

use std::ops::Range;

use bytes::Bytes as Shared;
use millrace_protocol::metadata::Attributes;
use millrace_types::{ErrorKind, Failure};

use crate::fs::{
    FileSystem, REFRESH_PAUSE, REFRESHES_MAX,
    file::{File, State},
    handle::FileHandle,
};

/// The bytes of a file that live in its inode, as far as this mount has them.
#[derive(Clone, Debug)]
pub(crate) enum InInode {
    /// All of them, and at least one.
    Here(Vec<u8>),
    /// So many, at the server: the file was opened by what was kept of it, and most who open a file
    /// again read what the kernel still has.
    Elsewhere(u64),
}

impl InInode {
    /// What an answer has shown with these attributes; no bytes are those that did not come along,
    /// and were `held` before.
    pub(super) fn new(bytes: Vec<u8>, shown: &Attributes, held: Option<Self>) -> Self {
        match (bytes.is_empty(), held) {
            (false, _) => Self::Here(bytes),
            (true, Some(held)) => held,
            (true, None) => Self::Elsewhere(shown.size),
        }
    }

    /// How many bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Here(bytes) => bytes.len() as u64,
            Self::Elsewhere(len) => *len,
        }
    }

    /// They, if they are here.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Here(bytes) => Some(bytes),
            Self::Elsewhere(_) => None,
        }
    }
}

/// Where the bytes of a file are that is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bytes {
    /// At the targets, as far as they have acknowledged them.
    AtTargets,
    /// In its inode, if all of them are here and it may hold them.
    InInode,
}

impl FileSystem {
    /// Whether all that was written of a file is here, and goes to the server alone.
    pub(crate) fn fits_inode(&self, handle: &FileHandle) -> bool {
        fits(&handle.file.state())
    }

    /// Returns when it is known whether the bytes of a file live in its inode.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub(super) async fn settle_inline(&self, file: &File) -> Result<(), Failure> {
        let is_unknown = file.state().is_inline_unknown();
        if is_unknown { self.settle_file(file).await } else { Ok(()) }
    }

    /// Returns when the bytes are here that live in a file's inode, or are known to be at the
    /// targets.
    ///
    /// # Errors
    /// What the server answers; [`ErrorKind::PermissionDenied`] when it gives no right to them;
    /// [`ErrorKind::Stale`] when what it shows stays older than what is
    /// known.
    pub(super) async fn bring_inline(&self, file: &File) -> Result<(), Failure> {
        let is_elsewhere = || matches!(file.state().inline, Some(InInode::Elsewhere(_)));
        if !is_elsewhere() {
            return Ok(());
        }
        self.bring_contents(file).await;
        let viewed = file.state().viewed;
        // They may have come of a question that somebody asked before this read began.
        if !is_elsewhere() && self.names.content_stands(file.inode, viewed) {
            return Ok(());
        }
        for attempt in 0..REFRESHES_MAX {
            if attempt > 0 {
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            let has_right = self.refresh_shown(file).await?;
            match is_elsewhere() {
                false => return Ok(()),
                true if !has_right => {
                    let text = "no right to the content";
                    return Err(Failure::new(ErrorKind::PermissionDenied, text));
                }
                // The answer was older than what is known.
                true => {}
            }
        }
        Err(Failure::new(ErrorKind::Stale, "the server does not show the file's bytes"))
    }

    /// Tells the server of a file with its bytes, if all of them are here and it may have them in
    /// its inode; otherwise does nothing.
    ///
    /// # Errors
    /// As [`Self::settle`]; what was written is still here, unless the server refuses the file.
    pub(super) async fn publish_inline(&self, file: &File) -> Result<(), Failure> {
        if !fits(&file.state()) {
            return Ok(());
        }
        let _one_at_a_time = file.commit.lock().await;
        self.publish(file, Bytes::InInode).await
    }
}

/// All that was written of a file, where that may live in its inode.
pub(super) fn inline_bytes(state: &State) -> Option<Vec<u8>> {
    if !fits(state) {
        return None;
    }
    state.buffer.read_covered(&(0..state.buffer.end()))
}

/// Whether nothing of a file is at a target, all of it is here, and its inode may hold that.
fn fits(state: &State) -> bool {
    let Some(unpublished) = &state.unpublished else { return false };
    let (end, most) = (state.buffer.end(), u64::from(unpublished.inline_bytes_max));
    let is_here = state.stored.acknowledgements == 0 && !state.buffer.has_flights();
    let is_whole = state.buffer.held_bytes() == end && state.attributes.size == end;
    is_here && is_whole && (1..=most).contains(&end)
}

/// A part of the bytes in an inode. Where they end and the file does not, it has zeros.
pub(super) fn cut(inline: &[u8], range: &Range<u64>) -> Shared {
    let at = |offset: u64| usize::try_from(offset).map_or(inline.len(), |at| at.min(inline.len()));
    let mut bytes = inline[at(range.start)..at(range.end)].to_vec();
    bytes.resize(usize::try_from(range.end - range.start).unwrap_or(usize::MAX), 0);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_cut_and_filled_with_zeros() {
        assert_eq!(cut(b"0123", &(1..3))[..], *b"12");
        assert_eq!(cut(b"0123", &(0..4))[..], *b"0123");
        assert_eq!(cut(b"0123", &(2..6))[..], *b"23\0\0");
        assert_eq!(cut(b"0123", &(7..9))[..], *b"\0\0");
        assert!(cut(b"0123", &(2..2)).is_empty());
    }
}
