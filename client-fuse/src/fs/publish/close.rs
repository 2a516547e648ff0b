//! Closes of files that the server does not know of: most are over with the file's publication, for
//! which no task of their own waits.
//!
//! ```text
//!   close ─▶ the file waits for the next message ─▶ made ─▶ the program goes on
//!                 │ 20 ms                            └─ more to do, or refused ─┐
//!                 └──────────────────────────────────────────▶ a task of its own
//! ```
//!
//! A task for each costs more than all the rest, where many files are made: it is large, and the
//! thread that runs it is woken for it.

use std::{
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
};

use millrace_protocol::delegation::NewFile;
use millrace_types::{ErrorKind, Failure};
use tokio::{
    runtime::Handle,
    sync::{OwnedMutexGuard, oneshot},
};

use crate::fs::{
    FileSystem,
    handle::{FileHandle, Occasion},
    inline::Bytes,
    publish::{
        Telling,
        publisher::{Published, Waiter, Waiting},
        sender::Sender,
    },
};

/// A program that waits for the end of its close.
pub(crate) trait Close: Send + std::fmt::Debug {
    /// Everything that it waits for is done.
    fn done(self: Box<Self>);

    /// It goes on as a close by itself once `published` is there; for a failure it is over then.
    fn go_on(self: Box<Self>, published: Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>);
}

/// A close of which the server hears with the file.
#[derive(Debug)]
pub(crate) struct Begun {
    fs: Arc<FileSystem>,
    handle: Arc<FileHandle>,
    told: Telling,
    request: NewFile,
    /// Of the file's `commit`.
    one_at_a_time: OwnedMutexGuard<()>,
}

/// The same, of which the server is told.
#[derive(Debug)]
pub(super) struct Closing {
    fs: Arc<FileSystem>,
    handle: Arc<FileHandle>,
    told: Telling,
    one_at_a_time: OwnedMutexGuard<()>,
    close: Box<dyn Close>,
}

impl FileSystem {
    /// Begins the close of a file that the server does not know of, where it may be over with that;
    /// nothing where bytes go to the targets first, another commit is on its way, there is a
    /// failure to tell, or the server takes long to answer.
    pub(crate) fn begin_close(self: &Arc<Self>, handle: &Arc<FileHandle>) -> Option<Begun> {
        if self.publisher.is_slow() {
            return None;
        }
        let file = &handle.file;
        let one_at_a_time = Arc::clone(&file.commit).try_lock_owned().ok()?;
        let bytes = if self.fits_inode(handle) {
            Bytes::InInode
        } else if self.holds_bytes(handle) {
            return None;
        } else {
            Bytes::AtTargets
        };
        handle.check_told(Occasion::Close).ok()?;
        let (told, request) = self.begin_telling(file, bytes)?;
        let (fs, handle) = (Arc::clone(self), Arc::clone(handle));
        Some(Begun { fs, handle, told, request, one_at_a_time })
    }
}

impl Begun {
    /// Has the server told; messages are sent from the runtime of its connection, `names`.
    pub(crate) fn tell(self, close: Box<dyn Close>, names: &Handle) {
        let Self { fs, handle, told, request, one_at_a_time } = self;
        let this = Arc::clone(&fs);
        let closing = Closing { fs, handle, told, one_at_a_time, close };
        let waiter = Waiter::Close(Box::new(closing));
        if this.publisher.put(Waiting { file: request, waiter }) {
            names.spawn(Sender::new(this).run());
        }
    }
}

impl Closing {
    /// This became of the file.
    pub(super) fn end(self, made: Published) {
        let Self { fs, handle, told, one_at_a_time, close } = self;
        let made = match made {
            Ok(made) => made,
            Err(failure) => {
                return close.go_on(Box::pin(async move {
                    let _one_at_a_time = one_at_a_time;
                    fs.handle_published(&handle.file, told, Err(failure)).await
                }));
            }
        };
        let accepted = fs.handle_made_here(&handle.file, told, made);
        drop(one_at_a_time);
        if accepted.is_ok() && fs.is_settled(&handle) {
            return close.done();
        }
        close.go_on(Box::pin(ready(accepted)));
    }

    /// From here on a task waits, which hears from what this returns.
    pub(super) fn by_itself(self) -> oneshot::Sender<Published> {
        let Self { fs, handle, told, one_at_a_time, close } = self;
        let (answer, answered) = oneshot::channel();
        close.go_on(Box::pin(async move {
            let _one_at_a_time = one_at_a_time;
            let made = answered.await.unwrap_or_else(|_| Err(ErrorKind::Internal.into()));
            fs.handle_published(&handle.file, told, made).await
        }));
        answer
    }
}
