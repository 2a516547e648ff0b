//! Bytes that lived in an inode, which the metadata server hands over before somebody writes there.

use bytes::Bytes;
use millrace_protocol::{
    capability::SYSTEM_SESSION,
    metadata::INLINE_BYTES_MAX,
    target::{ContentName, StoreInline, StoreInlineReply},
};
use millrace_types::{BlockState, ByteLen, ChunkIndex, Crc32c, ErrorKind, Failure, WriteNumber};

use super::Daemon;
use crate::{
    view::ChunkView,
    volume::{Authority, WriteRequest},
};

impl Daemon {
    /// Stores them durably, as all that there is of the content, and refuses its write epoch from
    /// then on. So a request that comes late, when somebody has written since, changes nothing.
    pub(crate) async fn store_inline(
        &self,
        request: StoreInline,
    ) -> Result<StoreInlineReply, Failure> {
        let StoreInline { target, group_epoch, content, bytes } = request;
        let content = content.checked()?;
        let most = usize::try_from(INLINE_BYTES_MAX).unwrap_or(usize::MAX);
        if bytes.is_empty() || bytes.len() > most {
            return Err(Failure::new(ErrorKind::InvalidArgument, "no inode holds so many bytes"));
        }
        self.cluster.check_may_write()?;
        let first = ChunkIndex(0);
        self.cluster.check_group(target, &content.layout, first, group_epoch).await?;
        let store = self.store(target)?.clone();
        let view = ChunkView::new(&content, first);
        let len = ByteLen(u64::try_from(bytes.len()).expect("16 KiB at most"));
        let cluster = self.cluster.clone();
        let write = WriteRequest {
            key: view.key,
            offset: 0,
            checksum: Crc32c::of(&bytes),
            body: vec![Bytes::from(bytes)],
            group_epoch,
            write_epoch: view.write_epoch,
            chunk_size: view.chunk_size,
            backed: view.backed,
            session: SYSTEM_SESSION,
            number: WriteNumber(0),
            authority: Authority::new(move || cluster.may_write()),
        };
        let name = ContentName { inode: content.inode, generation: content.generation };
        let chunk_size = content.layout.chunk_size().bytes();
        let stored = async {
            let volume = store.volume();
            // Nothing else is there from now on: what its maker may have sent, or what is left of a
            // time before a backup was put back.
            volume.trim(name, chunk_size, 0, content.write_epoch).await?;
            match store.write(&view, write, true).await {
                Ok(_) => {}
                // An earlier request has brought them, and somebody may have written since.
                Err(failure) if failure.kind == ErrorKind::StaleEpoch => {
                    if volume.snapshot(view.key, 0..1).await?.state(0) == BlockState::Absent {
                        return Err(failure);
                    }
                }
                Err(failure) => return Err(failure),
            }
            volume.trim(name, chunk_size, len.0, content.write_epoch.next()).await?;
            Ok(StoreInlineReply { stored: len })
        };
        self.counters.note_failure(stored.await)
    }
}
