//! What a program's `close` waits for.

use std::{pin::Pin, sync::Arc};

use millrace_fuse_server::{Call, Done, Reply, protocol::open::Flush};
use millrace_types::Failure;
use tokio::runtime::Handle;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    fs::{
        FileSystem,
        handle::{FileHandle, Occasion},
        locks::Key,
        publish::close::Close,
    },
    fuse::{Adapter, answer::Owed, convert::errno},
};

impl Adapter {
    pub(super) fn answer_flush(&self, call: &Call<'_>, flush: Flush, reply: Reply<Done>) {
        let handle = match self.fs.handle(flush.handle) {
            Ok(handle) => handle,
            Err(failure) => return reply.fail(errno(&failure)),
        };
        let inode = handle.file.inode;
        let locks = self.fs.process_locks(inode, flush.lock_owner);
        if locks.is_none() && self.fs.is_settled(&handle) {
            return reply.done();
        }
        if locks.is_none() && handle.writers.is_bystander(call.pid) {
            self.fs.flush_aside(handle);
            return reply.done();
        }
        if locks.is_none()
            && let Some(begun) = self.fs.begin_close(&handle)
        {
            let owed = Owed::interruptible(call, reply);
            let counted = self.requests.token();
            let (fs, names) = (Arc::clone(&self.fs), self.names.clone());
            let close = Closing { owed, fs, handle, names, counted };
            return begun.tell(Box::new(close), &self.names);
        }
        let owed = match locks {
            Some(key) => Owed::closing(call, reply, &self.fs, (inode, flush.lock_owner, key)),
            None => Owed::interruptible(call, reply),
        };
        let locks = locks.map(|key| Locks { number: flush.handle, owner: flush.lock_owner, key });
        if self.fs.holds_bytes(&handle) && !self.fs.fits_inode(&handle) {
            self.run_flush(handle, locks, owed);
        } else {
            let work = commit(Arc::clone(&self.fs), Arc::clone(&handle), locks);
            self.run(owed.answer_telling(handle, Occasion::Close, work));
        }
    }

    /// Bytes go out from the runtime of the targets' connections, what commits them from that of
    /// the metadata server's: each step where the one before it has ended.
    fn run_flush(&self, handle: Arc<FileHandle>, locks: Option<Locks>, owed: Owed<Done>) {
        let (fs, requests, names) =
            (Arc::clone(&self.fs), self.requests.clone(), self.names.clone());
        self.run_on_bytes(async move {
            let owed = owed.keep_until(fs.flush_file(&handle.file)).await;
            let Some(owed) = owed else {
                // Nobody hears what comes of it: a failure is left for the next occasion. Who gets
                // a lock next sees what was written under it.
                drop(fs.commit(&handle.file, false).await);
                return end(&fs, &handle, locks).await;
            };
            let work = commit(fs, Arc::clone(&handle), locks);
            drop(requests.spawn_on(owed.answer_telling(handle, Occasion::Close, work), &names));
        });
    }
}

/// A close that is over when the server knows of its file, unless there is more to do.
#[derive(Debug)]
struct Closing {
    owed: Owed<Done>,
    fs: Arc<FileSystem>,
    handle: Arc<FileHandle>,
    names: Handle,
    /// As one that the mount's end waits for.
    counted: TaskTrackerToken,
}

impl Close for Closing {
    fn done(self: Box<Self>) {
        self.owed.tell_close(&self.handle, Ok(()));
    }

    fn go_on(
        self: Box<Self>,
        published: Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>,
    ) {
        let Self { owed, fs, handle, names, counted } = *self;
        let flushed = Arc::clone(&handle);
        let work = async move {
            published.await?;
            fs.flush(&flushed).await
        };
        drop(names.spawn(async move {
            let _counted = counted;
            owed.answer_telling(handle, Occasion::Close, work).await;
        }));
    }
}

/// Locks that end with a close.
#[derive(Clone, Copy, Debug)]
struct Locks {
    /// The open file.
    number: u64,
    /// The process, for the kernel.
    owner: u64,
    key: Key,
}

/// What is left of a `close` once the bytes are with the targets.
async fn commit(
    fs: Arc<FileSystem>,
    handle: Arc<FileHandle>,
    locks: Option<Locks>,
) -> Result<(), Failure> {
    let flushed = fs.flush(&handle).await;
    end(&fs, &handle, locks).await;
    flushed
}

async fn end(fs: &FileSystem, handle: &FileHandle, locks: Option<Locks>) {
    if let Some(Locks { number, owner, key }) = locks {
        fs.end_process_locks(number, handle.file.inode, owner, key).await;
    }
}
