//! What a program's `close` waits for.

use std::sync::Arc;

use millrace_fuse_server::{Call, Done, Reply, protocol::open::Flush};
use millrace_types::Failure;

use crate::{
    fs::{FileSystem, handle::FileHandle},
    fuse::{Adapter, answer::Owed, convert::errno},
};

impl Adapter {
    pub(super) fn answer_flush(&self, call: &Call<'_>, flush: Flush, reply: Reply<Done>) {
        let handle = match self.fs.handle(flush.handle) {
            Ok(handle) => handle,
            Err(failure) => return reply.fail(errno(&failure)),
        };
        let has_locks = self.fs.has_process_locks(handle.file.inode, flush.lock_owner);
        if !has_locks && self.fs.is_settled(&handle) {
            return reply.done();
        }
        if !has_locks && handle.writers.is_bystander(call.pid) {
            self.fs.flush_aside(handle);
            return reply.done();
        }
        let owed = Owed::interruptible(call, reply);
        if self.fs.holds_bytes(&handle) && !self.fs.fits_inode(&handle) {
            self.run_flush(handle, flush.lock_owner, owed);
        } else {
            let work = commit(Arc::clone(&self.fs), Arc::clone(&handle), flush.lock_owner);
            self.run(owed.answer_telling(handle, work));
        }
    }

    /// Bytes go out from the runtime of the targets' connections, what commits them from that of
    /// the metadata server's: each step where the one before it has ended.
    fn run_flush(&self, handle: Arc<FileHandle>, lock_owner: u64, owed: Owed<Done>) {
        let (fs, requests, names) =
            (Arc::clone(&self.fs), self.requests.clone(), self.names.clone());
        self.run_on_bytes(async move {
            let owed = owed.keep_until(fs.flush_file(&handle.file)).await;
            let Some(owed) = owed else {
                // Nobody hears what comes of it: a failure is left for the next occasion. Who gets
                // a lock next sees what was written under it.
                drop(fs.commit(&handle.file, false).await);
                return fs.end_process_locks(handle.file.inode, lock_owner).await;
            };
            let work = commit(fs, Arc::clone(&handle), lock_owner);
            drop(requests.spawn_on(owed.answer_telling(handle, work), &names));
        });
    }
}

/// What is left of a `close` once the bytes are with the targets.
async fn commit(
    fs: Arc<FileSystem>,
    handle: Arc<FileHandle>,
    lock_owner: u64,
) -> Result<(), Failure> {
    let flushed = fs.flush(&handle).await;
    fs.end_process_locks(handle.file.inode, lock_owner).await;
    flushed
}
